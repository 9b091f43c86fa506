"""The demo: real flights whose re-delivered files doubled four days, and the backfill that corrects it."""
