"""Spark and Delta: the only room that talks to tables."""
