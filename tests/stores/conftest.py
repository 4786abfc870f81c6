"""Stores to try examples on."""

from collections.abc import Callable, Iterator

import pytest

from sluicegate.stores import MemoryStore, RedisStore
from sluicegate.stores.store import Store
from tests.harness.servers import RedisServer
from tests.harness.store_requests import RedisAt
from tests.harness.waits import PATIENCE


@pytest.fixture(params=["memory", "redis", "go"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each kind of store, empty."""
    if request.param == "memory":
        yield MemoryStore()
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    layout = "go" if request.param == "go" else "sluicegate"
    made = RedisStore(server.url, layout=layout, timeout=PATIENCE)
    yield made
    made.close()


@pytest.fixture
def timed_store(store: Store) -> Store:
    """Each kind of store, empty; its time is that of the requests."""
    return RedisAt(store) if isinstance(store, RedisStore) else store


@pytest.fixture
def connect(redis_server: RedisServer) -> Iterator[Callable[..., RedisStore]]:
    """Makes stores in the Redis of the test."""
    made: list[RedisStore] = []

    def connect(prefix: str = "sluicegate:", **options: object) -> RedisStore:
        made.append(RedisStore(redis_server.url, prefix, **{"timeout": PATIENCE, **options}))
        return made[-1]

    yield connect
    for store in made:
        store.close()
