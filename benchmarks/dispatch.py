"""Dispatch beside task queues: requests per second, processor time and latency of a no-op task.

A Redis of its own is started, and for each library a worker and a client, as processes on the same
processor as Redis: so the time of a request is the work of all three. The libraries take turns, and
of each the best round counts. They run in environments of their own under `.venv/peers`, since what
they ask of redis-py disagrees.

Overload and padding are figures in virtual time (`sluicegate.sim.dispatch.load`).
"""

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from benchmarks.redis_server import on_one_processor, server
from sluicegate.redis_client import AsyncRedisPool
from sluicegate.sim.dispatch.load import DropsOnlyLate, overload, padding

ROUNDS = 3
IN_FLIGHT = 64
NOTES = (
    f"The best of {ROUNDS} rounds in turns; client, worker and Redis on one processor, over TCP; "
    "the result comes back through Redis in all of them."
)
PROGRAMS = Path(__file__).parent / "dispatch_peers"
ENVIRONMENTS = Path(sys.prefix) / "peers"
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Library:
    """`packages`: what its environment needs; none is ours. `requests`, `single`: of a round."""

    name: str
    packages: tuple[str, ...]
    requests: int
    single: int
    options: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        return str(PROGRAMS / f"{self.name.split()[0]}_program.py")


OURS = Library("sluicegate", (), 20_000, 500)
OURS_SYNC = Library("sluicegate (sync handler)", (), 20_000, 500, ("sync",))
OURS_UVLOOP = Library("sluicegate (uvloop)", (), 20_000, 500, ("uvloop",))
PEERS = (
    Library("dramatiq", ("dramatiq[redis]==2.2.1",), 1000, 50),
    Library("arq", ("arq==0.28.0",), 500, 5),
    Library("taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4"), 1000, 10),
    Library("celery", ("celery[redis]==5.7.0",), 500, 50),
)


@dataclass
class Figures:
    """The best of all rounds: requests per second, processor time and median, in seconds."""

    rate: float = 0.0
    processor: float = float("inf")
    median: float = float("inf")

    def add(self, rate: float, processor: float, median: float) -> None:
        self.rate = max(self.rate, rate)
        self.processor = min(self.processor, processor)
        self.median = min(self.median, median)


def rows() -> list[Row]:
    libraries = (OURS, OURS_SYNC, OURS_UVLOOP, *PEERS)
    pythons = {library.name: environment(library) for library in libraries}
    figures = {library.name: Figures() for library in libraries}
    bare = asyncio_trips = float("inf")
    with server() as url, on_one_processor():
        for _ in range(ROUNDS):
            bare = min(bare, two_round_trips(url))
            asyncio_trips = min(asyncio_trips, asyncio.run(two_asyncio_round_trips(url)))
            for library in libraries:
                figures[library.name].add(*measure(library, pythons[library.name], url))
    return [
        *throughput(figures),
        *processor_time(figures),
        *latency(figures, bare, asyncio_trips),
        overload_row(),
        padding_row(),
    ]


def throughput(figures: dict[str, Figures]) -> list[Row]:
    ours = figures[OURS.name].rate
    goals = {"dramatiq": 10.0, "arq": 20.0, "taskiq": 20.0}
    return [
        Row(
            f"requests with {IN_FLIGHT} in flight",
            f"{ours:,.0f}/s",
            f"{theirs:,.0f}/s ({name})",
            ours / theirs,
            f"{ours / theirs:.1f} x faster",
            f">= {goals[name]:g} x faster" if name in goals else "",
            ours >= goals[name] * theirs if name in goals else None,
        )
        for name, theirs in ((peer.name, figures[peer.name].rate) for peer in PEERS)
    ]


def processor_time(figures: dict[str, Figures]) -> list[Row]:
    ours = figures[OURS.name].processor
    what = "processor time of a request, client, worker and Redis"
    text = f"{ours * 1e6:.0f} µs"
    return [
        Row(what, text, "", None, "", "<= 100 µs", ours <= 100e-6),
        *(
            Row(
                what,
                text,
                f"{one.processor * 1e6:,.0f} µs ({name})",
                ours / one.processor,
                f"{one.processor / ours:.1f} x less",
                "",
                None,
            )
            for name, one in figures.items()
            if name != OURS.name
        ),
    ]


