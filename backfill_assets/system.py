"""Time, ids and identity: ports and their implementations. No other module asks the operating system for them."""

from __future__ import annotations

import datetime as dt
import os
import pwd
import secrets
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Time as a port."""

    def now(self) -> dt.datetime:
        """The present moment, aware, in UTC."""
        ...


class Ids(Protocol):
    """Identifiers as a port."""

    def new(self, prefix: str) -> str:
        """A fresh identifier that sorts by time and is a safe name, such as `u_20261121_101500_3f9a2c`."""
        ...


class Identity(Protocol):
    """The current user as a port."""

    def name(self) -> str:
        """The user's name as the configured source gives it."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> dt.datetime:
        """The present moment, aware, in UTC."""
        return dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class TimedIds:
    """Identifiers that sort by creation time."""

    clock: Clock

    def new(self, prefix: str) -> str:
        """A fresh identifier such as `u_20261121_101500_3f9a2c`."""
        return f"{prefix}_{self.clock.now():%Y%m%d_%H%M%S}_{secrets.token_hex(3)}"


class SystemUser:
    """Identity as the operating system gives it."""

    def name(self) -> str:
        """The login name of the user that this process runs as."""
        # Not getpass: it trusts $LOGNAME, and an approver must not be able to choose their name.
        try:
            return pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            return str(os.geteuid())
