"""Releases: publish, roll back, reconcile, sweep, and everything that tells what readers see and saw."""
