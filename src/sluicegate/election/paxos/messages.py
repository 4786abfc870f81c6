"""What members send each other.

| message    | from, to             | meaning                                                      |
|------------|----------------------|--------------------------------------------------------------|
| `Prepare`  | proposer to acceptor | may I have the lease? promise to ignore lower ballots        |
| `Promise`  | acceptor to proposer | promised; reports its lease, if any, and its epoch           |
| `Accept`   | proposer to acceptor | store this lease, with this epoch                            |
| `Accepted` | acceptor to proposer | stored                                                       |
| `Reject`   | acceptor to proposer | refused: a higher ballot was promised, or another holds one |
| `Release`  | proposer to all      | this ballot is given up, and never counts again              |
| `Leading`  | proposer to all      | this ballot has won; for those that want to know, not a vote |

Durations are seconds. Clocks are never compared, so no message has a time in it.
"""

from typing import NamedTuple

__all__ = [
    "LOWEST",
    "MAX_COUNTER_STEP",
    "Accept",
    "Accepted",
    "Answer",
    "Ballot",
    "Leading",
    "Message",
    "Prepare",
    "Promise",
    "Proposal",
    "Reject",
    "Release",
]


class Ballot(NamedTuple):
    """The number of one attempt, compared field by field. No two attempts have the same.

    It is not a fencing number: after restarts the counter may begin anew.
    """

    counter: int
    restart: int
    node: str

    @property
    def incarnation(self) -> tuple[str, int]:
        """Whose attempt it is: one life of one member."""
        return self.node, self.restart


LOWEST = Ballot(0, 0, "")  # below the ballot of any attempt
# By how much the counter of a ballot may exceed the one before it. A leader counts its renewals, a
# few in a second, so a member that has started sees a large step, but none of some decades. One
# wrong message must not use up all numbers.
MAX_COUNTER_STEP = 2**32


class Prepare(NamedTuple):
    """`lease`: how long the proposer wants to lead."""

    ballot: Ballot
    lease: float


class Promise(NamedTuple):
    """`holder` has an unexpired lease of this acceptor, for `remaining` seconds; None: nobody."""

    ballot: Ballot
    epoch: int
    holder: Ballot | None
    remaining: float


class Reject(NamedTuple):
    """`remaining`: of the lease of another, 0 if there is none."""

    ballot: Ballot
    promised: Ballot
    remaining: float


class Accept(NamedTuple):
    ballot: Ballot
    lease: float
    epoch: int


class Accepted(NamedTuple):
    ballot: Ballot


class Release(NamedTuple):
    ballot: Ballot


class Leading(NamedTuple):
    ballot: Ballot
    epoch: int


Proposal = Prepare | Accept | Release | Leading
Answer = Promise | Reject | Accepted
Message = Proposal | Answer
