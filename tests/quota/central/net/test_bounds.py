"""Nobody can hurt another: sizes, counts, rates, and those who do not read or do not speak."""

import asyncio
import json
import socket
import struct
import threading
from contextlib import ExitStack, suppress

import pytest
from websockets.sync.client import connect

from sluicegate.quota import Central, Entry
from sluicegate.quota.central.limit_sources.memory import MemoryLimits
from sluicegate.quota.central.net.http_protocol import BoundedHttpProtocol, IdleConnections
from sluicegate.quota.central.net.node_session import NodeSession
from sluicegate.quota.central.net.websocket import NodeSocket
from sluicegate.quota.messages import Quota
from sluicegate.quota.wire import Bounds
from tests.harness.central import (
    LIMITS,
    PlainNode,
    V1Node,
    closed_with,
    frame,
    get,
    raw_websocket,
    running,
    slot_of,
)
from tests.harness.waits import PATIENCE, wait_for


def test_a_frame_that_is_too_big_ends_its_connection() -> None:
    with running(bounds=Bounds(frame_bytes=10_000)) as central, PlainNode(central, "m") as other:
        for size in (10_001, 200_000):
            with V1Node(central) as node:
                node.socket.send(b"\x01" * size)
                code, reason = closed_with(node.socket)
                assert code == 1009
                assert "10000" in reason.replace(",", "")
        assert other.report(other.slot(), {})


def test_a_frame_is_too_big_as_soon_as_its_length_is_told() -> None:
    """Not when gigabytes of it have come."""
    with running() as central, raw_websocket(central) as raw:
        raw.sendall(struct.pack("!BBQ", 0x82, 0x80 | 127, 1 << 40) + bytes(4))
        got = raw.recv(200)
        assert got[0] == 0x88
        assert struct.unpack("!H", got[2:4]) == (1009,)


def test_text_with_too_much_in_it_is_not_read() -> None:
    with running() as central, PlainNode(central) as node:
        node.socket.send("[" + "{}," * 30_000 + "1]")
        code, reason = closed_with(node.socket)
        assert code == 1009
        assert reason == "bad frame: text must have at most 30000 objects and lists, got 30001"


@pytest.mark.parametrize("kind", ["classic", "binary", "JSON"])
def test_too_many_users_in_a_report(kind: str) -> None:
    with running(bounds=Bounds(users=100)) as central:
        if kind == "classic":
            users = {f"u{n}": {"requests": 1} for n in range(101)}
            with PlainNode(central) as plain:
                answer = plain.report(plain.slot(), {"front": users})
                assert answer["error_code"] == "TooManyUsers"
            return
        with V1Node(central, binary=kind == "binary") as node:
            node.send(node.message(1, **{f"u{n}": 1.0 for n in range(101)}))
            code, reason = closed_with(node.socket)
            assert code == 1007
            assert reason.startswith("bad frame: ")


def test_there_is_room_for_so_many_connections_and_no_more() -> None:
    with running(max_connections=2) as central:
        with PlainNode(central, "a") as first, V1Node(central, "b"):
            for _ in range(3):
                with connect(central.ws_url) as socket:
                    assert closed_with(socket) == (
                        1013,
                        "overloaded: too many connections, at most 2",
                    )
            assert first.report(first.slot(), {})
        wait_for(lambda: central.registry is not None and not central.registry.connections())
        with PlainNode(central, "c") as node:
            assert node.report(node.slot(), {})


def test_denied_and_overloaded_are_counted_apart() -> None:
    with running(max_connections=1) as central, PlainNode(central) as node:
        with connect(central.ws_url, subprotocols=["sluicegate.v1"]) as refused:
            closed_with(refused)
        with connect(central.ws_url + "/nowhere") as refused:
            closed_with(refused)
        node.ask("nonsense")
        text = get(central, "/metrics")
        for line in ('refusals_total{reason="denied"} 1', 'refusals_total{reason="overloaded"} 1'):
            assert line in text
        assert "bad_frames_total 1" in text


