"""Frames: what was written is read, whoever wrote it; nonsense is refused, with a reason."""

import contextlib
import json
import random
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import (
    Ack,
    Ask,
    Credit,
    Hint,
    Line,
    Message,
    Quota,
    Report,
    ServiceQuota,
    Share,
    UserAsk,
)
from sluicegate.quota.wire import Bounds, CentralWire, NodeWire
from tests.harness import reference_frames

GOLDEN = json.loads((Path(__file__).parent / "frames.json").read_text())

names = st.text(min_size=1, max_size=40).filter(lambda text: _is_utf8(text))
services = st.sampled_from(["front", "storage", "dé"])
resources = st.sampled_from(["requests", "traffic_up", 'odd"\\name'])
amounts = st.one_of(
    st.integers(0, 2**40).map(float), st.floats(0.0, 1e18), st.sampled_from([0.0, 2.0**32, 1e18])
)
counts = st.integers(0, 2**32 - 1)
wholes = st.integers(0, 2**53 - 1)
times = st.floats(-1e12, 1e12)
durations = st.floats(0.0, 3600.0)
shares = st.builds(Share, amounts, st.floats(0.0, 2.0**50, width=32))
hints = st.builds(Hint, st.just(0.0) | durations, st.booleans(), st.booleans())


def _is_utf8(text: str) -> bool:
    try:
        return len(text.encode()) <= 200
    except UnicodeEncodeError:
        return False


@st.composite
def lines(draw: st.DrawFn) -> Line:
    consumed = draw(amounts)
    settled = draw(st.sampled_from([0.0, consumed, consumed / 2, float(int(consumed / 3))]))
    held = draw(st.sampled_from([0.0, 1.0, 0.25]))
    return Line(consumed, draw(counts), draw(counts), settled, held, *draw(grants()))


@st.composite
def grants(draw: st.DrawFn) -> tuple[float, float]:
    """Granted, and returned of it."""
    granted = draw(amounts)
    return granted, draw(st.sampled_from([0.0, granted, granted / 2, granted / 3]))


@st.composite
def credits(draw: st.DrawFn) -> Credit:
    return Credit(*draw(grants()), draw(amounts), draw(st.just(1.0) | amounts))


