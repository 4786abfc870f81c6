"""The nginx node's JSON and messages: what Lua writes Python reads, and the other way round."""

import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import (
    Ack,
    Ask,
    Credit,
    Hint,
    Line,
    Quota,
    Report,
    ServiceQuota,
    Share,
    UserAsk,
)
from sluicegate.quota.node.core.state import NodeState
from sluicegate.quota.wire import Bounds, CentralWire, NodeWire, json_frames

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = json.loads((ROOT / "tests" / "quota" / "wire" / "frames.json").read_text())
MAX_OBJECTS, MAX_VALUES, MAX_BYTES = 30_000, 150_000, 16 << 20  # of a frame
ESCAPES = [f"\\{byte:03d}" for byte in range(256)]
NULL = object()  # in a Lua expression: json.null


def find_luajit() -> str:
    found = shutil.which("luajit")
    if found is None:
        reason = "no luajit: apt-get install luajit2"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return found


class LuaError(Exception):
    """A chunk has raised an error."""


class Lua:
    """A LuaJIT process that runs chunks."""

    def __init__(self) -> None:
        command = [find_luajit(), str(HERE / "run_protocol.lua"), str(ROOT / "lua")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, chunk: str) -> Any:
        """What a chunk returns, as a tuple if it is not one value."""
        pipe = self._process.stdin
        assert pipe is not None
        assert self._process.stdout is not None
        assert "\n" not in chunk
        pipe.write(chunk + "\n")
        pipe.flush()
        answer = self._process.stdout.readline()
        assert answer, f"luajit has ended with status {self._process.wait()}"
        is_good, *results = map(_from_lua, json.loads(answer))
        if not is_good:
            raise LuaError(results[0])
        return results[0] if len(results) == 1 else tuple(results)

    def close(self) -> None:
        self._process.communicate()


def _from_lua(shown: Any) -> Any:
    match shown:
        case {"number": number}:
            return float.fromhex(number)
        case {"text": text}:
            text = bytes.fromhex(text)
            try:
                return text.decode()
            except UnicodeDecodeError:
                return text
        case {"null": True}:
            return NULL
        case {"table": pairs}:
            return {_from_lua(key): _from_lua(value) for key, value in pairs}
        case list():
            return [_from_lua(value) for value in shown]
    return shown


