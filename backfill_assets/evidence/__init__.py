"""Connects building and releasing: what the evidence of a day is based on, and what a unit is missing."""
