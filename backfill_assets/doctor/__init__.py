"""Finds what does not agree in a warehouse, and repairs what is safe to repair."""
