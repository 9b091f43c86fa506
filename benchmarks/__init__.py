"""Measures the whole pipeline on TPC-H: `make bench`."""
