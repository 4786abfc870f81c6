"""`Proposer`: examples a reader should see, and a state machine of what must always hold."""

import random

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluicegate.election.paxos.messages import (
    Accept,
    Accepted,
    Answer,
    Ballot,
    Leading,
    Prepare,
    Promise,
    Proposal,
    Reject,
    Release,
)
from sluicegate.election.paxos.proposer import Proposer
from sluicegate.election.paxos.timing import Timing

TIMING = Timing(lease=2.0, clock_error=0.01, attempt=0.1)
MEMBERS = ("a", "b", "c")
START = 10.0
OTHER = Ballot(7, 1, "b")


class NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


def candidate() -> Proposer:
    """One that begins at START."""
    return Proposer(START - TIMING.quarantine, "a", 3, MEMBERS, TIMING, NoJitter())


def ballot(counter: int) -> Ballot:
    return Ballot(counter, 3, "a")


def promise(counter: int, epoch: int = 0) -> Promise:
    return Promise(ballot(counter), epoch, None, 0.0)


def leader(now: float = START, epoch: int = 0) -> Proposer:
    proposer = candidate()
    proposer.tick(now)
    for voter in "ab":
        proposer.receive(now, voter, promise(1, epoch))
    for voter in "ab":
        proposer.receive(now, voter, Accepted(ballot(1)))
    assert proposer.is_leader(now)
    return proposer


def test_a_majority_of_both_rounds_leads_until_a_lease_from_before_the_first() -> None:
    proposer = candidate()
    assert proposer.next_time == START
    assert proposer.tick(START - 0.001) == ()
    assert proposer.tick(START) == (Prepare(ballot(1), 2.0),)
    assert proposer.receive(START + 0.01, "b", promise(1, epoch=4)) == ()
    assert proposer.receive(START + 0.02, "c", promise(1, epoch=6)) == (Accept(ballot(1), 2.0, 7),)
    assert proposer.receive(START + 0.03, "a", Accepted(ballot(1))) == ()
    assert not proposer.is_leader(START + 0.03)
    assert proposer.receive(START + 0.04, "c", Accepted(ballot(1))) == (Leading(ballot(1), 7),)
    assert (proposer.deadline, proposer.epoch) == (START + 2.0, 7)
    assert proposer.is_leader(START + 1.999)
    assert not proposer.is_leader(START + 2.0)


def test_a_vote_counts_once_and_only_of_members() -> None:
    proposer = candidate()
    proposer.tick(START)
    assert proposer.receive(START, "b", promise(1)) == ()
    assert proposer.receive(START, "b", promise(1)) == ()
    assert proposer.receive(START, "stranger", promise(1)) == ()
    assert len(proposer.receive(START, "c", promise(1))) == 1


def test_a_lease_of_a_former_life_is_that_of_another() -> None:
    for restart, is_open in ((3, True), (2, False)):
        proposer = candidate()
        proposer.tick(START)
        proposer.receive(START, "a", promise(1))
        held = Promise(ballot(1), 0, Ballot(5, restart, "a"), 1.5)
        assert bool(proposer.receive(START, "b", held)) == is_open


def test_it_renews_at_a_third_and_keeps_its_epoch() -> None:
    proposer = leader(epoch=4)
    renewal = proposer.next_time
    assert abs(renewal - (START + 2.0 / 3.0)) < 1e-9
    assert proposer.tick(renewal) == (Prepare(ballot(2), 2.0),)
    # A failed attempt of another has raised the epoch of an acceptor: a renewal keeps its own.
    proposer.receive(renewal, "a", promise(2, epoch=9))
    assert proposer.receive(renewal, "b", promise(2, epoch=5)) == (Accept(ballot(2), 2.0, 5),)
    assert proposer.deadline == START + 2.0
    proposer.receive(renewal, "a", Accepted(ballot(2)))
    assert proposer.receive(renewal, "b", Accepted(ballot(2))) == (Leading(ballot(2), 5),)
    assert proposer.deadline == renewal + 2.0


