"""Dagster's Postgres storage with events that are written in batches; needs the extra `postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage, PostgresEventLogStorage
from dagster_postgres.utils import get_token_provider_from_config, pg_url_from_config
from sqlalchemy import Connection

from backfill_assets.domain.errors import SettingsError
from backfill_assets.ledger.database import readable_url
from backfill_assets.orchestration.storage.batches import BatchedEvents


class BatchedPostgresEventLogStorage(BatchedEvents, PostgresEventLogStorage):
    """Dagster's Postgres event log, same tables, with many events at once."""

    def _connect(self) -> AbstractContextManager[Connection]:
        self.flush()
        return super()._connect()


class BatchedPostgresStorage(DagsterPostgresStorage):
    """Dagster's Postgres storage with the batched event log; under `storage: custom:` in dagster.yaml."""

    def __init__(self, postgres_url: str, *args: Any, **options: Any) -> None:
        super().__init__(postgres_url, *args, **options)
        self._event_log_storage = BatchedPostgresEventLogStorage(
            postgres_url, self.should_autocreate_tables, token_provider=options.get("token_provider")
        )

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> BatchedPostgresStorage:
        """The storage as configured in dagster.yaml; the keys are those of `storage: postgres:`.

        Raises:
            SettingsError: the URL cannot be read; the message never shows it.
        """
        return cls(
            _readable(pg_url_from_config(config_value)),
            should_autocreate_tables=config_value.get("should_autocreate_tables", True),
            inst_data=inst_data,
            token_provider=get_token_provider_from_config(config_value),
        )


def _readable(url: str) -> str:
    if readable_url(url) is None:
        raise SettingsError(
            "the URL of Dagster's database (storage in dagster.yaml, BACKFILL_ASSETS_DAGSTER_URL; not shown: it may hold a "
            "password) cannot be read; write postgresql://user:password@host/database, with special characters of the password "
            "percent-encoded"
        )
    return url
