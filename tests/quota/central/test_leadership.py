"""A central and its election: when it leads, in which epoch, and what it sends without a lease."""

import asyncio
import math
import time

import pytest

from sluicegate.election.election import boottime
from sluicegate.errors import ProtocolError
from sluicegate.quota.central.leadership import ElectedLeadership, EpochFloor, Peer, epoch_bound
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Ask, Quota, Report, UserAsk
from tests.harness.scripted_election import ScriptedElection
from tests.harness.spending_nodes import START, entry
from tests.harness.waits import wait_until


class Candidate:
    """A state and an election that the test decides; `sent` is what it has announced."""

    def __init__(self, *, known: int = 0, is_store: bool = False) -> None:
        self.confirmed = -math.inf  # when the store has last said so, if there is one
        self.election = ScriptedElection()
        self.state = CentralState(
            "a",
            Ledger([entry("*", r=100.0)]),
            now=0.0,
            wall=float(START),
            has_lease=lambda: self.leadership.has_lease(),
        )
        self.floor = EpochFloor(known)
        self.sent: list[tuple[str, Quota]] = []
        self.leadership = ElectedLeadership(
            self.state,
            self.election,
            self.floor,
            confirmed=(lambda: self.confirmed) if is_store else None,
            members={"a": "ws://a:1/", "b": "ws://b:1/"},
            is_connected=lambda peer: True,
            clock=lambda: 0.1,
        )
        self.leadership.deliver = self.sent.extend

    def win(self, epoch: int) -> None:
        self.election.win(epoch)
        self.leadership.update(0.1)

    def lose(self, leader: str | None, epoch: int) -> None:
        self.election.lose(leader, epoch)
        self.leadership.update(0.2)

    def hear(self, epoch: int) -> None:
        """A node reports, as the registry handles it."""
        report = Report("n", 1, 1, epoch, 0, START - 1, 7.5, {})
        if epoch > self.state.epoch:
            self.leadership.hear(0.2, report)
        self.state.receive(0.2, report)


def ask() -> Ask:
    return Ask("n", 1, 8.0, {"front": {"u": UserAsk(5, {})}})


def test_it_starts_as_a_standby_and_leads_when_it_is_elected() -> None:
    a = Candidate()
    a.leadership.update(0.0)
    assert not a.state.leads
    a.win(7)
    assert (a.state.leads, a.state.epoch, a.leadership.leader) == (True, 7, "a")
    a.lose("b", 8)
    assert (a.state.leads, a.state.epoch, a.leadership.leader) == (False, 8, "b")
    assert a.leadership.leader_url == "ws://b:1/"
    assert a.leadership.peers == [Peer("b", "ws://b:1/", True)]
    a.win(9)
    assert (a.state.leads, a.state.epoch, a.leadership.wins) == (True, 9, 2)


def test_without_a_lease_nothing_is_granted_though_no_task_has_run() -> None:
    """The process was frozen for a minute: what runs first when it wakes up is a message."""
    a = Candidate()
    a.win(7)
    a.hear(7)
    assert a.state.receive(0.2, ask())
    a.election.time += 60.0
    assert not a.state.leads
    assert a.state.receive(0.3, ask()) == []
    assert a.state.tick(0.9) == []
    ((_, ack),) = a.state.receive(1.1, Report("n", 1, 2, 7, 1, START, 7.5, {}))
    assert not ack.leads


def test_a_lease_that_was_lost_and_won_again_is_another_leadership() -> None:
    """Another central may have led in between, and no task has run here since."""
    a = Candidate()
    a.win(7)
    a.election.win(9)
    assert not a.state.leads
    a.leadership.update(0.3)
    assert (a.state.leads, a.state.epoch) == (True, 9)


def test_a_renewal_changes_nothing() -> None:
    a = Candidate()
    a.hear(-1)
    a.win(7)
    a.sent.clear()
    a.win(7)
    assert (a.state.epoch, a.leadership.wins, a.sent) == (7, 1, [])


def test_a_new_leader_tells_its_nodes_at_once_and_grants_nothing_by_it() -> None:
    a = Candidate()
    a.hear(4)
    a.win(7)
    ((node, quota),) = a.sent
    assert (node, quota.epoch, quota.central) == ("n", 7, "a")
    assert not any(part.users for part in quota.services.values())


