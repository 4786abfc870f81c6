"""`Limiter` and `AsyncLimiter`: the methods that an integration needs of a limiter.

`Keyed`, `SharedKeyed` and `RedisKeyed` are a `Limiter`; `AsyncRedisKeyed`, whose methods
are coroutines, is an `AsyncLimiter`. A limiter may say with `place` where it counts, for two
that count in one place are refused. Three things are decided here, once, when a rule meets
its framework:

- a limiter of coroutines works under ASGI and in async Django, and nowhere else;
- a limiter that waits for a socket (`blocks = True` on its class) would stop every other
  request of an event loop, and is refused there;
- the most that a limiter ever lets through at once is its smallest burst or window.
"""

import inspect
from typing import Any, Protocol

from sluicegate.limits import Decision, Limit
from sluicegate.limits.limit import Key

__all__ = [
    "AnyLimiter",
    "AsyncLimiter",
    "Limiter",
    "capacity",
    "check_compatible",
    "is_async",
    "is_limiter",
]


class Limiter(Protocol):
    """A limiter whose answers are there at once, or that may block its thread for them.

    `check` charges `cost` if it fits and nothing if it does not; a cost of 0 only looks.
    `refund` gives back what was charged just now.
    """

    @property
    def limits(self) -> tuple[Limit, ...]: ...
    def check(self, key: Key, cost: float = 1.0) -> Decision: ...
    def refund(self, key: Key, cost: float) -> Any: ...


class AsyncLimiter(Protocol):
    """The same with coroutines."""

    @property
    def limits(self) -> tuple[Limit, ...]: ...
    async def check(self, key: Key, cost: float = 1.0) -> Decision: ...
    async def refund(self, key: Key, cost: float) -> Any: ...


AnyLimiter = Limiter | AsyncLimiter


def is_limiter(thing: object) -> bool:
    return all(hasattr(thing, name) for name in ("check", "refund", "limits"))


def is_async(limiter: AnyLimiter) -> bool:
    return inspect.iscoroutinefunction(limiter.check)


def check_compatible(limiter: AnyLimiter, *, in_event_loop: bool) -> None:
    """Raise TypeError if the limiter cannot work on this side of the event loop."""
    if in_event_loop and getattr(limiter, "blocks", False):
        raise TypeError(
            f"{limiter!r} blocks its thread, which would stall every request of this event loop; "
            "use an async limiter (AsyncRedisKeyed)"
        )
    if not in_event_loop and is_async(limiter):
        raise TypeError(
            f"{limiter!r} is async and cannot be awaited here; use a sync limiter (RedisKeyed)"
        )


def capacity(limiter: AnyLimiter, key: Key | None = None) -> float:
    """The highest cost that can ever pass at once; of `key`, where keys have limits of their own.

    A token bucket passes what it holds, a leaky bucket one, a window its amount.
    """
    algorithm = getattr(limiter, "algorithm", "token_bucket")
    limits_of = getattr(limiter, "limits_of", None)
    limits = limiter.limits if limits_of is None or key is None else limits_of(key)
    if algorithm == "leaky_bucket":
        return 1.0
    if algorithm == "token_bucket":
        return min(limit.burst or max(limit.amount, 1.0) for limit in limits)
    return float(min(limit.amount for limit in limits))
