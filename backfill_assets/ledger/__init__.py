"""The only room that knows SQL: units, claims, attempts, evidence, releases, campaigns and locks."""
