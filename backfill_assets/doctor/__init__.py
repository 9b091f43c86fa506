"""What does not agree, and what can be fixed."""
