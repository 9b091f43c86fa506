"""Helpers to test dataset folders, here and in projects that use this package."""