def to_lua(value: object) -> str:
    """A Lua expression; numbers are exact, and strings have no newline."""
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case int() | float():
            if not math.isfinite(value):
                return "0/0" if value != value else "1/0" if value > 0 else "-1/0"
            return float(value).hex()
        case str():
            return to_lua(value.encode())
        case bytes():
            return '"' + "".join(map(ESCAPES.__getitem__, value)) + '"'
        case dict():
            return "{" + ",".join(f"[{to_lua(k)}]={to_lua(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return "{" + ",".join(map(to_lua, value)) + "}"
    raise TypeError(f"{value!r} is nothing in Lua")


def call(function: str, *arguments: object) -> str:
    return f"return {function}({','.join(map(to_lua, arguments))})"


@pytest.fixture(scope="module")
def lua() -> Iterator[Lua]:
    process = Lua()
    yield process
    process.close()


characters = st.characters(exclude_categories=["Cs"])
odd_names = st.text(st.sampled_from('a"\\/.{}[]:,\0\n\x7f\x80é€😀'), min_size=1, max_size=8)
long_names = st.sampled_from(["x" * 200, "é" * 100, "\0" * 200, "😀" * 50, "[" * 200])
names = st.text(characters, min_size=1, max_size=8) | odd_names | long_names
services = st.sampled_from(["front", "storage", 'd"é\\{', "1"])
resources = st.sampled_from(["requests", "traffic_up", 'odd"\\n,[ame'])
amounts = st.one_of(
    st.integers(0, 2**40).map(float),
    st.floats(0.0, 1e18),
    st.sampled_from([0.0, 5e-324, 0.1, 2.0**53, 1e17, 1e18]),
)
parts = st.sampled_from([0.0, 0.5, 1 / 3, 1.0])
counts = st.integers(0, 2**32 - 1)
wholes = st.integers(0, 2**53 - 1)
positions = st.integers(-1, 2**53 - 1)  # epochs and slots
sequences = st.integers(0, 2**31 - 1)
times = st.floats(-1e12, 1e12)
durations = st.floats(0.0, 3600.0)


def _line(
    consumed: float, rejected: int, requests: int, settled: float, held: float, granted: float
) -> Line:
    return Line(consumed, rejected, requests, settled * consumed, held, granted, settled * granted)


lines = st.builds(_line, amounts, counts, counts, parts, amounts, st.just(0.0) | amounts)
reports = st.builds(
    Report,
    names,
    wholes,
    sequences,
    positions,
    sequences,
    positions,
    times,
    st.dictionaries(
        services,
        st.dictionaries(
            names, st.dictionaries(resources, lines, min_size=1, max_size=2), min_size=1, max_size=3
        ),
        max_size=2,
    ),
    st.booleans(),
    positions,
)
credits = st.builds(
    lambda granted, part, used, cost: Credit(granted, part * granted, used, cost),
    amounts,
    parts,
    amounts,
    amounts,
)
user_asks = st.builds(
    UserAsk, st.integers(0, 10**9), st.dictionaries(resources, credits, max_size=2), st.booleans()
)
asks = st.builds(
    Ask,
    names,
    wholes,
    times,
    st.dictionaries(
        services, st.dictionaries(names, user_asks, min_size=1, max_size=3), max_size=2
    ),
)
acks = st.builds(Ack, names, st.booleans(), positions, wholes, sequences, times, times)
hints = st.builds(Hint, durations, st.booleans(), st.booleans())
service_quotas = st.builds(
    ServiceQuota,
    st.dictionaries(
        names,
        st.dictionaries(resources, st.builds(Share, amounts, amounts), max_size=2),
        max_size=3,
    ),
    st.dictionaries(resources, amounts, max_size=2),
    st.dictionaries(names, hints, max_size=2),
)
quotas = st.builds(
    Quota,
    names,
    positions,
    wholes,
    positions,
    times,
    st.integers(0, 2**32 - 1),
    st.booleans(),
    durations,
    st.dictionaries(services, service_quotas, max_size=2),
)


def write_report(report: Report) -> str:
    """A chunk that returns the frame of a report and what was counted in it.

    Users of different services take turns, as the node's memory may have them.
    """
    fields = {**report._asdict(), "lines": None, "sent": None}
    adds = [f"local report = protocol.new_report({to_lua(fields)})"]
    turns = [
        (number, service, user, lines)
        for service, users in report.lines.items()
        for number, (user, lines) in enumerate(users.items())
    ]
    for _, service, user, lines in sorted(turns, key=lambda turn: turn[0]):
        for resource, line in lines.items():
            arguments = ",".join(map(to_lua, (service, user, resource, *line)))
            adds.append(f"report:add({arguments})")
    sent = to_lua(report.sent)
    return "; ".join([*adds, f"return report:text({sent}), report.objects, report.values"])


def ask_of(ask: Ask) -> dict[str, object]:
    return {
        **ask._asdict(),
        "users": {
            service: {user: user_ask._asdict() for user, user_ask in users.items()}
            for service, users in ask.users.items()
        },
    }


def message_of(decoded: dict[str, Any]) -> Ack | Quota:
    """What `protocol.decode` has returned, as a message."""
    fields = {**decoded}
    if fields.pop("kind") == "ack":
        return Ack(**fields)
    fields["services"] = {
        service: ServiceQuota(
            {
                user: {resource: Share(*share[:2]) for resource, share in shares.items()}
                for user, shares in part["users"].items()
            },
            part["newcomers"],
            {user: Hint(*hint[:3]) for user, hint in part["hints"].items()},
        )
        for service, part in decoded["services"].items()
    }
    return Quota(**fields)


def brackets(text: str) -> int:
    """Objects and lists, as the central counts them before it parses a text."""
    return text.count("{") + text.count("[")


# JSON

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**30), 10**30)
    | st.text(characters, max_size=10)
    | odd_names,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(characters), inner, max_size=4)
    ),
    max_leaves=12,
)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is infinite")
    return number


def loads(text: bytes) -> object:
    """Python's json without its liberties: ValueError also for NaN, and for half a character."""
    value = json.loads(
        text.decode(), parse_int=_finite, parse_float=_finite, parse_constant=_finite
    )
    json.dumps(value, ensure_ascii=False).encode()
    return _with_null(value)


def shown(value: object) -> str:
    """A text in which true is not 1, nor null nothing; the order of keys does not matter."""
    return json.dumps(value, sort_keys=True, default=lambda null: f"{null is NULL}")


def _with_null(value: object) -> object:
    match value:
        case None:
            return NULL
        case list():
            return [_with_null(item) for item in value]
        case dict():
            return {key: _with_null(item) for key, item in value.items()}
    return value


def decode(lua: Lua, text: bytes) -> object:
    """What Lua makes of a text; ValueError if it refuses."""
    answer = lua.run(call("json.decode", text, {"max_depth": 100}))
    if isinstance(answer, tuple):
        value, fault = answer
        assert value is None
        assert fault.startswith("invalid JSON at byte ")
        raise ValueError(fault)
    return answer


