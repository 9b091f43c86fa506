"""Assets downstream of published tables, as any reader's own project could have them."""
