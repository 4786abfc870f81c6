"""`Link`: messages over one connection to one central, how it closes, and how it reconnects."""

import asyncio
import http
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from sluicegate.quota import CentralState, Ledger
from sluicegate.quota.backoff import Backoff
from sluicegate.quota.messages import Ack, Ask, Quota, Report, UserAsk
from sluicegate.quota.node.link import Link, LinkOptions
from sluicegate.quota.wire import SUBPROTOCOL, CentralWire
from tests.harness.servers import reserve_port
from tests.harness.waits import PATIENCE

Talk = Callable[[ServerConnection], Awaitable[None]]


class Peer:
    """A central that says what a test wants, and remembers what it heard."""

    def __init__(self) -> None:
        self.headers: list[Any] = []
        self.heard: list[Report | Ask] = []
        self.closed: list[tuple[int | None, str | None]] = []
        self._reserved = reserve_port()
        self.port = self._reserved.getsockname()[1]

    def close(self) -> None:
        self._reserved.close()

    @asynccontextmanager
    async def listening(self, talk: Talk | None = None, **options: Any) -> AsyncIterator[str]:
        async def handle(connection: ServerConnection) -> None:
            assert connection.request is not None
            self.headers.append(connection.request.headers)
            with suppress(ConnectionClosed):
                await (talk or self.listen)(connection)
            await connection.wait_closed()
            self.closed.append((connection.close_code, connection.close_reason))

        options = {"subprotocols": [SUBPROTOCOL], "compression": None} | options
        async with serve(handle, "127.0.0.1", self.port, **options):
            yield f"ws://127.0.0.1:{self.port}/"

    async def listen(self, connection: ServerConnection) -> None:
        wire = CentralWire()
        async for frame in connection:
            self.heard.append(wire.read(frame))

    async def lead(self, connection: ServerConnection) -> None:
        state = CentralState("c", Ledger(), now=0.0, wall=0.0)
        state.lead(0.0, 1)
        wire = CentralWire()
        async for frame in connection:
            message = wire.read(frame)
            self.heard.append(message)
            for _, answer in state.receive(0.0, message):
                await connection.send(wire.write(answer))


@pytest.fixture
def peer() -> Iterator[Peer]:
    with closing(Peer()) as made:
        yield made


def make_link(
    url: str, heard: list[Ack | Quota] | None = None, *, token: str | None = None, **backoff: float
) -> Link:
    return Link(
        url,
        LinkOptions(token, 1.0, None),
        now=lambda: 100.0,
        receive=lambda _, message: None if heard is None else heard.append(message),
        backoff=Backoff(**{"shortest": 0.001, "longest": 0.02, "permanent": 0.02} | backoff),
    )


@asynccontextmanager
async def running(link: Link) -> AsyncIterator[Link]:
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not (seen := holds()):
        assert loop.time() < end, f"did not happen within {seconds:g} s; last seen: {seen!r}"
        await asyncio.sleep(0.002)


def report(sequence: int, sent: float = 0.0) -> Report:
    return Report("n", 1, sequence, -1, 0, 10, sent, {})


def ask(user: str, sent: float) -> Ask:
    return Ask("n", 1, sent, {"front": {user: UserAsk(1, {})}})


def test_messages_go_out_and_answers_come_in(peer: Peer) -> None:
    async def story() -> None:
        heard: list[Ack | Quota] = []
        async with peer.listening(peer.lead) as url, running(make_link(url, heard)) as link:
            link.send(report(1))
            await until(lambda: len(heard) == 2)
            assert [type(one) for one in heard] == [Ack, Quota]
            assert link.status.acknowledged == 1
            assert link.status.is_connected
            status = link.status
            assert (status.frames_sent, status.frames_received) == (1, 2)
            assert status.bytes_sent > 0 < status.bytes_received

    asyncio.run(story())


