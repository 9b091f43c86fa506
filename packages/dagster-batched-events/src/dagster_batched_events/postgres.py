"""Dagster's Postgres storage with events that are written in batches, and connections that are asked; extra `postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from dagster._serdes import ConfigurableClassData
from dagster_postgres import (
    DagsterPostgresStorage,
    PostgresEventLogStorage,
    PostgresRunStorage,
    PostgresScheduleStorage,
)
from dagster_postgres.utils import get_token_provider_from_config, pg_url_from_config
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DisconnectionError

from dagster_batched_events.batches import BatchedEvents
from dagster_batched_events.urls import require_readable


class _Asked:
    """A storage whose webserver asks a connection that it kept before it uses it.

    Otherwise the first launch or page after Postgres was restarted is answered by an error of a connection that is gone.
    """

    _engine: Engine

    def optimize_for_webserver(self, statement_timeout: int, pool_recycle: int, max_overflow: int) -> None:
        """Keep connections open, as Dagster's storage does."""
        super().optimize_for_webserver(statement_timeout, pool_recycle, max_overflow)  # type: ignore[misc]
        dialect = self._engine.dialect

        @event.listens_for(self._engine, "checkout")
        def ask(connection: Any, _record: object, _proxy: object) -> None:
            try:
                dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error as error:
                raise DisconnectionError from error  # the pool takes a new one


class AskedPostgresRunStorage(_Asked, PostgresRunStorage):
    """Dagster's Postgres run storage."""


class AskedPostgresScheduleStorage(_Asked, PostgresScheduleStorage):
    """Dagster's Postgres schedule storage."""


class BatchedPostgresEventLogStorage(_Asked, BatchedEvents, PostgresEventLogStorage):
    """Dagster's Postgres event log, same tables, with many events at once."""

    def _connect(self) -> AbstractContextManager[Connection]:
        self.flush()
        return super()._connect()


class BatchedPostgresStorage(DagsterPostgresStorage):
    """Dagster's Postgres storage with the batched event log; under `storage: custom:` in dagster.yaml."""

    def __init__(self, postgres_url: str, *, should_autocreate_tables: bool = True, **options: Any) -> None:
        # Dagster makes its own three storages here, which ask the database for its tables: once is enough.
        super().__init__(postgres_url, should_autocreate_tables=False, **options)
        self.should_autocreate_tables = should_autocreate_tables
        how = (postgres_url, self.should_autocreate_tables)
        token = options.get("token_provider")
        self._run_storage = AskedPostgresRunStorage(*how, token_provider=token)
        self._event_log_storage = BatchedPostgresEventLogStorage(*how, token_provider=token)
        self._schedule_storage = AskedPostgresScheduleStorage(*how, token_provider=token)

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedPostgresStorage:
        """The storage as configured in dagster.yaml; the keys are those of `storage: postgres:`.

        Raises:
            UnreadableUrlError: the URL cannot be read; the message never shows it.
        """
        return cls(
            require_readable(pg_url_from_config(config_value)),
            should_autocreate_tables=config_value.get("should_autocreate_tables", True),
            inst_data=inst_data,
            token_provider=get_token_provider_from_config(config_value),
        )
