"""Use cases: what a user can ask for, in terms of the domain and its ports."""
