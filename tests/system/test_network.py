"""The network of a fleet under test: what passes, and what its ends see of a cut."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.harness.waits import PATIENCE
from tests.system.network import Network

SILENCE = 0.1  # seconds in which nothing comes: to wait longer would show no more


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1 << 10):
            self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture
def echo() -> Iterator[str]:
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path / "pauses")
    yield network
    network.close()


def connect(network: Network, source: str, target: str, url: str) -> socket.socket:
    parts = urlsplit(network.connect(source, target, url))
    return socket.create_connection((parts.hostname, parts.port), PATIENCE)


def says(end: socket.socket, text: bytes) -> bytes | None:
    """What comes back; None: nothing, and no close either."""
    end.sendall(text)
    return hears(end, PATIENCE)


def hears(end: socket.socket, seconds: float = SILENCE) -> bytes | None:
    end.settimeout(seconds)
    try:
        return end.recv(1 << 10)
    except TimeoutError:
        return None


def test_a_cut_holds_what_is_sent_until_it_is_mended(network: Network, echo: str) -> None:
    with connect(network, "web-1", "a", echo) as end:
        assert says(end, b"before") == b"before"
        network.cut("a")
        end.sendall(b"meanwhile")
        assert hears(end) is None
        network.mend()
        assert hears(end, PATIENCE) == b"meanwhile"


def test_what_a_cut_loses_never_arrives_and_the_connection_is_dead(
    network: Network, echo: str
) -> None:
    with connect(network, "web-1", "a", echo) as end, connect(network, "web-2", "a", echo) as idle:
        assert says(end, b"before") == b"before"
        assert says(idle, b"before") == b"before"
        network.cut("a", loses=True)
        end.sendall(b"meanwhile")
        assert hears(end) is None
        network.mend()
        end.sendall(b"after")
        assert hears(end) is None
        assert says(idle, b"after") == b"after"  # it has lost nothing
        with connect(network, "web-1", "a", echo) as new:
            assert says(new, b"after") == b"after"


def test_a_cut_is_between_those_that_it_names(network: Network, echo: str) -> None:
    with (
        connect(network, "a", "b", echo) as between,
        connect(network, "b", "a", echo) as back,
        connect(network, "a", "c", echo) as aside,
        connect(network, "web-1", "a", echo) as node,
    ):
        network.cut("a", "b")
        for end in (between, back):
            end.sendall(b"meanwhile")
            assert hears(end) is None
        assert says(aside, b"c") == b"c"
        assert says(node, b"web-1") == b"web-1"


def test_a_cut_hides_a_close_until_it_is_mended(network: Network, echo: str) -> None:
    with connect(network, "web-1", "a", echo) as end:
        assert says(end, b"before") == b"before"
        network.cut("a")
        end.shutdown(socket.SHUT_WR)  # the server answers with a close of its own
        assert hears(end) is None
        network.mend()
        assert hears(end, PATIENCE) == b""