def test_a_standby_forgets_the_clock_of_a_leader_only_when_another_leads() -> None:
    a = Candidate()
    a.lose("b", 5)
    a.hear(5)
    known = a.state.time(0.2)
    a.lose("b", 5)  # nothing new
    assert a.state.time(0.2) == known
    a.lose("c", 6)
    assert a.state.epoch == 6


def test_nodes_that_know_a_higher_epoch_raise_the_floor() -> None:
    """A central without an election led them before: its epoch is the time of its start."""
    a = Candidate()
    a.hear(1_800_000_000)  # as a standby
    assert a.floor() == 1_800_000_001
    a.win(1_800_000_001)  # the election has taken the floor
    a.hear(1_800_000_500)
    assert a.floor() == 1_800_000_501
    assert a.state.epoch == 1_800_000_001  # until the next renewal
    a.win(1_800_000_501)
    assert (a.state.leads, a.state.epoch, a.leadership.wins) == (True, 1_800_000_501, 1)


def test_the_epoch_of_the_state_file_is_below_the_floor() -> None:
    assert Candidate(known=1_700_000_000).floor() == 1_700_000_001


def test_where_an_election_cannot_be_raised_the_leader_counts_from_the_floor() -> None:
    """Revisions of etcd are small numbers."""
    a = Candidate(is_store=True)
    a.hear(1_800_000_000)
    a.win(12)
    assert a.state.epoch == 1_800_000_001
    a.hear(1_800_000_001)  # its own
    a.win(12)
    assert a.state.epoch == 1_800_000_001
    a.hear(1_800_000_400)
    a.confirmed = boottime()
    a.hear(1_800_000_400)
    assert (a.state.leads, a.state.epoch, a.leadership.wins) == (True, 1_800_000_401, 1)
    a.lose("b", 13)
    a.hear(1_800_000_402)  # b's
    a.win(14)
    assert a.state.epoch == 1_800_000_403


def test_a_leader_that_counts_from_the_floor_leads_again_after_it_has_lost_its_lease() -> None:
    """Redis restarts: nodes still report the epoch in which this central led, and none above."""
    a = Candidate(is_store=True)
    a.hear(1_800_000_000)
    a.win(2)
    a.lose(None, 2)
    a.hear(1_800_000_001)  # its own
    a.win(3)
    assert (a.state.leads, a.state.epoch, a.leadership.wins) == (True, 1_800_000_002, 2)


@pytest.mark.parametrize("is_store", [False, True])
def test_a_node_that_raises_the_epoch_with_each_report_does_not_fill_the_log(
    is_store: bool, caplog: pytest.LogCaptureFixture
) -> None:
    a = Candidate(is_store=is_store)
    a.win(7)
    with caplog.at_level("INFO", "sluicegate.quota"):
        for epoch in range(100, 200):
            a.hear(epoch)
    assert a.floor() >= 199
    assert [each.message for each in caplog.records] == [
        "node 'n' reports epoch 100, above the leader's 7: raising the epoch"
    ]


def test_a_leader_whose_lease_is_in_doubt_does_not_go_above_the_epoch_of_its_successor() -> None:
    """Redis has lost the lease, and another leads: nodes that follow it report to both."""
    a = Candidate(is_store=True)
    a.win(1)
    a.confirmed = boottime()
    a.sent.clear()
    for _ in range(2):
        a.hear(2)
    assert (a.state.epoch, a.sent) == (1, [])
    a.lose("b", 2)  # its next renewal tells
    assert (a.state.leads, a.state.epoch) == (False, 2)


def test_an_epoch_far_ahead_is_refused_by_a_leader_and_ignored_by_a_standby() -> None:
    a = Candidate()
    far = epoch_bound(time.time()) + 1
    a.hear(far)
    assert a.floor() == 1
    a.win(7)
    with pytest.raises(ProtocolError, match="must be below"):
        a.hear(far)


def test_an_epoch_that_was_used_is_not_used_again(caplog: pytest.LogCaptureFixture) -> None:
    a = Candidate()
    a.lose("b", 9)
    a.win(9)
    assert not a.state.leads
    assert "epoch 9 of the election is not above 9" in caplog.text


def test_the_task_follows_the_election_and_stops_leading_at_the_close() -> None:
    async def story() -> None:
        a = Candidate()
        await a.leadership.start()
        a.election.win(3)
        await wait_until(lambda: a.state.leads)
        await a.leadership.close()
        assert not a.state.leads
        with pytest.raises(ValueError, match="epoch must be above 3"):
            a.state.lead(1.0, 3)

    asyncio.run(story())
