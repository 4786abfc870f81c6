"""Balancers in virtual time: the real policies, and simulated model servers, clients and network.

    scenario = BalanceScenario(servers=10, slow=1, clients=100, reports_load=True)
    measures = run(scenario, "least_active", seed=7)
    measures.p99, measures.shares

The same scenario, policy and seed give the same run, to the bit.
"""

from sluicegate.sim.balance.measures import Measures
from sluicegate.sim.balance.runner import run
from sluicegate.sim.balance.scenario import BalanceScenario, ServerEvent

__all__ = ["BalanceScenario", "Measures", "ServerEvent", "run"]
