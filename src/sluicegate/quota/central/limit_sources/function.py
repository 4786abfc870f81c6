"""`FunctionLimits`: a limits source that calls a function of the program.

The function takes no arguments and returns entries, or the flat tables of a limits file as dicts.
It is called every few seconds, in a thread. When it raises, the limits are unchanged.
"""

import time
from collections.abc import Callable, Iterable

from sluicegate.errors import ConfigError
from sluicegate.quota.central.limit_sources.source import Limits, NotEditable
from sluicegate.quota.ledger.limit_entry import Entry, read_tables

__all__ = ["FunctionLimits"]


class FunctionLimits:
    """The entries that `function` returns, called again every `every` seconds."""

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
            # Code of the program may raise anything: that must not stop the central.
            raise ConfigError(f"{self.name} failed: {error!r}") from error

    def version_token(self) -> object:
        return self._clock() // self._every

    def put(self, entry: Entry) -> None:
        raise self._not_editable()

    def remove(self, service: str, user: str) -> bool:
        raise self._not_editable()

    def replace(self, entries: Iterable[Entry]) -> None:
        raise self._not_editable()

    def _not_editable(self) -> NotEditable:
        return NotEditable(
            f"limits source is read-only: {self.name}; change the limits where it reads them"
        )

    def close(self) -> None:
        pass
