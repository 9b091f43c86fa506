"""The same inputs give the same rows."""
