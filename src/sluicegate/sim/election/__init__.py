"""The Paxos lease in virtual time: the real state machines, and a model of machines and network.

    outcome = run(17)
    outcome.violations, outcome.counts

Members are the real `Acceptor`, `Proposer` and `Observer`. The same seed gives the same run.
"""

from sluicegate.sim.election.swarm import run

__all__ = ["run"]
