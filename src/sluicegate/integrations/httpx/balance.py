"""httpx transports that send each request to one of several servers.

    transport = BalancedTransport(["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    client = httpx.Client(transport=transport, base_url="http://service")

Scheme, host and port of a request are replaced by those of the server that is picked, and the path
of its base URL is put in front. All requests that reach the transport are balanced; a client that
talks to others, too, has it as `mounts={"all://service": transport}`.

A request that fails may be sent again to another server: `request_balancer.py` has the rules.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import httpx

from sluicegate.balance import Balancer, Server
from sluicegate.clock import Clock
from sluicegate.integrations.httpx.attempt import AsyncCountedStream, CountedStream
from sluicegate.integrations.httpx.request_balancer import (
    Close,
    Key,
    Load,
    RequestBalancer,
    header_load,
)
from sluicegate.integrations.retry_budget import RetryBudget

__all__ = ["AsyncBalancedTransport", "BalancedTransport"]


class BalancedTransport(httpx.BaseTransport):
    """For `httpx.Client`.

    - `servers`: base URLs ("http://10.0.0.1:8000", "https://host/prefix"), each a str or a `Server`
      with a weight; or a ready `Balancer` of such servers.
    - `transport`: the one that sends; a plain `httpx.HTTPTransport` by default.
    - `policy`: the name of a policy, "least_active" by default; a ready balancer has its own.
    - `key`: what `ConsistentHash` goes by, a function of the request.
    - `retries`: how often a request may be sent again, each time to another server.
    - `budget`: retries per request over all requests, or a `RetryBudget` to be shared.
    - `retry_statuses`: responses that are retried like failures.
    - `load`: the load that a server reports, a function of the response; None reads none.
    - `keep_host`: `Host` stays that of the caller's URL, for servers that go by it.

    `response.extensions["sluicegate_server"]` is the server that has answered.
    """

    def __init__(
        self,
        servers: Iterable[Server | str] | Balancer,
        transport: httpx.BaseTransport | None = None,
        *,
        policy: str | None = None,
        key: Key | None = None,
        retries: int = 2,
        budget: float | RetryBudget = 0.2,
        retry_statuses: Iterable[int] = (502, 503, 504),
        load: Load | None = header_load,
        keep_host: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if transport is not None and not isinstance(transport, httpx.BaseTransport):
            raise TypeError(f"transport must be an httpx.BaseTransport, got {transport!r}")
        self._requests = RequestBalancer(
            servers,
            CountedStream,
            policy=policy,
            key=key,
            retries=retries,
            budget=budget,
            retry_statuses=retry_statuses,
            load=load,
            keep_host=keep_host,
            clock=clock,
        )
        self._transport = httpx.HTTPTransport() if transport is None else transport

    @property
    def balancer(self) -> Balancer:
        """Has the servers: `status()`, `add`, `remove`, `mark_down`."""
        return self._requests.balancer

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        plan = self._requests.plan(request)
        try:
            step = next(plan)
            while True:
                try:
                    result = self._do(step)
                except BaseException as error:  # noqa: BLE001  the plan raises it again
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _do(self, step: httpx.Request | Close) -> httpx.Response | None:
        if isinstance(step, httpx.Request):
            return self._transport.handle_request(step)
        step.response.close()
        return None

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

    def __repr__(self) -> str:
        return f"BalancedTransport({self.balancer!r})"


class AsyncBalancedTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`, over an `httpx.AsyncHTTPTransport` by default."""

    def __init__(
        self,
        servers: Iterable[Server | str] | Balancer,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        policy: str | None = None,
        key: Key | None = None,
        retries: int = 2,
        budget: float | RetryBudget = 0.2,
        retry_statuses: Iterable[int] = (502, 503, 504),
        load: Load | None = header_load,
        keep_host: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if transport is not None and not isinstance(transport, httpx.AsyncBaseTransport):
            raise TypeError(f"transport must be an httpx.AsyncBaseTransport, got {transport!r}")
        self._requests = RequestBalancer(
            servers,
            AsyncCountedStream,
            policy=policy,
            key=key,
            retries=retries,
            budget=budget,
            retry_statuses=retry_statuses,
            load=load,
            keep_host=keep_host,
            clock=clock,
        )
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    @property
    def balancer(self) -> Balancer:
        """Has the servers: `status()`, `add`, `remove`, `mark_down`."""
        return self._requests.balancer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        plan = self._requests.plan(request)
        try:
            step = next(plan)
            while True:
                try:
                    result = await self._do(step)
                except BaseException as error:  # noqa: BLE001  the plan raises it again
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _do(self, step: httpx.Request | Close) -> httpx.Response | None:
        if isinstance(step, httpx.Request):
            return await self._transport.handle_async_request(step)
        await step.response.aclose()
        return None

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

    def __repr__(self) -> str:
        return f"AsyncBalancedTransport({self.balancer!r})"
