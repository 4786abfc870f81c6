"""How tests are run: in which order, in which processes, and what is measured.

pytest-xdist gives whole files to its processes, so that tests that share a fixture of their module
run in one. The hooks of this file are taken over by conftest.py.
"""

import sys
import threading
from collections.abc import Generator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_call", "pytest_xdist_make_scheduler"]

# The longest files begin first, those that mostly wait beside those that compute: with several
# processes (pytest-xdist, a file to each) nobody waits for a long one in the end.
_FIRST = (
    "tests/system/test_failing_centrals.py",
    "tests/sim/test_mutants.py",
    "tests/system/test_failing_nodes.py",
    "tests/sim/test_accuracy.py",
    "tests/demo/test_quota.py",
    "tests/sim/test_random_space.py",
    "tests/system/test_calm_fleet.py",
    "tests/sim/",
    "tests/system/",
    "tests/test_hanging.py",
    "tests/test_package.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Properties are not measured: a hundred examples take twice as long, and show the same.
        if item.get_closest_marker("hypothesis"):
            item.add_marker("no_cover")
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    places = (place for place, start in enumerate(_FIRST) if item.nodeid.startswith(start))
    return next(places, len(_FIRST))


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


class FilesToProcesses(LoadFileScheduling):
    """`--dist loadfile`, but a test that has ended its process (a crash) is not run again.

    pytest-xdist 3.8 hands it to the next process, until all of them have ended.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        files = self.assigned_work[node].values()
        running = (
            (tests, test) for tests in files for test, is_done in tests.items() if not is_done
        )
        tests, crashed = next(running, ({}, None))
        if crashed is not None:
            tests[crashed] = True
        super().remove_node(node)
        return crashed


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesToProcesses | None:
    return FilesToProcesses(config, log) if config.option.dist == "loadfile" else None
