"""Whole clusters in virtual time, with faults: what would a limit do, and does it hold?

    scenario = load("overload-3x")
    result = run(scenario, system="fair", seed=7)
    result.measures["over_10"], result.missed

A run takes the real node, ledger and messages, and replaces only what is around them: the
clocks, the network and the users. The same scenario and the same random seed give the same run,
to the byte. `sluicegate simulate` shows it to people; docs/simulator.md tells how to write a
scenario.
"""

from sluicegate.sim.audit import InvariantBroken
from sluicegate.sim.measures import Measures
from sluicegate.sim.runner import Result, run
from sluicegate.sim.scenario import Scenario, load, names

__all__ = ["InvariantBroken", "Measures", "Result", "Scenario", "load", "names", "run"]
