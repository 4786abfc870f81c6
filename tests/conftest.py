"""Set-up for all tests: how many examples properties try, a clock in the hand, a real Redis."""

import os
import sys
import threading
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from headgate import ManualClock
from tests.parts import RedisServer

settings.register_profile("default", max_examples=150, deadline=None)
settings.register_profile(
    "soak",
    max_examples=5_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# The longest files begin first, those that mostly wait beside those that compute: with several
# processes (pytest-xdist, a file to each) nobody waits for a long one in the end.
_FIRST = (
    "tests/system/test_failing_centrals.py",
    "tests/simulation/test_mutants.py",
    "tests/system/test_failing_nodes.py",
    "tests/simulation/test_accuracy.py",
    "tests/demo/test_quota.py",
    "tests/system/test_calm_fleet.py",
    "tests/simulation/",
    "tests/sim/",
    "tests/system/",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Properties are not measured: a hundred examples take twice as long, and show the same.
        if item.get_closest_marker("hypothesis"):
            item.add_marker("no_cover")
    items.sort(key=_rank)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Trace nothing while a test marked `no_cover` runs.

    In a worker of pytest-xdist, pytest-cov 7.1 has two measurements, one below the other, and
    pauses only the upper one: the test would take several times as long.
    """
    trace = sys.gettrace()
    if trace is None or item.get_closest_marker("no_cover") is None:
        return (yield)
    in_threads = threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        threading.settrace(in_threads)
        sys.settrace(trace)


def _rank(item: pytest.Item) -> int:
    places = (place for place, start in enumerate(_FIRST) if item.nodeid.startswith(start))
    return next(places, len(_FIRST))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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
