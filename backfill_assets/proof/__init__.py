"""Proves that the same inputs give the same rows."""
