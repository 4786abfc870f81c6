"""`sluicegate demo dispatch`: clients that ask for three times what two workers can answer.

For the first quarter they ask for half of it. The clients make their calls by the clock, whatever
becomes of them; what came of each is counted by the second (`dispatch_tally.py`).

`DispatchDemo` runs it, `report` returns the result as data, `dispatch_screen.py` draws it.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from sluicegate.demo.dispatch_fleet import QUEUE, WORKERS, DispatchFleet
from sluicegate.demo.dispatch_handler import BATCH, batch_seconds
from sluicegate.demo.dispatch_tally import (
    ANSWERED,
    OTHER,
    REFUSED,
    TIMED_OUT,
    Second,
    Tally,
    checks,
    paused,
)
from sluicegate.demo.pauses import PauseLog, PauseMeter, Span
from sluicegate.demo.quota import StopFlag
from sluicegate.demo.verdict import Check
from sluicegate.dispatch import Busy, Dispatcher, TimedOut

__all__ = ["CAPACITY", "CLIENTS", "LIGHT", "MIN_SECONDS", "OVERLOAD", "DispatchDemo", "report"]

MIN_SECONDS = 8
_MAX_SECONDS = 3600
CAPACITY = WORKERS * BATCH / batch_seconds(BATCH)  # answers per second, in full batches
CLIENTS = 3
LIGHT, OVERLOAD = 0.5, 3.0  # parts of the capacity that are asked for
TIMEOUT = 1.0  # seconds for each call
QUEUE_SECONDS = 0.5  # of work that may wait
_LIGHT_PART = 0.25  # of the duration
_STEP = 0.2
_TICK = 0.01
_MAX_BACKLOG = 0.5  # seconds of calls that are made up after a pause
_LATE = 0.6  # seconds after which a process has logged its pauses
_OUTCOMES: dict[type[BaseException], str] = {Busy: REFUSED, TimedOut: TIMED_OUT}
_PATIENCE = 5.0  # seconds in which the last calls must end


class DispatchDemo:
    """A fleet, from `with` to its end, and what came of the calls."""

    def __init__(self, seconds: float, flag: StopFlag) -> None:
        self.seconds = int(min(seconds, _MAX_SECONDS))
        self.overload_from = max(int(_LIGHT_PART * self.seconds), 1)
        self.tally = Tally(self.seconds)
        self.recorded = 0  # seconds that are over
        self.events: list[str] = []
        self._flag = flag
        self._fleet = DispatchFleet(flag.is_set)
        self._begin = 0.0
        self._calls: set[asyncio.Future[list[int]]] = set()  # that have not ended
        self._pauses: list[list[Span]] = [[] for _ in range(WORKERS + 1)]  # the clients' last
        self._own_pauses = self._fleet.folder / "clients.pauses"
        self._logs = [worker.pause_log for worker in self._fleet.workers]
        self._logs.append(PauseLog(self._own_pauses))

    def __enter__(self) -> Self:
        """Start the workers; raises StartCancelled if the flag is set meanwhile."""
        try:
            self._fleet.open()
        except BaseException:
            self._fleet.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._fleet.close()

    def rate(self, t: float) -> float:
        """Calls per second at this second of the demo."""
        return CAPACITY * (LIGHT if t < self.overload_from else OVERLOAD)

    def last_second(self) -> Second:
        return self.tally.seconds[self.recorded - 1] if self.recorded else Second()

    def by_worker(self) -> list[tuple[str, int]]:
        """The answers of each worker."""
        return [
            (worker.name, self.tally.by_worker[worker.popen.pid if worker.popen else 0])
            for worker in self._fleet.workers
        ]

    def run(self, show: Callable[[], object] = lambda: None) -> None:
        """Until the end, or until the flag is set; `show` is called five times a second."""
        with PauseMeter(self._own_pauses):
            asyncio.run(self._run(show))
        for spans, log in zip(self._pauses, self._logs, strict=True):
            spans += log.read()

    def checks(self) -> list[Check]:
        """The verdict on the overload, without its first second, in which the queue fills up."""
        first = self.overload_from + 1
        between = (self._begin + first, self._begin + self.recorded)
        *workers, clients = (paused(spans, *between) for spans in self._pauses)
        held_up = [lost + clients for lost in workers]
        return checks(self.tally, first, CAPACITY, held_up, self.recorded)

    async def _run(self, show: Callable[[], object]) -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    Dispatcher(self._fleet.url, QUEUE, max_wait_seconds=QUEUE_SECONDS)
                )
                for _ in range(CLIENTS)
            ]
            self._begin = time.monotonic()
            calls = asyncio.create_task(self._call(clients))
            while not self._flag.is_set() and not calls.done():
                self._step(time.monotonic() - self._begin)
                show()
                await asyncio.sleep(_STEP)
            calls.cancel()
            await asyncio.gather(calls, return_exceptions=True)
            if self._calls:
                await asyncio.wait(self._calls, timeout=_PATIENCE)
            self._step(time.monotonic() - self._begin)
            await asyncio.sleep(_LATE)

    def _step(self, t: float) -> None:
        self.recorded = min(int(t), self.seconds)
        if t >= self.overload_from and not self.events:
            before, after = self.rate(0.0), self.rate(t)
            self.events.append(
                f"{self.overload_from} s: the calls rise from {before:g}/s to {after:g}/s"
            )

    async def _call(self, clients: list[Dispatcher]) -> None:
        """Make calls by the clock, to each client in turn."""
        made = 0.0  # until when
        number = 0
        while made < self.seconds:
            t = time.monotonic() - self._begin
            made = max(made, t - _MAX_BACKLOG)
            while made <= t and made < self.seconds:
                self._make(clients[number % CLIENTS], number)
                number += 1
                made += 1.0 / self.rate(made)
            await asyncio.sleep(_TICK)

    def _make(self, client: Dispatcher, number: int) -> None:
        made_at = time.monotonic()
        self.tally.ask(made_at - self._begin)
        call = client.submit(number, timeout=TIMEOUT)
        self._calls.add(call)
        call.add_done_callback(lambda done: self._end(made_at, done))

    def _end(self, made_at: float, call: "asyncio.Future[list[int]]") -> None:
        self._calls.discard(call)
        now = time.monotonic()
        error = call.exception()
        if error is None:
            worker, batch, size = call.result()
            self.tally.answer(now - self._begin, now - made_at, worker, batch, size)
        else:
            self.tally.end(now - self._begin, _OUTCOMES.get(type(error), OTHER))


def report(demo: DispatchDemo) -> dict[str, object]:
    """The result, as data."""
    found = demo.checks()
    tally = demo.tally
    is_whole = demo.recorded == demo.seconds
    seconds = tally.seconds[: demo.recorded]
    return {
        "demo": "dispatch",
        "seconds": demo.recorded,
        "capacity": CAPACITY,
        "asked": tally.asked,
        "answered": tally.ended[ANSWERED],
        "refused": tally.ended[REFUSED],
        "timed_out": tally.ended[TIMED_OUT],
        "other": tally.ended[OTHER],
        "held": is_whole and all(check.is_met for check in found),
        "checks": [
            {
                "check": check.name,
                "measured": round(check.measured, 4),
                "goal": check.goal,
                "met": check.is_met,
            }
            for check in found
        ],
        "workers": [{"worker": name, "answered": count} for name, count in demo.by_worker()],
        "events": demo.events,
        "per_second": {
            "asked": [second.asked for second in seconds],
            "answered": [second.ended[ANSWERED] for second in seconds],
            "refused": [second.ended[REFUSED] for second in seconds],
            "timed_out": [second.ended[TIMED_OUT] for second in seconds],
            "batch_size": [round(second.mean_batch, 2) for second in seconds],
            "p50_seconds": [round(second.percentile(0.5), 4) for second in seconds],
            "p99_seconds": [round(second.percentile(0.99), 4) for second in seconds],
        },
    }
