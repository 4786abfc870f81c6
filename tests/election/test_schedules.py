"""Schedules in which a weaker rule gives two leaders, or two leaderships with one epoch.

Each schedule is a timeline of messages that are delivered, delayed and lost by hand. With the real
rules it keeps one leader. With the rule weakened that it was made for it must not: a schedule that
does not find its mutant fails.

Members are a, b and c; the lease is 2 s, so exclusion and quarantine are 2.0404 s.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sluicegate.election.paxos.acceptor import Acceptor
from sluicegate.election.paxos.messages import Accept, Answer, Leading, Prepare, Proposal
from sluicegate.election.paxos.proposer import Proposer
from sluicegate.election.paxos.timing import Timing
from tests.harness import paxos_mutants as weaker


class Broken(AssertionError):
    """Two leaders at once, or an epoch that has not grown."""


class NoJitter(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return a


@dataclass(frozen=True)
class Rules:
    acceptor: type[Acceptor] = Acceptor
    proposer: type[Proposer] = Proposer


class Cluster:
    """Members that hear only what they are given. `time` is true time; clocks may differ."""

    def __init__(
        self, rules: Rules, names: str = "abc", rates: dict[str, float] | None = None
    ) -> None:
        self.rules = rules
        self.names = names
        self.rates = rates or {}
        self.timing = Timing(lease=2.0, clock_error=0.01, attempt=0.1)
        self.time = -10.0
        self.restarts = dict.fromkeys(names, 0)
        self.epochs = dict.fromkeys(names, 0)  # on the disks
        self.acceptors: dict[str, Acceptor] = {}
        self.proposers: dict[str, Proposer] = {}
        self.won: list[tuple[str, int, int]] = []  # name, restart and epoch of each leadership
        self.restart(*names)
        self.at(0.0)

    def now(self, name: str) -> float:
        return 1000.0 + self.time * self.rates.get(name, 1.0)

    def at(self, time: float) -> None:
        assert time >= self.time, "a schedule goes forward"
        self.time = time
        self.check()

    def check(self) -> None:
        leaders = [name for name in self.names if self.leads(name)]
        if len(leaders) > 1:
            raise Broken(f"{leaders} lead at {self.time:.3f}")

    def leads(self, name: str) -> bool:
        return self.proposers[name].is_leader(self.now(name))

    def restart(self, *names: str) -> None:
        """Kill these processes and start them again."""
        for name in names:
            now = self.now(name)
            self.restarts[name] += 1
            self.acceptors[name] = self.rules.acceptor(now, self.epochs[name], self.timing)
            self.proposers[name] = self.rules.proposer(
                now, name, self.restarts[name], self.names, self.timing, NoJitter()
            )

    def begin(self, name: str) -> tuple[Prepare, ...]:
        """Let a candidate begin an attempt now, whatever it waits for."""
        proposer, now = self.proposers[name], self.now(name)
        for _ in range(2):  # the first may end an attempt that is out of time
            sent = tuple(one for one in proposer.tick(now) if isinstance(one, Prepare))
            if sent:
                return sent
            proposer.expect(now, float("-inf"))
        return proposer.tick(now)  # type: ignore[return-value]

    def ask(self, acceptor: str, message: Proposal) -> Answer | None:
        """Deliver a message to an acceptor."""
        reply = self.acceptors[acceptor].receive(self.now(acceptor), message)
        if reply is None:
            return None
        self.epochs[acceptor] = max(self.epochs[acceptor], reply.durable_epoch)
        return reply.answer

    def tell(self, name: str, acceptor: str, answer: Answer | None) -> tuple[Proposal, ...]:
        """Deliver an answer to a proposer. Returns what it sends."""
        if answer is None:
            return ()
        led_before = self.leads(name)
        sent = self.proposers[name].receive(self.now(name), acceptor, answer)
        for message in sent:
            if isinstance(message, Leading):
                self._note(name, message.epoch, led_before)
        self.check()
        return sent

    def vote(self, name: str, message: Proposal, voters: str) -> tuple[Proposal, ...]:
        """Deliver a message to these acceptors, and their answers to its proposer."""
        sent: tuple[Proposal, ...] = ()
        for voter in voters:
            sent += self.tell(name, voter, self.ask(voter, message))
        return sent

    def campaign(self, name: str, voters: str) -> bool:
        """Let a candidate try with these voters, and after a time-out above what it was told."""
        for attempt in range(2):
            self.at(self.time + 0.11 * attempt)
            for prepare in self.begin(name):
                for accept in self.vote(name, prepare, voters):
                    if isinstance(accept, Accept):
                        self.vote(name, accept, voters)
            if self.leads(name):
                return True
        return False

    def release(self, name: str, voters: str) -> None:
        for message in self.proposers[name].stop():
            for voter in voters:
                self.ask(voter, message)

    def _note(self, name: str, epoch: int, led_before: bool) -> None:
        won = (name, self.restarts[name], epoch)
        if led_before and self.won and self.won[-1] == won:
            return  # a renewal
        if self.won and epoch <= self.won[-1][2]:
            raise Broken(f"{won} after {self.won[-1]}")
        self.won.append(won)


def only(messages: tuple[Proposal, ...]) -> Proposal:
    (message,) = messages
    return message


def a_late_accept_after_the_restart_of_a_voter(cluster: Cluster) -> None:
    """A late Accept takes a vote from the leader, and its sender finds that vote its own."""
    late = only(cluster.vote("c", only(cluster.begin("c")), "bc"))
    cluster.at(0.01)
    cluster.restart("b")  # and forgets its promise to c
    cluster.at(2.06)
    assert cluster.campaign("a", "ab")  # with a lower ballot than that of c
    cluster.at(2.1)
    cluster.ask("a", late)
    cluster.ask("c", late)
    cluster.at(2.2)
    assert not cluster.campaign("c", "ac")


def a_leader_that_is_frozen(cluster: Cluster) -> None:
    """No timer of a runs before it is asked whether it leads."""
    assert cluster.campaign("a", "ab")
    cluster.at(2.1)
    assert cluster.campaign("b", "bc")
    assert not cluster.leads("a")


def an_answer_that_arrives_twice(cluster: Cluster) -> None:
    assert cluster.campaign("a", "ab")
    cluster.at(0.5)
    promise = cluster.ask("c", only(cluster.begin("c")))
    for message in cluster.tell("c", "c", promise) + cluster.tell("c", "c", promise):
        accepted = cluster.ask("c", message)
        cluster.tell("c", "c", accepted)
        cluster.tell("c", "c", accepted)
    assert not cluster.leads("c")


def a_late_release_of_an_attempt_that_failed(cluster: Cluster) -> None:
    accept = only(cluster.vote("a", only(cluster.begin("a")), "ab"))
    cluster.ask("b", accept)
    cluster.at(0.11)
    late = only(cluster.proposers["a"].tick(cluster.now("a")))
    cluster.at(0.2)
    assert cluster.campaign("a", "ab")
    cluster.at(0.3)
    cluster.ask("b", late)
    assert not cluster.campaign("c", "bc")


def late_messages_of_a_former_life(cluster: Cluster) -> None:
    """A late Accept of c's former life takes a vote from its present one; a Release clears it."""
    for attempt in range(4):  # which reach nobody
        cluster.begin("c")
        cluster.at(0.11 * (attempt + 1))
    accept = only(cluster.vote("c", only(cluster.begin("c")), "bc"))
    cluster.at(0.6)
    release = only(cluster.proposers["c"].tick(cluster.now("c")))
    cluster.restart("b", "c")
    cluster.at(2.7)
    assert cluster.campaign("c", "ab")
    cluster.at(2.8)
    cluster.ask("a", accept)
    cluster.ask("a", release)
    assert not cluster.campaign("b", "ac")