def test_of_what_waited_for_a_connection_the_newest_report_and_all_asks_go_out(
    peer: Peer,
) -> None:
    async def story() -> None:
        async with peer.listening() as url:
            link = make_link(url)
            link.send(report(1, sent=97.0))
            link.send(report(2, sent=98.0))
            link.send(ask("old", sent=98.0))  # more than a slot ago: made again since
            waiting = [ask("ann", 99.5), ask("bob", 99.5), ask("cid", 99.75)]
            for one in waiting:  # none stands for another
                link.send(one)
            async with running(link):
                await until(lambda: len(peer.heard) == 4)
        first, *asks = peer.heard
        # The report tells when it is sent, for the clock. The totals of an ask are of the time at
        # which it was made: if it seemed newer than the report, totals would seem to have fallen,
        # and a central would take it that the node has forgotten the user, and book all again.
        assert first == report(2, sent=100.0)
        assert asks == waiting

    asyncio.run(story())


def test_the_handshake_has_the_token_and_the_slot(peer: Peer) -> None:
    async def story() -> None:
        async with peer.listening() as url, running(make_link(url, token="secret")):
            await until(lambda: peer.headers)
        assert peer.headers[0]["Authorization"] == "Bearer secret"
        assert peer.headers[0]["Sluicegate-Slot-Seconds"] == "1.0"
        assert peer.headers[0]["Sec-WebSocket-Protocol"] == "sluicegate.v1"

    asyncio.run(story())


def test_recovery_is_logged_at_the_level_of_the_failure(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.quota.node")

    def told() -> list[tuple[str, str]]:
        records = [one for one in caplog.records if one.name == "sluicegate.quota.node"]
        return [(one.levelname, one.getMessage().partition(": ")[0]) for one in records]

    async def story() -> None:
        async with peer.listening(peer.lead) as url:
            link = make_link(url)
            link.send(report(1))
            task = asyncio.create_task(link.run())
            await until(lambda: told() == [("INFO", "central connected")])
        await until(lambda: link.status.failures >= 3)
        warnings = len(told())
        async with peer.listening(peer.lead):
            link.send(report(2))
            await until(lambda: told()[-1] == ("WARNING", "central connected"))
            assert len(told()) == warnings + 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


def test_it_comes_back_when_the_central_does(peer: Peer) -> None:
    async def story() -> None:
        async with peer.listening() as url:
            link = make_link(url)
            task = asyncio.create_task(link.run())
            await until(lambda: link.status.is_connected)
        await until(lambda: not link.status.is_connected)
        link.send(report(5))
        await until(lambda: link.status.failures >= 3)
        async with peer.listening():
            await until(lambda: peer.heard == [report(5, sent=100.0)])
            assert link.status.connections == 2
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("code", "reason", "wait", "level"),
    [
        (1008, "denied: wrong token", "permanent", logging.ERROR),
        (4001, "replaced: another connection of node n", "permanent", logging.ERROR),
        (1007, "bad frame: no", "permanent", logging.ERROR),
        (1013, "overloaded: too many connections", "shortest", logging.WARNING),
        (1001, "stopping", "shortest", logging.WARNING),
    ],
)
def test_how_soon_it_tries_again_depends_on_what_it_was_told(
    peer: Peer,
    caplog: pytest.LogCaptureFixture,
    code: int,
    reason: str,
    wait: str,
    level: int,
) -> None:
    async def refuse(connection: ServerConnection) -> None:
        await connection.close(code, reason)

    async def story() -> None:
        # Three tries take no time, if it waits as expected.
        waits = {"shortest": 60.0, "longest": 60.0, "permanent": 60.0} | {wait: 0.001}
        if wait == "shortest":
            waits["longest"] = 0.001
        async with peer.listening(refuse) as url, running(make_link(url, **waits)) as link:
            await until(lambda: link.status.failures >= 3)
            assert link.status.last_error is not None
            assert f"{reason} (code {code})" in link.status.last_error
        told = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert [(one.levelno, reason in one.getMessage()) for one in told] == [(level, True)]

    asyncio.run(story())


