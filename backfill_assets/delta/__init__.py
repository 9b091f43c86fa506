"""The only room that knows Delta logs."""
