"""The protocol of classic nodes, driven by a websocket client that shares no code with ours."""

import json
import re
import socket
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from sluicegate.quota import Central, Entry
from sluicegate.quota.central.net.websocket import NodeSocket
from tests.harness.central import (
    PlainNode,
    closed_with,
    frame,
    raw_websocket,
    running,
    slot_of,
)
from tests.harness.waits import PATIENCE, wait_for


@pytest.fixture(scope="module")
def central() -> Iterator[Central]:
    with running() as central:
        yield central


@pytest.mark.parametrize("path", ["/", "/throttle", "/throttle?node=1"])
def test_a_report_is_answered_with_the_quota_of_the_slot_after_it(path: str) -> None:
    with running() as central, PlainNode(central, path=path) as node:
        slot = node.slot()
        answer = node.report(slot, {"front": {"ann": {"requests": 3}}})
        assert answer == {"front": {str(slot + 1): {}}}


def test_a_user_who_is_in_the_reports_has_a_share_two_slots_later() -> None:
    with running(slot_seconds=0.1) as central, PlainNode(central) as node:

        def share() -> object:
            slot = node.slot()
            answer = node.report(slot, {"front": {"ann": {"requests": 3}}})
            return answer["front"][str(slot + 1)].get("ann", {}).get("requests")

        told = wait_for(share)
        assert isinstance(told, int | float)
        assert 0 < told <= 110  # a second of burst, and a slot of 0.1 s


def test_the_answer_is_the_text_it_always_was() -> None:
    """{service: {"<slot + 1>": {user: {resource: amount}}}}, one text frame, amounts as floats."""
    limits = [Entry("front", "*", rates={"requests": 100.0}), Entry("back", "x", rates={"r": 1.0})]
    with running(limits=limits, slot_seconds=0.1) as central, PlainNode(central) as node:

        def told(message: object) -> str:
            node.socket.send(json.dumps(message))
            text = node.socket.recv(timeout=PATIENCE)
            assert isinstance(text, str)
            return text

        def answer(used: object) -> str:
            """With a word for the slot, and one for a float."""
            slot = node.slot()
            text = told({"node_id": "n", "slot_number": slot, "consumption": used})
            return re.sub(r"\b[0-9]+\.[0-9]+\b", "FLOAT", text.replace(f'"{slot + 1}"', "NEXT"))

        assert answer({}) == '{"front":{NEXT:{}},"back":{NEXT:{}}}'
        used = {"front": {"ann": {"requests": 3}}, "nosuch": {}}

        def has_share() -> bool:
            text = answer(used)
            rest = '"back":{NEXT:{}},"nosuch":{NEXT:{}}}'
            if text == '{"front":{NEXT:{}},' + rest:
                return False
            assert text == '{"front":{NEXT:{"ann":{"requests":FLOAT}}},' + rest
            return True

        wait_for(has_share)
        assert told({"monitor": "nope"}) == (
            '{"error_code":"InvalidSubject","error_message":"invalid subject: nope"}'
        )
        assert told({"monitor": "rejection_sum"}) == "{}"


def test_an_answer_of_the_monitor_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.quota.central.classic.monitor._MAX_BYTES", 1000)
    with running() as central, PlainNode(central) as node:
        node.report(node.slot(), {"front": {f"user-{n}": {"requests": 1} for n in range(50)}})
        for subject in ("distribution", "consumption_sum"):
            for _ in range(12):  # it is no bad frame
                answer = node.ask({"monitor": subject})
                assert answer["error_code"] == "TooLarge"
                assert "more than 1000 bytes" in answer["error_message"]


def test_a_report_has_a_bound(central: Central) -> None:
    with PlainNode(central) as node:
        users = {f"user-{n}": {"a": 1, "b": 2} for n in range(10_001)}
        answer = node.report(node.slot(), {"front": users})
        assert answer["error_code"] == "TooManyUsers"
        assert answer["error_message"] == "consumption must have at most 20000 amounts"


def test_an_unknown_service_gets_an_empty_quota_and_the_connection_lives() -> None:
    with running() as central, PlainNode(central) as node:
        slot = node.slot()
        key = str(slot + 1)
        used = {"nosuch": {"ann": {"requests": 3}}}
        assert node.report(slot, used) == {"front": {key: {}}, "nosuch": {key: {}}}
        assert node.report(slot, {}, {"other": {}}) == {"front": {key: {}}, "other": {key: {}}}


