"""Runs of the scenarios that come with Sluicegate, each made once for all processes of a test run.

The first process that needs a run makes it and leaves it in the folder of the test run; the others
wait for that, and read it.
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

__all__ = ["RunShipped", "run_shipped"]

RunShipped = Callable[..., Result]  # name, system="fair", seed=0, seconds=None


@pytest.fixture(scope="session")
def run_shipped(tmp_path_factory: pytest.TempPathFactory) -> RunShipped:
    """Results are without the series, which would take a gigabyte in the soak."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @cache
    def run_shipped(
        name: str, system: str = "fair", seed: int = 0, seconds: float | None = None
    ) -> Result:
        scenario = load(name) if seconds is None else load(name).lasting(seconds)
        path = shared / f"run-{name}-{system}-{seed}-{scenario.seconds:g}"
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
