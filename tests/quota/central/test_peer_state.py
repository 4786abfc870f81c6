"""A central that starts later takes the state of a peer, if that is newer than its own."""

import http.server
import logging
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sluicegate.quota import Entry, Ledger
from sluicegate.quota.central.peer_state import PeerState, fetch_newest_state
from sluicegate.quota.central.state_file import StateFile, pack_state
from sluicegate.quota.ledger.snapshot import pack
from sluicegate.quota.messages import Line, Report
from tests.harness.central import V1Node, get, slot_of
from tests.harness.central_group import CentralGroup
from tests.harness.waits import PATIENCE, wait_for

TOKENS = {
    "node_token": "node-secret-1",
    "admin_token": "admin-secret-2",
    "peer_token": "peer-secret-3",
}


def ledger_of(slot: int, consumed: float) -> Ledger:
    """A ledger that has booked one report, and assigned `slot`."""
    ledger = Ledger([Entry("front", "*", rates={"requests": 100.0})])
    lines = {"front": {"ann": {"requests": Line(consumed, 0, 1, 0.0, 0.0)}}}
    ledger.begin(slot)
    ledger.book(slot, Report("n", 1, 1, -1, 0, slot - 1, 0.0, lines))
    ledger.assign(slot)
    return ledger


@contextmanager
def serving(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A peer that answers as the test wants."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sending(raw: bytes, status: int = 200) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def hang(handler: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(5.0)  # longer than it is waited for


def test_the_newest_of_all_peers_is_taken_and_none_is_waited_for() -> None:
    old, new = (pack_state(7, ledger_of(slot, 5.0).snapshot()) for slot in (100, 200))
    with (
        serving(sending(old)) as a,
        serving(sending(new)) as b,
        serving(sending(new[:-1])) as torn,
        serving(sending(b"{}", 503)) as cold,
        serving(hang) as dead,
    ):
        peers = {"a": a, "b": b, "torn": torn, "cold": cold, "dead": dead, "no": "ws://127.0.0.1:1"}
        found = fetch_newest_state(peers, None, None, seconds=1.5)
    assert isinstance(found, PeerState)
    assert (found.peer, found.epoch, found.slot) == ("b", 7, 199)


def chunk_of_a_negative_length(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc")


def test_an_answer_that_makes_no_sense_is_passed_over_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = {"slot_seconds": 1.0, "first": 1, "assigned": 2, "since": 1}
    wrong = [5, [[1]], [["n", 1, None]], [["n", 1, "x"]], [["n", 1, float("inf")]]]
    states = [sending(pack_state(7, pack(head | {"nodes": nodes}, {}))) for nodes in wrong]
    with ExitStack() as stack, caplog.at_level(logging.INFO, "sluicegate.quota"):
        urls = [stack.enter_context(serving(each)) for each in states]
        urls += [stack.enter_context(serving(chunk_of_a_negative_length)), "ws://a..b/"]
        peers = {f"p{number}": url for number, url in enumerate(urls)}
        assert fetch_newest_state(peers, None, None, seconds=PATIENCE) is None
    for peer in peers:
        assert f"no state from peer {peer}: " in caplog.text


def test_without_an_answer_there_is_no_state() -> None:
    assert fetch_newest_state({"a": "ws://127.0.0.1:1/"}, None, None, seconds=0.5) is None


def test_a_central_that_starts_later_takes_the_state_of_a_peer(tmp_path: Path) -> None:
    with CentralGroup(tmp_path, started=["a", "b"], slot_seconds=0.1) as group:
        leader = group.wait_for_leader()
        wait_for(lambda: get(leader, "/api/status")["warm"])  # ten slots
        with V1Node(leader) as node:
            node.report(slot_of(leader) - 1, ann=30.0)
        late = group.start("c")
        status = get(late, "/api/status")
        assert status["warm"]
        assert status["state_source"] in ("peer a", "peer b")
        assert late.registry is not None
        assert late.registry.state.ledger.recorded("front", "ann", "requests") == 30.0


def test_a_peer_that_is_not_warm_gives_nothing(tmp_path: Path) -> None:
    with CentralGroup(tmp_path, started=["a"], slot_seconds=100.0) as group:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(group.running["a"], "/api/state")
        status = get(group.start("b"), "/api/status")
        assert (status["warm"], status["state_source"]) == (False, "reports")


def test_the_own_state_is_used_when_it_is_newer(tmp_path: Path) -> None:
    """Though the peer, which hears no node, has assigned later slots since."""
    slot = int(time.time())
    for name, consumed, age in (("a", 10.0, 300), ("b", 20.0, 100)):
        snapshot = ledger_of(slot - age, consumed).snapshot()
        StateFile(tmp_path / f"{name}.state").write(5, snapshot)
    with CentralGroup(tmp_path, started=["a"], slot_seconds=1.0) as group:
        b = group.start("b")
        assert get(b, "/api/status")["state_source"] == "state file"
        assert b.registry is not None
        assert b.registry.state.ledger.recorded("front", "ann", "requests") == 20.0


@pytest.mark.parametrize("role", ["none", "node", "admin", "peer"])
def test_the_state_is_for_peers_alone(tmp_path: Path, role: str) -> None:
    with CentralGroup(tmp_path, started=["a"], slot_seconds=0.1, **TOKENS) as group:
        central = group.running["a"]
        token = TOKENS.get(f"{role}_token")
        request_answered = _status_of(lambda: get(central, "/api/state", token))
        assert request_answered == (503 if role == "peer" else 401)


def _status_of(call: Callable[[], object]) -> int:
    try:
        call()
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def test_what_a_peer_says_instead_of_its_state_is_logged_on_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bodies = {
        b'{"error_code":"NotWarm","error_message":"not warm"}': "not warm",
        b"this is a witness\nit has no state\n": "this is a witness it has no state",
    }
    caplog.set_level("INFO")
    for body, text in bodies.items():

        def refuse(request: http.server.BaseHTTPRequestHandler, body: bytes = body) -> None:
            request.send_response(503)
            request.end_headers()
            request.wfile.write(body)

        with serving(refuse) as url:
            assert fetch_newest_state({"a": url}, None, None) is None
        assert f"no state from peer a: HTTP status 503: {text}\n" in caplog.text
