"""The only room that knows folders and files."""
