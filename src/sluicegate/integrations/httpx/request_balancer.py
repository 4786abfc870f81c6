"""`RequestBalancer`: to which server a request goes, and whether it is sent to another one.

A request that fails is sent again, at once, to a server that it has not been sent to, while
`retries` and the `RetryBudget` allow it. It is never sent twice where that could do harm:

- If no connection could be made, nothing was sent: any method may be retried.
- After every other failure, and after a status in `retry_statuses`, only GET, HEAD, OPTIONS, TRACE,
  PUT, DELETE, and what has an `Idempotency-Key`.
- The body must be in memory, for a stream can be read but once.

Otherwise, and when all servers were tried, the caller gets the last response or error as it is. A
`Retry-After` is for those who would ask the same server again: here it delays nothing, and a 503
that has one counts as a failure like any other. Each attempt has the time-outs of httpx anew.

As in `rate_limit.py` the steps are a plan, a generator without I/O, which a thread or a task does.
What it does is sent into the plan; what it raises is thrown into it.
"""

import time
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from sluicegate._validate import check_whole
from sluicegate.balance import Balancer, ConsistentHash, NoServers, Server, make
from sluicegate.clock import Clock
from sluicegate.integrations.httpx.attempt import Attempt, is_failure
from sluicegate.integrations.httpx.server_url import parse_server_url
from sluicegate.integrations.retry_budget import RetryBudget
from sluicegate.integrations.server_load import LOAD_HEADER, reported_load

__all__ = [
    "Close",
    "Key",
    "Load",
    "NoServersAvailable",
    "Plan",
    "RequestBalancer",
    "header_load",
]

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

Key = Callable[[httpx.Request], Hashable]
Load = Callable[[httpx.Response], float | None]


class NoServersAvailable(NoServers, httpx.ConnectError):
    """There is no server to send to: none was given, or all are marked down.

    For callers it is a connection that cannot be made, so what handles httpx errors handles it.
    """


def header_load(response: httpx.Response) -> float | None:
    """The load in the header of a response, see `server_load.py`."""
    return reported_load(response.headers.get(LOAD_HEADER))


@dataclass(frozen=True, slots=True)
class Close:
    """Done with a response that nobody will read."""

    response: httpx.Response


Plan = Generator[httpx.Request | Close, Any, httpx.Response]


class RequestBalancer:
    """Sends requests to servers for both transports, as a plan without I/O."""

    def __init__(
        self,
        servers: Iterable[Server | str] | Balancer,
        counted_stream: Callable[[Any, Attempt], Any],
        *,
        policy: str | None,
        key: Key | None,
        retries: int,
        budget: float | RetryBudget,
        retry_statuses: Iterable[int],
        load: Load | None,
        keep_host: bool,
        clock: Clock | None,
    ) -> None:
        self.balancer = _balancer(servers, policy, clock)
        for server in self.balancer.servers:
            parse_server_url(server.address)
        if key is None and isinstance(self.balancer, ConsistentHash):
            raise ValueError("ConsistentHash needs key=, a function of the request, got None")
        for name, function in (("key", key), ("load", load)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, got {function!r}")
        self._key = key
        self._retries = check_whole("retries", retries, 0)
        if budget == 0:
            raise ValueError("budget must be above 0, got 0; retries=0 sends nothing twice")
        self._budget = budget if isinstance(budget, RetryBudget) else RetryBudget(budget)
        self._retry_statuses = frozenset(
            check_whole("retry_statuses", status, 100) for status in retry_statuses
        )
        self._load = load
        self._keep_host = keep_host
        self._now = time.monotonic if clock is None else clock.now
        self._counted_stream = counted_stream

    def plan(self, request: httpx.Request) -> Plan:
        key = None if self._key is None else self._key(request)
        tried: list[str] = []
        attempt = self._pick(key, tried)
        self._budget.count_request()
        while True:
            tried.append(attempt.server.address)
            try:
                response = yield parse_server_url(tried[-1]).address(request, self._keep_host)
            except BaseException as error:
                attempt.end_by(error)
                following = self._pick_after_error(request, error, key, tried)
                if following is None:
                    raise
            else:
                yield from self._take_head(response, attempt)
                following = self._pick_after_status(request, response.status_code, key, tried)
                if following is None:
                    return self._count_body(response, attempt)
                yield from self._discard(response, attempt, following)
            attempt = following

    def _pick(self, key: Hashable, tried: list[str]) -> Attempt:
        now = self._now()
        try:
            return Attempt(self.balancer.use(key, avoid=tried), now)
        except NoServers as error:
            raise NoServersAvailable(str(error)) from None

    def _pick_after_error(
        self, request: httpx.Request, error: BaseException, key: Hashable, tried: list[str]
    ) -> Attempt | None:
        if not is_failure(error):
            return None
        was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        following = None
        if not was_sent or _is_idempotent(request):
            following = self._pick_other(request, key, tried)
        if following is None:
            error.add_note(f"servers tried: {', '.join(tried)}")
        return following

    def _pick_after_status(
        self, request: httpx.Request, status: int, key: Hashable, tried: list[str]
    ) -> Attempt | None:
        if status not in self._retry_statuses or not _is_idempotent(request):
            return None
        return self._pick_other(request, key, tried)

    def _pick_other(
        self, request: httpx.Request, key: Hashable, tried: list[str]
    ) -> Attempt | None:
        """An attempt at a server that was not tried, if there is one and a retry is left for it."""
        if len(tried) > self._retries or not isinstance(request.stream, httpx.ByteStream):
            return None
        try:
            attempt = self._pick(key, tried)
        except NoServers:
            return None
        # An attempt that is not begun is forgotten, not ended: nothing was learnt of the server.
        if attempt.server.address in tried or not self._budget.take_retry():
            return None
        return attempt

    def _take_head(self, response: httpx.Response, attempt: Attempt) -> Generator[Close, Any, None]:
        """Note what the head of a response says of the server."""
        attempt.answered(response.status_code, self._now())
        response.extensions["sluicegate_server"] = attempt.server
        try:
            load = None if self._load is None else self._load(response)
            if load is not None:
                attempt.report(load)
        except BaseException as error:
            attempt.end_by(error)
            yield Close(response)
            raise

    def _count_body(self, response: httpx.Response, attempt: Attempt) -> httpx.Response:
        if response.is_closed:  # its body is in memory: nobody will close it again
            attempt.end()
        else:
            response.stream = self._counted_stream(response.stream, attempt)
        return response

    def _discard(
        self, response: httpx.Response, attempt: Attempt, following: Attempt
    ) -> Generator[Close, Any, None]:
        try:
            yield Close(response)
        except httpx.TransportError:
            pass  # the connection is gone, which is as good
        except BaseException as error:
            following.end_by(error)
            raise
        finally:
            attempt.end()


def _balancer(
    servers: Iterable[Server | str] | Balancer, policy: str | None, clock: Clock | None
) -> Balancer:
    if not isinstance(servers, Balancer):
        return make("least_active" if policy is None else policy, servers, clock=clock)
    if policy is not None:
        raise ValueError(f"policy must be None with a ready balancer, got {policy!r}")
    return servers


def _is_idempotent(request: httpx.Request) -> bool:
    return request.method in _IDEMPOTENT or "idempotency-key" in request.headers