def test_lua_may_write_empty_tables_as_lists_and_numbers_as_floats() -> None:
    with running() as central, PlainNode(central) as node:
        slot = node.slot()
        answer = node.ask(
            {
                "node_id": "n",
                "slot_number": float(slot),
                "consumption": {"front": {"ann": []}},
                "rejection": [],
            }
        )
        assert answer == {"front": {str(slot + 1): {}}}


def test_a_report_is_booked_once_for_its_node_and_slot() -> None:
    with running() as central, PlainNode(central) as node:
        slot = node.slot()
        for _ in range(3):
            node.report(slot, {"front": {"ann": {"requests": 7}}})
        sums = node.ask({"monitor": "consumption_sum", "start_slot": slot - 1, "end_slot": slot})
        assert sums == {str(slot - 1): {"front": {"ann": {"requests": 7.0}}}}


def test_the_monitor_answers_all_six_subjects() -> None:
    limits = [Entry("front", "ann", rates={"traffic_up": 1000.0})]
    with running(limits=limits, slot_seconds=0.5) as central, PlainNode(central, "n1") as node:
        slots = []

        def given() -> bool:
            slot = node.slot()
            slots.append(slot)
            used = {"front": {"ann": {"traffic_up": 11}}}
            node.report(slot, used, {"front": {"ann": {"traffic_up": 2}}})
            quota = node.ask({"monitor": "quota", "start_slot": slot, "end_slot": slot})
            return quota.get(str(slot), {}) != {}

        wait_for(given)
        first = slots[0]
        span = {"start_slot": first - 1, "end_slot": node.slot() + 1}
        port = node.socket.socket.getsockname()[1]
        (connection,) = node.ask({"monitor": "connections"}).values()
        assert connection["client_ip"] == "127.0.0.1"
        assert connection["client_port"] == port
        assert connection["connect_time"] == pytest.approx(time.time(), abs=60)
        reported = node.ask({"monitor": "reported", **span})
        assert list(map(int, reported)) == sorted(set(slots))
        assert reported[str(first)] == {"n1": {str(port): {"node_id": "n1", "slot_number": first}}}
        sums = node.ask({"monitor": "consumption_sum", **span})
        assert sums[str(first - 1)] == {"front": {"ann": {"traffic_up": 11.0}}}
        refused = node.ask({"monitor": "rejection_sum", **span})
        assert refused[str(first - 1)] == {"front": {"ann": {"traffic_up": 2.0}}}
        distribution = node.ask({"monitor": "distribution"})
        cell = distribution["front"]["ann"]["traffic_up"]["n1"]
        assert (cell["consumption"], cell["rejection"]) == (11.0, 2.0)
        assert cell["slot_number"] >= first - 1
        quota = node.ask({"monitor": "quota", **span})
        slot, nodes = next(iter(quota.items()))
        assert nodes["n1"]["front"][str(int(slot) + 1)]["ann"]["traffic_up"] > 0


def test_the_monitor_looks_at_one_slot_or_at_all_of_them() -> None:
    with running() as central, PlainNode(central) as node:
        slot = node.slot()
        for at in (slot - 2, slot - 1, slot):
            node.report(at, {"front": {"ann": {"requests": 1}}})
        ask = {"monitor": "consumption_sum"}
        assert list(node.ask({**ask, "start_slot": slot - 2})) == [str(slot - 2)]
        assert set(node.ask(ask)) == {str(slot - 3), str(slot - 2), str(slot - 1)}
        assert node.ask({**ask, "start_slot": slot - 1, "end_slot": slot - 2}) == {}
        assert node.ask({**ask, "start_slot": 0, "end_slot": 1 << 50}) == node.ask(ask)


@pytest.mark.parametrize("subject", ["nope", "", None, 7, ["quota"], {"quota": 1}])
def test_a_wrong_subject_is_told(central: Central, subject: object) -> None:
    with PlainNode(central) as node:
        answer = node.ask({"monitor": subject})
        assert answer["error_code"] == "InvalidSubject"
        assert answer["error_message"].startswith("invalid subject: ")
        assert node.report(node.slot(), {})  # and the connection lives