@given(documents, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_is_decoded_as_python_decodes_it(
    lua: Lua, document: object, is_ascii: bool, indent: int | str | None
) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode()
    assert shown(decode(lua, text)) == shown(loads(text))


@given(documents, st.data())
def test_json_that_was_tampered_with_is_refused_or_decoded_as_python_does(
    lua: Lua, document: object, data: st.DataObject
) -> None:
    text = bytearray(json.dumps(document, ensure_ascii=data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        byte = st.sampled_from(b'{}[]",:.eE+-0129tfn\\u \n\0\x80\xc3') | st.integers(0, 255)
        text[at : at + data.draw(st.integers(0, 1))] = bytes([data.draw(byte)])
    try:
        expected = loads(bytes(text))
    except ValueError:
        with pytest.raises(ValueError, match="expected"):
            decode(lua, bytes(text))
    else:
        assert shown(decode(lua, bytes(text))) == shown(expected)


MALFORMED = [
    *(b"", b" ", b"{", b"[", b"}", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1}", b"{1}"),
    *(b'{"a"', b'{"a":', b'{"a":}', b'{"a":1', b'{"a":1,}', b'{"a" 1}', b"{a:1}", b"{'a':1}"),
    *(b'{"a":1]', b"{,}", b"1 1", b"1,", b"[] []", b"nul", b"tru", b"falsy", b"True", b"nulll"),
    *(b"01", b"-01", b"00", b"+1", b".5", b"1.", b"-.5", b"-", b"--1", b"1.e5", b"1e", b"1e+"),
    *(b"1e5.5", b"0x10", b"1x", b"NaN", b"nan", b"Infinity", b"-Infinity", b"inf", b"1_000"),
    *(b"1e309", b"-1e309", b"1" + b"0" * 400, b"1e999999999999", "\u0661".encode()),
    *(b'"', b'"a', b'"\\', b'"\\"', b'"\n"', b'"\0"', b'"\x1f"', b"'a'", b'"\\x41"', b'"\\a"'),
    *(b'"\\u"', b'"\\u12"', b'"\\u123', b'"\\u12g4"', b'"\\u+123"', b'"\\u 123"', b'"\\U0041"'),
    *(
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\ud800\\ud800"',
        b'"\\ud800\\n"',
        b'"\\ud800\\',
        b'"\\ud800a',
    ),
    *(b'"\x80"', b'"\xc3"', b'"\xc0\x80"', b'"\xe0\x80\x80"', b'"\xed\xa0\x80"', b'"\xf5"'),
    *(b'"\xf4\x90\x80\x80"', b'"\xf0\x80\x80\x80"', b'"\xe2\x82"', b'"\xff"', b"\xef\xbb\xbf1"),
    *(b"\0", b"1\0", b"[1,\0]", b"\v1", b"\f1", b"1\xc2\xa0", b"// a\n1", b"/**/1", b"[" * 101),
]


@pytest.mark.parametrize("text", MALFORMED, ids=repr)
def test_what_is_not_json_is_refused(lua: Lua, text: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        decode(lua, text)


def test_an_error_has_the_position_and_what_was_found_there(lua: Lua) -> None:
    faults = {
        b'{"a": [1, 02]}': "invalid JSON at byte 11: got '02]}', expected a number without leading"
        " zeros",
        b'{"a" 1}': "invalid JSON at byte 6: got '1}', expected a colon",
        b'["\xff\n"]': "invalid JSON at byte 3: got '??\"]', expected UTF-8",
        b"[1": "invalid JSON at byte 3: got the end, expected a comma or ]",
    }
    for text, fault in faults.items():
        assert lua.run(call("json.decode", text)) == (None, fault)


def test_of_a_key_that_comes_twice_the_later_value_counts(lua: Lua) -> None:
    assert decode(lua, b'{"a": {"b": 1}, "c": 2, "a": null}') == {"a": NULL, "c": 2}


def test_an_empty_list_is_not_an_empty_object(lua: Lua) -> None:
    assert decode(lua, b'[[], {}, {"a": []}]') == [[], {}, {"a": []}]


def test_the_number_of_values_and_of_levels_is_bounded(lua: Lua) -> None:
    decode_with = "return json.decode(%s, {%s})"
    sixteen, three = to_lua("[" * 16 + "]" * 16), to_lua('[1, {"a": 2}]')
    assert not isinstance(lua.run(decode_with % (sixteen, "")), tuple)
    assert "at most 15 levels" in lua.run(decode_with % (sixteen, "max_depth=15"))[1]
    assert lua.run(decode_with % (three, "max_values=4")) == [1, {"a": 2}]
    assert "at most 3 values" in lua.run(decode_with % (three, "max_values=3"))[1]
    million = 'local text = "[" .. ("1,"):rep(999998) .. "1%s]"; '
    count = "local list, fault = json.decode(text); return list and #list, fault"
    assert lua.run(million % "" + count) == (999_999, None)
    assert "at most 1000000 values" in lua.run(million % ",1" + count)[1]


def test_decoding_pauses_about_every_500_values_and_may_yield_there(lua: Lua) -> None:
    chunk = (
        "local text = '[' .. ('{\"a\":[1,2]},'):rep(3000) .. '5]'; "
        "local task = coroutine.wrap(function() "
        "  return json.decode(text, {pause = coroutine.yield}) end); "
        "local pauses, list = -1; repeat list, pauses = task(), pauses + 1 until list; "
        "return pauses, #list, list[3000].a[2], list[3001]"
    )
    pauses, *rest = lua.run(chunk)
    assert rest == [3001, 2, 5]
    assert 20 <= pauses <= 24  # of 12,002 values


def test_two_texts_may_be_decoded_at_once(lua: Lua) -> None:
    chunk = (
        "local function task(item) local text = '[' .. (item .. ','):rep(2000) .. item .. ']'; "
        "  return coroutine.wrap(function() "
        "    return json.decode(text, {pause = coroutine.yield}) end) end; "
        "local a, b, x, y = task('{\"a\":0.12345678901234567}'), task('[\"\\\\n\"]'); "
        "repeat x, y = a(), b() until x; while not y do y = b() end; "
        "return #x, #y, x[2001], y[2001]"
    )
    assert lua.run(chunk) == (2001, 2001, {"a": 0.12345678901234567}, ["\n"])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=20, max_size=20))
def test_a_number_is_encoded_to_the_last_bit(lua: Lua, numbers: list[float]) -> None:
    numbers += [float(round(number)) for number in numbers if abs(number) < 2**60]
    texts = ",".join(f"json.encode_number({to_lua(number)})" for number in numbers)
    for number, text in zip(numbers, lua.run(f"return {texts}"), strict=True):
        assert float(json.loads(text)) == number
        assert len(text) <= 24
        if number.is_integer() and abs(number) < 2**53:
            assert text in (str(int(number)), "-0")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_an_error(lua: Lua, number: float) -> None:
    with pytest.raises(LuaError, match="expected a finite one"):
        lua.run(call("json.encode_number", number))


@given(st.text(characters) | odd_names)
def test_a_string_is_encoded_as_python_reads_it(lua: Lua, text: str) -> None:
    assert json.loads(lua.run(call("json.encode_string", text))) == text


# What a central sends


@given(acks | quotas)
def test_what_a_central_writes_is_decoded_to_the_same_numbers(
    lua: Lua, answer: Ack | Quota
) -> None:
    text = json_frames.write_answer(answer, Bounds())
    assert message_of(lua.run(call("protocol.decode", text))) == answer


def test_golden_frames_are_read_and_written_as_they_stand(lua: Lua) -> None:
    for frame in GOLDEN:
        (kind,) = frame["message"]
        text = json.dumps(frame["message"])
        if kind in ("ack", "quota"):
            assert message_of(lua.run(call("protocol.decode", text))) == NodeWire().read(text)
            continue
        message = CentralWire().read(text)
        if isinstance(message, Report):
            written, _, _ = lua.run(write_report(message))
        else:
            (written,) = lua.run(call("protocol.encode_ask", ask_of(message))).values()
        assert CentralWire().read(written) == message, frame["what"]


ACK = {
    **{"central": "c", "leads": True, "epoch": -1, "boot": 3, "sequence": 9},
    **{"sent": 13.5, "time": -0.5},
}
QUOTA = {
    **{"central": "c", "epoch": 5, "version": 7, "slot": -1, "time": 1.5, "nodes": 2},
    **{"whole": False, "interval": 0.25},
    "services": {
        "front": {
            "newcomers": {"requests": 50},
            "users": {"ann": {"requests": [5, 1.5]}, "erin": {}},
            "hints": {"ann": [0.5, True, False]},
        }
    },
}
NO_NUMBERS = [None, True, "1", [], {}]
NO_WHOLES = [*NO_NUMBERS, 0.5, -2, 1e300]
BAD_FIELDS: dict[str, list[Any]] = {
    "central": [None, 5, True, [], {}, "", "x" * 201, "é" * 101],
    "leads": [None, 0, 1, "true", [], {}],
    "whole": [None, 0, 1, "true", [], {}],
    "epoch": [*NO_WHOLES, 2**53],
    "slot": [*NO_WHOLES, 2**53],
    "boot": [*NO_WHOLES, -1, 2**53],
    "sequence": [*NO_WHOLES, -1, 2**31],
    "nodes": [*NO_WHOLES, -1, 2**32],
    "version": [*NO_WHOLES, -1, 2**57],
    "sent": [*NO_NUMBERS, 1.1e12, -1.1e12],
    "time": [*NO_NUMBERS, 1.1e12, -1.1e12],
    "interval": [*NO_NUMBERS, -0.1, 3600.1],
    "services": [None, 5, "front", [], {"": {}}, {"s" * 51: {}}, {"front": 5}, {"front": []}],
}
BAD_AMOUNTS = [*NO_NUMBERS, -1, 1.1e18]
BAD_PARTS: dict[str, list[Any]] = {
    "newcomers": [
        *(None, False, [], 5, {"": 5}, {"r" * 201: 5}),
        *({"requests": amount} for amount in BAD_AMOUNTS),
        {f"r{number}": 1 for number in range(1001)},
    ],
    "users": [
        *(None, False, [], 5, {"": {}}, {"u" * 201: {}}, {"ann": 5}, {"ann": []}, {"ann": None}),
        *({"ann": {"requests": share}} for share in (None, 5, {}, [], [5], {"1": 5, "2": 5})),
        *({"ann": {"requests": [amount, 1]}} for amount in BAD_AMOUNTS),
        *({"ann": {"requests": [1, amount]}} for amount in BAD_AMOUNTS),
        *({"ann": {name: [1, 1]}} for name in ("", "r" * 201)),
        {"ann": {f"r{number}": [1, 1] for number in range(1001)}},
    ],
    "hints": [
        *(None, False, [], 5, {"": [0, True, True]}, {"ann": 5}, {"ann": {}}, {"ann": [0, True]}),
        *({"ann": [wait, True, True]} for wait in [*NO_NUMBERS, -1, 3601]),
        *({"ann": [0, flag, True]} for flag in (None, 0, 1, "true")),
        *({"ann": [0, True, flag]} for flag in (None, 0, 1, "true")),
    ],
}


def decode_as_python(lua: Lua, message: object) -> str | None:
    """Assert that Lua decodes a message as Python does; what is wrong with it, if anything."""
    text = json.dumps(message)
    try:
        expected = NodeWire().read(text)
    except ProtocolError:
        nothing, fault = lua.run(call("protocol.decode", text))
        assert nothing is None
        return fault
    assert message_of(lua.run(call("protocol.decode", text))) == expected
    return None


@pytest.mark.parametrize("kind", ["ack", "quota"])
def test_a_bad_field_is_refused_with_its_name(lua: Lua, kind: str) -> None:
    good = {"ack": ACK, "quota": QUOTA}[kind]
    assert decode_as_python(lua, {kind: good}) is None
    for field in good:
        for bad in BAD_FIELDS[field]:
            fault = decode_as_python(lua, {kind: {**good, field: bad}})
            assert fault is not None, (field, bad)
            assert field in fault or "a service" in fault
            assert "expected" in fault
        fault = decode_as_python(lua, {kind: {key: good[key] for key in good if key != field}})
        assert fault is not None
        assert fault.startswith(f"{field} is missing, expected ")


@pytest.mark.parametrize("part", BAD_PARTS)
def test_a_bad_part_of_a_quota_is_refused(lua: Lua, part: str) -> None:
    for bad in BAD_PARTS[part]:
        services = {"front": {**QUOTA["services"]["front"], part: bad}}
        fault = decode_as_python(lua, {"quota": {**QUOTA, "services": services}})
        assert fault is not None, (part, bad)
        assert "expected" in fault
        assert "(service 'front')" in fault


json_values = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 0, 1, 5.0, 0.5, 2**31, 2**53, 1e19, "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ann", "r"]), inner)
    ),
    max_leaves=4,
)


