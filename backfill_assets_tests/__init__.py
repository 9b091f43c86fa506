"""Tests: unit (no JVM), spark, dagster and ui."""