def test_one_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel takes on its way is some megabytes; only then does it show."""
    monkeypatch.setattr("sluicegate.quota.central.net.registry._WRITE_TIMEOUT_SECONDS", 0.5)
    with (
        running(slot_seconds=0.1) as central,
        raw_websocket(central) as deaf,
        V1Node(central, "other") as other,
    ):
        registry = central.registry
        assert registry is not None
        users = {f"user_{n:0150}": {"requests": 1} for n in range(2000)}
        slot = slot_of(central)
        report = {"node_id": "d", "slot_number": slot, "consumption": {"front": users}}
        deaf.sendall(frame(json.dumps(report).encode()))
        for _ in range(30):  # each is answered with half a megabyte
            deaf.sendall(frame(b'{"monitor": "distribution"}'))
        refused = 'refusals_total{reason="overloaded"} 1'
        wait_for(lambda: refused in get(central, "/metrics"))
        assert other.report(slot)
        wait_for(lambda: [each.node for each in registry.connections()] == ["other"])


def test_silence_is_met_with_a_ping_and_then_with_the_end() -> None:
    """Here both have been silent for 20 s, and the one that does not answer for 50 s."""
    with running() as central, raw_websocket(central) as dead, PlainNode(central) as silent:
        registry = central.registry
        assert registry is not None
        wait_for(lambda: len(registry.connections()) == 2)
        of_dead, of_silent = registry._sockets
        before = of_silent._last_received
        for socket_ in (of_dead, of_silent):
            socket_._last_received -= 20.0
            socket_._last_ping -= 20.0
        assert dead.recv(100) == b"\x89\x00"  # a ping
        wait_for(lambda: of_silent._last_received > before)  # the library answers it
        of_dead._last_received -= 30.0
        assert b"lost: no answer to a ping" in dead.recv(200)
        assert silent.report(silent.slot(), {})


def test_fragments_without_end_are_ended() -> None:
    with running() as central, raw_websocket(central) as raw:
        raw.sendall(frame(b"a", fin=False))
        try:
            for _ in range(50):
                raw.sendall(frame(b"", 0, fin=False) * 100)
        except OSError:
            pass
        got = raw.recv(200)
        assert b"bad frame: more than 4096 fragments" in got


def test_what_is_coming_in_is_bounded_over_all_connections() -> None:
    with running() as central, PlainNode(central) as node:
        assert central.registry is not None
        central.registry.receive_budget.max_bytes = 150_000
        begun = frame(b"x" * 100_000)[:90_000]
        with raw_websocket(central) as first, raw_websocket(central) as second:
            first.sendall(begun)
            wait_for(lambda: central.registry.receive_budget.used_bytes > 50_000)
            second.sendall(begun)
            assert b"overloaded: receive buffers are full" in second.recv(200)
            assert node.report(node.slot(), {})
        wait_for(lambda: central.registry.receive_budget.used_bytes == 0)


# Those who say nothing


def http(central: Central) -> socket.socket:
    host, _, port = central.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def idle_connections_of(central: Central, capacity: int) -> IdleConnections:
    """With room for so many."""
    server = central._server
    assert server is not None
    server._idle_connections.capacity = capacity
    return server._idle_connections


def test_who_has_been_silent_for_longest_gives_way() -> None:
    with running() as central:
        idle = idle_connections_of(central, 3)
        with http(central) as oldest, http(central), http(central):
            wait_for(lambda: len(idle.connections) == 3)
            with http(central) as caller:
                caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert caller.recv(100).startswith(b"HTTP/1.1 200")
                head, _, body = oldest.recv(1000).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"content-length: %d" % len(body) in head
                assert json.loads(body)["error_message"] == "overloaded: too many HTTP connections"
            with PlainNode(central) as node:  # so do those who are here when a node comes
                assert node.report(node.slot(), {})
        wait_for(lambda: not idle.connections)


def test_silent_connections_do_not_hold_the_door_shut() -> None:
    with running() as central:
        idle = idle_connections_of(central, 50)
        silent = [http(central) for _ in range(120)]
        try:
            for _ in range(3):
                with PlainNode(central) as node, http(central) as caller:
                    assert node.report(node.slot(), {})
                    caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert caller.recv(100).startswith(b"HTTP/1.1 200")
                    assert len(idle.connections) <= 50
        finally:
            for each in silent:
                each.close()


def test_who_waits_for_his_answer_does_not_give_way() -> None:
    """Here a change of the limits takes as long as the test wants."""
    asked, go_on = threading.Event(), threading.Event()

    class Slow(MemoryLimits):
        def put(self, entry: Entry) -> None:
            asked.set()
            assert go_on.wait(PATIENCE)
            super().put(entry)

    with running(limits=Slow(LIMITS)) as central, PlainNode(central) as node:
        idle_connections_of(central, 1)
        body = b'{"service": "front", "user": "ann", "requests": 5}'
        with http(central) as waiting:
            waiting.sendall(
                b"PUT /api/limits HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            assert asked.wait(PATIENCE)
            with http(central) as refused:
                assert refused.recv(1000).startswith(b"HTTP/1.1 503 ")
            assert node.report(node.slot(), {})
            go_on.set()
            assert waiting.recv(1000).startswith(b"HTTP/1.1 200")


BEGUN = [
    b"",
    b"GET /heal",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    b"PUT /api/limits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
]


def test_who_takes_long_over_his_request_is_let_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as central, ExitStack() as stack:
        callers = [stack.enter_context(http(central)) for _ in BEGUN]
        for caller, begun in zip(callers, BEGUN, strict=True):
            caller.sendall(begun)
        monkeypatch.setattr(
            "sluicegate.quota.central.net.http_protocol._ANSWER_SECONDS", 10 * PATIENCE
        )
        monkeypatch.setattr("sluicegate.quota.central.net.http_protocol._REQUEST_SECONDS", 0.3)
        for caller in callers:
            with suppress(ConnectionResetError):  # an orderly end will do too
                assert caller.recv(1000) == b""
    assert "Traceback" not in caplog.text


def test_they_are_protocols_of_asyncio() -> None:
    """uvicorn is handed these two; that it can make them is seen in all other tests."""
    for protocol in (BoundedHttpProtocol, NodeSocket):
        assert hasattr(protocol, "data_received")


def test_of_quotas_that_wait_for_a_slow_node_it_gets_the_newest() -> None:
    """The transport says when its buffer is full, and when it is not; here we say it."""
    with running() as central, V1Node(central) as node:
        registry = central.registry
        assert registry is not None
        node.report(slot_of(central) - 1, ann=3.0)
        first = node.read()
        assert isinstance(first, Quota)
        (socket,) = registry._sockets
        session = socket._session
        assert isinstance(session, NodeSession)

        async def be_slow() -> None:  # in one turn of the loop: nothing comes between
            socket.pause_writing()
            for later in range(1, 6):
                registry.deliver([("n", first._replace(slot=first.slot + later))])
            assert len(session._send_queue) == 1
            socket.resume_writing()
            assert len(session._send_queue) == 0

        asyncio.run_coroutine_threadsafe(be_slow(), socket._loop).result(PATIENCE)
        newest = node.read()
        assert isinstance(newest, Quota)
        assert newest.slot == first.slot + 5
