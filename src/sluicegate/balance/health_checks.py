"""`HealthChecks`: asks each server regularly, by a function of yours, whether it is well.

    with HealthChecks(balancer, lambda server: httpx.get(f"{server.address}/health").is_success):
        ...

A server is unhealthy after `fall` failed checks in a row, and healthy again after `rise` passed
ones; the balancer then picks it no more, or again with a weight that grows. A check fails when it
returns something false, raises, or has not returned after `timeout` seconds.

`CheckSchedule` has the rules, without I/O: when to check which server, and what follows. `with`
checks in threads; `async with` in tasks, where the function may be a coroutine function.

- Each server has its own moment within the interval, so checks are spread over it.
- A check that hangs holds up only the checks of its own server, which is not checked again until
  it returns. Functions run in a thread of their own, also under `async with`; it cannot be stopped,
  and the program does not wait for it at its end. Coroutine functions are cancelled.
- Servers that are added or removed meanwhile are checked, or not, from the next turn on.
"""

import asyncio
import inspect
import itertools
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from sluicegate._validate import check_positive, check_whole
from sluicegate.balance._balancer import Balancer
from sluicegate.balance.server import Server
from sluicegate.clock import Clock, SystemClock
from sluicegate.errors import describe

__all__ = ["CheckSchedule", "HealthChecks"]

SHORTEST_PAUSE = 0.001
RETRY_SECONDS = 1.0

log = logging.getLogger("sluicegate.balance")


class _Checked:
    """What is known of one server. `row`: equal results in a row, below 0 for failed ones."""

    __slots__ = ("deadline", "due", "is_unhealthy", "row", "run")

    def __init__(self, due: float) -> None:
        self.due = due
        self.deadline: float | None = None  # of the check that runs; None: it was judged
        self.run: int | None = None  # the number of the check that runs, judged or not
        self.row = 0
        self.is_unhealthy = False  # as was logged last


class CheckSchedule:
    """When to check which server of a balancer, and what follows. The time is an argument."""

    def __init__(
        self,
        balancer: Balancer,
        *,
        interval: float = 5.0,
        timeout: float = 2.0,
        rise: int = 2,
        fall: int = 3,
    ) -> None:
        if not isinstance(balancer, Balancer):
            raise TypeError(f"balancer must be a Balancer, got {balancer!r}")
        self._balancer = balancer
        self._interval = check_positive("interval", interval)
        self.timeout = check_positive("timeout", timeout)
        self._rise = check_whole("rise", rise, 1)
        self._fall = check_whole("fall", fall, 1)
        self._servers: dict[str, _Checked] = {}
        self._runs = itertools.count(1)

    def take_due(self, now: float) -> list[tuple[Server, int]]:
        """The servers to check now, each with the number of the check."""
        due = []
        for server, checked in self._follow_balancer(now):
            if checked.run is not None:
                judge_at = checked.due if checked.deadline is None else checked.deadline
                if now >= judge_at:  # and again with each interval, for as long as it hangs
                    self._count(server, checked, f"no result within {self.timeout:g} s", now)
            if checked.run is None and now >= checked.due:
                checked.deadline = now + self.timeout
                checked.run = next(self._runs)
                due.append((server, checked.run))
        return due

    def next_time(self, now: float) -> float:
        """When to call `take_due` again."""
        times = (
            checked.due if checked.deadline is None else checked.deadline
            for checked in self._servers.values()
        )
        return min(now + self._interval, *times)

    def finish(self, server: Server, run: int, problem: str | None, now: float) -> None:
        """A check has ended; `problem`: why it failed. A late result counts for nothing."""
        checked = self._servers.get(server.address)
        if checked is None or checked.run != run:
            return  # of a server that was removed meanwhile
        if checked.deadline is not None:
            self._count(server, checked, problem, now)
        checked.run = None

    def forget_running(self) -> None:
        """The checks that run will not end: they were another process's."""
        for checked in self._servers.values():
            checked.deadline = checked.run = None

    def skip(self, server: Server, run: int, now: float) -> None:
        """A check could not be made: that says nothing of the server."""
        checked = self._servers.get(server.address)
        if checked is not None and checked.run == run:
            checked.deadline = checked.run = None
            checked.due = now + self._interval

    def _follow_balancer(self, now: float) -> list[tuple[Server, _Checked]]:
        servers = self._balancer.servers
        addresses = [server.address for server in servers]
        if list(self._servers) != addresses:
            step = self._interval / max(len(addresses), 1)
            self._servers = {
                address: self._servers.get(address) or _Checked(now + number * step)
                for number, address in enumerate(addresses)
            }
        return list(zip(servers, self._servers.values(), strict=True))

    def _count(self, server: Server, checked: _Checked, problem: str | None, now: float) -> None:
        """Count a result. Marks are repeated: `mark_up` may have undone the last one."""
        checked.deadline = None
        checked.due = max(checked.due + self._interval, now)
        checked.row = max(checked.row, 0) + 1 if problem is None else min(checked.row, 0) - 1
        try:
            if checked.row <= -self._fall:
                self._balancer.mark_unhealthy(server)
                if not checked.is_unhealthy:
                    log.warning("server %s is unhealthy: %s", server.address, problem)
                checked.is_unhealthy = True
            elif checked.row >= self._rise:
                self._balancer.mark_healthy(server)
                if checked.is_unhealthy:
                    log.warning("server %s is healthy again", server.address)
                checked.is_unhealthy = False
        except ValueError:  # it was removed meanwhile
            self._servers.pop(server.address, None)


