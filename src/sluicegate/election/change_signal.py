"""`ChangeSignal`: wakes up the tasks that wait for a change of what an election knows.

Some changes come with a message, others with the clock alone: a deadline passes, and nobody says
so. Therefore those who wait look again at the time of the next such change.
"""

import asyncio
import math
from collections.abc import Callable

from sluicegate.election.election import boottime

__all__ = ["ChangeSignal"]

_MAX_WAIT = 3600.0  # seconds; the timers of an event loop have a limit


class ChangeSignal:
    """`view` returns what is watched, `next_change` the time at which the clock may change it."""

    def __init__(
        self, view: Callable[[], object], next_change: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._view = view
        self._next_change = next_change
        self._last = view()
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Wake up all that wait if the view has changed since the last check."""
        view = self._view()
        if view != self._last:
            self._last = view
            self._changed.set()
            self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next change after the call."""
        self.check()  # what has changed before the call does not count
        changed = self._changed
        while not changed.is_set():
            seconds = min(max(self._next_change() - boottime(), 0.0), _MAX_WAIT)
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                self.check()