@given(st.data())
def test_a_frame_with_any_value_anywhere_is_refused_or_decoded_as_python_does(
    lua: Lua, data: st.DataObject
) -> None:
    message = json.loads(json.dumps(data.draw(st.sampled_from([{"ack": ACK}, {"quota": QUOTA}]))))
    at: Any = message
    while True:
        key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
        if not at[key] or not isinstance(at[key], dict | list) or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(json_values)
    decode_as_python(lua, message)


def test_what_may_be_left_out_has_its_default_and_unknown_keys_are_ignored(lua: Lua) -> None:
    services = {"front": {"later": [{}]}, "storage": {"users": {"ann": {"r": [1, 2, 3]}}}}
    quota = {**QUOTA, "epoch": 5.0, "services": services, "later": {"a": None}}
    assert decode_as_python(lua, {"more": 1, "quota": quota}) is None
    decoded = lua.run(call("protocol.decode", json.dumps({"quota": quota})))
    assert decoded["services"]["front"] == {"newcomers": {}, "users": {}, "hints": {}}


def test_the_highest_version_is_a_number_that_can_be_compared(lua: Lua) -> None:
    text = json.dumps({"quota": {**QUOTA, "version": 2**56 - 1}})
    assert lua.run(call("protocol.decode", text))["version"] == 2.0**56


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "invalid JSON at byte 2"),
        ("[1]", "the frame is a list, expected an object"),
        ("5", "the frame is 5, expected an object"),
        ("null", "the frame is null, expected an object"),
        ("{}", "the keys of the frame are '', expected ack or quota"),
        ('{"report": {}}', "the keys of the frame are 'report', expected ack or quota"),
        (
            '{"quota": 5, "ack": []}',
            "the keys of the frame are 'ack, quota', expected ack or quota",
        ),
        ('{"k\\n\u00e9": 1}', "the keys of the frame are 'k???', expected ack or quota"),
    ],
)
def test_what_is_neither_an_ack_nor_a_quota_is_refused(lua: Lua, text: str, fault: str) -> None:
    nothing, got = lua.run(call("protocol.decode", text))
    assert nothing is None
    assert got.startswith(fault)


