"""A Postgres server of the tests' own with role, databases and variables as in docs/postgres.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, text

from backfill_assets_tests.dagster.lab import ROOT
from backfill_assets_tests.harness import postgres

CONFIG = ROOT / "deploy" / "postgres" / "dagster.yaml"
LEDGER, DAGSTER = "BACKFILL_ASSETS_LEDGER_URL", "BACKFILL_ASSETS_DAGSTER_URL"


@contextmanager
def documented_urls() -> Iterator[dict[str, str]]:
    """A server with role and databases as the document makes them; gives the document's variables for this server."""
    document = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
    (statements,) = re.findall(r"^```sql\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    documented = dict(re.findall(r"^export (\w+)='(.*)'$", document, re.MULTILINE))
    assert documented.keys() == {LEDGER, DAGSTER}
    with postgres.cluster() as superuser:
        engine = create_engine(superuser, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements.strip().split(";\n"):
                connection.execute(text(statement.rstrip(";")))
        engine.dispose()
        socket = superuser.partition("?")[2]
        yield {name: url.replace("@localhost/", "@/") + f"?{socket}" for name, url in documented.items()}