BAD = [
    ("no JSON", "[1, 2"),
    ("no object", "[1, 2]"),
    ("NaN", '{"node_id": "n", "slot_number": NaN}'),
    ("no node", {"slot_number": 5}),
    ("a node that is no name", {"node_id": 5, "slot_number": 5}),
    ("an empty name", {"node_id": "", "slot_number": 5}),
    ("a name that is too long", {"node_id": "n" * 201, "slot_number": 5}),
    ("no slot", {"node_id": "n"}),
    ("half a slot", {"node_id": "n", "slot_number": 1.5}),
    ("a slot before time", {"node_id": "n", "slot_number": -1}),
    ("true as slot", {"node_id": "n", "slot_number": True}),
    ("a slot after all", {"node_id": "n", "slot_number": 10**18}),
    ("a clock that is wrong", {"node_id": "n", "slot_number": 10**15}),
    ("consumption that is a list", {"node_id": "n", "slot_number": 5, "consumption": [1]}),
    ("users that are text", {"node_id": "n", "slot_number": 5, "consumption": {"front": "x"}}),
    (
        "an amount below zero",
        {"node_id": "n", "slot_number": 5, "consumption": {"front": {"u": {"r": -1}}}},
    ),
    (
        "an amount that is text",
        {"node_id": "n", "slot_number": 5, "rejection": {"front": {"u": {"r": "1"}}}},
    ),
    (
        "an amount that is none",
        {"node_id": "n", "slot_number": 5, "consumption": {"front": {"u": {"r": 1e300}}}},
    ),
    (
        "a resource with a name that is too long",
        {"node_id": "n", "slot_number": 5, "consumption": {"front": {"u": {"ä" * 101: 1}}}},
    ),
    (
        "a service with a name that is too long",
        {"node_id": "n", "slot_number": 5, "consumption": {"s" * 51: {}}},
    ),
]


@pytest.mark.parametrize("message", [bad for _, bad in BAD], ids=[name for name, _ in BAD])
def test_a_report_that_makes_no_sense_is_answered_with_what_was_expected(
    central: Central, message: object
) -> None:
    with PlainNode(central) as node:
        answer = node.ask(message)
        assert answer["error_code"] == "InvalidMessage"
        assert "expected" in answer["error_message"] or "must" in answer["error_message"]
        slot = node.slot()
        assert node.report(slot, {}) == {"front": {str(slot + 1): {}}}


def test_ten_bad_frames_in_a_minute_are_enough() -> None:
    with running() as central, PlainNode(central) as node, PlainNode(central, "m") as other:
        for _ in range(9):
            assert node.ask("nonsense")["error_code"] == "InvalidMessage"
        node.socket.send("nonsense")
        code, reason = closed_with(node.socket)
        assert code == 1007
        assert reason.startswith("bad frame: 10 bad frames in a minute, the last: expected JSON")
        assert other.report(other.slot(), {})


def test_a_binary_frame_is_not_of_this_protocol() -> None:
    with running() as central, PlainNode(central) as node:
        node.socket.send(b'{"node_id": "n"}')
        assert "binary" in json.loads(node.socket.recv(timeout=PATIENCE))["error_message"]


def test_a_message_may_come_in_pieces() -> None:
    """As fragments of a message, and as bytes that come one by one."""
    with running() as central, raw_websocket(central) as raw:
        slot = slot_of(central)
        text = json.dumps({"node_id": "n", "slot_number": slot}).encode()
        parts = [
            frame(text[:7], fin=False),
            frame(b"ping", opcode=9),  # a control frame in the middle is allowed
            frame(b"", opcode=0, fin=False),
            frame(text[7:], opcode=0),
        ]
        for byte in b"".join(parts):
            raw.sendall(bytes([byte]))
        expected = b'{"front":{"%d":{}}}' % (slot + 1)
        wanted = b"\x8a\x04ping" + bytes([0x81, len(expected)]) + expected
        got = b""
        while len(got) < len(wanted):
            got += raw.recv(100)
        assert got == wanted


# Frames that are sent ahead, by one who reads later

LARGE = {"monitor": "distribution"}  # half a megabyte, and the pipe takes less


@contextmanager
def narrow_pipe(central: Central) -> Iterator[tuple[socket.socket, NodeSocket]]:
    """A connection that takes little at a time: its end, and the central's."""
    assert central.registry is not None
    with PlainNode(central) as node:
        users = {f"user_{n:0150}": {"requests": 1} for n in range(2000)}
        node.report(node.slot(), {"front": users})
    wait_for(lambda: not central.registry.connections())
    with raw_websocket(central) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        wait_for(lambda: central.registry.connections())
        (here,) = central.registry._sockets
        there = here._transport.get_extra_info("socket")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        yield raw, here


def send_ahead(raw: socket.socket, messages: list[object]) -> None:
    raw.sendall(b"".join(frame(json.dumps(message).encode()) for message in messages))


