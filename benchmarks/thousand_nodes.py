"""A real central with a thousand nodes: how long until a report is answered?

The central is a process of its own, pinned to one core. The nodes are a thousand websockets of
this process: each sends a report of its users in every slot, spread over the first fifth of the
slot as real nodes do, and notes how long the Ack takes, and for which slots it was sent a quota.
Times are wall seconds, and have in them what this process needs to read the answers.

    python -m benchmarks.thousand_nodes 600    for ten minutes
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from sluicegate.quota.messages import Line, Report
from sluicegate.quota.stable_hash import hash_fraction
from sluicegate.quota.wire import SUBPROTOCOL, NodeWire

__all__ = ["Answers", "measure"]

_LIMITS = '[[limit]]\nservice = "front"\nuser = "*"\nburst_seconds = 10\nrequests = 100\n'
_SPREAD = 0.2
_WARM_UP = 3  # slots that are not counted
_ACK, _QUOTA = 3, 4
_CLOSE = 0x88
_HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nSluicegate-Slot-Seconds: 1.0\r\n\r\n"
).encode()


class Answers(NamedTuple):
    seconds: list[float]  # from a report to its Ack, sorted
    missed: int  # quotas of slots that never came
    busy: float  # the part of a core that the central needed

    def part(self, part: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(part * len(self.seconds)))]


class _Node(asyncio.Protocol):
    """A node on a bare socket: no library, so that little of the time is ours.

    Its frames are masked with zeros, which changes no byte of them.
    """

    def __init__(self, name: str, users: int) -> None:
        self._name = name
        self._wire = NodeWire()
        self._users = [f"user:{number}" for number in range(users)]
        self._sequence = 0
        self._sent: deque[float] = deque()
        self._unread = b""
        self._transport: asyncio.Transport | None = None
        self.is_open = asyncio.Event()
        self.waited: list[float] = []
        self.quotas: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if not self.is_open.is_set():
            head, end, self._unread = self._unread.partition(b"\r\n\r\n")
            if not end:
                self._unread = head
                return
            assert b" 101 " in head, head
            self.is_open.set()
        while len(self._unread) >= 4:
            assert self._unread[0] != _CLOSE, self._unread
            size, at = self._unread[1], 2
            if size == 126:
                size, at = int.from_bytes(self._unread[2:4]), 4
            if len(self._unread) < at + size:
                return
            payload, self._unread = self._unread[at : at + size], self._unread[at + size :]
            if payload:
                self._heard(payload)

    def _heard(self, payload: bytes) -> None:
        if payload[0] == _ACK:
            self.waited.append(time.perf_counter() - self._sent.popleft())
        elif payload[0] == _QUOTA and payload[1] & 2:
            at = 3 + payload[2] + 16  # after the central's name, the epoch and the version
            self.quotas.add(int.from_bytes(payload[at : at + 8], "little"))

    def _frame(self, slot: int) -> bytes:
        self._sequence += 1
        count = self._sequence * 3
        line = Line(float(count), 0, count, float(max(0, count - 6)), 0.0)
        lines = {"front": {user: {"requests": line} for user in self._users}}
        since = max(0, self._sequence - 2)
        report = Report(self._name, 1, self._sequence, 1, since, slot - 1, 0.0, lines)
        payload = self._wire.write(report)
        assert isinstance(payload, bytes)
        assert 126 <= len(payload) < 1 << 16
        return b"\x82\xfe" + len(payload).to_bytes(2) + bytes(4) + payload

    async def send(self, first: int, slots: int) -> None:
        assert self._transport is not None
        for slot in range(first, first + slots):
            begin = slot + hash_fraction(self._name) * _SPREAD
            await asyncio.sleep(max(0.0, begin - 0.5 - time.time()))
            frame = self._frame(slot)  # made in good time
            await asyncio.sleep(max(0.0, begin - time.time()))
            self._sent.append(time.perf_counter())
            self._transport.write(frame)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def _itself(node: _Node) -> _Node:
    return node


async def _run(host: str, port: int, nodes: int, users: int, slots: int) -> Answers:
    loop = asyncio.get_running_loop()
    fleet = [_Node(f"node-{number}", users) for number in range(nodes)]
    for node in fleet:
        await loop.create_connection(partial(_itself, node), host, port)
        await node.is_open.wait()
    first = int(time.time()) + 2
    await asyncio.gather(*(node.send(first, slots) for node in fleet))
    await asyncio.sleep(1.0)
    for node in fleet:
        node.close()
    told = range(first + _WARM_UP + 1, first + slots)
    missed = sum(slot not in node.quotas for node in fleet for slot in told)
    waited = sorted(waited for node in fleet for waited in node.waited[_WARM_UP:])
    return Answers(waited, missed, 0.0)


@contextmanager
def _central(directory: str) -> Iterator[str]:
    """The address of a central that runs on the first core alone."""
    limits = os.path.join(directory, "limits.toml")
    with open(limits, "w") as file:
        file.write(_LIMITS)
    command = [sys.executable, "-m", "sluicegate", "central", "--listen", "127.0.0.1:0"]
    cores = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(
        [*command, "--limits", limits],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            os.sched_setaffinity(process.pid, {cores[0]})
            assert process.stdout is not None
            line = process.stdout.readline()
            yield line[line.index("http://") + 7 :].split()[0].rstrip("/")
        finally:
            process.terminate()
            process.wait(20)


def measure(directory: str, *, nodes: int = 1000, users: int = 100, slots: int = 20) -> Answers:
    before = _children_seconds()
    with _central(directory) as address:
        host, port = address.split(":")
        answers = asyncio.run(_run(host, int(port), nodes, users, slots))
    # Of all the time it was there: children count when they have ended.
    return answers._replace(busy=(_children_seconds() - before) / slots)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        told = measure(folder, slots=int(sys.argv[1]))
    parts = ", ".join(f"p{100 * part:.0f} {told.part(part) * 1e3:.0f} ms" for part in (0.5, 0.99))
    most = told.seconds[-1] * 1e3
    print(f"{len(told.seconds):,} answers: {parts}, at most {most:.0f} ms;")
    print(f"quotas missed: {told.missed}; the central's core is busy for {told.busy:.0%}")
