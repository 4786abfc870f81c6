"""The time, real or in your hand.

Every class that has to do with time takes `clock=`. Left out, the time is read
in compiled code and costs no Python call. A clock of your own needs `now()`, in
seconds, that should not go back; `sleep(s)` and `sleep_async(s)` only where
something waits on it; and `wall()`, in Unix time, only where the wall clock and
`now()` differ. `ManualClock` is all of these in one, for tests and simulations:

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.sleep(0.5)
    >>> clock.now()
    2.0
"""

import heapq
import itertools
import math
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clock", "ManualClock", "SystemClock"]

_QUIET_PASSES = 20


@runtime_checkable
class Clock(Protocol):
    """What `clock=` takes."""

    def now(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...
    async def sleep_async(self, seconds: float, /) -> None: ...


class SystemClock:
    """The machine's clocks: `now()` is monotonic, `wall()` is Unix time."""

    __slots__ = ()

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        import asyncio  # takes longer than all the rest, and whoever awaits this has it already

        await asyncio.sleep(seconds)

    def __repr__(self) -> str:
        return "SystemClock()"


class ManualClock:
    """A clock that moves only when it is told to: monotonic and wall time in one.

    `sleep` moves it. In `sleep_async`, tasks wake in the order of their times, as
    they would in real time: when for some passes of the event loop nobody has gone
    to sleep or woken up, the clock moves to the earliest of these times. (For one
    event loop at a time.) `advance` with a negative number steps it back, as an
    operator or NTP may do to a wall clock.
    """

    __slots__ = ("_elapsed", "_mover", "_order", "_sleepers", "_start")

    def __init__(self, start: float = 0.0) -> None:
        if not math.isfinite(start):
            raise ValueError(f"start must be a finite number of seconds, got {start!r}")
        self._start = float(start)
        self._elapsed = 0.0  # apart from the start, so that small steps add up exactly
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._mover: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        return self._start + self._elapsed

    def advance(self, seconds: float) -> None:
        if not math.isfinite(seconds):
            raise ValueError(f"a clock can advance by a finite number of seconds, got {seconds!r}")
        self._elapsed += seconds

    def sleep(self, seconds: float) -> None:
        self.advance(_not_negative(seconds))

    async def sleep_async(self, seconds: float) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        wake_at = self._elapsed + _not_negative(seconds)
        heapq.heappush(self._sleepers, (wake_at, next(self._order), woken))
        if self._mover is not loop:
            self._mover = loop
            # Those of an earlier loop that was closed over them will never wake.
            self._sleepers = [one for one in self._sleepers if not one[2].get_loop().is_closed()]
            heapq.heapify(self._sleepers)
            loop.call_soon(self._move, loop, None, 0)
        await woken

    def _move(
        self, loop: "asyncio.AbstractEventLoop", last_seen: object, quiet_passes: int
    ) -> None:
        """Once per pass of the loop while anyone sleeps: wake who is due, or move the clock."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)  # cancelled
        if not self._sleepers:
            self._mover = None
            return
        seen = (self._elapsed, len(self._sleepers), self._sleepers[0])
        quiet_passes = quiet_passes + 1 if seen == last_seen else 0
        if quiet_passes == _QUIET_PASSES:
            self._elapsed = max(self._elapsed, self._sleepers[0][0])
        if self._elapsed >= self._sleepers[0][0]:
            heapq.heappop(self._sleepers)[2].set_result(None)
        loop.call_soon(self._move, loop, seen, quiet_passes)

    def __repr__(self) -> str:
        return f"ManualClock(now={self.now():g})"


def _not_negative(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"sleep takes finite seconds >= 0, got {seconds!r}")
    return seconds
