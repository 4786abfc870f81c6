"""`RedisKeyed`: one limit for many hosts, for threads.

A thin shell: it runs the plans of `DecisionEngine` over a `RedisPool`, each within one
time-out, and waits in `acquire` as `Keyed` does, in the order of callers. It starts no
thread for a call. Nothing it does raises because Redis is away, but `reset`.
"""

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
from sluicegate.limits.redis.metrics import RedisMetrics
from sluicegate.limits.waiting import ThreadSleeper, WaitQueues
from sluicegate.redis_client.pool import RedisPool

__all__ = ["RedisKeyed"]

MIN_RETRY_SECONDS = 0.001  # seconds between two questions of one who waits
CLOSE_SECONDS = 1.0

Answer = TypeVar("Answer")


class RedisKeyed:
    """One limiter per key, shared by all who use the same Redis, prefix and limit.

    `limit`, `algorithm` and keys are as in `Keyed`. `mode` is "exact" (one round trip per
    call) or "leased" (permits taken in lots and spent here). When Redis does not answer
    within `timeout` seconds, `on_error` decides here for a while: "local" (the limit
    divided by the number of nodes), "allow" or "deny". `nodes` is that number, or None:
    then it is learned from Redis. `lot` fixes what a lease takes at once; None follows
    each key's rate. `prefix` stands before every key in Redis.
    """

    blocks = True  # its thread, for a round trip: not for use in an event loop

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
        self._pool = RedisPool(url, self._timeout)
        self._engine = DecisionEngine(
            limit, algorithm, mode, on_error, nodes, lot, prefix, clock, self._pool.is_cluster
        )
        self._prefix = prefix
        self._leases = self._engine.leases
        self._clock = clock
        self._queues = WaitQueues(monotonic if clock is None else clock.now)
        self._is_closed = False
        after_fork = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (found := after_fork()) and found())

    def allow(self, key: Key, cost: float = 1.0) -> bool:
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
                reply = self._pool.send_command(command, deadline)
            except (Unavailable, ProtocolError) as error:
                return self._engine.request_failed(ticket, key, cost, error)
            if reply == 1 or reply == 0:
                is_allowed: bool = reply == 1
                self._engine.counters.count(is_allowed, False)
                return is_allowed
        return self._run(self._engine.allow(key, cost), deadline)

    def check(self, key: Key, cost: float = 1.0) -> Decision:
        """Charge `cost` to `key` if it fits now, and tell all about it. A cost of 0 only looks."""
        return self._run(self._engine.check(key, cost))

    def acquire(self, key: Key, cost: float = 1.0, timeout: float | None = None) -> float:
        """Wait until `cost` fits; return the seconds waited.

        Those who wait for one key in this process go in their order. Raises `RateLimited`
        when it does not fit within `timeout` seconds: at once, where that is known at once.
        """
        seconds = check_timeout(timeout)
        self._engine.check_cost(cost)
        if key not in self._queues and self.allow(key, cost):
            return 0.0
        last = Decision(False)

        def attempt() -> float:
            nonlocal last
            last = self.check(key, cost)
            return 0.0 if last.allowed else max(last.retry_after, MIN_RETRY_SECONDS)

        def refuse() -> RateLimited:
            return RateLimited(last if last.limit is not None else denied(self.check(key, 0)))

        sleeper = ThreadSleeper(self._clock)
        return sleeper.wait(self._queues.wait(key, attempt, refuse, seconds, sleeper))

    def refund(self, key: Key, cost: float) -> None:
        """Give `cost` back, as if it had been taken just now. Never fills above full."""
        self._run(self._engine.refund(key, cost))
        self._queues.wake_head(key)

    def reset(self, key: Key) -> None:
        """Forget what `key` has used. Raises `Unavailable` when Redis cannot be told."""
        self._run(self._engine.reset(key))
        self._queues.wake_head(key)

    def close(self) -> None:
        """Give back what is leased and close the connections. Decisions go on locally."""
        if self._is_closed:
            return
        self._is_closed = True
        self._run(self._engine.close(), monotonic() + CLOSE_SECONDS)
        self._pool.close()

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

    def __enter__(self) -> "RedisKeyed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RedisKeyed({self._engine.describe()})"

    def _run(self, plan: DecisionPlan[Answer], deadline: float | None = None) -> Answer:
        if deadline is None:
            deadline = monotonic() + self._timeout
        exchange = self._pool.exchange
        try:
            request = next(plan)
            while True:
                try:
                    replies = exchange(*request, deadline)
                except (Unavailable, ProtocolError) as error:
                    request = plan.throw(error)
                else:
                    request = plan.send(replies)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        finally:
            plan.close()

    def _after_fork(self) -> None:
        self._engine.after_fork()
        self._queues = WaitQueues(monotonic if self._clock is None else self._clock.now)


def denied(look: Decision) -> Decision:
    """What is known of a key, for a caller that timed out while it waited behind others."""
    again = max(look.retry_after, MIN_RETRY_SECONDS)
    return Decision(False, look.limit, look.remaining, again, max(look.reset_after, again))
