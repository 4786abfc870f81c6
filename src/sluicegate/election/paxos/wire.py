"""Messages as bytes: a JSON array of the kind and the fields in order; a ballot is an array, too.

    ["prepare",[3,1763000001,"a"],2.0]
    ["promise",[3,1763000001,"a"],1763000012,null,0.0]

`decode` accepts exactly what `encode` writes, in any spacing, and raises `ProtocolError` for all
other bytes. Nothing is taken from a message that was not checked. Other kinds of messages may share
the connection: `encode_as` and `decode_as` take a table of `Kinds`.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sluicegate.election.paxos.messages import (
    Accept,
    Accepted,
    Ballot,
    Leading,
    Message,
    Prepare,
    Promise,
    Reject,
    Release,
)
from sluicegate.errors import ProtocolError

__all__ = [
    "KINDS",
    "LARGEST_MESSAGE",
    "LONGEST_NAME",
    "Kinds",
    "check_count",
    "check_seconds",
    "decode",
    "decode_as",
    "encode",
    "encode_as",
]

# Of each kind its class, and the check of each field.
Kinds: TypeAlias = dict[str, tuple[Callable[..., Any], Sequence[Callable[[Any], object]]]]

LONGEST_NAME = 100  # characters
LARGEST_MESSAGE = 4096  # bytes: two ballots with names that are all escapes fit
_LARGEST_NUMBER = 2**53
_LONGEST_SECONDS = 1e5


def encode(message: Message) -> bytes:
    """The message as at most `LARGEST_MESSAGE` bytes."""
    return encode_as(message, KINDS)


def decode(raw: bytes) -> Message:
    """The message in these bytes, or `ProtocolError`."""
    message: Message = decode_as(raw, KINDS, LARGEST_MESSAGE)
    return message


def encode_as(message: tuple[Any, ...], kinds: Kinds) -> bytes:
    """A message of one of these kinds as bytes."""
    kind = next(kind for kind, (build, _) in kinds.items() if build is message.__class__)
    return json.dumps([kind, *message], separators=(",", ":")).encode()


def decode_as(raw: bytes, kinds: Kinds, largest: int) -> Any:
    """The message of one of these kinds in at most `largest` bytes, or `ProtocolError`."""
    if len(raw) > largest:
        raise ProtocolError(f"message too large: expected at most {largest} bytes, got {len(raw)}")
    try:
        found = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid message: expected JSON, got {raw[:80]!r}: {error}") from None
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise ProtocolError(f"invalid message: expected [kind, ...], got {raw[:80]!r}")
    kind, *values = found
    if kind not in kinds:
        raise ProtocolError(f"unknown message kind: {kind[:80]!r}")
    build, checks = kinds[kind]
    if len(values) != len(checks):
        raise ProtocolError(f"invalid {kind}: expected {len(checks)} fields, got {len(values)}")
    return build(*[check(value) for check, value in zip(checks, values, strict=True)])


def check_count(value: Any) -> int:
    """A whole number from 0 up."""
    if type(value) is not int or not 0 <= value <= _LARGEST_NUMBER:
        raise ProtocolError(f"invalid number: expected an int from 0 to 2^53, got {value!r:.80}")
    return value


def check_seconds(value: Any) -> float:
    """A duration."""
    if type(value) not in (int, float) or not 0 <= value <= _LONGEST_SECONDS:
        raise ProtocolError(
            f"invalid duration: expected 0 to {_LONGEST_SECONDS:g} s, got {value!r:.80}"
        )
    return float(value)


def _ballot(value: Any) -> Ballot:
    if not isinstance(value, list) or len(value) != 3:
        raise ProtocolError(f"invalid ballot: expected [counter, restart, node], got {value!r:.80}")
    counter, restart, node = value
    if not isinstance(node, str) or len(node) > LONGEST_NAME:
        raise ProtocolError(
            f"invalid node: expected at most {LONGEST_NAME} characters, got {node!r:.80}"
        )
    return Ballot(check_count(counter), check_count(restart), node)


def _ballot_or_none(value: Any) -> Ballot | None:
    return None if value is None else _ballot(value)


KINDS: Kinds = {
    "prepare": (Prepare, (_ballot, check_seconds)),
    "promise": (Promise, (_ballot, check_count, _ballot_or_none, check_seconds)),
    "reject": (Reject, (_ballot, _ballot, check_seconds)),
    "accept": (Accept, (_ballot, check_seconds, check_count)),
    "accepted": (Accepted, (_ballot,)),
    "release": (Release, (_ballot,)),
    "leading": (Leading, (_ballot, check_count)),
}
