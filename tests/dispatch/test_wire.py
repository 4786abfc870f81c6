"""Requests and responses as bytes, and the names of keys."""

import json
import pickle
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dispatch.errors import Busy, Duplicate, HandlerFailed, NoWorkers, TimedOut
from sluicegate.dispatch.keys import QueueKeys, check_priority
from sluicegate.dispatch.wire import (
    Response,
    decode_data,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from sluicegate.errors import ProtocolError, SluicegateError
from sluicegate.redis_client.topology import slot_of

NOT_UTF8 = b"\xa2\xff\xfe"  # in msgpack, a string of two bytes

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES, st.sampled_from(["json", "msgpack"]))
def test_data_arrives_as_it_was_sent(data: Any, content_type: str) -> None:
    request = decode_request(encode_request(content_type, "replies", "7", 1.5, data))
    assert decode_data(request) == data
    assert (request.reply_to, request.correlation_id, request.timeout) == ("replies", "7", 1.5)
    response = decode_response(encode_response(content_type, Response("7", 0, data)))
    assert response == Response("7", 0, data)


@dataclass
class Point:
    x: int


class Colour(Enum):
    RED = "red"


def test_what_data_comes_back_as() -> None:
    """The table of docs/dispatch.md: what is sent, and how it arrives in msgpack and in JSON."""
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    table: list[tuple[Any, Any, Any]] = [
        (2**63, 2**63, 2**63),
        ((1, 2), [1, 2], [1, 2]),
        ({7}, [7], [7]),
        (Point(1), {"x": 1}, {"x": 1}),
        (Colour.RED, "red", "red"),
        (b"ab", b"ab", "YWI="),
        (noon, noon, "2026-01-02T12:00:00Z"),
        (noon.replace(tzinfo=None), "2026-01-02T12:00:00", "2026-01-02T12:00:00"),
        (date(2026, 1, 2), "2026-01-02", "2026-01-02"),
        (timedelta(seconds=90), "PT90S", "PT90S"),
        (Decimal("1.5"), "1.5", "1.5"),
        (UUID(int=1), str(UUID(int=1)), str(UUID(int=1))),
        ({1: "a"}, {1: "a"}, {"1": "a"}),
        (float("inf"), float("inf"), None),
    ]
    for sent, *arrived in table:
        for content_type, expected in zip(("msgpack", "json"), arrived, strict=True):
            request = decode_request(encode_request(content_type, "replies", "7", 1.5, sent))
            assert decode_data(request) == expected, (sent, content_type)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("content_type", "data", "kind"),
    [
        ("msgpack", 2**70, ValueError),
        ("msgpack", nested(100_000), ValueError),
        ("json", nested(100_000), ValueError),
        ("json", "\ud800", ValueError),
        ("msgpack", 1j, TypeError),
        ("json", {(1, 2): 3}, TypeError),
    ],
)
def test_data_that_cannot_be_encoded_is_a_value_or_type_error(
    content_type: str, data: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        encode_request(content_type, "replies", "7", 1.5, data)
    with pytest.raises(kind):
        encode_response(content_type, Response("7", 0, data))


def test_a_request_and_a_response_have_the_fields_of_the_original() -> None:
    assert json.loads(encode_request("json", "replies", "7", 1.5, [1])) == {
        "content_type": "json",
        "reply_to": "replies",
        "correlation_id": "7",
        "timeout": 1.5,
        "data": [1],
    }
    packed = msgspec.msgpack.decode(encode_response("msgpack", Response("7", 520, "no")))
    assert packed == {"correlation_id": "7", "status": 520, "data": "no"}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\x80",
        b"\xff\xff",
        b"[1]",
        b'{"timeout": 1}',
        encode_request("json", "", "1", 1.0, 1).replace(b"1.0", b"-1"),
        encode_request("json", "", "1", 1.0, 1).replace(b"1.0", b"1e300"),
        encode_request("json", "", "1", 1.0, 1).replace(b"1.0", b'"1"'),
        encode_request("json", "xyz", "1", 1.0, 1).replace(b"xyz", b"\xff"),
        encode_request("msgpack", "", "xy", 1.0, 1).replace(b"\xa2xy", NOT_UTF8),
    ],
)
def test_what_is_no_request_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="invalid request"):
        decode_request(payload)


@pytest.mark.parametrize(
    "payload",
    [
        encode_request("json", "", "1", 1.0, "xy").replace(b"xy", b"\xff\xfe"),
        encode_request("msgpack", "", "1", 1.0, "xy").replace(b"\xa2xy", NOT_UTF8),
        encode_request("msgpack", "", "1", 1.0, "xy").replace(b"\xa2xy", b"\x81\x80\x01"),
    ],
)
def test_data_that_cannot_be_decoded_is_an_invalid_request(payload: bytes) -> None:
    request = decode_request(payload)
    with pytest.raises(ProtocolError, match="invalid request: data"):
        decode_data(request)


def test_a_response_that_is_not_utf8_is_invalid() -> None:
    payload = encode_response("msgpack", Response("1", 0, "xy")).replace(b"\xa2xy", NOT_UTF8)
    with pytest.raises(ProtocolError, match="invalid response"):
        decode_response(payload)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(payload: bytes) -> None:
    for decode in (decode_request, decode_response):
        with suppress(ProtocolError):  # any other error fails the test
            decode(payload)


def test_all_keys_of_a_queue_are_in_one_slot_of_a_cluster() -> None:
    for name in ("translate", "a{b}c", "}", "{}", "100%", "ü"):
        keys = QueueKeys(name)
        names = [*keys.tasks, keys.dead, keys.workers, keys.rates, keys.rate, keys.reaper]
        names += [keys.draining, keys.control(b"w{}"), keys.replies(b"c{}"), keys.once("{x}")]
        assert len({slot_of(one) for one in names}) == 1
        assert len(set(names)) == len(names)


def test_queues_with_different_names_share_no_key() -> None:
    names = ("a", "{a}", "%7Ba%7D", "a}", "%7B", "{")
    assert len({QueueKeys(name).dead for name in names}) == len(names)


@pytest.mark.parametrize("queue", ["", "\ud800"])
def test_a_queue_needs_a_name_that_can_be_encoded(queue: str) -> None:
    with pytest.raises(ValueError, match="queue"):
        QueueKeys(queue)
    with pytest.raises(ValueError, match="braces"):
        QueueKeys("q", "{")


def test_a_priority_is_one_of_three() -> None:
    assert [check_priority(one) for one in (1, 0, -1)] == [0, 1, 2]
    with pytest.raises(TypeError, match="priority must be an int, got True"):
        check_priority(True)


@pytest.mark.parametrize(
    "error",
    [
        Busy("q", 5, 4),
        Duplicate("q", "key"),
        NoWorkers("q"),
        Busy("q", 5, 0),
        TimedOut("q", 0.5, 0.25),
        TimedOut("q", 0.5, 0.0, 0.5, 0.75),
        HandlerFailed("q", "ValueError: no", "Traceback"),
    ],
)
def test_errors_can_be_pickled(error: SluicegateError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