def test_a_failed_renewal_extends_and_releases_nothing() -> None:
    proposer = leader()
    renewal = proposer.next_time
    proposer.tick(renewal)
    proposer.receive(renewal, "a", promise(2))
    proposer.receive(renewal, "b", promise(2))
    assert proposer.tick(renewal + 0.1) == ()
    assert proposer.deadline == START + 2.0
    assert proposer.tick(proposer.next_time) == (Prepare(ballot(3), 2.0),)


def test_a_handler_that_runs_late_gives_the_attempt_up() -> None:
    """No timer has run in the meantime."""
    proposer = candidate()
    proposer.tick(START)
    proposer.receive(START, "a", promise(1))
    proposer.receive(START, "b", promise(1))
    proposer.receive(START, "a", Accepted(ballot(1)))
    late = proposer.receive(START + 0.1, "b", Accepted(ballot(1)))
    assert late == (Release(ballot(1)),)
    assert not proposer.is_leader(START + 0.1)
    assert proposer.receive(START + 0.1, "c", Accepted(ballot(1))) == ()


def test_after_a_reject_the_next_ballot_is_above_the_promised() -> None:
    proposer = candidate()
    proposer.tick(START)
    assert proposer.receive(START, "b", Reject(ballot(1), OTHER, 0.0)) == ()
    assert proposer.receive(START, "c", Reject(ballot(1), OTHER, 0.0)) == ()  # hopeless: it ends
    assert proposer.tick(proposer.next_time) == (Prepare(ballot(8), 2.0),)


def test_it_backs_off_until_a_majority_can_be_open() -> None:
    proposer = candidate()
    proposer.tick(START)
    proposer.receive(START, "b", Promise(ballot(1), 0, OTHER, 1.5))
    proposer.receive(START, "c", Promise(ballot(1), 0, OTHER, 0.5))
    # b and c are held; a has not answered: two must be free, and each may be one of them.
    assert proposer.next_time == START + 1.5


def test_it_waits_for_a_leader_and_tries_at_once_after_a_release() -> None:
    proposer = candidate()
    proposer.expect(START - 1.0, START + 1.0)
    assert proposer.next_time == START + 1.0
    proposer.expect(START, float("-inf"))
    assert proposer.next_time == START


def test_a_lease_of_another_that_is_longer_than_any_can_be_is_not_waited_for() -> None:
    proposer = candidate()
    proposer.tick(START)
    for voter in "bc":
        proposer.receive(START, voter, Promise(ballot(1), 0, OTHER, 90_000.0))
    assert proposer.next_time <= START + TIMING.exclusion


def test_one_message_does_not_use_up_the_counters_of_ballots() -> None:
    proposer = candidate()
    proposer.tick(START)
    for voter in "bc":
        proposer.receive(START, voter, Reject(ballot(1), Ballot(2**53, 1, "b"), 0.0))
    ((again, _),) = proposer.tick(proposer.next_time)
    assert again == ballot(2)


def test_a_leader_that_hears_of_another_in_the_same_or_a_higher_epoch_stops() -> None:
    """A clock or a list of members is wrong. The epoch must tell the two apart."""
    for epoch, leads in ((4, True), (5, False), (9, False)):
        proposer = leader(epoch=4)
        assert proposer.epoch == 5
        proposer.hear(epoch)
        assert proposer.is_leader(START) is leads


def test_a_new_leadership_is_above_all_that_were_heard_of() -> None:
    proposer = candidate()
    proposer.hear(20)
    proposer.tick(START)
    proposer.receive(START, "a", promise(1, epoch=4))
    assert proposer.receive(START, "b", promise(1)) == (Accept(ballot(1), 2.0, 21),)
    proposer.hear(21)
    proposer.receive(START, "a", Accepted(ballot(1)))
    assert proposer.receive(START, "b", Accepted(ballot(1))) == (Release(ballot(1)),)
    assert not proposer.is_leader(START)


