"""How a request waits for the leader's answer, in a thread or in a task.

A request that finds no credit makes the node ask the leader. The answer takes a round trip and the
time until the node may send its next frame, so a request that can wait for as long need not be
refused. What it waits for is the answer, not the refill: once the leader has said that there is
nothing, or is not heard, a request is refused at once.

A wait is a *plan*: a generator that yields how long to sleep, returns when the request may begin,
and raises `Throttled` when it may not. It sleeps nowhere itself; `throttle_waiting` carries it out
in a thread, `throttle_async` in a task. Nothing is reserved before the request passes, so a wait
that is cancelled has nothing to give back.

The reporter may be another process, which cannot wake a thread or an event loop here: a plan polls.
A poll compares one number in shared memory, and looks at the user's record only when that number
has changed. The first polls are a millisecond apart, later ones a few; of many that wait in one
process each polls less often, so that all of them together cost a bounded part of a core.

Times are seconds.
"""

import math
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports this module
    from sluicegate.quota.node.core._user_table import Ticket, UserTable

__all__ = ["WaitPlan", "check_wait", "plan_wait", "throttle_async", "throttle_waiting"]

WaitPlan = Generator[float, None, None]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.008
# Between two polls of all requests that wait in one process; each costs some 10 microseconds.
_POLL_SPACING = 0.0001


def check_wait(wait: float | None) -> float | None:
    """Return a caller's `wait` in seconds, 0 or more, or None: as long as an answer takes."""
    if wait is None:
        return None
    if isinstance(wait, bool) or not isinstance(wait, int | float):
        raise TypeError(f"wait must be a number of seconds, or None, got {wait!r}")
    if not 0.0 <= wait < math.inf:
        raise ValueError(f"wait must be finite and not below 0, or None, got {wait!r}")
    return float(wait)


def plan_wait(
    user_table: "UserTable",
    service: str,
    user: str,
    expect: Mapping[str, float] | None,
    wait: float | None,
    ticket: "Ticket | None" = None,
) -> WaitPlan:
    """The plan of a request that `try_throttle` has just answered with False."""
    header = user_table.header
    began = now = user_table.now()
    end = began + (header.wait_seconds if wait is None else wait)
    pause = _FIRST_PAUSE
    seen = -1
    user_table.waiting += 1
    try:
        while now < end:
            yield min(max(pause, user_table.waiting * _POLL_SPACING), end - now)
            pause = min(2.0 * pause, _LONGEST_PAUSE)
            news, now = header.news, user_table.now()
            if news != seen:
                seen = news
                if user_table.try_throttle(service, user, expect, is_retry=True, ticket=ticket):
                    return
        user_table.try_throttle(service, user, expect, can_wait=False, is_retry=True, ticket=ticket)
    finally:
        user_table.waiting -= 1
        header.count_wait(user_table.now() - began)


def throttle_waiting(
    user_table: "UserTable",
    service: str,
    user: str,
    expect: Mapping[str, float] | None,
    wait: float | None,
    ticket: "Ticket | None" = None,
) -> None:
    """`UserTable.throttle` for a request that can wait, in a thread."""
    wait = check_wait(wait)
    can_wait = wait != 0.0
    if not user_table.try_throttle(service, user, expect, can_wait=can_wait, ticket=ticket):
        sleep = user_table.clock.sleep
        plan = plan_wait(user_table, service, user, expect, wait, ticket)
        try:
            for seconds in plan:
                sleep(seconds)
        finally:
            plan.close()


async def throttle_async(
    user_table: "UserTable",
    service: str,
    user: str,
    expect: Mapping[str, float] | None,
    wait: float | None,
    ticket: "Ticket | None" = None,
) -> None:
    """The same in a task."""
    wait = check_wait(wait)
    can_wait = wait != 0.0
    if not user_table.try_throttle(service, user, expect, can_wait=can_wait, ticket=ticket):
        sleep = user_table.clock.sleep_async
        plan = plan_wait(user_table, service, user, expect, wait, ticket)
        try:
            for seconds in plan:
                await sleep(seconds)
        finally:
            plan.close()
