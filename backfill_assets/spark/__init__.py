"""One Spark Connect server per warehouse and user, and sessions that can be cancelled.

Import from its modules: this one has no imports, so that the watcher of the server does not hold Spark's client in memory.
"""
