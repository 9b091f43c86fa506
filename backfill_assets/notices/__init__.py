"""Notices to people, and the follow-up of releases."""
