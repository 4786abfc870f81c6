"""`limited`: a limit around a function or a block, with a key if you like.

@limited("10/second")
def call(): ...

@limited("100/minute", key=lambda user, *_: user, timeout=5.0)
async def ask(user, question): ...

with limited("10/second"): ...        keep the object: each has its own count
"""

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from sluicegate._validate import check_timeout
from sluicegate.clock import Clock
from sluicegate.limits._keyed import Keyed
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Key, LimitLike

__all__ = ["Limited", "limited"]

P = ParamSpec("P")
R = TypeVar("R")


class Limited:
    """What `limited` returns: a decorator and a context manager, sync and async."""

    def __init__(self, keyed: Keyed, key: Callable[..., Key] | None, timeout: float | None) -> None:
        self.keyed = keyed
        self._key = key
        self._timeout = timeout

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function):
            raise TypeError(f"limited(...) must decorate a function, got {function!r}")
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def limited_generator(*args: P.args, **kwargs: P.kwargs) -> Any:
                await self._pass_async(*args, **kwargs)
                async with contextlib.aclosing(function(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

            return cast(Callable[P, R], limited_generator)

        if _is_coroutine_function(function):

            @functools.wraps(function)
            async def limited_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                await self._pass_async(*args, **kwargs)
                return await cast(Callable[P, Awaitable[Any]], function)(*args, **kwargs)

            return cast(Callable[P, R], limited_async)

        @functools.wraps(function)
        def limited_sync(*args: P.args, **kwargs: P.kwargs) -> R:
            self._pass(*args, **kwargs)
            return function(*args, **kwargs)

        return limited_sync

    def __enter__(self) -> Self:
        self._pass()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    async def __aenter__(self) -> Self:
        await self._pass_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __repr__(self) -> str:
        return f"Limited({self.keyed!r})"

    def _pass(self, /, *args: Any, **kwargs: Any) -> None:
        key = "" if self._key is None else self._key(*args, **kwargs)
        if self._timeout == 0.0:
            self._refuse_or_pass(key)
        else:
            self.keyed.acquire(key, timeout=self._timeout)

    async def _pass_async(self, /, *args: Any, **kwargs: Any) -> None:
        key = "" if self._key is None else self._key(*args, **kwargs)
        if self._timeout == 0.0:
            self._refuse_or_pass(key)
        else:
            await self.keyed.acquire_async(key, timeout=self._timeout)

    def _refuse_or_pass(self, key: Any) -> None:
        decision = self.keyed.check(key)
        if not decision.allowed:
            raise RateLimited(decision)


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Also for objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def limited(
    limit: LimitLike | Keyed,
    key: Callable[..., Key] | None = None,
    *,
    timeout: float | None = 0.0,
    algorithm: str = "token_bucket",
    clock: Clock | None = None,
) -> Limited:
    """Limit a function or a block.

    `key` is called with the arguments of the function (for a block, with none) and
    says whose limit it is; without it there is one for all. Over the limit,
    `RateLimited` is raised: at once, or when it would take longer than `timeout`
    seconds (None: wait as long as it takes). `limit` may be a `Keyed` that is
    shared with others; it then has its own algorithm and clock.
    """
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function of the arguments, got {key!r}")
    check_timeout(timeout)
    if not isinstance(limit, Keyed):
        limit = Keyed(limit, algorithm=algorithm, clock=clock)
    elif algorithm != "token_bucket" or clock is not None:
        raise TypeError("algorithm and clock cannot be given with a Keyed, which has its own")
    return Limited(limit, key, timeout)
