"""`Acceptor`: examples a reader should see, and a state machine of what must always hold."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluicegate.election.paxos.acceptor import Acceptor, Reply
from sluicegate.election.paxos.messages import (
    Accept,
    Accepted,
    Ballot,
    Leading,
    Prepare,
    Promise,
    Reject,
    Release,
)
from sluicegate.election.paxos.timing import Timing

TIMING = Timing(lease=2.0, clock_error=0.01, attempt=0.1)
EXCLUSION = TIMING.exclusion
A1, A2, B1, B2 = Ballot(1, 1, "a"), Ballot(2, 1, "a"), Ballot(1, 1, "b"), Ballot(2, 1, "b")


def acceptor(epoch: int = 0) -> Acceptor:
    """One that has started so long ago that it votes at 0."""
    return Acceptor(-10.0, epoch, TIMING)


def test_exclusion_covers_a_lease_on_any_two_clocks() -> None:
    slowest, fastest = 1.0 - TIMING.clock_error, 1.0 + TIMING.clock_error
    assert TIMING.exclusion / fastest >= TIMING.lease / slowest
    assert TIMING.quarantine / fastest >= TIMING.lease / slowest


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"lease": 0.0}, "lease must be from 0.01 to 3600, got 0.0"),
        ({"lease": float("nan")}, "lease must be from"),
        ({"clock_error": 0.5}, "clock_error must be from 0 to 0.2, got 0.5"),
        ({"attempt": 0.6}, "attempt must be from 0.001 to 0.5, got 0.6"),
    ],
)
def test_durations_that_cannot_work_are_refused(
    arguments: dict[str, float], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Timing(**arguments)


def test_nothing_is_heard_in_quarantine() -> None:
    voter = Acceptor(0.0, 0, TIMING)
    for message in (Prepare(A1, 2.0), Accept(A1, 2.0, 1), Release(A1)):
        assert voter.receive(EXCLUSION - 1e-6, message) is None
    assert voter.receive(EXCLUSION, Prepare(A1, 2.0)) == Reply(Promise(A1, 0, None, 0.0))


def test_a_promise_reports_the_lease_and_the_epoch() -> None:
    voter = acceptor(epoch=7)
    assert voter.receive(0.0, Accept(A1, 2.0, 8)) == Reply(Accepted(A1), 8)
    assert voter.receive(0.5, Prepare(B2, 2.0)) == Reply(Promise(B2, 8, A1, EXCLUSION - 0.5))
    assert voter.receive(EXCLUSION, Prepare(B2, 2.0)) == Reply(Promise(B2, 8, None, 0.0))


def test_lower_ballots_than_the_promised_are_rejected() -> None:
    voter = acceptor()
    voter.receive(0.0, Prepare(B1, 2.0))
    assert voter.receive(0.0, Prepare(A1, 2.0)) == Reply(Reject(A1, B1, 0.0))
    assert voter.receive(0.0, Accept(A1, 2.0, 1)) == Reply(Reject(A1, B1, 0.0))


def test_a_ballot_that_would_use_up_the_counters_is_ignored() -> None:
    voter = acceptor()
    far = Ballot(2**53, 1, "b")
    assert voter.receive(0.0, Prepare(far, 2.0)) is None
    assert voter.receive(0.0, Accept(far, 2.0, 1)) is None
    assert voter.receive(0.0, Prepare(A1, 2.0)) == Reply(Promise(A1, 0, None, 0.0))


def test_a_higher_ballot_of_another_is_rejected_while_a_lease_lasts() -> None:
    voter = acceptor()
    voter.receive(0.0, Accept(A1, 2.0, 1))
    assert voter.receive(1.0, Accept(B2, 2.0, 2)) == Reply(Reject(B2, A1, EXCLUSION - 1.0))
    other_life = Ballot(9, 2, "a")
    assert voter.receive(1.0, Accept(other_life, 2.0, 2)) == Reply(
        Reject(other_life, A1, EXCLUSION - 1.0)
    )
    assert voter.receive(1.0, Accept(A2, 2.0, 1)) == Reply(Accepted(A2), 1)


def test_a_release_clears_exactly_its_ballot() -> None:
    voter = acceptor()
    voter.receive(0.0, Accept(A2, 2.0, 1))
    voter.receive(0.0, Release(A1))
    assert voter.holder == A2
    voter.receive(0.0, Release(A2))
    assert voter.receive(0.0, Accept(B2, 2.0, 2)) == Reply(Accepted(B2), 2)


def test_a_longer_lease_than_its_own_gets_no_vote() -> None:
    voter = acceptor()
    assert voter.receive(0.0, Prepare(A1, 2.5)) is None
    assert voter.receive(0.0, Accept(A1, 2.5, 1)) is None
    assert voter.receive(0.0, Accept(A1, 1.5, 1)) == Reply(Accepted(A1), 1)


def test_an_epoch_is_required_to_be_durable_with_every_vote() -> None:
    """A write may have failed: the next vote must not be sent without it either."""
    voter = acceptor(epoch=5)
    assert voter.receive(0.0, Accept(A1, 2.0, 3)) == Reply(Accepted(A1), 5)
    assert voter.receive(0.0, Accept(A2, 2.0, 9)) == Reply(Accepted(A2), 9)
    assert voter.receive(0.0, Accept(A2, 2.0, 9)) == Reply(Accepted(A2), 9)


def test_what_leaders_announce_is_no_vote() -> None:
    assert acceptor().receive(0.0, Leading(A1, 1)) is None


ballots = st.builds(Ballot, st.integers(1, 4), st.integers(1, 2), st.sampled_from(["a", "b", "c"]))


class AnyMessages(RuleBasedStateMachine):
    """Any messages at any times, restarts, and books of what was voted for."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.disk = 0
        self.started_at = 0.0
        self.acceptor = Acceptor(self.now, self.disk, TIMING)
        self.votes: dict[Ballot, float] = {}  # when each was last accepted, if not released since
        self.promised = Ballot(0, 0, "")

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.7, 1.0, TIMING.exclusion, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.acceptor = Acceptor(self.now, self.disk, TIMING)
        self.started_at = self.now
        self.promised = Ballot(0, 0, "")

    @rule(ballot=ballots)
    def prepare(self, ballot: Ballot) -> None:
        reply = self.acceptor.receive(self.now, Prepare(ballot, 2.0))
        if self._is_quarantined:
            assert reply is None
            return
        assert reply is not None
        assert (reply.answer.__class__ is Reject) == (ballot < self.promised)
        if isinstance(reply.answer, Promise):
            assert reply.answer.epoch >= self.disk
            assert 0.0 <= reply.answer.remaining <= TIMING.exclusion + 1e-9
            assert (reply.answer.holder is None) == (reply.answer.remaining == 0.0)
            self.promised = ballot
        else:
            assert reply.answer.promised == self.promised  # type: ignore[union-attr]

    @rule(ballot=ballots, epoch=st.integers(0, 5))
    def accept(self, ballot: Ballot, epoch: int) -> None:
        reply = self.acceptor.receive(self.now, Accept(ballot, 2.0, epoch))
        if reply is None or not isinstance(reply.answer, Accepted):
            return
        assert not self._is_quarantined
        assert ballot >= self.promised
        assert reply.durable_epoch >= epoch
        self.disk = max(self.disk, reply.durable_epoch)
        # The heart of it: nobody else was given this vote within the exclusion, in any life.
        for other, time in self.votes.items():
            if other.incarnation != ballot.incarnation:
                assert self.now >= time + TIMING.exclusion, (other, ballot)
        self.votes[ballot] = self.now
        self.promised = ballot

    @rule(ballot=ballots)
    def release(self, ballot: Ballot) -> None:
        """An honest owner: after a release none of its earlier ballots counts any more."""
        if self._is_quarantined or self.acceptor.holder != ballot:
            self.acceptor.receive(self.now, Release(ballot))
            return
        self.acceptor.receive(self.now, Release(ballot))
        assert self.acceptor.holder is None
        for other in [one for one in self.votes if one.incarnation == ballot.incarnation]:
            del self.votes[other]

    @precondition(lambda self: self.acceptor.holder is not None)
    @rule(ballot=ballots)
    def release_another(self, ballot: Ballot) -> None:
        holder = self.acceptor.holder
        if ballot != holder:
            self.acceptor.receive(self.now, Release(ballot))
            assert self.acceptor.holder == holder

    @invariant()
    def its_epoch_is_never_below_the_disk(self) -> None:
        assert self.acceptor.epoch >= self.disk

    @property
    def _is_quarantined(self) -> bool:
        return self.now < self.started_at + TIMING.quarantine


TestAnyMessages = AnyMessages.TestCase