def test_stop_ends_leadership_before_it_releases() -> None:
    proposer = leader()
    renewal = proposer.next_time
    proposer.tick(renewal)
    assert proposer.stop() == (Release(ballot(1)), Release(ballot(2)))
    assert not proposer.is_leader(renewal)
    assert proposer.receive(renewal, "a", promise(2)) == ()
    assert proposer.tick(renewal + 10.0) == ()
    assert proposer.next_time == float("inf")


class AnyAnswers(RuleBasedStateMachine):
    """Any answers of any acceptors to any attempt, at any times."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.proposer = Proposer(0.0, "a", 3, MEMBERS, TIMING, random.Random(0))
        self.begun: dict[Ballot, float] = {}
        self.opened: dict[Ballot, set[str]] = {}
        self.accepted: dict[Ballot, set[str]] = {}
        self.epochs: dict[Ballot, int] = {}
        self.released: set[Ballot] = set()
        self.epoch = 0

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_until_called(self) -> None:
        self.now = max(self.now, self.proposer.next_time)
        self.tick()

    @rule()
    def tick(self) -> None:
        self._check(self.proposer.tick(self.now))

    @rule(data=st.data(), sender=st.sampled_from(["a", "b", "c", "stranger"]))
    def answer(self, data: st.DataObject, sender: str) -> None:
        known = [*self.begun, Ballot(1, 2, "a")]
        ballot = data.draw(st.sampled_from(known[-3:]))
        holder = data.draw(st.sampled_from([None, None, ballot, OTHER]))
        epoch = data.draw(st.integers(0, 4))
        answers: list[Answer] = [
            Promise(ballot, epoch, holder, 0.0 if holder is None else 1.0),
            Accepted(ballot),
            Accepted(ballot),
            Reject(ballot, Ballot(data.draw(st.integers(1, 50)), 1, "b"), 0.0),
        ]
        message = data.draw(st.sampled_from(answers))
        if isinstance(message, Accepted) and ballot in self.epochs and sender in MEMBERS:
            self.accepted.setdefault(ballot, set()).add(sender)
        if isinstance(message, Promise) and holder != OTHER and sender in MEMBERS:
            self.opened.setdefault(ballot, set()).add(sender)
        self._check(self.proposer.receive(self.now, sender, message))

    @rule(until=st.sampled_from([float("-inf"), 0.5]))
    def expect(self, until: float) -> None:
        self.proposer.expect(self.now, self.now + until)

    def _check(self, sent: tuple[Proposal, ...]) -> None:
        for message in sent:
            ballot = message.ballot
            if isinstance(message, Prepare):
                assert not self.begun or ballot > max(self.begun)
                self.begun[ballot] = self.now
            elif isinstance(message, Accept):
                assert len(self.opened[ballot]) >= 2
                assert self.now < self.begun[ballot] + TIMING.attempt
                self.epochs[ballot] = message.epoch
            elif isinstance(message, Release):
                assert not self.proposer.is_leader(self.now)
                self.released.add(ballot)
            else:
                self._check_won(message)

    def _check_won(self, message: Leading) -> None:
        ballot = message.ballot
        assert len(self.accepted[ballot]) >= 2
        assert ballot not in self.released
        assert self.now < self.begun[ballot] + TIMING.attempt
        assert self.proposer.deadline == self.begun[ballot] + TIMING.lease
        assert message.epoch == self.epochs[ballot] == self.proposer.epoch
        self.epoch = message.epoch

    @invariant()
    def it_leads_no_longer_than_a_lease(self) -> None:
        assert self.proposer.deadline <= self.now + TIMING.lease

    @invariant()
    def it_is_called_again(self) -> None:
        """There is always a next time, and it does not lie further than any lease."""
        assert self.proposer.next_time <= self.now + 2.0 * TIMING.exclusion + 1.0


TestAnyAnswers = AnyAnswers.TestCase
