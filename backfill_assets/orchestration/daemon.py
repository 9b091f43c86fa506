"""A Dagster daemon that checks backfills every two seconds instead of every thirty.

`make demo` and `make bench` use it; `dagster dev` starts Dagster's own. Run it as
`python -m backfill_assets.orchestration.daemon run -m backfill_assets.definitions`, with the options of `dagster-daemon`.
Dagster 1.13 has no setting for that interval, neither in dagster.yaml nor in the environment. On a small instance the
check is cheap, and a backfill of one chunk ends half a minute sooner. The scheduler, the sensors and the run queue have
settings of their own.
"""

from __future__ import annotations

from dagster._daemon import controller  # the one place where Dagster keeps the interval
from dagster._daemon.cli import main

BACKFILL_INTERVAL_SECONDS = 2
STOCK_INTERVAL_SECONDS = controller.DEFAULT_DAEMON_INTERVAL_SECONDS
"""How often `dagster dev` and `dagster-daemon` check."""

if __name__ == "__main__":
    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = BACKFILL_INTERVAL_SECONDS
    main()
