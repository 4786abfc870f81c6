"""Set-up for all tests: how many examples properties try, a manual clock, a real Redis."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from sluicegate import ManualClock
from tests.harness.children import Children
from tests.harness.hooks import (
    pytest_collection_modifyitems,
    pytest_runtest_call,
    pytest_xdist_make_scheduler,
)
from tests.harness.servers import RedisServer
from tests.harness.shipped_scenarios import run_shipped

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_xdist_make_scheduler",
    "run_shipped",
]

settings.register_profile("default", max_examples=100, deadline=None)
settings.register_profile(
    "soak",
    max_examples=5_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.end()


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> Iterator[RedisServer]:
    """A real Redis with nothing in it; a test may stop, kill and restart it."""
    redis_process.freshen()
    yield redis_process
    redis_process.freshen()
