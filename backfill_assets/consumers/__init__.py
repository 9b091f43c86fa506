"""Example assets downstream of published tables, as a reader's own project could define them."""
