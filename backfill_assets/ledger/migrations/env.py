"""How Alembic runs here: on the connection, and in the transaction, that the opening of the ledger holds."""

from __future__ import annotations

from alembic import context

from backfill_assets.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
