"""`SWARMS`: random elections, by the thousand."""

from sluicegate.sim.election.swarm import run
from sluicegate.sim.swarm_runs import Swarms

__all__ = ["SWARMS"]

SWARMS = Swarms(
    "election-random",
    "random elections",
    run,
    (
        *("elections", "renewals", "failovers", "hand-overs", "prods"),
        *("killed", "leaders killed", "killed after a vote"),
        *("stopped", "leaders stopped", "stopped after a win"),
        *("frozen", "leaders frozen", "thawed", "thawed as leader", "cuts", "without majority"),
        *("lost", "doubled", "late"),
    ),
    "never two leaders; epochs grew; a leader emerged after the faults",
)
