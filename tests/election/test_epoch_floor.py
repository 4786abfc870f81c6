"""The floor of the epochs: numbers from outside of the election that a new epoch must exceed."""

import random

from sluicegate.election.paxos.acceptor import Acceptor
from sluicegate.election.paxos.messages import Accept, Leading, Proposal
from sluicegate.election.paxos.proposer import Proposer
from sluicegate.election.paxos.timing import Timing

TIMING = Timing()


class Members:
    """A proposer `a` and three acceptors, without loss; all starts were long ago."""

    def __init__(self) -> None:
        self.floor = 0
        self.acceptors = {name: Acceptor(-100.0, 10, TIMING) for name in "abc"}
        self.a = Proposer(-100.0, "a", 1, "abc", TIMING, random.Random(1), floor=lambda: self.floor)
        self.sent: list[Proposal] = []

    def run(self, now: float) -> None:
        waiting = list(self.a.tick(now))
        while waiting:
            proposal = waiting.pop(0)
            self.sent.append(proposal)
            for name, acceptor in self.acceptors.items():
                reply = acceptor.receive(now, proposal)
                if reply is not None:
                    waiting += self.a.receive(now, name, reply.answer)


def test_a_new_leader_takes_the_floor_when_it_is_above_the_quorum() -> None:
    members = Members()
    members.floor = 1_800_000_001
    members.run(0.0)
    assert (members.a.is_leader(0.1), members.a.epoch) == (True, 1_800_000_001)
    assert {each.epoch for each in members.acceptors.values()} == {1_800_000_001}


def test_a_floor_below_the_quorum_changes_nothing() -> None:
    members = Members()
    members.floor = 5
    members.run(0.0)
    assert members.a.epoch == 11


def test_a_leader_below_the_floor_takes_a_new_epoch_with_its_next_renewal() -> None:
    members = Members()
    members.run(0.0)
    members.run(0.7)
    assert members.a.epoch == 11
    members.acceptors["c"].epoch = 20  # of an attempt that has failed elsewhere
    members.floor = 15
    assert members.a.epoch == 11  # nothing changes between two renewals
    members.run(1.4)
    raised = members.a.epoch
    assert raised in (15, 21)  # above the floor, and above all that its quorum has seen
    assert [each.epoch for each in members.sent if isinstance(each, Leading)] == [11, 11, raised]
    members.run(2.1)
    assert members.a.epoch == raised
    assert [each.epoch for each in members.sent if isinstance(each, Accept)][-1] == raised
