"""Pacing clusters in virtual time: the real limiters, and a simulated store, clocks and traffic.

    scenario = load("pacing-steady")
    result = run(scenario, seed=7)
    result.measures["delivered"], result.missed

Nodes are the real `ClusterState` and `ClusterLimiter`, the store is a `MemoryStore` behind a
network with delays, losses and outages. The same scenario and seed give the same run, to the bit.
"""

from sluicegate.sim.pacing.runner import Result, run
from sluicegate.sim.pacing.scenario import PacingScenario, load, names, read

__all__ = ["PacingScenario", "Result", "load", "names", "read", "run"]
