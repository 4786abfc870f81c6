"""The messages between two centrals, as the text of one frame each."""

from typing import TypeAlias

from sluicegate.election.paxos.messages import Accepted, Message, Promise, Reject
from sluicegate.election.paxos.wire import KINDS as ELECTION_KINDS
from sluicegate.election.paxos.wire import decode_as, encode_as
from sluicegate.errors import ProtocolError
from sluicegate.quota.central.lending.messages import KINDS as LENDING_KINDS
from sluicegate.quota.central.lending.messages import Borrow, Lend

__all__ = ["LARGEST_PEER_MESSAGE", "PeerMessage", "is_answer", "read_message", "write_message"]

PeerMessage: TypeAlias = Message | Borrow | Lend

# A `Lend` with as many services as it may have, and the longest names.
LARGEST_PEER_MESSAGE = 64 * 1024

_KINDS = ELECTION_KINDS | LENDING_KINDS


def is_answer(message: PeerMessage) -> bool:
    """Whether it goes back over the connection of the peer that it answers."""
    return isinstance(message, Promise | Reject | Accepted | Lend)


def write_message(message: PeerMessage) -> bytes:
    return encode_as(message, _KINDS)


def read_message(frame: bytes | str, *, wants_answer: bool) -> PeerMessage:
    """The message in a frame; ProtocolError if there is none, or it does not belong here."""
    if not isinstance(frame, str):
        raise ProtocolError("expected a text frame, got a binary one")
    message: PeerMessage = decode_as(frame.encode(), _KINDS, LARGEST_PEER_MESSAGE)
    if is_answer(message) != wants_answer:
        wanted = "an answer" if wants_answer else "a proposal"
        raise ProtocolError(f"expected {wanted}, got {type(message).__name__}")
    return message