def a_voter_that_restarts(cluster: Cluster) -> None:
    assert cluster.campaign("a", "ab")
    cluster.at(0.5)
    cluster.restart("b")
    cluster.at(0.6)
    assert not cluster.campaign("c", "bc")


def votes_that_take_long(cluster: Cluster) -> None:
    """The votes of a are 80 ms on their way; exclusion has begun when they were given."""
    accept = only(cluster.vote("a", only(cluster.begin("a")), "ab"))
    votes = {voter: cluster.ask(voter, accept) for voter in "ab"}
    cluster.at(0.08)
    for voter, vote in votes.items():
        cluster.tell("a", voter, vote)
    assert cluster.leads("a")
    cluster.at(2.05)
    assert cluster.campaign("c", "bc")


def a_slow_leader_and_fast_voters(cluster: Cluster) -> None:
    assert cluster.campaign("a", "ab")
    cluster.at(1.99)
    prepare = only(cluster.begin("c"))
    for message in cluster.vote("c", prepare, "bc"):
        cluster.vote("c", message, "bc")
    assert not cluster.leads("c")
    cluster.at(2.0203)  # 2 s of a's clock are over, and 2.0404 s of b's
    assert not cluster.leads("a")
    assert cluster.campaign("c", "bc")


def a_renewal_that_fails(cluster: Cluster) -> None:
    """The renewal has replaced the lease of a at b, and must not be cleared there."""
    assert cluster.campaign("a", "ab")
    cluster.at(0.7)
    (prepare,) = cluster.proposers["a"].tick(cluster.now("a"))
    accept = only(cluster.vote("a", prepare, "ab"))
    cluster.ask("b", accept)  # and its answer is lost
    cluster.at(0.81)
    for message in cluster.proposers["a"].tick(cluster.now("a")):
        cluster.ask("b", message)
    assert cluster.leads("a")
    assert not cluster.campaign("c", "bc")


