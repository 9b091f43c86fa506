"""Stores units, claims, attempts, evidence, releases, campaigns and locks; the only package that knows SQL."""
