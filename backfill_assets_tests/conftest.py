"""Fixtures and rules that all tests share."""

from __future__ import annotations

from backfill_assets_tests.skips import pytest_sessionfinish, pytest_terminal_summary

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary"]