def a_vote_for_a_former_life(cluster: Cluster) -> None:
    """The vote of a is from before the restart of c, and soon over."""
    accept = only(cluster.vote("c", only(cluster.begin("c")), "ab"))
    late = cluster.ask("a", accept)
    cluster.at(0.02)
    cluster.restart("c")
    cluster.at(1.95)
    for message in cluster.vote("c", only(cluster.begin("c")), "ab"):
        cluster.vote("c", message, "b")
    cluster.tell("c", "a", late)
    cluster.at(2.1)
    assert cluster.campaign("a", "ac")
    assert not cluster.leads("c")


def an_accept_below_a_promise(cluster: Cluster) -> None:
    """a has read the epochs before c led, and must not lead after it with the same."""
    accept = only(cluster.vote("a", only(cluster.begin("a")), "ab"))
    cluster.at(0.01)
    assert cluster.campaign("c", "bc")
    cluster.at(0.02)
    cluster.release("c", "bc")
    cluster.at(0.05)
    cluster.vote("a", accept, "ab")
    assert not cluster.leads("a")


def an_attempt_that_outlasts_a_quarantine(cluster: Cluster) -> None:
    """d has read the epochs of d and e before e led. All that could object have restarted."""
    accept = only(cluster.vote("e", only(cluster.begin("e")), "abc"))
    cluster.tell("e", "a", cluster.ask("a", accept))
    cluster.at(0.012)
    cluster.restart("a", "b", "c")
    cluster.at(0.07)
    prepare = only(cluster.begin("d"))
    cluster.vote("d", prepare, "de")
    cluster.at(0.09)
    cluster.vote("e", accept, "de")
    assert cluster.won == [("e", 1, 1)]
    cluster.at(2.056)
    for message in cluster.vote("d", prepare, "b"):
        cluster.vote("d", message, "abc")
    assert not cluster.leads("d")


