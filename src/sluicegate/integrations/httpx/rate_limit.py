"""httpx transports that keep a client inside a server's limit.

    client = httpx.Client(transport=RateLimitTransport("10/second"))
    client = httpx.AsyncClient(transport=AsyncRateLimitTransport("10/second", retries=3))

Before a request goes out, it waits its turn in the limit of its host, first come, first
served. When an answer asks for a pause (`Retry-After`, `RateLimit` with nothing left),
all further requests to that host are held back until it is over. Nobody waits longer
than `timeout` seconds for one request: past that, or at once where that is known, comes
`RateLimited`.

With `retries`, an answer of 429 or 503 is tried again so many times, if its body is in
memory and so can be sent again. The pause is what the server asks for, or else 1, 2, 4...
seconds. If that would exceed the time-out, the answer is handed to the caller as it is.

The steps are a plan, a generator that yields what is to be done (wait in the queue,
sleep, send, close) and is sent the result; a thread or a task does it. So both transports
are the same, and tests run them on a `ManualClock`.
"""

import inspect
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from sluicegate._validate import check_positive, check_timeout, check_whole
from sluicegate.clock import Clock, SystemClock
from sluicegate.integrations.server_backoff import BUSY, ServerBackoff, requested_pause
from sluicegate.limits import Decision, Keyed, RateLimited
from sluicegate.limits.limit import Key, LimitLike

__all__ = [
    "AsyncRateLimitTransport",
    "AsyncWaitingLimiter",
    "RateLimitTransport",
    "WaitingLimiter",
]


class WaitingLimiter(Protocol):
    """What `RateLimitTransport` asks of a limiter: `Keyed`, `SharedKeyed`, `RedisKeyed` have it."""

    def acquire(self, key: Key, cost: float = 1.0, timeout: float | None = None) -> float: ...


class AsyncWaitingLimiter(Protocol):
    """The same of `AsyncRateLimitTransport`: `Keyed` and `SharedKeyed`.

    Or `acquire` itself is a coroutine, as with `AsyncRedisKeyed`.
    """

    async def acquire_async(
        self, key: Key, cost: float = 1.0, timeout: float | None = None
    ) -> float: ...


@dataclass(frozen=True, slots=True)
class Acquire:
    """Wait in the queue of a key, at most `timeout` seconds."""

    key: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    """Done with an answer that nobody will read."""

    response: httpx.Response


Step = Acquire | Sleep | Close | httpx.Request
RequestPlan = Generator[Step, Any, httpx.Response]


class RequestPacer:
    """Paces requests for both transports, as a plan without I/O."""

    def __init__(
        self,
        has_limit: bool,
        key: Callable[[httpx.Request], str] | None,
        timeout: float | None,
        retries: int,
        longest_hold: float,
        clock: Clock | None,
    ) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        self._has_limit = has_limit
        self._backoff = ServerBackoff(check_positive("longest_hold", longest_hold))
        self._key = _host if key is None else key
        self._timeout = check_timeout(timeout)
        self._retries = check_whole("retries", retries, 0)

    def plan(self, request: httpx.Request) -> RequestPlan:
        key = self._key(request)
        can_repeat = isinstance(request.stream, httpx.ByteStream)
        deadline = self.clock.now() + self._timeout
        attempt = 0
        while True:
            yield from self._wait_for_server(key, deadline)
            if self._has_limit:
                yield Acquire(key, max(deadline - self.clock.now(), 0.0))
                if (yield from self._wait_for_server(key, deadline)):
                    continue  # it came while we waited: those in the queue would now go all at once
            response: httpx.Response = yield request
            now = self.clock.now()
            pause = requested_pause(response.status_code, response.headers.get, self._wall_time())
            self._backoff.back_off(key, pause, now)
            if response.status_code not in BUSY or attempt == self._retries or not can_repeat:
                return response
            pause = self._backoff.wait(key, now) or 2.0**attempt
            if now + pause > deadline:
                return response
            yield Close(response)
            yield Sleep(pause)
            attempt += 1

    def _wait_for_server(self, key: str, deadline: float) -> Generator[Step, Any, bool]:
        """Wait while the server asks for a pause; return whether it did."""
        has_waited = False
        while (pause := self._backoff.wait(key, now := self.clock.now())) > 0.0:
            if now + pause > deadline:
                raise RateLimited(Decision(False, retry_after=pause, reset_after=pause))
            yield Sleep(pause)
            has_waited = True
        return has_waited

    def _wall_time(self) -> float:
        """Unix time, for dates; a clock of the caller's may be both in one."""
        return float(getattr(self.clock, "wall", self.clock.now)())