def test_a_denial_in_http_is_a_denial(peer: Peer) -> None:
    async def story() -> None:
        def deny(connection: ServerConnection, request: Request) -> Response:
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no")

        async with peer.listening(process_request=deny) as url, running(make_link(url)) as link:
            await until(lambda: link.status.last_error)
            assert link.status.last_error == "denied: HTTP status 401"

    asyncio.run(story())


def test_who_does_not_speak_our_protocol_is_no_central(peer: Peer) -> None:
    async def story() -> None:
        async with peer.listening(subprotocols=None) as url, running(make_link(url)) as link:
            await until(lambda: link.status.last_error)
            assert link.status.last_error == (
                "server does not support the subprotocol sluicegate.v1: is it a central?"
            )

    asyncio.run(story())


@pytest.mark.parametrize("frame", [b"\xff\xff", b"", "{", '{"ack": {"sequence": "no"}}'])
def test_a_frame_that_makes_no_sense_ends_its_connection_with_a_reason(
    peer: Peer, frame: bytes | str
) -> None:
    async def nonsense(connection: ServerConnection) -> None:
        await connection.send(frame)

    async def story() -> None:
        heard: list[Ack | Quota] = []
        async with peer.listening(nonsense) as url, running(make_link(url, heard)):
            await until(lambda: len(peer.closed) >= 2)
        code, reason = peer.closed[0]
        assert code == 1007
        assert reason is not None
        assert reason.startswith("bad frame: ")
        assert heard == []

    asyncio.run(story())


def test_a_redirect_is_not_followed_with_our_token(peer: Peer) -> None:
    async def story(elsewhere: Peer) -> None:
        async with elsewhere.listening() as there:

            def redirect(connection: ServerConnection, request: Request) -> Response:
                answer = connection.respond(http.HTTPStatus.FOUND, "")
                answer.headers["Location"] = there
                return answer

            async with (
                peer.listening(process_request=redirect) as url,
                running(make_link(url, token="secret")) as link,
            ):
                await until(lambda: link.status.failures >= 2)
                assert "302" in str(link.status.last_error)
        assert elsewhere.headers == []

    with closing(Peer()) as elsewhere:
        asyncio.run(story(elsewhere))


def test_the_end_of_each_connection_is_told_at_once(peer: Peer) -> None:
    async def story() -> None:
        ended: list[str] = []
        link = Link(
            "",
            LinkOptions(None, 1.0, None),
            now=lambda: 100.0,
            receive=lambda central, message: None,
            disconnected=ended.append,
            backoff=Backoff(shortest=0.001, longest=0.02),
        )
        async with running(link):
            for times in (1, 2):
                async with peer.listening(peer.lead) as link.central:
                    await until(lambda: link.status.is_connected)
                    assert len(ended) == times - 1
                # The server is gone. Attempts to connect fail from now on: they are no connections.
                await until(lambda done=times: len(ended) == done)
                await until(lambda done=link.status.failures: link.status.failures > done + 2)
                assert ended[-1] == link.central
                assert len(ended) == times

    asyncio.run(story())


def test_what_fails_in_the_receiver_is_told_and_tried_again(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        heard: list[Ack | Quota] = []

        def receive(central: str, message: Ack | Quota) -> None:
            heard.append(message)
            if len(heard) <= 2:
                raise ValueError("too many service names: a node has at most 16")

        link = Link(
            "",
            LinkOptions(None, 1.0, None),
            now=lambda: 100.0,
            receive=receive,
            backoff=Backoff(shortest=0.001, longest=0.02),
        )
        async with peer.listening(peer.lead) as link.central, running(link):
            for sequence in (1, 2):
                link.send(report(sequence))
                await until(lambda done=sequence: link.status.failures == done)
                assert "at most 16" in str(link.status.last_error)
            link.send(report(3))
            await until(lambda: len(heard) == 4)
            assert link.status.is_connected
        told = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert [(one.levelno, one.exc_info is None) for one in told] == [
            (logging.ERROR, False),
            (logging.WARNING, True),
        ]
        assert told[1].getMessage().startswith("central connected: ")
        assert peer.closed[0] == (1011, "node failed to process a message")

    asyncio.run(story())
