"""The pure heart: what a safe backfill is, in data and functions; imports only the standard library and pydantic."""
