"""Measures the whole road on TPC-H: `make bench`."""
