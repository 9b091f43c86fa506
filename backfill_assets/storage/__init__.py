"""Access to folders and files; no other package touches them."""
