"""The demo: real flights whose re-delivered files doubled four days, and the backfill that puts it right."""