class HealthChecks:
    """Checks the servers of a balancer while the block lasts, or from `start` to `close`.

    `check(server)` returns whether the server is well.
    """

    def __init__(
        self,
        balancer: Balancer,
        check: Callable[[Server], Any],
        *,
        interval: float = 5.0,
        timeout: float = 2.0,
        rise: int = 2,
        fall: int = 3,
        clock: Clock | None = None,
    ) -> None:
        if not callable(check):
            raise TypeError(f"check must be a function of a Server, got {check!r}")
        if clock is not None and not callable(getattr(clock, "now", None)):
            raise TypeError(f"clock must have a method now(), got {clock!r}")
        self._check = check
        self._is_async = inspect.iscoroutinefunction(check) or inspect.iscoroutinefunction(
            type(check).__call__
        )
        self._clock: Clock = SystemClock() if clock is None else clock
        self._schedule = CheckSchedule(
            balancer, interval=interval, timeout=timeout, rise=rise, fall=fall
        )
        self._lock = threading.Lock()  # around the schedule
        self._wake_up = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Check in threads from now on. A forked child has to call it, too."""
        if self._is_async:
            raise TypeError(f"{self._check!r} is a coroutine function: use `async with`")
        if self._is_closed:
            raise RuntimeError("these checks are closed: make new ones")
        if self._thread is not None and self._thread.is_alive():
            return
        self._lock = threading.Lock()  # a thread of the parent may have held the other
        self._schedule.forget_running()
        self._thread = threading.Thread(
            target=self._run, name="sluicegate-health-checks", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Check no more. What is known of the servers stays as it is."""
        self._is_closed = True
        self._wake_up.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        if self._is_closed or self._task is not None:
            raise RuntimeError("these checks were used already: make new ones")
        self._task = asyncio.create_task(self._run_async())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closed = True
        tasks = [task for task in (self._task, *self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self) -> None:
        while not self._is_closed:
            pause = RETRY_SECONDS
            try:
                with self._lock:
                    due = self._schedule.take_due(self._clock.now())
                for server, run in due:
                    self._start_thread(server, run)
                with self._lock:
                    now = self._clock.now()
                    pause = self._schedule.next_time(now) - now
            except Exception:
                log.exception("health checks failed, trying again in %g s", RETRY_SECONDS)
            self._wake_up.wait(max(pause, SHORTEST_PAUSE))

    def _start_thread(self, server: Server, run: int) -> None:
        """Not of a pool: one that hangs must not hold up the others, nor the end of the program."""
        try:
            threading.Thread(
                target=self._check_one,
                args=(server, run),
                name=f"sluicegate-check-{server.address}",
                daemon=True,
            ).start()
        except RuntimeError as error:  # no more threads: no fault of the server
            log.warning("server %s was not checked: %s", server.address, error)
            with self._lock:
                self._schedule.skip(server, run, self._clock.now())

    def _check_one(self, server: Server, run: int) -> None:
        problem: str | None = "the check was interrupted"
        try:
            problem = _problem_of(self._check(server))
        except Exception as error:  # noqa: BLE001  it is the user's
            problem = describe(error)
        finally:
            with self._lock:
                if not self._is_closed:
                    self._schedule.finish(server, run, problem, self._clock.now())

    async def _run_async(self) -> None:
        while True:
            pause = RETRY_SECONDS
            try:
                with self._lock:
                    due = self._schedule.take_due(self._clock.now())
                for server, run in due:
                    if self._is_async:
                        task = asyncio.create_task(self._check_one_async(server, run))
                        self._running.add(task)
                        task.add_done_callback(self._running.discard)
                    else:
                        self._start_thread(server, run)
                with self._lock:
                    now = self._clock.now()
                    pause = self._schedule.next_time(now) - now
            except Exception:
                log.exception("health checks failed, trying again in %g s", RETRY_SECONDS)
            await self._clock.sleep_async(max(pause, SHORTEST_PAUSE))

    async def _check_one_async(self, server: Server, run: int) -> None:
        problem: str | None = "the check was interrupted"
        try:
            async with asyncio.timeout(self._schedule.timeout):
                problem = _problem_of(await self._check(server))
        except TimeoutError:
            problem = f"no result within {self._schedule.timeout:g} s"
        except Exception as error:  # noqa: BLE001  it is the user's
            problem = describe(error)
        finally:
            with self._lock:
                if not self._is_closed:
                    self._schedule.finish(server, run, problem, self._clock.now())


def _problem_of(result: object) -> str | None:
    if inspect.iscoroutine(result):
        result.close()
        return "the check returned a coroutine: give a coroutine function"
    return None if result else "the check returned false"
