"""What the tests of the server share: a central to talk to, and nodes written by hand."""

import json
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from sluicegate.quota import Central, Entry
from sluicegate.quota.messages import Ack, Ask, Line, Quota, Report
from sluicegate.quota.wire import NodeWire
from tests.harness.waits import PATIENCE

__all__ = [
    "LIMITS",
    "SLOT",
    "PlainNode",
    "V1Node",
    "closed_with",
    "frame",
    "get",
    "raw_websocket",
    "running",
    "slot_of",
]

LIMITS = [Entry("front", "*", rates={"requests": 100.0}, burst_seconds=1.0)]
SLOT = 10 * PATIENCE  # seconds


@contextmanager
def running(**options: Any) -> Iterator[Central]:
    """A central on a free port. Slots are long unless told otherwise: a test may take its time."""
    options = {"listen": "127.0.0.1:0", "slot_seconds": SLOT, "limits": LIMITS, **options}
    with Central(options.pop("limits"), **options) as central:
        yield central


def slot_of(central: Central) -> int:
    """The slot it is."""
    assert central.registry is not None
    return int(time.time() / central.registry.state.ledger.slot_seconds)


def get(central: Central, path: str, token: str | None = None) -> Any:
    """An answer of the central's HTTP server, decoded if it is of the API."""
    request = urllib.request.Request(central.url + path)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        text = response.read().decode()
    return json.loads(text) if path.startswith("/api") else text


class PlainNode:
    """A classic node: JSON by hand over a websocket, nothing of ours in it."""

    def __init__(self, central: Central, node: str = "n", path: str = "/", **options: Any) -> None:
        self.node = node
        self._central = central
        self.socket: ClientConnection = connect(central.ws_url + path, **options).__enter__()

    def __enter__(self) -> "PlainNode":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def slot(self) -> int:
        return slot_of(self._central)

    def ask(self, message: object) -> Any:
        text = message if isinstance(message, str) else json.dumps(message)
        self.socket.send(text)
        return json.loads(self.socket.recv(timeout=PATIENCE))

    def report(self, slot: int, consumption: object, rejection: object = None) -> Any:
        return self.ask(
            {
                "node_id": self.node,
                "slot_number": slot,
                "consumption": consumption,
                "rejection": rejection or {},
            }
        )


class V1Node:
    """A node of our own protocol, as bare as can be."""

    def __init__(
        self, central: Central, node: str = "n", *, binary: bool = True, **options: Any
    ) -> None:
        self.node = node
        self.wire = NodeWire(binary=binary)
        asked = {"subprotocols": ["sluicegate.v1"], **options}
        self.socket: ClientConnection = connect(central.ws_url, **asked).__enter__()
        self.sequence = 0

    def __enter__(self) -> "V1Node":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, message: Report | Ask) -> None:
        self.socket.send(self.wire.write(message))

    def read(self) -> Ack | Quota:
        return self.wire.read(self.socket.recv(timeout=PATIENCE))

    def read_until(self, wanted: Callable[[Ack | Quota], bool]) -> Any:
        end = time.monotonic() + PATIENCE
        while not wanted(message := self.read()):
            assert time.monotonic() < end, f"not within {PATIENCE:g} s; the last was {message}"
        return message

    def message(self, slot: int, epoch: int = -1, **consumed: float) -> Report:
        self.sequence += 1
        lines = {
            "front": {
                user: {"requests": Line(amount, 0, int(amount), 0.0, 0.0)}
                for user, amount in consumed.items()
            }
        }
        return Report(self.node, 1, self.sequence, epoch, 0, slot, 1.5, lines if consumed else {})

    def report(self, slot: int, epoch: int = -1, **consumed: float) -> Ack:
        """Report totals, and wait until they are booked."""
        self.send(self.message(slot, epoch, **consumed))
        sequence = self.sequence
        ack: Ack = self.read_until(lambda got: isinstance(got, Ack) and got.sequence == sequence)
        return ack


def closed_with(socket: ClientConnection) -> tuple[int, str]:
    """The code and the reason with which the central ends a connection."""
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            socket.recv(timeout=PATIENCE)
    told = caught.value.rcvd
    assert told is not None, "no close frame came"
    return told.code, told.reason


def raw_websocket(central: Central, source: str = "127.0.0.1", path: str = "/") -> socket.socket:
    """A websocket of which only the handshake is done: the bytes are the test's own."""
    host, _, port = central.url.removeprefix("http://").partition(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=(source, 0))
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = raw.recv(1)
        assert byte, f"refused: {head!r}"
        head += byte
    assert b" 101 " in head.partition(b"\r\n")[0]
    return raw


def frame(payload: bytes, opcode: int = 1, *, fin: bool = True) -> bytes:
    """A frame of a client, text by default; masked with zeros, so that large ones need no work."""
    first = (0x80 if fin else 0) | opcode
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + bytes(4) + payload
