"""Runs of the scenarios that come with Headgate, each made once for all tests of a process.

A test that looks at one belongs to the group `together(name)`, so that pytest-xdist runs all of
them in the same process.
"""

from dataclasses import replace
from functools import cache

import pytest

from headgate.sim.runs import Result, run
from headgate.sim.scenario import load

__all__ = ["run_shipped", "together"]


@cache
def run_shipped(name: str, system: str = "fair", seed: int = 0) -> Result:
    """Without the series, which would take a gigabyte in the soak."""
    return replace(run(load(name), system=system, seed=seed), cells=[])


def together(name: str) -> pytest.MarkDecorator:
    return pytest.mark.xdist_group(f"scenario {name}")