reports = st.builds(
    Report,
    names,
    wholes,
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**53 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**53 - 1),
    times,
    st.dictionaries(
        services,
        st.dictionaries(names, st.dictionaries(resources, lines(), min_size=1), min_size=1),
    ),
    st.booleans(),
)
asks = st.builds(
    Ask,
    names,
    wholes,
    times,
    st.dictionaries(
        services,
        st.dictionaries(
            names,
            st.builds(
                UserAsk,
                st.integers(0, 10**9),
                st.dictionaries(resources, credits(), max_size=3),
                st.booleans(),
            ),
            min_size=1,
            max_size=5,
        ),
    ),
)
acks = st.builds(Ack, names, st.booleans(), wholes, wholes, st.integers(0, 2**31 - 1), times, times)
quotas = st.builds(
    Quota,
    names,
    wholes,
    st.integers(0, 2**53 - 1),
    wholes,
    times,
    st.integers(0, 2**32 - 1),
    st.booleans(),
    durations,
    st.dictionaries(
        services,
        st.builds(
            ServiceQuota,
            st.dictionaries(names, st.dictionaries(resources, shares)),
            st.dictionaries(resources, st.floats(0.0, 1e18)),
            st.dictionaries(names, hints, max_size=3),
        ),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(reports | asks, max_size=4), st.lists(acks | quotas, max_size=4), st.booleans())
def test_what_was_written_is_read(
    messages: list[Report | Ask], answers: list[Ack | Quota], binary: bool
) -> None:
    node, central = NodeWire(binary=binary), CentralWire()
    for message in messages:
        assert central.read(node.write(message)) == message
    for answer in answers if messages else []:
        assert node.read(central.write(answer)) == answer


@settings(max_examples=60, deadline=None)
@given(
    st.lists(reports | asks, max_size=4),
    st.lists(acks | quotas, max_size=4),
    st.randoms(use_true_random=True),
)
def test_another_writer_and_another_reader_agree_with_ours(
    messages: list[Report | Ask], answers: list[Ack | Quota], chance: random.Random
) -> None:
    node, central = NodeWire(), CentralWire()
    reader, writer = reference_frames.Reader(), reference_frames.Writer(chance)
    for message in messages:
        assert reader.read(_packed(node.write(message))) == _told(message)
        assert central.read(writer.write(_told(message))) == message
    reader, writer = reference_frames.Reader(), reference_frames.Writer(chance)
    for answer in answers:
        assert reader.read(_packed(central.write(answer))) == _told(answer)
        assert node.read(writer.write(_told(answer))) == answer


def _packed(frame: bytes | str) -> bytes:
    assert isinstance(frame, bytes)
    return frame


def _told(message: Message) -> reference_frames.Message:
    """A message as plain data, as it stands in a text frame."""
    body = message._asdict()
    if isinstance(message, Quota):
        body["services"] = {name: told._asdict() for name, told in message.services.items()}
    if isinstance(message, Ask):
        body["users"] = {
            service: {user: told._asdict() for user, told in users.items()}
            for service, users in message.users.items()
        }
    return {type(message).__name__.lower(): body}


def _message(told: dict[str, dict[str, object]]) -> Message:
    """A message of the golden frames, which stand there as in a text frame."""
    text = json.dumps(told)
    if "report" in told or "ask" in told:
        return CentralWire().read(text)
    return NodeWire().read(text)


def test_the_golden_frames_are_what_we_write_and_read() -> None:
    """When this fails, nodes in the field do not understand us any more."""
    node, central = NodeWire(), CentralWire()
    for frame in GOLDEN:
        packed = bytes.fromhex(frame["hex"])
        message = _message(frame["message"])
        if isinstance(message, Report | Ask):
            assert node.write(message) == packed, frame["what"]
            assert central.read(packed) == message, frame["what"]
        else:
            assert central.write(message) == packed, frame["what"]
            assert node.read(packed) == message, frame["what"]


def test_a_frame_that_is_cut_anywhere_is_refused() -> None:
    for frame in GOLDEN:
        packed = bytes.fromhex(frame["hex"])
        for size in range(len(packed)):
            wire = CentralWire() if packed[0] < 3 else NodeWire()
            with pytest.raises(ProtocolError):
                wire.read(packed[:size])
        with pytest.raises(ProtocolError):
            (CentralWire() if packed[0] < 3 else NodeWire()).read(packed + b"\0")


def test_the_golden_frames_are_what_the_page_says() -> None:
    readers = {True: reference_frames.Reader(), False: reference_frames.Reader()}
    for frame in GOLDEN:
        packed = bytes.fromhex(frame["hex"])
        read = readers[packed[0] < 3].read(packed)
        assert json.loads(json.dumps(read)) == frame["message"], frame["what"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_frame_that_was_tampered_with_is_refused_or_read_as_the_page_says(
    data: st.DataObject,
) -> None:
    golden = [bytes.fromhex(frame["hex"]) for frame in GOLDEN]
    chosen = data.draw(st.integers(0, len(golden) - 1))
    frame = bytearray(golden[chosen])
    is_of_a_node = frame[0] < 3
    ours = CentralWire() if is_of_a_node else NodeWire()
    theirs = reference_frames.Reader()
    for before in golden[:chosen]:  # they introduce the entries that it names
        if (before[0] < 3) == is_of_a_node:
            ours.read(before)
            theirs.read(before)
    for _ in range(data.draw(st.integers(1, 6))):
        frame[data.draw(st.integers(1, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read = expected = None
    with contextlib.suppress(ProtocolError):
        read = _told(ours.read(bytes(frame)))
    with contextlib.suppress(reference_frames.NotAFrame):
        expected = theirs.read(bytes(frame))
    assert read == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_nonsense_is_refused(frame: bytes | str) -> None:
    for wire in (CentralWire(), NodeWire()):
        with pytest.raises(ProtocolError):
            wire.read(frame)


def _report(lines: object, **changes: object) -> str:
    body: dict[str, object] = {
        "node": "n",
        "boot": 1,
        "sequence": 1,
        "epoch": -1,
        "since": 0,
        "slot": 5,
        "sent": 0.5,
        "lines": lines,
    }
    return json.dumps({"report": {**body, **changes}})


def _lines(*line: object) -> object:
    return {"front": {"ann": {"requests": list(line)}}}


def _ask(users: object, **changes: object) -> str:
    body: dict[str, object] = {"node": "n", "boot": 1, "sent": 0.5, "users": users}
    return json.dumps({"ask": {**body, **changes}})


def _credit_of(*credit: object) -> dict[str, object]:
    return {"front": {"ann": {"requests": 1, "resources": {"requests": list(credit)}}}}


BAD_TEXTS = {
    "not JSON": "{",
    "no kind": "{}",
    "another kind": '{"quota": {}}',
    "a list": "[1]",
    "deep": "[" * 100_000,
    "deep lines": '{"report": {"lines": ' + "[" * 100_000,
    "deeper": '{"report": {"lines": ' + '{"a":' * 100_000,
    "NaN": _report(_lines(float("nan"), 0, 0, 0, 0)),
    "infinite": _report(_lines(float("inf"), 0, 0, 0, 0)),
    "too large": _report(_lines(1.1e18, 0, 0, 0, 0)),
    "far too large": _report(_lines(10**400, 0, 0, 0, 0)),
    "negative": _report(_lines(-1, 0, 0, 0, 0)),
    "settled above consumed": _report(_lines(1, 0, 0, 2, 0)),
    "half a request": _report(_lines(1, 0.5, 0, 0, 0)),
    "four numbers": _report(_lines(1, 0, 0, 0)),
    "six numbers": _report(_lines(1, 0, 0, 0, 0, 0)),
    "a text": _report(_lines("1", 0, 0, 0, 0)),
    "a flag": _report(_lines(True, 0, 0, 0, 0)),
    "a line that is none": _report({"front": {"ann": {"requests": 1}}}),
    "lines that are none": _report([]),
    "no user": _report({"front": {"": {"requests": [1, 0, 0, 0, 0]}}}),
    "a long user": _report({"front": {"u" * 201: {"requests": [1, 0, 0, 0, 0]}}}),
    "a wide user": _report({"front": {"\u00e9" * 101: {"requests": [1, 0, 0, 0, 0]}}}),
    "half a character": _report({"front": {"\ud800": {"requests": [1, 0, 0, 0, 0]}}}),
    "a long service": _report({"s" * 51: {"ann": {"requests": [1, 0, 0, 0, 0]}}}),
    "a node that is none": _report({}, node=7),
    "a boot that is none": _report({}, boot=1.5),
    "a late time": _report({}, sent=1e13),
    "a sequence": _report({}, sequence=2**31),
    "a slot": _report({}, slot=-2),
    "more returned than granted": _report(_lines(1, 0, 0, 0, 0, 5, 6)),
    "a grant that is none": _report(_lines(1, 0, 0, 0, 0, -5, 0)),
    "eight numbers": _report(_lines(1, 0, 0, 0, 0, 5, 0, 0)),
    "asked users that are none": _ask("ann"),
    "a list of users": _ask({"front": ["ann"]}),
    "a user that is none": _ask({"front": {"ann": 5}}),
    "no requests": _ask({"front": {"ann": {"resources": {}}}}),
    "half a request asked for": _ask({"front": {"ann": {"requests": 0.5}}}),
    "too many requests": _ask({"front": {"ann": {"requests": 10**9 + 1}}}),
    "a list of resources": _ask(
        _credit_of(1, 0, 1, 1) | {"s": {"u": {"requests": 1, "resources": []}}}
    ),
    "three numbers": _ask(_credit_of(1, 0, 1)),
    "five numbers of a credit": _ask(_credit_of(1, 0, 1, 1, 1)),
    "a return above the grant": _ask(_credit_of(1, 2, 1, 1)),
    "a negative use": _ask(_credit_of(1, 0, -1, 1)),
    "a cost too large": _ask(_credit_of(1, 0, 1, 2e18)),
    "a use that is a flag": _ask(_credit_of(1, 0, True, 1)),
    "a number for whether it waits": _ask({"front": {"ann": {"requests": 1, "waits": 1}}}),
    "a text for whether it waits": _ask({"front": {"ann": {"requests": 1, "waits": "true"}}}),
    "nothing for whether it waits": _ask({"front": {"ann": {"requests": 1, "waits": None}}}),
    "a long service asked for": _ask({"s" * 51: {}}),
    "a long user asked for": _ask({"front": {"u" * 201: {"requests": 1}}}),
    "an ask that is too late": _ask({}, sent=1e13),
}


@pytest.mark.parametrize("value", [5, {}, "[", None, [], [1]])
def test_what_stands_instead_of_a_line_is_written_nowhere(value: object) -> None:
    """There is room for as many lines as there are brackets: here for fewer than are named."""
    for number in range(500):
        frame = _report({"front": {f"u{number}": {"r": value}}})
        with pytest.raises(ProtocolError):
            CentralWire().read(frame)


@pytest.mark.parametrize("frame", BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_bad_text_frame_says_what_is_wrong(frame: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        CentralWire().read(frame)
    assert 10 < len(str(raised.value)) < 400


def test_a_text_frame_may_have_blanks_and_more_keys_than_we_know() -> None:
    frame = """ {"comment": [1, {"lines": 2}],
        "report" : {"lines" : { "front" : {"ann" : { "requests" : [ 3.0 , 1,3, 2.5e0, 0.25 ] },
                                           "b\\u00e9b" : {} } , "none": {} },
        "later": {"a": "}"}, "node": "n", "boot": 1.0, "sequence": 2, "epoch": -1, "since": 0,
        "slot": 5, "sent": 0.5 } }"""
    report = CentralWire().read(frame)
    assert isinstance(report, Report)
    assert report.lines == {"front": {"ann": {"requests": Line(3.0, 1, 3, 2.5, 0.25)}}}
    assert report.boot == 1


def test_a_name_with_an_escape_is_not_taken_for_the_one_that_looks_like_it() -> None:
    wire = CentralWire()
    wire.read(_report({"front": {"a\\u0041": {"requests": [1, 0, 0, 0, 0]}}}))  # a backslash
    looks_alike = _report({"front": {"aA": {"requests": [1, 0, 0, 0, 0]}}}).replace(
        "aA", "a\\u0041"
    )
    report = wire.read(looks_alike)
    assert isinstance(report, Report)
    assert list(report.lines["front"]) == ["aA"]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_a_frame_beyond_its_bounds_is_refused(binary: bool) -> None:
    line = Line(1.0, 0, 1, 0.0, 0.0)
    many = {"front": {f"user-{number}": {"requests": line} for number in range(11)}}
    report = Report("n", 1, 1, -1, 0, 5, 0.5, many)
    frame = NodeWire(binary=binary).write(report)
    for bounds in (Bounds(users=10), Bounds(lines=10), Bounds(frame_bytes=len(frame) - 1)):
        with pytest.raises(ProtocolError, match="expected"):
            CentralWire(bounds).read(frame)
    CentralWire(Bounds(users=11, lines=11, frame_bytes=len(frame))).read(frame)


def test_a_node_does_not_write_what_the_central_would_refuse() -> None:
    line = Line(1.0, 0, 1, 0.0, 0.0)
    many = {"front": {f"user-{number}": {"requests": line} for number in range(11)}}
    wire = NodeWire(bounds=Bounds(users=10))
    with pytest.raises(ValueError, match="10 users, got 11 of 11"):
        wire.write(Report("n", 1, 1, -1, 0, 5, 0.5, many))


def test_the_string_table_is_reset_when_users_come_and_go() -> None:
    bounds = Bounds(users=3000)
    node, central = NodeWire(bounds=bounds), CentralWire(bounds)
    line = Line(1.0, 0, 1, 0.0, 0.0)
    resets = 0
    for sequence in range(60):
        users = {f"user-{sequence * 200 + number}": {"requests": line} for number in range(400)}
        report = Report("n", 1, sequence, -1, 0, 5, 0.5, {"front": users})
        frame = node.write(report)
        assert isinstance(frame, bytes)
        resets += frame[1] & 1
        assert central.read(frame) == report
    assert 3 <= resets <= 20


def test_a_line_that_is_told_again_takes_thirteen_bytes() -> None:
    node = NodeWire()
    users = {f"user-{number}": {"requests": Line(7.0, 3, 7, 7.0, 0.0)} for number in range(100)}
    report = Report("n", 1, 1, -1, 0, 5, 0.5, {"front": users})
    node.write(report)
    backwards = {user: users[user] for user in reversed(users)}  # the order does not matter
    frame = node.write(report._replace(lines={"front": backwards}))
    assert len(frame) <= 13 * 100 + 60


def _bad_ask(row: bytes, *, entries: int = 1) -> bytes:
    """An Ask that introduces one entry and has one row."""
    new = b"\x03\x05front\x03ann\x08requests" if entries else b""
    head = b"\x02\x00\x01n" + struct.pack("<qdI", 1, 0.5, entries)
    return head + new + b"\x01\0\0\0" + row + b"\0\0\0\0"


BAD_ROWS = {
    "the form of a row is 128": b"\x80",
    "the form of a row is 255": b"\xff" + bytes(40),
    "the entry of a row is 1": struct.pack("<BI", 1, 1),
    "requests 1000000001": struct.pack("<BI", 2, 10**9 + 1),
    "granted nan": struct.pack("<Bd", 4, float("nan")),
    "granted inf": struct.pack("<Bd", 4, float("inf")),
    "returned 2.0": struct.pack("<Bdd", 12, 1.0, 2.0),
    "used -1.0": struct.pack("<Bd", 16, -1.0),
    "cost 2e": struct.pack("<Bd", 32, 2e18),
    "truncated frame": b"\x04\0",
}


@pytest.mark.parametrize(("told", "row"), BAD_ROWS.items(), ids=BAD_ROWS)
def test_a_bad_row_of_an_ask_says_what_is_wrong(told: str, row: bytes) -> None:
    with pytest.raises(ProtocolError, match=re.escape(told)) as raised:
        CentralWire().read(_bad_ask(row))
    assert "expected" in str(raised.value)


BAD_USERS = {
    "the form of a user without rows is 4": b"\x04\x03ann" + struct.pack("<I", 1),
    "the form of a user without rows is 255": b"\xff\x05front\x03ann" + struct.pack("<I", 1),
    "the first user without rows has no service": b"\x02\x05front" + struct.pack("<I", 1),
    "the requests of 'ann' are 1000000001": b"\x03\x05front\x03ann" + struct.pack("<I", 10**9 + 1),
    "truncated frame": b"\x03\x05front\x03ann\0\0",
}


@pytest.mark.parametrize(("told", "user"), BAD_USERS.items(), ids=BAD_USERS)
def test_a_bad_user_without_rows_says_what_is_wrong(told: str, user: bytes) -> None:
    head = b"\x02\x00\x01n" + struct.pack("<qdII", 1, 0.5, 0, 0)
    with pytest.raises(ProtocolError, match=re.escape(told)) as raised:
        CentralWire().read(head + b"\x01\0\0\0" + user)
    assert "expected" in str(raised.value)


def test_that_a_request_waits_may_be_said_in_any_row_of_its_user() -> None:
    new = b"\x03\x05front\x03ann\x08requests" + b"\x00\x05bytes" + b"\x02\x03bob\x08requests"
    head = b"\x02\x00\x01n" + struct.pack("<qdI", 1, 0.5, 3) + new + struct.pack("<I", 3)
    for rows in ((b"\x42\x07\0\0\0", b"\0"), (b"\x02\x07\0\0\0", b"\x40")):
        ask = CentralWire().read(head + b"".join(rows) + b"\0" + bytes(4))
        assert isinstance(ask, Ask)
        credit = Credit(0.0, 0.0, 0.0, 1.0)
        assert ask.users["front"] == {
            "ann": UserAsk(7, {"requests": credit, "bytes": credit}, waits=True),
            "bob": UserAsk(0, {"requests": credit}, waits=False),
        }


def test_a_text_ask_that_does_not_say_whether_it_waits_does_not() -> None:
    ask = CentralWire().read(_ask({"front": {"ann": {"requests": 1}}}))
    assert isinstance(ask, Ask)
    assert ask.users["front"]["ann"] == UserAsk(1, {}, waits=False)


def test_an_ask_without_an_entry_has_no_row() -> None:
    with pytest.raises(ProtocolError, match="the number of rows is 1, expected at most 0"):
        CentralWire().read(_bad_ask(b"\x00", entries=0))


def _quota(*, interval: object = 0.25, **changes: object) -> str:
    front: dict[str, object] = {"newcomers": {}, "users": {}, "hints": {}, **changes}
    body: dict[str, object] = {
        "central": "c",
        "epoch": 1,
        "version": 1,
        "slot": 5,
        "time": 0.5,
        "nodes": 1,
        "whole": False,
        "interval": interval,
        "services": {"front": front},
    }
    return json.dumps({"quota": body})


BAD_ANSWERS = {
    "no interval": _quota(interval=None),
    "a long interval": _quota(interval=3601),
    "a negative interval": _quota(interval=-1),
    "a grant": _quota(users={"ann": {"requests": [-1, 0]}}),
    "hints that are none": _quota(hints=[]),
    "a hint that is none": _quota(hints={"ann": 5}),
    "half a hint": _quota(hints={"ann": [0, True]}),
    "a long wait": _quota(hints={"ann": [3601, True, True]}),
    "a wait that is no number": _quota(hints={"ann": ["0", True, True]}),
    "a flag that is a number": _quota(hints={"ann": [0, 1, True]}),
    "a hint for nobody": _quota(hints={"": [0, True, True]}),
}


@pytest.mark.parametrize("frame", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_answer_in_text_says_what_is_wrong(frame: str) -> None:
    NodeWire().read(_quota())
    with pytest.raises(ProtocolError, match="expected"):
        NodeWire().read(frame)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
def test_an_ask_beyond_its_bounds_is_refused(binary: bool) -> None:
    credit = Credit(5.0, 0.0, 2.0, 1.0)
    many = {f"user-{number}": UserAsk(1, {"a": credit, "b": credit}) for number in range(11)}
    many |= {f"new-{number}": UserAsk(1, {}) for number in range(4)}
    ask = Ask("n", 1, 0.5, {"front": many})
    frame = NodeWire(binary=binary).write(ask)
    for bounds in (Bounds(asked=14), Bounds(asked=10), Bounds(lines=21)):
        with pytest.raises(ProtocolError, match="expected"):
            CentralWire(bounds).read(frame)
        with pytest.raises(ValueError, match="expected at most"):
            NodeWire(bounds=bounds).write(ask)
    assert CentralWire(Bounds(asked=15, lines=22)).read(frame) == ask


@pytest.mark.parametrize(
    "user_ask",
    [
        UserAsk(-1, {}),
        UserAsk(10**9 + 1, {}),
        UserAsk(1, {"requests": Credit(1.0, 2.0, 0.0, 1.0)}),
        UserAsk(1, {"requests": Credit(1.0, 0.0, float("nan"), 1.0)}),
        UserAsk(1, {"requests": Credit(1.0, 0.0, 0.0, 1.1e18)}),
    ],
)
def test_a_node_does_not_ask_what_the_central_would_refuse(user_ask: UserAsk) -> None:
    with pytest.raises(ValueError, match="expected"):
        NodeWire().write(Ask("n", 1, 0.5, {"front": {"ann": user_ask}}))


def test_asks_and_answers_use_the_entries_of_reports_and_quotas() -> None:
    """They have few users. The table must not look unused for that: it would be reset each slot."""
    node, central = NodeWire(), CentralWire()
    users = [f"user-{number}" for number in range(3000)]
    lines = {"front": {user: {"requests": Line(1.0, 0, 1, 0.0, 0.0)} for user in users}}
    shares = {user: {"requests": Share(5.0, 1.0)} for user in users}
    ask = Ask(
        "n", 1, 0.5, {"front": {"user-7": UserAsk(1, {"requests": Credit(5.0, 0, 5.0, 1.0)})}}
    )
    whole = Quota("c", 1, 1, 5, 0.5, 1, True, 0.05, {"front": ServiceQuota(shares, {})})
    few = {"user-7": {"requests": Share(6.0, 1.0)}}
    hint = {"user-7": Hint(0.5, True, False)}
    answer = whole._replace(whole=False, services={"front": ServiceQuota(few, {}, hint)})
    for sequence in range(1, 4):
        report = Report("n", 1, sequence, -1, 0, 5, 0.5, lines)
        messages: list[Report | Ask] = [report] + [ask] * 50
        frames = [node.write(message) for message in messages]
        assert [central.read(frame) for frame in frames] == messages
        told = [whole] + [answer] * 50
        answers = [central.write(message) for message in told]
        assert [node.read(frame) for frame in answers] == told
        for frame in frames[1:] + answers[1:]:
            assert len(frame) < 120
        if sequence > 1:
            assert len(frames[0]) < 14 * len(users)
            assert len(answers[0]) < 13 * len(users)


def test_the_string_table_is_reset_by_an_ask_when_it_is_full() -> None:
    bounds = Bounds(users=100)
    node, central = NodeWire(bounds=bounds), CentralWire(bounds)
    credit = Credit(5.0, 0.0, 2.5, 1.0)
    resets = 0
    for number in range(250):
        users = {f"user-{number}": UserAsk(1, {"requests": credit}), "new": UserAsk(2, {})}
        ask = Ask("n", 1, number + 0.5, {"front": users})
        frame = node.write(ask)
        assert isinstance(frame, bytes)
        resets += frame[1] & 1
        assert central.read(frame) == ask
    assert resets == 2


def test_the_json_examples_of_the_page_are_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    (block, *_) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    examples = [_message(json.loads(text)) for text in block.split("\n\n")]
    assert [type(message) for message in examples] == [Report, Ask, Ack, Quota]


def test_the_binary_examples_of_the_page_are_golden_frames() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    report, _, ask = (
        "".join(re.findall(r"^ *((?:[0-9a-f]{2} {0,2})+)(?= |$)", block, re.MULTILINE))
        for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    )
    assert report.replace(" ", "") == GOLDEN[0]["hex"]
    assert ask.replace(" ", "") == GOLDEN[3]["hex"]
