"""A real central with a thousand nodes: how long until a report or an ask is answered?

The central is a process of its own, pinned to one core. The nodes are a thousand websockets of
this process. Each has a few requests of every user in each second, and does what a real node does
on the wire: a report of its users in every slot, spread over the first fifth of it, and asks, at
most one in the interval that the leader sets, for the users whose credit may run out before more
can come (docs/node.md). It notes how long the Ack of a report and the answer to an ask take, and
for which slots it was sent a quota. Times are wall seconds, until the frame is here; what is in it
is looked at when the node asks next, so that little of the time is ours.

    python -m benchmarks.thousand_nodes 600          for ten minutes, within the limits
    python -m benchmarks.thousand_nodes 600 3        at three times the limits
"""

import asyncio
import math
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

from sluicegate.quota.messages import Ask, Credit, Line, Quota, Report, UserAsk
from sluicegate.quota.stable_hash import hash_fraction
from sluicegate.quota.wire import SUBPROTOCOL, NodeWire

__all__ = ["Answers", "measure"]

_RATES = (1.0, 2.0, 3.0, 4.0, 5.0)  # requests per second of a user on each node
_LOAD = 0.75  # of the limits, by the busiest users
_SPREAD = 0.2
_WARM_UP = 3  # slots that are not counted
_ACK = 3
_WHOLE = 2  # a flag of a quota
_CLOSE = 0x88
_HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nSluicegate-Slot-Seconds: 1.0\r\n\r\n"
).encode()


class Answers(NamedTuple):
    acks: list[float]  # seconds from a report to its Ack, sorted
    answers: list[float]  # from an ask to its answer, sorted
    reports: int  # that were to be acknowledged
    missed: int  # quotas of slots that never came, and reports without an Ack
    frames: float  # per node and second, in both directions
    rows: float  # users in an ask, on average
    passed: float  # the part of all requests that found credit
    busy: float = 0.0  # the part of a core that the central needed

    @staticmethod
    def part(seconds: list[float], part: float) -> float:
        return seconds[min(len(seconds) - 1, int(part * len(seconds)))]


class _User:
    """The credit of a user on a node."""

    __slots__ = (
        "asked",
        "coming",
        "consumed",
        "empty_until",
        "granted",
        "kind",
        "rejected",
        "settled",
    )

    def __init__(self, kind: int, coming: float) -> None:
        self.kind = kind  # which of the rates it has
        self.granted = 0.0
        self.consumed = 0
        self.settled = 0
        self.rejected = 0
        self.coming = coming  # the fraction of the next request
        self.asked = -math.inf
        self.empty_until = -math.inf

    def spend(self, now: float, pace: "_Pace") -> int:
        """The requests of an interval come; for how many more to ask, 0: none."""
        coming = self.coming + pace.requests
        count = int(coming)
        self.coming = coming - count
        balance = self.granted - self.consumed
        if balance < count:
            passed = int(balance)
            self.rejected += count - passed
            count = passed
        self.consumed += count
        balance -= count
        if balance >= pace.enough or now < self.empty_until or now < self.asked + pace.retry:
            return 0
        self.asked = now
        return max(1, math.ceil(pace.target - balance))


class _Pace:
    """What a user does in an interval between two asks: docs/node.md, "Asking for credit"."""

    def __init__(self, rate: float, interval: float) -> None:
        lead = interval + 0.03
        self.requests = rate * interval
        self.retry = 3 * interval + 0.05
        self.enough = max(1.0, _likely(rate * lead))
        self.target = 1.0 + _likely(2.0 * rate * lead)


def _likely(mean: float) -> float:
    """An upper estimate of a random number of requests, by its mean."""
    return 1.25 * mean + 3.0 * math.sqrt(mean)


