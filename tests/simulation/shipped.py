"""Runs of the scenarios that come with Headgate, each made once for all tests of a process."""

from dataclasses import replace
from functools import cache

from headgate.sim.runs import Result, run
from headgate.sim.scenario import load

__all__ = ["run_shipped"]


@cache
def run_shipped(name: str, system: str = "fair", seed: int = 0) -> Result:
    """Without the series, which would take a gigabyte in the soak."""
    return replace(run(load(name), system=system, seed=seed), cells=[])
