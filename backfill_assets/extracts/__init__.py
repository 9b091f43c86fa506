"""Extracts: rows of databases and other sources become files in the sources folder."""
