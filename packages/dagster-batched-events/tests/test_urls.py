"""A URL of Postgres that cannot be read is refused, and no part of a password is shown."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from dagster_batched_events import UnreadableUrlError
from dagster_batched_events.postgres import BatchedPostgresStorage

SECRET = "T0SECRET"


@pytest.mark.parametrize(
    "config",
    [
        {"postgres_url": f"postgresql+psycopg2://me:a@{SECRET}@localhost/d"},
        {"postgres_url": f"postgresql+psycopg2://me:{SECRET}"},
        {"postgres_url": f"postgresql+psycopg2://me@localhost:{SECRET}/d"},
        {"postgres_url": f"postgresql+nobody://me:{SECRET}@localhost/d"},
        {"postgres_url": f"me:{SECRET}@localhost"},
        {
            "postgres_db": {
                "username": "me",
                "password": SECRET,
                "hostname": "a@b",
                "db_name": "d",
                "scheme": "postgresql+psycopg2",
            }
        },
    ],
    ids=["an @ in the password", "no host", "a port of letters", "an unknown driver", "no URL", "parts of a URL"],
)
def test_a_url_that_cannot_be_read_is_refused_and_never_shown(config: dict[str, Any]) -> None:
    with pytest.raises(UnreadableUrlError, match="cannot be read; write postgresql") as refused:
        BatchedPostgresStorage.from_config_value(None, config)
    assert SECRET not in "".join(traceback.format_exception(refused.value)) + repr(refused.value)
