"""Acceptors and proposers with one rule weakened. Each must be found by a schedule or a swarm."""

import random
from collections.abc import Collection

from sluicegate.election.paxos.acceptor import Acceptor, Reply
from sluicegate.election.paxos.messages import (
    LOWEST,
    Accept,
    Accepted,
    Answer,
    Ballot,
    Proposal,
    Release,
)
from sluicegate.election.paxos.proposer import Attempt, Proposer
from sluicegate.election.paxos.timing import Timing


class OverwritingAcceptor(Acceptor):
    """A higher ballot replaces the lease of another."""

    def _is_held_by_another(self, now: float, ballot: Ballot) -> bool:
        return False


class ForgetfulOwnerAcceptor(Acceptor):
    """An owner is compared without its restart."""

    def _is_held_by_another(self, now: float, ballot: Ballot) -> bool:
        holder = self.holder
        return holder is not None and now < self.held_until and holder.node != ballot.node


class OwnerReleasingAcceptor(Acceptor):
    """A release clears any lease of its owner."""

    def _release(self, message: Release) -> None:
        if self.holder is not None and self.holder.incarnation == message.ballot.incarnation:
            self.holder, self.held_until = None, 0.0


class HastyAcceptor(Acceptor):
    """Votes at once after a start."""

    def __init__(self, now: float, epoch: int, timing: Timing) -> None:
        super().__init__(now, epoch, timing)
        self.quarantined_until = now


class ShortExclusionAcceptor(Acceptor):
    """Excludes others for a lease, as if all clocks had the same rate."""

    def _accept(self, now: float, message: Accept) -> Reply | None:
        reply = super()._accept(now, message)
        if reply is not None and isinstance(reply.answer, Accepted):
            self.held_until = now + self.timing.lease
        return reply


class PromiseBreakingAcceptor(Acceptor):
    """Accepts a lower ballot than the one it has promised."""

    def _accept(self, now: float, message: Accept) -> Reply | None:
        self.promised = LOWEST
        return super()._accept(now, message)


class EpochLosingAcceptor(Acceptor):
    """Answers before the epoch is durable."""

    def _accept(self, now: float, message: Accept) -> Reply | None:
        reply = super()._accept(now, message)
        return None if reply is None else Reply(reply.answer)


class TimerProposer(Proposer):
    """Leads until a timer says that its lease is over."""

    def is_leader(self, now: float) -> bool:
        return self.deadline != float("-inf")


class Tally(set[str]):
    """Counts every vote that is added."""

    count = 0

    def add(self, vote: str) -> None:
        self.count += 1

    def __len__(self) -> int:
        return self.count


class DoubleCountingProposer(Proposer):
    """Counts votes, not voters."""

    def _begin(self, now: float) -> tuple[Proposal, ...]:
        messages = super()._begin(now)
        assert self._attempt is not None
        self._attempt.open, self._attempt.accepted = Tally(), Tally()
        return messages


class LateDeadlineProposer(Proposer):
    """Takes the deadline when it has won, not before its Prepare."""

    def receive(self, now: float, sender: str, message: Answer) -> tuple[Proposal, ...]:
        if self._attempt is not None:
            self._attempt.deadline = now + self.timing.lease
        return super().receive(now, sender, message)


class PatientProposer(Proposer):
    """An attempt lasts as long as its lease would."""

    def _begin(self, now: float) -> tuple[Proposal, ...]:
        messages = super()._begin(now)
        assert self._attempt is not None
        self._attempt.expires = self._attempt.deadline
        return messages


class LapsedRenewalProposer(Proposer):
    """A renewal counts although the lease before it has ended."""

    def _is_in_time(self, now: float, attempt: Attempt) -> bool:
        return now < attempt.expires


class RenewalReleasingProposer(Proposer):
    """Releases a renewal that failed."""

    def _fail(self, now: float, attempt: Attempt) -> tuple[Proposal, ...]:
        super()._fail(now, attempt)
        return (Release(attempt.ballot),)


class RestartlessProposer(Proposer):
    """Its ballots do not tell one life from the next."""

    def __init__(
        self,
        now: float,
        node: str,
        restart: int,
        members: Collection[str],
        timing: Timing,
        rng: random.Random,
    ) -> None:
        super().__init__(now, node, 0, members, timing, rng)


class ForgetfulOwnerProposer(Proposer):
    """An owner is compared without its restart."""

    def _is_own(self, ballot: Ballot) -> bool:
        return ballot.node == self._node
