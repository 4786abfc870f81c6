"""What a leader and the centrals that lead for it send each other, and its bytes.

    ["borrow",763002341,12,81.25,false]
    ["lend",13,81.25,1.4,["search","translate"],["b","c"]]

The times are those of the borrower's clock, which alone reads them.
"""

from typing import Any, NamedTuple

from sluicegate.election.paxos.wire import LONGEST_NAME, Kinds, check_count, check_seconds
from sluicegate.errors import ProtocolError

__all__ = ["KINDS", "MOST_SERVICES", "Borrow", "Lend"]

MOST_SERVICES = 256  # that one central borrows; the leader keeps the others
_LATEST = 1e12


class Borrow(NamedTuple):
    """To the leader, again and again: this central can lead services."""

    incarnation: int  # of the borrower: no other process has it
    epoch: int  # the highest it knows; it has let go of everything that was lent in a lower one
    sent: float
    is_leaving: bool  # it has let go of everything, and wants nothing more


class Lend(NamedTuple):
    """The answer: lead these services, in `epoch`, for `seconds` after `sent`.

    With 0 seconds it only says that there is a new epoch: borrow again.
    """

    epoch: int
    sent: float
    seconds: float
    services: tuple[str, ...]
    borrowers: tuple[str, ...]  # all that borrow now: whom the next leader will find


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _LATEST:
        raise ProtocolError(f"invalid time: expected 0 to {_LATEST:g} s, got {value!r:.80}")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProtocolError(f"invalid flag: expected true or false, got {value!r:.80}")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_SERVICES:
        raise ProtocolError(
            f"invalid names: expected a list of at most {MOST_SERVICES}, got {value!r:.80}"
        )
    for name in value:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            raise ProtocolError(
                f"invalid name: expected 1 to {LONGEST_NAME} characters, got {name!r:.80}"
            )
    return tuple(value)


KINDS: Kinds = {
    "borrow": (Borrow, (check_count, check_count, _time, _flag)),
    "lend": (Lend, (check_count, _time, check_seconds, _names, _names)),
}
