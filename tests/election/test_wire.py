"""Messages as bytes: a round trip for all messages, `ProtocolError` for all other bytes."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

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
from sluicegate.election.paxos.wire import LARGEST_MESSAGE, LONGEST_NAME, decode, encode
from sluicegate.errors import ProtocolError

numbers = st.integers(0, 2**53)
seconds = st.floats(0.0, 1e5)
ballots = st.builds(Ballot, numbers, numbers, st.text(max_size=LONGEST_NAME))
messages = st.one_of(
    st.builds(Prepare, ballots, seconds),
    st.builds(Promise, ballots, numbers, st.none() | ballots, seconds),
    st.builds(Reject, ballots, ballots, seconds),
    st.builds(Accept, ballots, seconds, numbers),
    st.builds(Accepted, ballots),
    st.builds(Release, ballots),
    st.builds(Leading, ballots, numbers),
)


@given(messages)
def test_a_message_is_the_same_after_a_round_trip(message: Message) -> None:
    raw = encode(message)
    assert len(raw) <= LARGEST_MESSAGE
    found = decode(raw)
    assert found == message
    assert type(found) is type(message)  # named tuples of two kinds may be equal


def test_the_format_is_as_documented() -> None:
    ballot = Ballot(3, 1763000001, "a")
    assert encode(Prepare(ballot, 2.0)) == b'["prepare",[3,1763000001,"a"],2.0]'
    assert (
        encode(Promise(ballot, 1763000012, None, 0.0))
        == b'["promise",[3,1763000001,"a"],1763000012,null,0.0]'
    )


def survives(raw: bytes) -> None:
    try:
        message = decode(raw)
    except ProtocolError:
        return
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(raw: bytes) -> None:
    survives(raw)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from(
    ["prepare", "promise", "reject", "accept", "accepted", "release", "leading", "other"]
)


@given(kinds, st.lists(values, max_size=4))
def test_any_fields_are_a_message_or_a_protocol_error(kind: str, fields: list[object]) -> None:
    survives(json.dumps([kind, *fields]).encode())


@given(messages, st.data())
def test_a_changed_byte_is_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    raw = bytearray(encode(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(raw))


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"x" * (LARGEST_MESSAGE + 1), "message too large: expected at most 4096 bytes, got 4097"),
        (b"[" * 4000, "invalid message: expected JSON"),
        ('["release",[1,1,"a"]]'.encode("utf-16"), "invalid message: expected JSON"),
        (b"{}", "invalid message: expected \\[kind, ...\\]"),
        (b"[]", "invalid message"),
        (b'["elect",1]', "unknown message kind: 'elect'"),
        (b'["release"]', "invalid release: expected 1 fields, got 0"),
        (b'["release",[1,1]]', "invalid ballot"),
        (b'["release",[true,1,"a"]]', "invalid number: .*got True"),
        (b'["release",[-1,1,"a"]]', "invalid number"),
        (b'["release",[1,9007199254740993,"a"]]', "invalid number"),
        (b'["release",[1,1,"' + b"a" * 101 + b'"]]', "invalid node"),
        (b'["prepare",[1,1,"a"],NaN]', "invalid duration"),
        (b'["prepare",[1,1,"a"],-0.5]', "invalid duration"),
        (b'["prepare",[1,1,"a"],1' + b"0" * 400 + b"]", "invalid duration"),
        (b'["prepare",[1,1,"a"],"2"]', "invalid duration: .*got '2'"),
    ],
)
def test_what_is_wrong_is_named(raw: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode(raw)
