"""The connections between centrals: who may open one, what goes over it, and what ends it."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from sluicegate.election.paxos.messages import (
    Accepted,
    Ballot,
    Message,
    Prepare,
    Promise,
    Release,
)
from sluicegate.election.paxos.wire import encode
from sluicegate.errors import ProtocolError
from sluicegate.quota import Central
from sluicegate.quota.backoff import Backoff
from sluicegate.quota.central.net.connection import PEER
from sluicegate.quota.central.net.peer_link import PeerLink, PeerOptions
from sluicegate.quota.central.net.peer_session import peer_session_factory
from sluicegate.quota.central.net.peer_transport import PeerTransport
from sluicegate.quota.central.net.peer_wire import LARGEST_PEER_MESSAGE
from tests.harness.central import V1Node, closed_with, get, running, slot_of
from tests.harness.certificate import make_certificate
from tests.harness.waits import PATIENCE, wait_for, wait_until

NODE, ADMIN, PEER_TOKEN = "node-secret-1", "admin-secret-2", "peer-secret-3"
TOKENS = {"node_token": NODE, "admin_token": ADMIN, "peer_token": PEER_TOKEN}
BALLOT = Ballot(1, 7, "b")


class Member:
    """A central `a` whose election the test plays: it promises whatever it is asked."""

    def __init__(self, central: Central) -> None:
        assert central.registry is not None
        self.central = central
        self.received: list[tuple[str, Message]] = []
        self.transport = PeerTransport({"b": "ws://127.0.0.1:1/"}, PeerOptions("a"))
        self.transport.receive = self._receive
        central.registry.register(PEER, peer_session_factory(central.registry, self.transport))

    def _receive(self, peer: str, message: Message) -> None:
        if message.ballot.node != peer:
            raise ProtocolError(f"{peer!r} sent a ballot of another")
        self.received.append((peer, message))
        if isinstance(message, Prepare):
            self.transport.send(peer, Promise(message.ballot, 5, None, 0.0))

    def open(
        self,
        name: str | None = "b",
        token: str | None = None,
        hello: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Any:
        headers = dict(hello or {})
        if name is not None:
            headers["Sluicegate-Peer"] = name
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return connect(
            self.central.ws_url, subprotocols=[PEER], additional_headers=headers, **options
        )


@contextlib.contextmanager
def member(**options: Any) -> Iterator[Member]:
    with running(**options) as central:
        yield Member(central)


def linked(url: str, story: Callable[[PeerLink, list[Message]], Any], **options: Any) -> None:
    """Run a link of peer `b` to the central at `url` in a loop of its own."""

    async def run() -> None:
        answers: list[Message] = []
        link = PeerLink(
            "a",
            url,
            PeerOptions("b", **options),
            lambda peer, message: answers.append(message),
            Backoff(shortest=0.001, longest=0.02, permanent=0.02),
        )
        running_link = asyncio.create_task(link.run())
        try:
            await story(link, answers)
        finally:
            running_link.cancel()
            await asyncio.gather(running_link, return_exceptions=True)

    asyncio.run(run())


def test_a_proposal_is_answered_over_the_link_that_it_came_by() -> None:
    async def story(link: PeerLink, answers: list[Message]) -> None:
        link.send(Prepare(BALLOT, 2.0))  # not connected yet: dropped
        await wait_until(lambda: link.is_connected)
        link.send(Prepare(BALLOT, 2.0))
        await wait_until(lambda: answers)
        assert answers == [Promise(BALLOT, 5, None, 0.0)]

    with member(**TOKENS) as a:
        linked(a.central.ws_url, story, token=PEER_TOKEN)
        assert a.received == [("b", Prepare(BALLOT, 2.0))]
        wait_for(lambda: not a.central.registry.connections())


def test_a_link_connects_again_when_its_connection_has_ended() -> None:
    async def story(link: PeerLink, answers: list[Message]) -> None:
        def is_answered() -> bool:
            link.send(Prepare(BALLOT, 2.0))
            return bool(answers)

        for _ in range(3):
            await wait_until(is_answered)
            link.send(Accepted(BALLOT))  # no proposal: the other side closes
            await asyncio.sleep(0)
            answers.clear()

    with member() as a:
        linked(a.central.ws_url, story)


def test_a_link_that_is_denied_never_counts_as_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The handshake itself succeeds; the reason is in the close frame that follows it."""
    caplog.set_level("INFO")

    async def story(link: PeerLink, answers: list[Message]) -> None:
        await wait_until(lambda: caplog.text.count("denied: invalid token") >= 4)  # both sides
        assert not link.is_connected

    with member(**TOKENS) as a:
        linked(a.central.ws_url, story, token="wrong-secret")
    assert "connection to peer a failed: denied: invalid token" in caplog.text
    assert "peer connected" not in caplog.text


def test_over_tls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)

    async def story(link: PeerLink, answers: list[Message]) -> None:
        await wait_until(lambda: link.is_connected)
        link.send(Prepare(BALLOT, 2.0))
        await wait_until(lambda: answers)

    with member(tls_cert=cert, tls_key=key) as a:
        assert a.central.ws_url.startswith("wss://")
        linked(a.central.ws_url, story, tls=ssl.create_default_context(cafile=str(cert)))


@pytest.mark.parametrize("token", [None, NODE, ADMIN, PEER_TOKEN[:-1], "prefix-" + PEER_TOKEN])
def test_only_the_peer_token_opens_the_connection_of_a_peer(token: str | None) -> None:
    with member(**TOKENS) as a, a.open("b", token) as socket:
        code, reason = closed_with(socket)
        assert (code, reason[:8]) == (1008, "denied: ")


