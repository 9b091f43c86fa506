"""Reads and writes Delta logs; the only package that knows them."""
