"""Backs up the ledger with the tables that cannot be built again, and restores them. Needs no Spark."""
