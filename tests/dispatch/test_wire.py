"""Requests and responses as bytes, and the names of keys."""

import json
import pickle
from contextlib import suppress
from typing import Any

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
    ],
)
def test_what_is_no_request_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="invalid request"):
        decode_request(payload)


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