def frames(raw: socket.socket) -> Generator[tuple[int, bytes], None, None]:
    """The opcode and the data of each frame, until the other end closes."""
    with raw.makefile("rb") as file:
        while head := file.read(2):
            size = head[1]
            if size == 126:
                (size,) = struct.unpack("!H", file.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", file.read(8))
            yield head[0] & 15, file.read(size)


def test_each_frame_that_was_sent_ahead_has_its_answer_in_order() -> None:
    with running() as central, narrow_pipe(central) as (raw, here):
        slot = slot_of(central)
        send_ahead(
            raw,
            [
                LARGE,
                LARGE,
                {"monitor": "connections"},
                {"node_id": "m", "slot_number": slot},
                {"node_id": "m", "slot_number": slot + 1},
                {"monitor": "nonsense"},
                "no report",
                {"monitor": "reported", "start_slot": slot, "end_slot": slot + 1},
            ],
        )
        wait_for(lambda: not here.is_writable)
        raw.sendall(frame(b"still there?", opcode=9) + frame(struct.pack("!H", 1000), opcode=8))
        *told, pong, close = frames(raw)
        assert all(opcode == 1 for opcode, _ in told)
        answers = [json.loads(data) for _, data in told]
        assert len(answers[0]["front"]) == len(answers[1]["front"]) == 2000
        (connection,) = answers[2].values()
        assert connection["client_port"] == raw.getsockname()[1]
        assert list(answers[3]["front"]) == [str(slot + 1)]
        assert list(answers[4]["front"]) == [str(slot + 2)]
        assert answers[5]["error_code"] == "InvalidSubject"
        assert answers[6]["error_code"] == "InvalidMessage"
        assert "m" in answers[7][str(slot)]
        assert "m" in answers[7][str(slot + 1)]
        assert len(answers) == 8
        assert pong == (10, b"still there?")
        assert close == (8, struct.pack("!H", 1000))


def test_who_has_sent_all_may_say_so_and_read_the_answers() -> None:
    """The end of what comes is not the end of what is told."""
    with running() as central, narrow_pipe(central) as (raw, _):
        send_ahead(raw, [LARGE] * 4 + [{"monitor": "nonsense"}])
        raw.shutdown(socket.SHUT_WR)
        sizes = [len(data) for _, data in frames(raw)]
        assert len(sizes) == 5
        assert min(sizes[:4]) > 300_000 > sizes[4]


def test_what_waits_for_one_who_does_not_read_is_frames_and_not_answers() -> None:
    with running() as central, narrow_pipe(central) as (raw, here):
        send_ahead(raw, [LARGE] * 100)
        wait_for(lambda: here._is_input_paused)
        assert here._transport.get_write_buffer_size() < 1_000_000
        assert not here._transport.is_reading()


def test_who_reads_again_after_a_long_time_is_not_taken_for_lost() -> None:
    """Nothing was read from him meanwhile, so nothing can have been heard."""
    with running() as central, narrow_pipe(central) as (raw, here):
        send_ahead(raw, [LARGE] * 3)
        wait_for(lambda: here._is_input_paused)
        here._last_received -= 100.0
        with closing(frames(raw)) as answers:
            for _ in range(3):
                assert next(answers)[0] == 1
            here._loop.call_soon_threadsafe(lambda: here.check_liveness(here._loop.time(), 5.0))
            raw.sendall(frame(b'{"monitor": "nonsense"}'))
            assert b"InvalidSubject" in next(answers)[1]


def test_a_stop_does_not_wait_long_for_one_who_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.quota.central.server._DRAIN_SECONDS", 0.2)
    monkeypatch.setattr("sluicegate.quota.central.server._STOP_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr("sluicegate.quota.central.net.websocket._LINGER_SECONDS", 0.2)
    with ExitStack() as deaf:
        with running() as central:
            raw, here = deaf.enter_context(narrow_pipe(central))
            send_ahead(raw, [LARGE] * 10)
            wait_for(lambda: here._is_input_paused)
            begun = time.monotonic()
        assert time.monotonic() - begun < PATIENCE  # one who waits for the deaf takes far longer


def test_what_is_told_with_the_good_bye_is_booked() -> None:
    """A report and a close frame in one segment."""
    with running() as central, raw_websocket(central) as raw:
        slot = slot_of(central)
        told = {"front": {"ann": {"requests": 7}}}
        report = {"node_id": "n", "slot_number": slot, "consumption": told, "rejection": {}}
        good_bye = frame(struct.pack("!H", 1000), opcode=8)
        raw.sendall(frame(json.dumps(report).encode()) + good_bye)
        assert [opcode for opcode, _ in frames(raw)] == [8]
        with PlainNode(central, "m") as other:
            sums = other.ask({"monitor": "consumption_sum"})
        assert sums[str(slot - 1)] == told
