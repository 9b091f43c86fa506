"""A project of a user: the files that it begins with."""
