"""Limits that a function of the program tells, out of whatever place it likes.

It takes nothing and returns entries, or the flat tables of a limits file as dicts. It is called
every few seconds, in a thread. When it raises, the limits stay as they are.
"""

import time
from collections.abc import Callable, Iterable

from sluicegate.errors import ConfigError
from sluicegate.quota.central.sources.source import Limits, NotEditable
from sluicegate.quota.ledger.entry import Entry, read_tables

__all__ = ["FunctionLimits"]


class FunctionLimits:
    """What `function` returns, asked again every `every` seconds."""

    is_editable = False

    def __init__(
        self,
        function: Callable[[], Limits],
        *,
        every: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"the function {getattr(function, '__qualname__', None) or repr(function)}"
        self._function = function
        self._every = every
        self._clock = clock

    def __repr__(self) -> str:
        return f"FunctionLimits({self.name}, every={self._every:g} s)"

    def load(self) -> tuple[list[Entry], list[str]]:
        try:
            return read_tables(self._function())
        except Exception as error:
            # It is the program's own, and may raise what it likes: that must not stop us.
            raise ConfigError(f"{self.name} failed: {error!r}") from error

    def stamp(self) -> object:
        return self._clock() // self._every

    def put(self, entry: Entry) -> None:
        raise self._refusal()

    def remove(self, service: str, user: str) -> bool:
        raise self._refusal()

    def replace(self, entries: Iterable[Entry]) -> None:
        raise self._refusal()

    def _refusal(self) -> NotEditable:
        return NotEditable(
            f"the limits come from {self.name}: change them where it takes them from"
        )

    def close(self) -> None:
        pass
