"""The balanced httpx transports with real servers on 127.0.0.1, that close and hang up."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Self

import httpx
import pytest

from sluicegate.balance import RoundRobin
from sluicegate.integrations.httpx import AsyncBalancedTransport, BalancedTransport
from tests.harness.servers import reserve_port
from tests.harness.waits import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\nok"
HANG_UP = b""


class SmallServer:
    """Reads one request from each connection, writes its answer and closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.received: list[bytes] = []
        self._socket = reserve_port()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        """As when its process has died: connections are refused; the port stays reserved."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread.is_alive():
            self.stop()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # stopped
                return
            with connection:
                connection.settimeout(PATIENCE)
                self.received.append(read_request(connection))
                connection.sendall(self.answer)


def read_request(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            assert line, f"the request ends in its head: {head!r}"
            head += line
        fields = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:-2])
        return head + stream.read(int(fields.get(b"content-length", 0)))


Request = Callable[..., list[int | type[Exception]]]


@pytest.fixture(params=["sync", "async"])
def request_of(request: pytest.FixtureRequest) -> Request:
    """Sends a request several times; returns statuses, or types of errors."""

    def in_thread(balancer: RoundRobin, method: str, times: int) -> list[int | type[Exception]]:
        results: list[int | type[Exception]] = []
        with httpx.Client(transport=BalancedTransport(balancer), timeout=PATIENCE) as client:
            for _ in range(times):
                try:
                    results.append(client.request(method, "http://s/", content=b"x").status_code)
                except httpx.TransportError as error:
                    results.append(type(error))
        return results

    async def in_task(balancer: RoundRobin, method: str, times: int) -> list[int | type[Exception]]:
        results: list[int | type[Exception]] = []
        transport = AsyncBalancedTransport(balancer)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE) as client:
            for _ in range(times):
                try:
                    response = await client.request(method, "http://s/", content=b"x")
                    results.append(response.status_code)
                except httpx.TransportError as error:
                    results.append(type(error))
        return results

    def send(balancer: RoundRobin, method: str, times: int) -> list[int | type[Exception]]:
        if request.param == "sync":
            return in_thread(balancer, method, times)
        return asyncio.run(in_task(balancer, method, times))

    return send


@pytest.fixture
def start() -> Iterator[Callable[[bytes], SmallServer]]:
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(SmallServer(answer))


def test_requests_of_all_methods_survive_a_server_that_is_gone(
    request_of: Request, start: Callable[[bytes], SmallServer]
) -> None:
    servers = [start(OK) for _ in range(3)]
    balancer = RoundRobin([server.url for server in servers])
    assert request_of(balancer, "GET", 3) == [200] * 3
    servers[0].stop()
    assert request_of(balancer, "POST", 6) == [200] * 6
    assert [len(server.received) for server in servers[:1]] == [1]
    assert sum(len(server.received) for server in servers) == 9
    assert balancer.status()[0].failures == 2
    for server in servers:
        for received in server.received:
            assert b"\r\nhost: " + server.url[7:].encode() + b"\r\n" in received.lower()
            assert received.endswith(b"\r\n\r\nx")


@pytest.mark.parametrize(("method", "times_received"), [("POST", 1), ("PUT", 2)])
def test_a_post_is_not_sent_twice_after_its_bytes_have_reached_a_server(
    request_of: Request,
    start: Callable[[bytes], SmallServer],
    method: str,
    times_received: int,
) -> None:
    servers = [start(HANG_UP), start(HANG_UP), start(HANG_UP)]
    balancer = RoundRobin([server.url for server in servers])
    balancer.mark_down(servers[2].url)
    assert request_of(balancer, method, 1) in ([httpx.RemoteProtocolError], [httpx.ReadError])
    received = [len(server.received) for server in servers]
    assert (sum(received), max(received)) == (times_received, 1)
    assert sum(one.failures for one in balancer.status()) == times_received
    assert sum(one.active for one in balancer.status()) == 0


def test_a_server_that_hangs_up_before_it_answers_is_replaced(
    request_of: Request, start: Callable[[bytes], SmallServer]
) -> None:
    servers = [start(HANG_UP), start(OK)]
    balancer = RoundRobin([server.url for server in servers])
    assert request_of(balancer, "GET", 2) == [200, 200]
    assert [len(server.received) for server in servers] == [1, 2]
    assert [one.failures for one in balancer.status()] == [1, 0]


def test_a_body_that_is_cut_off_is_a_failure_and_reaches_the_caller(
    request_of: Request, start: Callable[[bytes], SmallServer]
) -> None:
    servers = [start(CUT_OFF), start(OK)]
    balancer = RoundRobin([server.url for server in servers])
    results = request_of(balancer, "GET", 2)
    assert sorted(map(str, results)) == ["200", str(httpx.RemoteProtocolError)]
    assert [len(server.received) for server in servers] == [1, 1]
    assert [(one.failures, one.active) for one in balancer.status()] == [(1, 0), (0, 0)]