def latency(figures: dict[str, Figures], bare: float, asyncio_trips: float) -> list[Row]:
    ours = figures[OURS.name].median
    what = "a request, one in flight: median"
    text = f"{ours * 1e3:.2f} ms"

    def beside(theirs: float, name: str, most: float | None = None) -> Row:
        is_met = None if most is None else ours <= most * theirs
        goal = "" if most is None else f"<= {most:g} x"
        peer = f"{theirs * 1e3:.2f} ms ({name})"
        return Row(what, text, peer, ours / theirs, f"{ours / theirs:.2g} x", goal, is_met)

    return [
        beside(bare, "two bare round trips to Redis, blocking socket", 2.5),
        beside(asyncio_trips, "two round trips to Redis, asyncio"),
        *(beside(one.median, name) for name, one in figures.items() if name != OURS.name),
    ]


def overload_row() -> Row:
    """In virtual time, so one run is enough."""
    ours = overload(1).share
    others = overload(1, core=DropsOnlyLate, max_waiting=500).share
    return Row(
        "three times the capacity, deadline 1 s: answers in time, part of the capacity",
        f"{100 * ours:.1f} %",
        f"{100 * others:.1f} % (drop only what is late already)",
        ours,
        f"{100 * ours:.1f} %",
        ">= 90 %",
        ours >= 0.9,
    )


def padding_row() -> Row:
    ours = statistics.mean(padding(seed, by_size=True) for seed in range(5))
    first_come = statistics.mean(padding(seed, by_size=False) for seed in range(5))
    return Row(
        "texts of mixed length, padded to the longest of a batch of 16: size=len",
        f"{ours:.0f}/s",
        f"{first_come:.0f}/s (first come)",
        ours / first_come,
        f"{ours / first_come:.2f} x",
        ">= 1.7 x",
        ours >= 1.7 * first_come,
    )


def environment(library: Library) -> str:
    """The Python in which a library is installed; made on first use."""
    if not library.packages:
        return sys.executable
    folder = ENVIRONMENTS / library.name
    python = str(folder / "bin" / "python")
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(library.packages):
        print(f"installing {' '.join(library.packages)} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, *library.packages], check=True)
        stamp.write_text(" ".join(library.packages))
    return python


def measure(library: Library, python: str, url: str) -> tuple[float, float, float]:
    """One round: requests per second, processor time of one, and the median with one in flight."""
    with (
        process(library, python, "worker", url) as worker,
        process(library, python, "client", url) as client,
    ):
        ask(client, 2 * IN_FLIGHT, IN_FLIGHT)  # until all are connected and warm
        pids = [worker.pid, client.pid, redis_pid(url)]
        before = sum(map(processor_seconds, pids))
        flooded = ask(client, library.requests, IN_FLIGHT)
        spent = sum(map(processor_seconds, pids)) - before
        single = ask(client, library.single, 1)
    rate = library.requests / flooded["seconds"]
    return rate, spent / library.requests, single["median"]


@contextlib.contextmanager
def process(
    library: Library, python: str, role: str, url: str
) -> Iterator["subprocess.Popen[str]"]:
    running = subprocess.Popen(
        [python, library.program, role, url, *library.options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if role == "client" else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        if role == "worker":
            time.sleep(2.0)  # no library says when its worker is ready
        yield running
    finally:
        running.kill()
        running.wait()


def ask(client: "subprocess.Popen[str]", count: int, in_flight: int) -> dict[str, Any]:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{count} {in_flight}\n")
    client.stdin.flush()
    answer: dict[str, Any] = json.loads(client.stdout.readline())
    return answer


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def redis_pid(url: str) -> int:
    with connected(url) as link:
        link.sendall(b"INFO server\r\n")
        text = link.recv(65536).decode()
    return int(text.split("process_id:")[1].split()[0])


def two_round_trips(url: str) -> float:
    """The median of two PINGs, one after the other, over a blocking socket."""
    times = []
    with connected(url) as link:
        for _ in range(2000):
            began = time.perf_counter()
            for _ in range(2):
                link.sendall(b"PING\r\n")
                link.recv(64)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


async def two_asyncio_round_trips(url: str) -> float:
    """The same over the connections that dispatch uses."""
    pool = AsyncRedisPool(url, 10.0)
    times = []
    for _ in range(1000):
        began = time.perf_counter()
        await pool.call("PING")
        await pool.call("PING")
        times.append(time.perf_counter() - began)
    await pool.close()
    return statistics.median(times)


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("redis://").split(":")
    with socket.create_connection((host, int(port))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield link