def test_a_frame_of_more_than_16_mib_is_refused(lua: Lua) -> None:
    fault = "the frame has 16777217 bytes, expected at most 16777216"
    assert lua.run(f'return protocol.decode((" "):rep({MAX_BYTES + 1}))') == (None, fault)


def test_a_quota_of_thirty_thousand_objects_is_decoded_with_pauses(lua: Lua) -> None:
    chunk = (
        "local users = {}; "
        "for i = 1, 15000 do users[i] = '\"u' .. i .. '\":{\"r\":[' .. i .. ',0.1]}' end; "
        'local text = \'{"quota":{"central":"c","epoch":1,"version":1,"slot":1,"time":1,"nodes":1,'
        '"whole":true,"interval":1,"services":{"s":{"users":{\' .. table.concat(users, ",") '
        '.. "}}}}}"; '
        "local pauses = 0; "
        "local quota = protocol.decode(text, function() pauses = pauses + 1 end); "
        "local count = 0; for _ in pairs(quota.services.s.users) do count = count + 1 end; "
        "return count, quota.services.s.users.u15000.r[1], pauses"
    )
    count, granted, pauses = lua.run(chunk)
    assert (count, granted) == (15_000, 15_000)
    assert 140 <= pauses <= 160  # of 60,000 values while parsing, and 15,000 users while checking


