"""Three centrals elect a leader in virtual time: what its failure costs, and what must not happen.

The goals of the shipped scenarios are the figures' row: a standby takes over, no slot without a
limit, a fresh quota within the election and a slot, and all is normal after five slots.
"""

import os

import pytest

from sluicegate.quota.messages import Quota
from sluicegate.sim import cluster
from sluicegate.sim.machines import Machine
from sluicegate.sim.runner import run
from sluicegate.sim.scenario import load, read

# Whole clusters in virtual time: what runs there is measured by tests/sim, at a third of the time.
pytestmark = pytest.mark.no_cover

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
SEEDS = range(30) if SOAK else range(1)
SCENARIOS = ("failover-kill", "failover-freeze", "failover-cut", "rolling-restart")

FLEET = """
title = "t"
about = "a"
seconds = 30
warm_up = 5
nodes = 2
centrals = 3
limit = [{ user = "zoe", requests = 100, burst_seconds = 0.5 }]
traffic = [{ user = "zoe", rate = 300 }]
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failover_meets_its_goals(name: str, seed: int) -> None:
    result = run(load(name), seed=seed)
    assert not result.missed
    assert result.measures.takeover is not None


def test_a_frozen_leader_that_thaws_sends_no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[float, str, int]] = []
    send = cluster.Cluster._send

    def note(self: cluster.Cluster, machine: Machine, target: str, message: object) -> None:
        if isinstance(message, Quota):
            sent.append((self.world.now, machine.name, message.epoch))
        send(self, machine, target, message)

    monkeypatch.setattr(cluster.Cluster, "_send", note)
    fault = "[[fault]]\nat = 10.3\nwhat = 'freeze'\nmachine = 'leader'\nseconds = 10\n"
    run(read(FLEET + fault))
    first = [time for time, name, _ in sent if name == "central-1"]
    assert first
    assert max(first) <= 10.3
    assert {epoch for time, _, epoch in sent if time > 13.0} == {2}


def test_without_a_majority_nobody_leads_and_the_limit_holds() -> None:
    fault = "[[fault]]\nat = 10.3\nwhat = 'crash'\nmachine = ['central-2', 'central-3']\n"
    measures = run(read(FLEET + fault)).measures
    assert measures.takeover is None
    assert measures.over_1 is not None
    assert measures.over_1 <= 0.2
    assert measures.nothing == 0.0


def test_a_leader_that_hears_no_peer_leads_until_its_lease_ends() -> None:
    fault = (
        "[[fault]]\nat = 10.3\nwhat = 'sever'\nmachine = 'central-1'\nothers = ['central-2..3']\n"
    )
    measures = run(read(FLEET + fault)).measures
    assert measures.takeover is not None
    assert 1.3 <= measures.takeover <= 3.6
