"""What a correction is: backfill.yaml, its plan, its phases, its gate."""