class _Node(asyncio.Protocol):
    """A node on a bare socket: no library, so that little of the time is ours.

    Its frames are masked with zeros, which changes no byte of them.
    """

    def __init__(self, name: str, users: int) -> None:
        self._name = name
        self._wire = NodeWire()
        self._users = {
            f"user:{number}": _User(number % len(_RATES), hash_fraction(name, str(number)))
            for number in range(users)
        }
        self._sequence = 0
        self._set_interval(0.5)
        self._sent: deque[float] = deque()
        self._asked: float | None = None
        self._unread = b""
        self._frames: list[tuple[float, bytes]] = []  # quotas that are not looked at yet
        self._transport: asyncio.Transport | None = None
        self._is_counting = False
        self.is_open = asyncio.Event()
        self.acks: list[float] = []
        self.answers: list[float] = []
        self.quotas: set[int] = set()
        self.frames = 0
        self.asks = 0
        self.rows = 0

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

    def _set_interval(self, interval: float) -> None:
        self._interval = interval
        self._paces = [_Pace(rate, interval) for rate in _RATES]

    def _heard(self, payload: bytes) -> None:
        now = time.perf_counter()
        self.frames += self._is_counting
        if payload[0] == _ACK:
            waited = now - self._sent.popleft()
            if self._is_counting:
                self.acks.append(waited)
            return
        self._frames.append((now, payload))
        if not payload[1] & _WHOLE and self._asked is not None:
            if self._is_counting:
                self.answers.append(now - self._asked)
            self._asked = None

    def look_at_frames(self) -> None:
        """Read the quotas that have come."""
        frames, self._frames = self._frames, []
        for now, payload in frames:
            quota = self._wire.read(payload)
            assert isinstance(quota, Quota)
            if quota.whole:
                self.quotas.add(quota.slot)
            if quota.interval != self._interval:
                self._set_interval(quota.interval)
            self._apply(quota, now)

    def _apply(self, quota: Quota, now: float) -> None:
        part = quota.services["front"]
        for name, shares in part.users.items():
            user = self._users[name]
            granted = shares["requests"].granted
            if granted > user.granted:
                user.granted = granted
                if not quota.whole:
                    user.asked = -math.inf
        for name, hint in part.hints.items():
            if hint.wait > 0.0:
                user = self._users[name]
                user.empty_until = now + hint.wait
                user.asked = -math.inf

    def _report(self, slot: int) -> bytes:
        self._sequence += 1
        lines = {}
        for name, user in self._users.items():
            total = user.consumed
            line = Line(float(total), user.rejected, total, float(user.settled), 0.0, user.granted)
            lines[name] = {"requests": line}
            user.settled = total
        since = max(0, self._sequence - 2)
        sent = time.perf_counter()
        return self._framed(
            Report(self._name, 1, self._sequence, 1, since, slot - 1, sent, {"front": lines})
        )

    def _ask(self) -> bytes | None:
        self.look_at_frames()
        now, paces = time.perf_counter(), self._paces
        asks = {}
        for name, user in self._users.items():
            if wanted := user.spend(now, paces[user.kind]):
                credit = Credit(user.granted, 0.0, float(user.consumed), 1.0)
                asks[name] = UserAsk(wanted, {"requests": credit})
        if not asks:
            return None
        self.asks += self._is_counting
        self.rows += len(asks) * self._is_counting
        self._asked = now
        return self._framed(Ask(self._name, 1, now, {"front": asks}))

    def _framed(self, message: Report | Ask) -> bytes:
        payload = self._wire.write(message)
        assert isinstance(payload, bytes)
        size = len(payload)
        assert size < 1 << 16
        head = bytes((0x82, 0x80 | size)) if size < 126 else b"\x82\xfe" + size.to_bytes(2)
        return head + bytes(4) + payload

    def _write(self, frame: bytes) -> None:
        assert self._transport is not None
        self.frames += self._is_counting
        self._transport.write(frame)

    async def send_reports(self, first: int, slots: int) -> None:
        fraction = hash_fraction(self._name)
        for slot in range(first, first + slots):
            # Made in good time, not by all nodes at once: to send a thousand is enough to do then.
            await asyncio.sleep(max(0.0, slot - 0.9 + 0.8 * fraction - time.time()))
            frame = self._report(slot)
            await asyncio.sleep(max(0.0, slot + fraction * _SPREAD - time.time()))
            self._is_counting = slot >= first + _WARM_UP
            self._sent.append(time.perf_counter())
            self._write(frame)

    async def send_asks(self, first: int, slots: int) -> None:
        # After the first report, which introduces the users on the wire.
        at = first + 1.0 + hash_fraction(self._name, "ask") * self._interval
        while at < first + slots:
            await asyncio.sleep(max(0.0, at - time.time()))
            if frame := self._ask():
                self._write(frame)
            at += self._interval

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    @property
    def passed(self) -> int:
        return sum(user.consumed for user in self._users.values())

    @property
    def refused(self) -> int:
        return sum(user.rejected for user in self._users.values())


