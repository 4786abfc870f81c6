"""`AsyncRedisKeyed`: one limit for many hosts, for asyncio.

As `RedisKeyed`, with `await`: it runs the plans of `DecisionEngine` over an
`AsyncRedisPool`, where all calls of an event loop share one pipelined connection. A call
that is cancelled disturbs no other; what it took stays taken.
"""

import asyncio
import contextlib
import os
import weakref
from time import monotonic
from types import TracebackType
from typing import TypeVar

from sluicegate._validate import check_positive, check_timeout
from sluicegate.clock import Clock
from sluicegate.errors import ProtocolError, Unavailable
from sluicegate.limits._decision import Decision
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Key, Limit, LimitLike
from sluicegate.limits.redis.engine import DecisionEngine, DecisionPlan
from sluicegate.limits.redis.keyed import CLOSE_SECONDS, MIN_RETRY_SECONDS, denied
from sluicegate.limits.redis.metrics import RedisMetrics
from sluicegate.redis_client.async_pool import AsyncRedisPool

__all__ = ["AsyncRedisKeyed"]

Answer = TypeVar("Answer")


class _TaskQueue:
    """Those who wait for one key in one event loop. A lock of asyncio lets them in in order."""

    __slots__ = ("callers", "turn", "woken")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.woken = asyncio.Event()  # something was given back
        self.callers = 0


class AsyncRedisKeyed:
    """One limiter per key, shared by all who use the same Redis, prefix and limit.

    The arguments are those of `RedisKeyed`. It may be used from several event loops; each
    has a connection of its own, and closes it with `close`.
    """

    def __init__(
        self,
        url: str,
        limit: LimitLike,
        *,
        algorithm: str = "token_bucket",
        mode: str = "exact",
        on_error: str = "local",
        timeout: float = 0.1,
        nodes: int | None = None,
        lot: float | None = None,
        prefix: str = "sluicegate:",
        clock: Clock | None = None,
    ) -> None:
        self._timeout = check_positive("timeout", timeout)
        self._pool = AsyncRedisPool(url, self._timeout)
        self._engine = DecisionEngine(
            limit, algorithm, mode, on_error, nodes, lot, prefix, clock, self._pool.is_cluster
        )
        self._prefix = prefix
        self._leases = self._engine.leases
        self._clock = clock
        self._queues: dict[tuple[asyncio.AbstractEventLoop, Key], _TaskQueue] = {}
        after_fork = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (found := after_fork()) and found())

    async def allow(self, key: Key, cost: float = 1.0) -> bool:
        """Charge `cost` to `key` if it fits now."""
        if self._leases is not None:
            allowed = self._leases.spend(key, cost)
            if allowed is not None:
                return allowed
        deadline = monotonic() + self._timeout
        fast_path = self._engine.fast_path(key, cost)
        if fast_path is not None:
            ticket, command = fast_path
            try:
                (reply,) = await self._pool.exchange(b"", command, 1, deadline)
            except (Unavailable, ProtocolError) as error:
                return self._engine.request_failed(ticket, key, cost, error)
            if reply == 1 or reply == 0:
                is_allowed: bool = reply == 1
                self._engine.counters.count(is_allowed, False)
                return is_allowed
        return await self._run(self._engine.allow(key, cost), deadline)

    async def check(self, key: Key, cost: float = 1.0) -> Decision:
        """Charge `cost` to `key` if it fits now, and tell all about it. A cost of 0 only looks."""
        return await self._run(self._engine.check(key, cost))

    async def acquire(self, key: Key, cost: float = 1.0, timeout: float | None = None) -> float:
        """Wait until `cost` fits; return the seconds waited. As `RedisKeyed.acquire`."""
        now = monotonic if self._clock is None else self._clock.now
        start = now()
        deadline = start + check_timeout(timeout)
        self._engine.check_cost(cost)
        place = asyncio.get_running_loop(), key
        if place not in self._queues and await self.allow(key, cost):
            return 0.0
        queue = self._queues.setdefault(place, _TaskQueue())
        queue.callers += 1
        try:
            await self._take_turn(queue, key, deadline - now())
            try:
                while True:
                    decision = await self.check(key, cost)
                    if decision.allowed:
                        return max(now() - start, 0.0)
                    nap = max(decision.retry_after, MIN_RETRY_SECONDS)
                    if nap > deadline - now():
                        raise RateLimited(decision)
                    await self._sleep(queue, nap)
            finally:
                queue.turn.release()
        finally:
            queue.callers -= 1
            if not queue.callers:
                del self._queues[place]

    async def refund(self, key: Key, cost: float) -> None:
        """Give `cost` back, as if it had been taken just now. Never fills above full."""
        await self._run(self._engine.refund(key, cost))
        self._wake(key)

    async def reset(self, key: Key) -> None:
        """Forget what `key` has used. Raises `Unavailable` when Redis cannot be told."""
        await self._run(self._engine.reset(key))
        self._wake(key)

    async def close(self) -> None:
        """Give back what is leased, and close the running loop's connection.

        A later call opens it anew: other event loops may still be using the limiter.
        """
        await self._run(self._engine.close(), monotonic() + CLOSE_SECONDS)
        await self._pool.close()

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self._engine.limits

    @property
    def algorithm(self) -> str:
        return self._engine.algorithm

    @property
    def mode(self) -> str:
        return self._engine.mode

    @property
    def place(self) -> str:
        """Where it counts: two limiters with one place share what their keys have used."""
        return f"{self._pool.address}, prefix {self._prefix!r}"

    @property
    def metrics(self) -> RedisMetrics:
        """How it is doing, now."""
        return self._engine.metrics()

    async def __aenter__(self) -> "AsyncRedisKeyed":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncRedisKeyed({self._engine.describe()})"

    async def _run(self, plan: DecisionPlan[Answer], deadline: float | None = None) -> Answer:
        if deadline is None:
            deadline = monotonic() + self._timeout
        exchange = self._pool.exchange
        try:
            request = next(plan)
            while True:
                try:
                    replies = await exchange(*request, deadline)
                except (Unavailable, ProtocolError) as error:
                    request = plan.throw(error)
                else:
                    request = plan.send(replies)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        finally:
            plan.close()

    async def _take_turn(self, queue: _TaskQueue, key: Key, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await queue.turn.acquire()
        except TimeoutError:
            raise RateLimited(denied(await self.check(key, 0))) from None

    async def _sleep(self, queue: _TaskQueue, seconds: float) -> None:
        queue.woken.clear()
        if self._clock is not None:
            await self._clock.sleep_async(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await queue.woken.wait()

    def _wake(self, key: Key) -> None:
        """Let the one who waits for `key` in this loop ask again."""
        queue = self._queues.get((asyncio.get_running_loop(), key))
        if queue is not None:
            queue.woken.set()

    def _after_fork(self) -> None:
        self._engine.after_fork()
        self._queues.clear()
