"""Runs of the scenarios that come with Sluicegate, each made once for all processes of a test run.

The first process that needs a run makes it and leaves it in the folder of the test run; the others
wait for that, and read it.

The soak runs scenarios in full length, as docs/accuracy.md does. `make test` takes less of those
whose traffic is steady, or whose faults come early: each run is still longer than its warm-up and
the longest window that a figure of it is about, and every fault comes in it.
"""

import fcntl
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from sluicegate.sim.runner import Result, run
from sluicegate.sim.scenario import load

__all__ = ["SECONDS", "SOAK", "RunShipped", "run_shipped"]

RunShipped = Callable[..., Result]  # name, system="fair", seed=0

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
SECONDS = {
    # A figure of a minute, and a warm-up of 10 or 15 s.
    **dict.fromkeys(("overload-3x", "overload-10x"), 73.0),
    **dict.fromkeys(("lossy", "hopping", "moving", "skewed-clocks"), 78.0),
    # No figure of a minute: a warm-up of 10 or 15 s, and a window of 10 s at most.
    **dict.fromkeys(("two-resources", "flood", "fairness"), 28.0),
    **dict.fromkeys(("small-50", "below-limit", "doorman-1", "doorman-4"), 40.0),
    "doorman-5": 26.0,
    # It goes up, or down, at 40.3 s, and a figure of 10 s must be right again soon after.
    **dict.fromkeys(("failover", "join", "death", "doorman-2"), 60.0),
    # The same, until 70.3 s, and a figure of a minute.
    **dict.fromkeys(("partition", "doorman-3", "doorman-6"), 90.0),
    "return": 50.0,  # the last node is back at 37.3 s
    "standstill": 66.0,  # the last nodes stand still at 60.8 s
    "surge": 26.0,  # it has risen at 21 s
    "on-and-off": 120.0,
    "one-per-second": 180.0,
}


@pytest.fixture(scope="session")
def run_shipped(tmp_path_factory: pytest.TempPathFactory) -> RunShipped:
    """Results are without the series, which would take a gigabyte in the soak."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @cache
    def run_shipped(name: str, system: str = "fair", seed: int = 0) -> Result:
        scenario = load(name)
        if not SOAK and name in SECONDS:
            scenario = scenario.lasting(SECONDS[name])
        path = shared / f"run-{name}-{system}-{seed}"
        with open(f"{path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write(path, replace(run(scenario, system=system, seed=seed), cells=[]))
        result: Result = pickle.loads(path.read_bytes())
        return result

    return run_shipped


def _write(path: Path, result: Result) -> None:
    whole = path.with_name(f"{path.name}.new")  # a process that is killed leaves no half of a file
    whole.write_bytes(pickle.dumps(result))
    whole.rename(path)