def _itself(node: _Node) -> _Node:
    return node


async def _run(host: str, port: int, nodes: int, users: int, slots: int) -> Answers:
    loop = asyncio.get_running_loop()
    fleet = [_Node(f"node-{number}", users) for number in range(nodes)]
    for node in fleet:
        await loop.create_connection(partial(_itself, node), host, port)
        await node.is_open.wait()
    first = int(time.time()) + 2
    await asyncio.gather(
        *(node.send_reports(first, slots) for node in fleet),
        *(node.send_asks(first, slots) for node in fleet),
    )
    await asyncio.sleep(1.0)
    for node in fleet:
        node.look_at_frames()
        node.close()
    told = range(first + _WARM_UP + 1, first + slots)
    counted = slots - _WARM_UP
    passed = sum(node.passed for node in fleet)
    missed = sum(slot not in node.quotas for node in fleet for slot in told)
    missed += sum(counted - len(node.acks) for node in fleet)
    return Answers(
        sorted(waited for node in fleet for waited in node.acks),
        sorted(waited for node in fleet for waited in node.answers),
        counted * nodes,
        missed,
        sum(node.frames for node in fleet) / nodes / counted,
        sum(node.rows for node in fleet) / max(1, sum(node.asks for node in fleet)),
        passed / (passed + sum(node.refused for node in fleet)),
    )


@contextmanager
def _central(directory: str, limit: float) -> Iterator[str]:
    """The address of a central that runs on the first core alone."""
    limits = os.path.join(directory, "limits.toml")
    with open(limits, "w") as file:
        file.write('[[limit]]\nservice = "front"\nuser = "*"\nburst_seconds = 10\n')
        file.write(f"requests = {limit}\n")
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


def measure(
    directory: str, *, nodes: int = 1000, users: int = 100, slots: int = 20, load: float = _LOAD
) -> Answers:
    """`load`: what the busiest users ask for, as a multiple of their limits."""
    before = _children_seconds()
    cores = sorted(os.sched_getaffinity(0))
    with _central(directory, nodes * max(_RATES) / load) as address:
        host, port = address.split(":")
        os.sched_setaffinity(0, cores[1:] or cores)
        try:
            answers = asyncio.run(_run(host, int(port), nodes, users, slots))
        finally:
            os.sched_setaffinity(0, cores)
    # Of all the time it was there: children count when they have ended.
    return answers._replace(busy=(_children_seconds() - before) / slots)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        load = float(sys.argv[2]) if len(sys.argv) > 2 else _LOAD
        told = measure(folder, slots=int(sys.argv[1]), load=load)
    for what, seconds in (("reports", told.acks), ("asks", told.answers)):
        parts = ", ".join(
            f"p{100 * part:.0f} {told.part(seconds, part) * 1e3:.0f} ms" for part in (0.5, 0.99)
        )
        most = seconds[-1] * 1e3
        print(f"{len(seconds):,} answers to {what}: {parts}, at most {most:.0f} ms")
    print(f"{told.frames:.1f} frames per node and second, {told.rows:.0f} users in an ask")
    print(f"{told.passed:.1%} of the requests passed; reports and quotas missed: {told.missed}")
    print(f"the central's core is busy for {told.busy:.0%}")
