"""Proving: what a reviewer needs to say yes or no: certificates, golden sources, the review of a unit."""