# What a node sends


@given(reports)
def test_a_report_is_read_by_the_central_to_the_same_numbers(lua: Lua, report: Report) -> None:
    text, objects, values = lua.run(write_report(report))
    assert CentralWire().read(text) == report
    users = [lines for users in report.lines.values() for lines in users.values()]
    assert objects == 3 + len(report.lines) + len(users) + sum(map(len, users)) == brackets(text)
    assert text.count(",") + 1 == (values if report.lines else values + 1)


def test_the_time_of_sending_is_filled_in_when_a_report_is_sent(lua: Lua) -> None:
    fields = {"node": "n", "boot": 1, "sequence": 1, "since": 0, "epoch": -1, "slot": 5}
    chunk = (
        f"local report = protocol.new_report({to_lua(fields)}); "
        'report:add("front", "ann", "requests", 1, 0, 1, 0, 0, 0, 0); '
        "local first, second = report:text(12.5), report:text(0.1); "
        'report:add("front", "bob", "requests", 2, 0, 1, 0, 0, 0, 0); '
        "return first, second, report:text(13)"
    )
    sent, users = [], []
    for text in lua.run(chunk):
        report = CentralWire().read(text)
        assert isinstance(report, Report)
        assert (report.leaving, report.settled_slot) == (False, -1)
        sent.append(report.sent)
        users.append(list(report.lines["front"]))
    assert sent == [12.5, 0.1, 13.0]
    assert users == [["ann"], ["ann"], ["ann", "bob"]]


FULL_REPORTS = {
    "a line for each user": ('"front"', '"user-" .. i', 1),
    "three lines for each user": ('"front"', '"user-" .. i', 3),
    "nine lines for each user": ('"front"', '"user-" .. i', 9),
    "names full of brackets and commas": ('"front"', '("[{,"):rep(5) .. i', 1),
    "many services": ('"service-" .. i', '"ann"', 1),
}


@pytest.mark.parametrize("case", FULL_REPORTS)
def test_a_full_report_is_within_the_limits_of_the_central(lua: Lua, case: str) -> None:
    service, user, resources = FULL_REPORTS[case]
    fields = {"node": "n", "boot": 1, "sequence": 1, "since": 0, "epoch": -1, "slot": 5}
    chunk = (
        f"local report, i = protocol.new_report({to_lua(fields)}), 0; "
        "while not report:is_full() do "
        f"  i = i + 1; for resource = 1, {resources} do if not report:is_full() then "
        f'    report:add({service}, {user}, "r" .. resource, i, 0, 1, 0, 0.5, i, 1) end end end; '
        "return report:text(0.5), report.objects, report.values, report.lines, report.bytes"
    )
    text, objects, values, count, size = lua.run(chunk)
    assert brackets(text) == objects <= MAX_OBJECTS
    assert text.count(",") + 1 == values <= MAX_VALUES
    assert len(text) <= size <= MAX_BYTES
    report = CentralWire().read(text)
    assert isinstance(report, Report)
    assert sum(len(part) for users in report.lines.values() for part in users.values()) == count
    # It is full of something.
    assert objects > MAX_OBJECTS - 10 or values > MAX_VALUES - 10 or len(report.lines) == 1000


def test_a_report_of_very_long_names_is_full_before_it_has_too_many_bytes(lua: Lua) -> None:
    fields = {"node": "n", "boot": 1, "sequence": 1, "since": 0, "epoch": -1, "slot": 5}
    chunk = (
        f"local report, i = protocol.new_report({to_lua(fields)}), 0; "
        "while not report:is_full() do "
        '  i = i + 1; report:add("front", ("\\1"):rep(190) .. i, "r", i, 0, 1, 0, 0, 0, 0) end; '
        "return #report:text(0.5), report.bytes, report.objects"
    )
    size, counted, objects = lua.run(chunk)
    assert MAX_BYTES - 5000 < size <= counted <= MAX_BYTES
    assert objects < MAX_OBJECTS - 10


GOOD_LINE = {
    **{"service": "front", "user": "ann", "resource": "requests", "consumed": 5, "rejected": 0},
    **{"requests": 1, "settled": 2, "held": 0, "granted": 9, "returned": 3},
}
BAD_LINES = [
    *({"service": name} for name in ("", "s" * 51, None)),
    *({name: ""} for name in ("user", "resource")),
    *({name: "x" * 201} for name in ("user", "resource")),
    *({"consumed": bad} for bad in (-1, 1.1e18, math.nan, math.inf, None, "5")),
    *({"rejected": bad} for bad in (-1, 0.5, math.nan, math.inf)),
    *({"requests": bad} for bad in (-1, 0.5, math.nan, math.inf)),
    *({"settled": bad} for bad in (-1, 6, math.nan)),
    *({"held": bad} for bad in (-1, 1.1e18, math.nan)),
    *({"granted": bad} for bad in (-1, 1.1e18, 2, math.nan)),
    *({"returned": bad} for bad in (-1, 10, math.nan)),
]


