"""Measures the complete pipeline on TPC-H: `make bench`."""
