"""Runs of the scenarios that come with Sluicegate, each made once for all tests of a process."""

from dataclasses import replace
from functools import cache

from sluicegate.sim.runner import Result, run
from sluicegate.sim.scenario import load

__all__ = ["run_shipped"]


@cache
def run_shipped(name: str, system: str = "fair", seed: int = 0) -> Result:
    """Without the series, which would take a gigabyte in the soak."""
    return replace(run(load(name), system=system, seed=seed), cells=[])
