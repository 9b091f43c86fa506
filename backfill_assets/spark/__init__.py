"""One Spark Connect server per warehouse and user, and sessions that can be cancelled.

Import from its modules: this one stays empty of imports, because the watcher beside the server
must not carry Spark's client in its memory.
"""
