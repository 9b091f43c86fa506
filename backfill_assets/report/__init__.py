"""All that speaks for and against a unit, as data, page and metrics."""
