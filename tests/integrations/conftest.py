"""Requests made by hand, and a limiter whose answers must be awaited."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sluicegate import Decision, Keyed, Limit
from sluicegate.integrations.http.request import ScopeRequest
from sluicegate.limits.limit import Key

MakeRequest = Callable[..., ScopeRequest]


class AsyncKeyed:
    """A `Keyed` behind coroutines that really go through the event loop."""

    def __init__(self, keyed: Keyed) -> None:
        self.keyed = keyed

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self.keyed.limits

    async def check(self, key: Key, cost: float = 1.0) -> Decision:
        await asyncio.sleep(0)
        return self.keyed.check(key, cost)

    async def refund(self, key: Key, cost: float) -> None:
        await asyncio.sleep(0)
        self.keyed.refund(key, cost)


class BlockingKeyed:
    """A `Keyed` that says of itself that it waits for a socket."""

    blocks = True

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed
        self.limits = keyed.limits
        self.check = keyed.check
        self.refund = keyed.refund


@pytest.fixture
def make_async() -> Callable[[Keyed], AsyncKeyed]:
    return AsyncKeyed


@pytest.fixture
def make_blocking() -> Callable[[Keyed], BlockingKeyed]:
    return BlockingKeyed


@pytest.fixture
def make_scope() -> Callable[..., dict[str, Any]]:
    def make(
        path: str = "/",
        *,
        method: str = "GET",
        client: str | None = "203.0.113.7",
        headers: Iterable[tuple[str, str]] = (),
        **more: Any,
    ) -> dict[str, Any]:
        return {
            "type": "http",
            "method": method,
            "path": path,
            "client": None if client is None else (client, 40000),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            **more,
        }

    return make


@pytest.fixture
def make_request(make_scope: Callable[..., dict[str, Any]]) -> MakeRequest:
    return lambda *args, **kwargs: ScopeRequest(make_scope(*args, **kwargs))