def test_the_peer_token_is_for_peers_alone() -> None:
    with running(**TOKENS) as central:
        headers = {"Authorization": f"Bearer {PEER_TOKEN}"}
        with V1Node(central, additional_headers=headers) as node:
            assert closed_with(node.socket)[0] == 1008
        with pytest.raises(Exception, match="401"):
            get(central, "/api/status", PEER_TOKEN)


@pytest.mark.parametrize("name", [None, "", "a", "c", "b, b"])
def test_a_peer_is_one_of_the_members(name: str | None) -> None:
    with member(**TOKENS) as a, a.open(name, PEER_TOKEN) as socket:
        code, reason = closed_with(socket)
        assert code == 1008
        assert reason.startswith("denied: unknown peer")
        assert reason.endswith("expected one of: b")


@pytest.mark.parametrize(
    ("hello", "fault"),
    [
        ({"Sluicegate-Peer-To": "a", "Sluicegate-Members": "a,b"}, None),
        ({"Sluicegate-Peer-To": "c"}, "this is a, not 'c': check the URLs in --peers"),
        ({"Sluicegate-Members": "a,b,c"}, "--peers differs: expected a,b, got 'a,b,c'"),
    ],
)
def test_a_peer_means_this_member_and_knows_the_same_ones(
    hello: dict[str, str], fault: str | None
) -> None:
    with member() as a, a.open(hello=hello) as socket:
        if fault is None:
            socket.send(encode(Prepare(BALLOT, 2.0)).decode())
            assert b"promise" in socket.recv(timeout=PATIENCE, decode=False)
        else:
            assert closed_with(socket) == (1008, f"denied: {fault}")


def test_a_central_without_an_election_serves_no_peers() -> None:
    with running() as central, connect(central.ws_url, subprotocols=[PEER]) as socket:
        assert closed_with(socket) == (1008, "denied: protocol sluicegate.peer.v1 is not served")


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        ("nonsense", 1007, "expected JSON"),
        (encode(Prepare(BALLOT, 2.0)), 1007, "expected a text frame"),
        (encode(Accepted(BALLOT)).decode(), 1007, "expected a proposal, got Accepted"),
        (encode(Release(Ballot(1, 7, "c"))).decode(), 1007, "a ballot of another"),
        ("[" * (LARGEST_PEER_MESSAGE + 1), 1009, ""),
    ],
)
def test_a_bad_frame_ends_its_own_connection_with_a_reason(
    frame: str | bytes, code: int, text: str
) -> None:
    with member() as a, V1Node(a.central) as node, a.open() as socket:
        socket.send(frame)
        told, reason = closed_with(socket)
        assert told == code
        assert text in reason
        assert not a.received
        assert node.report(slot_of(a.central) - 1).leads


def test_the_newest_connection_of_a_peer_replaces_the_one_before() -> None:
    with member() as a, a.open() as first, a.open() as second:
        assert closed_with(first) == (4001, "replaced: another connection of peer b")
        second.send(encode(Prepare(BALLOT, 2.0)).decode())
        assert second.recv(timeout=PATIENCE) == encode(Promise(BALLOT, 5, None, 0.0)).decode()


def test_a_link_whose_name_is_used_by_another_process_logs_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both would have the vote of one member."""
    with member() as a:

        async def story(link: PeerLink, answers: list[Message]) -> None:
            await wait_until(lambda: link.is_connected)
            with await asyncio.to_thread(a.open):
                await wait_until(lambda: "another process has connected to it as b" in caplog.text)

        linked(a.central.ws_url, story)
    assert [each.levelname for each in caplog.records if "as b" in each.message] == ["ERROR"]


def test_nodes_cannot_keep_peers_out_and_peers_are_no_nodes() -> None:
    with member(max_connections=1) as a, V1Node(a.central) as node:
        node.report(slot_of(a.central) - 1)
        with a.open() as socket:
            socket.send(encode(Prepare(BALLOT, 2.0)).decode())
            assert socket.recv(timeout=PATIENCE)
            names = [each["name"] for each in get(a.central, "/api/nodes")["nodes"]]
            assert names == ["n"]


def test_a_ban_of_an_address_does_not_keep_peers_out() -> None:
    with member(**TOKENS) as a:
        assert a.central.registry is not None
        for _ in range(200):
            a.central.registry.bad_frame("127.0.0.1")
        headers = {"Authorization": f"Bearer {NODE}"}
        with connect(a.central.ws_url, additional_headers=headers) as node:
            assert closed_with(node) == (1008, "denied: too many bad frames")
        with a.open(token=PEER_TOKEN) as socket:
            socket.send(encode(Prepare(BALLOT, 2.0)).decode())
            assert socket.recv(timeout=PATIENCE)


def test_a_name_that_no_host_can_have_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(link: PeerLink, answers: list[Message]) -> None:
        await wait_until(lambda: "label empty" in caplog.text)
        await asyncio.sleep(0.2)  # in which it has tried again some ten times

    linked("ws://a..b/", story)
    assert caplog.text.count("connection to peer a failed") == 1
    assert "Traceback" not in caplog.text


def test_sending_neither_waits_nor_raises() -> None:
    """A peer that does not read: the link has a queue of a few messages, and drops the rest."""
    is_over = threading.Event()

    async def story(link: PeerLink, answers: list[Message]) -> None:
        await wait_until(lambda: link.is_connected)
        for _ in range(100_000):  # all in one turn of the loop
            link.send(Release(BALLOT))
        link.send(Prepare(BALLOT, 2.0))
        is_over.set()

    with member() as a:
        linked(a.central.ws_url, story)
        assert is_over.is_set()
        assert len(a.received) < 1000
        a.transport.send("b", Promise(BALLOT, 5, None, 0.0))  # nobody is there
        a.transport.send("nobody", Prepare(BALLOT, 2.0))