@pytest.mark.parametrize("change", BAD_LINES, ids=str)
def test_a_line_that_the_central_would_refuse_is_an_error(
    lua: Lua, change: dict[str, object]
) -> None:
    fields = {"node": "n", "boot": 1, "sequence": 1, "since": 0, "epoch": -1, "slot": 5}
    add = "local report = protocol.new_report(%s); report:add(%s); return report.lines"
    good = ",".join(map(to_lua, GOOD_LINE.values()))
    assert lua.run(add % (to_lua(fields), good)) == 1
    bad = ",".join(map(to_lua, (GOOD_LINE | change).values()))
    with pytest.raises(LuaError, match=r"expected") as raised:
        lua.run(add % (to_lua(fields), bad))
    (field,) = change
    assert field in str(raised.value) or "returned" in str(raised.value)


@pytest.mark.parametrize(
    "change", [{"node": ""}, {"boot": -1}, {"sequence": 2**31}, {"slot": 0.5}, {"leaving": 1}]
)
def test_a_report_with_a_bad_field_is_an_error(lua: Lua, change: dict[str, object]) -> None:
    fields = {"node": "n", "boot": 1, "sequence": 1, "since": 0, "epoch": -1, "slot": 5}
    (field,) = change
    with pytest.raises(LuaError, match=f"{field} is .*, expected "):
        lua.run(call("protocol.new_report", fields | change))


@given(asks)
def test_an_ask_is_read_by_the_central_to_the_same_numbers(lua: Lua, ask: Ask) -> None:
    texts = list(lua.run(call("protocol.encode_ask", ask_of(ask))).values())
    assert [CentralWire().read(text) for text in texts] == ([ask] if ask.users else [])


@pytest.mark.parametrize(
    ("users", "credits", "frames"),
    [(25_000, 0, 2), (12_000, 1, 2), (50, 900, 2)],
)
def test_an_ask_beyond_the_limits_of_a_frame_is_split(
    lua: Lua, users: int, credits: int, frames: int
) -> None:
    chunk = (
        "local users = {a = {}, b = {}}; "
        f"for i = 1, {users} do local resources = {{}}; "
        f'  for k = 1, {credits} do resources["r" .. k] = {{i, 0, k, 1}} end; '
        '  users[i % 2 == 0 and "a" or "b"]["user,[{" .. i] = '
        "    {requests = i, waits = true, resources = resources} end; "
        'local texts = protocol.encode_ask({node = "n", boot = 1, sent = 0.5, users = users}); '
        "return unpack(texts)"
    )
    texts = lua.run(chunk)
    seen: dict[tuple[str, str], UserAsk] = {}
    for text in texts:
        assert brackets(text) <= MAX_OBJECTS
        assert text.count(",") < MAX_VALUES
        ask = CentralWire().read(text)
        assert isinstance(ask, Ask)
        seen |= {
            (service, user): told
            for service, part in ask.users.items()
            for user, told in part.items()
        }
    resources = [f"r{number}" for number in range(1, credits + 1)]
    assert len(texts) == frames
    assert seen == {
        ("ab"[number % 2], f"user,[{{{number}"): UserAsk(
            number,
            {name: Credit(number, 0, at, 1) for at, name in enumerate(resources, 1)},
            waits=True,
        )
        for number in range(1, users + 1)
    }


def test_an_ask_of_very_long_names_is_split_by_its_bytes(lua: Lua) -> None:
    chunk = (
        "local users = {}; "
        'for i = 1, 15000 do users[("\\1"):rep(190) .. i] = {requests = 1} end; '
        'local ask = {node = "n", boot = 1, sent = 0.5, users = {front = users}}; '
        "local texts, sizes = protocol.encode_ask(ask), {}; "
        "for i, text in ipairs(texts) do sizes[i] = #text end; return unpack(sizes)"
    )
    sizes = lua.run(chunk)
    assert len(sizes) == 2
    assert max(sizes) <= MAX_BYTES


@pytest.mark.parametrize(
    "user_ask",
    [
        {"resources": {}},
        {"requests": -1},
        {"requests": 0.5},
        {"requests": 10**9 + 1},
        {"requests": 1, "resources": {"": [1, 0, 1, 1]}},
        {"requests": 1, "resources": {"r": [1, 0, 1]}},
        {"requests": 1, "resources": {"r": [1, 2, 1, 1]}},
        {"requests": 1, "resources": {"r": [1, 0, math.nan, 1]}},
        {"requests": 1, "resources": {"r": [1, 0, 1, 1.1e18]}},
        {"requests": 1, "resources": {f"r{number}": [1, 0, 1, 1] for number in range(1001)}},
    ],
)
def test_an_ask_that_the_central_would_refuse_is_an_error(
    lua: Lua, user_ask: dict[str, object]
) -> None:
    ask = {"node": "n", "boot": 1, "sent": 0.5, "users": {"front": {"ann": user_ask}}}
    with pytest.raises(LuaError, match="expected"):
        lua.run(call("protocol.encode_ask", ask))


# Names