def a_renewal_after_its_lease(cluster: Cluster) -> None:
    """c has led and released between the Prepare of a's renewal and its votes."""
    assert cluster.campaign("a", "ab")
    cluster.at(1.95)
    (prepare,) = cluster.proposers["a"].tick(cluster.now("a"))
    cluster.at(2.041)
    assert cluster.campaign("c", "bc")
    cluster.at(2.042)
    cluster.release("c", "bc")
    cluster.at(2.045)
    for message in cluster.vote("a", prepare, "ab"):
        cluster.vote("a", message, "ab")
    assert not cluster.leads("a")
    cluster.at(2.06)
    assert cluster.campaign("a", "ab")
    assert [epoch for _, _, epoch in cluster.won] == [1, 2, 3]


def an_epoch_across_a_restart(cluster: Cluster) -> None:
    assert cluster.campaign("a", "ab")
    cluster.restart("a", "b")
    cluster.at(3.0)
    assert cluster.campaign("c", "bc")
    assert [epoch for _, _, epoch in cluster.won] == [1, 2]


Schedule = Callable[[Cluster], None]
FAST_AND_SLOW = {"a": 0.99, "b": 1.01}

# What is weakened, and the schedule that shows why it must not be.
MUTANTS: dict[str, tuple[Schedule, Rules]] = {
    "an acceptor overwrites the lease of another": (
        a_late_accept_after_the_restart_of_a_voter,
        Rules(acceptor=weaker.OverwritingAcceptor),
    ),
    "only a timer ends leadership": (
        a_leader_that_is_frozen,
        Rules(proposer=weaker.TimerProposer),
    ),
    "votes are counted, not voters": (
        an_answer_that_arrives_twice,
        Rules(proposer=weaker.DoubleCountingProposer),
    ),
    "a release matches the owner": (
        a_late_release_of_an_attempt_that_failed,
        Rules(acceptor=weaker.OwnerReleasingAcceptor),
    ),
    "an owner is compared without its restart": (
        late_messages_of_a_former_life,
        Rules(weaker.ForgetfulOwnerAcceptor, weaker.ForgetfulOwnerProposer),
    ),
    "an acceptor votes at once after a start": (
        a_voter_that_restarts,
        Rules(acceptor=weaker.HastyAcceptor),
    ),
    "the deadline is taken when the votes arrive": (
        votes_that_take_long,
        Rules(proposer=weaker.LateDeadlineProposer),
    ),
    "exclusion is no longer than the lease": (
        a_slow_leader_and_fast_voters,
        Rules(acceptor=weaker.ShortExclusionAcceptor),
    ),
    "a renewal that failed is released": (
        a_renewal_that_fails,
        Rules(proposer=weaker.RenewalReleasingProposer),
    ),
    "ballots have no restart": (
        a_vote_for_a_former_life,
        Rules(proposer=weaker.RestartlessProposer),
    ),
    "an acceptor accepts below its promise": (
        an_accept_below_a_promise,
        Rules(acceptor=weaker.PromiseBreakingAcceptor),
    ),
    "an attempt has no time-out of its own": (
        an_attempt_that_outlasts_a_quarantine,
        Rules(proposer=weaker.PatientProposer),
    ),
    "a renewal counts after its lease": (
        a_renewal_after_its_lease,
        Rules(proposer=weaker.LapsedRenewalProposer),
    ),
    "a vote is sent before its epoch is durable": (
        an_epoch_across_a_restart,
        Rules(acceptor=weaker.EpochLosingAcceptor),
    ),
}


def play(schedule: Schedule, rules: Rules) -> None:
    names = "abcde" if schedule is an_attempt_that_outlasts_a_quarantine else "abc"
    rates = FAST_AND_SLOW if schedule is a_slow_leader_and_fast_voters else None
    schedule(Cluster(rules, names, rates))


@pytest.mark.parametrize(
    "schedule", [schedule for schedule, _ in MUTANTS.values()], ids=lambda one: one.__name__
)
def test_the_rules_keep_one_leader_and_growing_epochs(schedule: Schedule) -> None:
    play(schedule, Rules())


@pytest.mark.parametrize("name", MUTANTS)
def test_a_weaker_rule_breaks_its_schedule(name: str) -> None:
    schedule, rules = MUTANTS[name]
    with pytest.raises(Broken):
        play(schedule, rules)
