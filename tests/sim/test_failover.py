"""Three centrals elect a leader in virtual time: what its failure costs, and what must not happen.

The goals of the shipped scenarios are the figures' row: a standby takes over, no slot without a
limit, a fresh quota within the election and a slot, and all is normal after five slots.
"""

import os

import pytest

from sluicegate.quota.messages import Quota
from sluicegate.sim import cluster
from sluicegate.sim.machines import Machine
from sluicegate.sim.measures import STEPS
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


SURGE = """
title = "t"
about = "a"
seconds = 35
warm_up = 5
nodes = 3
centrals = 3
limit = [{{ user = "zoe", requests = 200, burst_seconds = {burst} }}]
traffic = [{{ user = "zoe", rate = [[0, {before}], [{begun}, 600]] }}]
fault = [{{ at = 20.3, what = "crash", machine = "leader", seconds = 8 }}]
"""


@pytest.mark.parametrize("burst", [1, 10])
@pytest.mark.parametrize(("before", "begun"), [(0, 10.6), (100, 10.6), (100, 22.2), (0, 23.4)])
def test_a_takeover_neither_doubles_nor_loses_what_was_saved(
    burst: int, before: int, begun: float
) -> None:
    measures = run(read(SURGE.format(burst=burst, before=before, begun=begun))).measures
    assert measures.excess == 0.0
    assert measures.shortfall is not None
    assert measures.shortfall <= 0.01


def test_a_burst_that_is_being_spent_at_a_takeover_is_a_slot_longer_at_most() -> None:
    measures = run(read(SURGE.format(burst=10, before=0, begun=18.6))).measures
    assert measures.excess is not None
    assert measures.excess <= 200.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_user_that_hops_has_what_it_missed_when_another_central_leads(
    seed: int, is_paused: bool
) -> None:
    text = """
title = "t"
about = "a"
seconds = 35
warm_up = 5
nodes = 3
centrals = 3
exact_arrivals = true
limit = [{ user = "zoe", requests = 100, burst_seconds = 10 }]

[[traffic]]
user = "zoe"
rate = 500
nodes = "hopping"
stay = [1, 3]

[[fault]]
at = 20.3
what = "crash"
machine = "leader"
seconds = 8
"""
    if is_paused:
        for machines in ('["node-1..3"]', '["central-2", "central-3"]'):
            text += f'[[fault]]\nat = 22.5\nwhat = "freeze"\nmachine = {machines}\nseconds = 0.5\n'
    (cell,) = run(read(text), seed=seed).cells
    second = cell.allowed[0] * STEPS
    admitted = [sum(cell.admitted[at : at + STEPS]) for at in range(0, len(cell.admitted), STEPS)]
    # Nobody leads from 20.3 to some 22.3. All of that is there two seconds later, pause or not.
    assert sum(admitted[20:24]) >= 3.8 * second
    assert sum(admitted[20:24]) <= 4.2 * second
    assert min(admitted[24:30]) >= 0.85 * second