any_bytes = st.binary(max_size=200) | st.text(characters, max_size=200).map(str.encode)
# Names that differ in little: one byte that is not UTF-8, an escape that looks like it, a long end.
similar = st.builds(
    lambda start, middle, end: start + middle + end,
    st.sampled_from([b"", b"a", "é".encode(), b"x" * 126, b"x" * 158, "é".encode() * 80]),
    st.sampled_from([b"", b"%FF", b"\xff", b"\xfe", b"\xc3", b"\xa9", b"\xe2\x82", b"~"]),
    st.sampled_from([b"", b"b", b"%FF", b"x" * 40, b"x" * 41]),
)


def utf8_names(lua: Lua, names: list[bytes]) -> list[str]:
    digests = {name: hashlib.md5(name, usedforsecurity=False).hexdigest() for name in names}
    chunk = (
        f"local digests, names = {to_lua(digests)}, {to_lua(names)}; "
        "protocol.set_md5(function(bytes) return digests[bytes] end); "
        "for i, name in ipairs(names) do names[i] = protocol.utf8_name(name) end; "
        "return setmetatable(names, json.array)"
    )
    return lua.run(chunk)


@given(st.lists(any_bytes | similar, min_size=1, max_size=20, unique=True))
def test_no_two_names_become_one_on_the_wire(lua: Lua, names: list[bytes]) -> None:
    mapped = utf8_names(lua, names)
    assert len(set(mapped)) == len(names)
    for name, told in zip(names, mapped, strict=True):
        assert len(told.encode()) <= 160
        is_kept = len(name) <= 160 and name.decode(errors="ignore").encode() == name
        assert (told.encode() == name) == is_kept
    assert utf8_names(lua, names) == mapped


# About as long as a name may be, with a character of any size where it is cut.
name_lengths = st.sampled_from([1, 126, 127, 128, 159, 160, 161, 200, 500])
long_texts = st.builds(
    lambda size, middle, end: "x" * (size - len(middle.encode())) + middle + end,
    name_lengths,
    st.sampled_from(["", "é", "€", "😀", "é😀"]),
    st.sampled_from(["", "a", "b", "é", "x" * 33, "x" * 34, "😀" * 9]),
)


@given(st.lists(long_texts, min_size=1, max_size=10, unique=True))
def test_a_long_name_is_cut_as_the_python_node_cuts_it(lua: Lua, names: list[str]) -> None:
    node = NodeState("node-1", 1, ["central-1"], now=0.0, wall=1000.0)
    for name in names:
        node.consume(0.1, "front", name, {"requests": 1.0})
    ((_, report),) = node.leave(0.2)
    assert set(utf8_names(lua, [name.encode() for name in names])) == set(report.lines["front"])


def test_a_byte_that_is_not_utf8_is_shown_as_an_escape(lua: Lua) -> None:
    digest = hashlib.md5(b"a\xff\xc3\xa9\xe2\x82", usedforsecurity=False).hexdigest()
    assert utf8_names(lua, [b"a\xff\xc3\xa9\xe2\x82"]) == [f"a%FFé%E2%82~{digest}"]


# The classic protocol

counts_by_name = st.dictionaries(
    services, st.dictionaries(names, st.dictionaries(resources, amounts), max_size=2), max_size=2
)


@given(names, wholes, counts_by_name, counts_by_name)
def test_a_classic_report_has_objects_also_where_they_are_empty(
    lua: Lua, node: str, slot: int, consumption: object, rejection: object
) -> None:
    text = lua.run(call("protocol.encode_classic_report", node, slot, consumption, rejection))
    assert json.loads(text) == {
        "node_id": node,
        "slot_number": slot,
        "consumption": consumption,
        "rejection": rejection,
    }


@given(st.dictionaries(services, service_quotas), wholes)
def test_a_classic_quota_is_decoded_as_the_central_writes_it(
    lua: Lua, quota: dict[str, ServiceQuota], slot: int
) -> None:
    text = json_frames.write_classic(quota, slot)
    assert lua.run(call("protocol.decode_classic_quota", text)) == {
        service: {
            float(slot): {
                user: {resource: share.granted for resource, share in shares.items()}
                for user, shares in part.users.items()
                if shares
            }
        }
        for service, part in quota.items()
    }


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"error_code": "TooManyUsers", "error_message": "at most"}, "TooManyUsers: at most"),
        ([], "the frame is a list, expected an object"),
        ({"front": 5}, "a service is 5, expected an object"),
        ({"s" * 51: {}}, "a service is 's"),
        ({"front": {"0x10": {}}}, "a slot is '0x10', expected a whole number"),
        ({"front": {"-1": {}}}, "a slot is '-1', expected a whole number"),
        ({"front": {"5": []}}, "users is a list, expected an object (service 'front')"),
        ({"front": {"5": {"": {}}}}, "a user is '', expected a name"),
        ({"front": {"5": {"ann": 5}}}, "resources is 5, expected an object"),
        ({"front": {"5": {"ann": {"r": -1}}}}, "an amount is -1, expected an amount"),
        ({"front": {"5": {"ann": {"r": [1, 2]}}}}, "an amount is a list, expected an amount"),
    ],
)
def test_a_classic_answer_that_is_no_quota_is_refused(lua: Lua, answer: object, fault: str) -> None:
    nothing, got = lua.run(call("protocol.decode_classic_quota", json.dumps(answer)))
    assert nothing is None
    assert got.startswith(fault)