class RateLimitTransport(httpx.BaseTransport):
    """For `httpx.Client`.

    - `limit`: "10/second", a `Limit`, several, or a limiter to be shared (`Keyed`,
      `SharedKeyed`, `RedisKeyed`); None only listens to the server.
    - `transport`: the one that sends; a plain `httpx.HTTPTransport` by default.
    - `key`: which requests share a limit and a pause, a function; the host by default.
    - `timeout`: seconds that a request may wait in all; None for ever.
    - `retries`: how often an answer of 429 or 503 is tried again.
    - `longest_hold`: no server is believed for longer than so many seconds.
    """

    def __init__(
        self,
        limit: LimitLike | WaitingLimiter | None,
        transport: httpx.BaseTransport | None = None,
        *,
        key: Callable[[httpx.Request], str] | None = None,
        timeout: float | None = 60.0,
        retries: int = 0,
        longest_hold: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        self._pacer = RequestPacer(limit is not None, key, timeout, retries, longest_hold, clock)
        self._acquire: Any = getattr(_limiter(limit, clock), "acquire", None)
        if inspect.iscoroutinefunction(self._acquire):
            raise TypeError(f"{limit!r} is async; use AsyncRateLimitTransport")
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        plan = self._pacer.plan(request)
        answer: Any = None
        try:
            while True:
                answer = self._do(plan.send(answer))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _do(self, step: Step) -> Any:
        if isinstance(step, httpx.Request):
            return self._transport.handle_request(step)
        if isinstance(step, Acquire):
            return self._acquire(step.key, timeout=_finite(step.timeout))
        if isinstance(step, Sleep):
            return self._pacer.clock.sleep(step.seconds)
        return step.response.close()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(kind, error, traceback)


class AsyncRateLimitTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`, over an `httpx.AsyncHTTPTransport` by default."""

    def __init__(
        self,
        limit: LimitLike | AsyncWaitingLimiter | WaitingLimiter | None,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        key: Callable[[httpx.Request], str] | None = None,
        timeout: float | None = 60.0,
        retries: int = 0,
        longest_hold: float = 300.0,
        clock: Clock | None = None,
    ) -> None:
        self._pacer = RequestPacer(limit is not None, key, timeout, retries, longest_hold, clock)
        limiter = _limiter(limit, clock)
        is_both = hasattr(limiter, "acquire_async")
        self._acquire: Any = getattr(limiter, "acquire_async" if is_both else "acquire", None)
        if limiter is not None and not is_both and not inspect.iscoroutinefunction(self._acquire):
            raise TypeError(
                f"{limit!r} blocks its thread, which would stall the event loop; "
                "use an async limiter (AsyncRedisKeyed)"
            )
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        plan = self._pacer.plan(request)
        answer: Any = None
        try:
            while True:
                answer = await self._do(plan.send(answer))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _do(self, step: Step) -> Any:
        if isinstance(step, httpx.Request):
            return await self._transport.handle_async_request(step)
        if isinstance(step, Acquire):
            return await self._acquire(step.key, timeout=_finite(step.timeout))
        if isinstance(step, Sleep):
            return await self._pacer.clock.sleep_async(step.seconds)
        return await step.response.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(kind, error, traceback)


def _limiter(limit: Any, clock: Clock | None) -> Any:
    """The limiter itself, or a `Keyed` of the limits; None stays None."""
    return limit if limit is None or hasattr(limit, "acquire") else Keyed(limit, clock=clock)


def _host(request: httpx.Request) -> str:
    return request.url.host


def _finite(timeout: float) -> float | None:
    return None if timeout == math.inf else timeout
