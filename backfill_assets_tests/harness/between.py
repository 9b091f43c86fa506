"""Wraps a port of a use case: something happens before or after chosen calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

Port = TypeVar("Port")
Happens = Callable[[str], None]


class Died(BaseException):
    """The process is dead: no code in it handles this."""


class _Between:
    def __init__(self, port: object, calls: Collection[str], before: Happens, after: Happens) -> None:
        self.__dict__.update(_port=port, _calls=frozenset(calls), _before=before, _after=after)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in self._calls:
            return found

        def call(*args: object, **options: object) -> object:
            self._before(name)
            answer = found(*args, **options)
            self._after(name)
            return answer

        return call

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._port, name, value)


def dies_at(*names: str) -> Happens:
    """Die at the first of these calls or steps."""

    def die(name: str) -> None:
        if name in names:
            raise Died

    return die


def nothing(_call: str) -> None:
    """Continue."""


def between(port: Port, calls: Collection[str], *, before: Happens = nothing, after: Happens = nothing) -> Port:
    """The same port; `before` and `after` are called with these calls."""
    return cast("Port", _Between(port, calls, before, after))
