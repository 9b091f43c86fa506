"""The console script `backfill`: thin commands around the use cases."""
