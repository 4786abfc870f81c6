"""Dispatch under load, in virtual time: what dropping early and batching by size are worth.

overload(seed=1).share, overload(seed=1, core=DropsOnlyLate).share
padding(seed=1, by_size=True), padding(seed=1, by_size=False)
priorities(seed=1, loads=(0.0, 2.0, 0.6))
queues(seed=1, loads=(0.7, 2.0))
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sluicegate.dispatch.worker_core import WorkerCore
from sluicegate.sim.dispatch.audit import Audit
from sluicegate.sim.dispatch.client import ClientOptions, SimulatedClient
from sluicegate.sim.dispatch.server import Network, Server
from sluicegate.sim.dispatch.worker import SimulatedWorker, WorkerOptions
from sluicegate.sim.world import World

__all__ = ["DropsOnlyLate", "Overload", "overload", "padding", "priorities", "queues"]

_NETWORK = Network(delay=0.001)
_WARM_UP = 5.0
_STEADY = WorkerOptions(each=0.0, fixed=0.1)


class DropsOnlyLate(WorkerCore):
    """For comparison: a worker that drops a task when its deadline has passed, and not before."""

    margin = 0.0


@dataclass(frozen=True, slots=True)
class Overload:
    """`share`: answers in time as a part of what the workers can do."""

    share: float
    audit: Audit


def overload(
    seed: int,
    *,
    core: type[WorkerCore] = WorkerCore,
    times: float = 3.0,
    timeout: float = 1.0,
    seconds: float = 20.0,
    max_waiting: int = 1000,
    options: WorkerOptions = WorkerOptions(each=0.005, fixed=0.02, noise=0.1),  # noqa: B008  frozen
) -> Overload:
    """Offer two workers `times` what they can do, with a deadline of `timeout` seconds."""
    world = World(seed)
    server = Server(world, _NETWORK)
    audit = Audit(world, told_within=1.0)
    workers = [
        SimulatedWorker(world, server, audit, f"worker {number}", options, core)
        for number in range(2)
    ]
    client = SimulatedClient(world, server, audit, "client", ClientOptions(max_waiting))
    batch_seconds = options.fixed + options.each * options.max_batch
    batch_seconds *= 1.0 + options.noise / 2.0
    capacity = len(workers) * options.max_batch / batch_seconds
    numbers = iter(range(1, 10**9))

    def call() -> None:
        client.call((next(numbers), 1, "ok"), timeout)
        world.at(world.now + world.traffic.expovariate(times * capacity), call)

    world.at(0.1, call)
    world.run(_WARM_UP + seconds)
    in_time = sum(at >= _WARM_UP for at in audit.in_time)
    return Overload(in_time / (capacity * seconds), audit)


def priorities(
    seed: int, loads: Sequence[float], *, timeout: float = 0.5, seconds: float = 20.0
) -> list[float]:
    """What part of a worker's capacity each priority gets, the most urgent first.

    `loads` are what is offered, as parts of the capacity too.
    """
    world = World(seed)
    server = Server(world, _NETWORK)
    SimulatedWorker(world, server, Audit(world, told_within=1.0), "worker", _STEADY)
    streams = [(server, stream) for stream in range(len(loads))]
    return _answered(world, streams, loads, timeout, seconds)


def queues(
    seed: int, loads: Sequence[float], *, timeout: float = 0.5, seconds: float = 20.0
) -> list[float]:
    """The same of a worker of several queues, the first of them served first."""
    world = World(seed)
    servers = [Server(world, _NETWORK) for _ in loads]
    worker = None
    for number, server in enumerate(servers):
        audit = Audit(world, told_within=1.0)
        name = f"worker of queue {number}"
        worker = SimulatedWorker(world, server, audit, name, _STEADY, previous=worker)
    return _answered(world, [(server, 1) for server in servers], loads, timeout, seconds)


def _answered(
    world: World,
    streams: Sequence[tuple[Server, int]],
    loads: Sequence[float],
    timeout: float,
    seconds: float,
) -> list[float]:
    """What is answered of each stream, as parts of the capacity."""
    capacity = _STEADY.max_batch / _STEADY.fixed
    numbers = iter(range(1, 10**9))

    def call(client: SimulatedClient, stream: int, rate: float) -> None:
        client.call((next(numbers), 1, "ok"), timeout, stream)
        world.at(world.now + world.traffic.expovariate(rate), call, client, stream, rate)

    audits = []
    for (server, stream), load in zip(streams, loads, strict=True):
        audit = Audit(world, told_within=1.0)
        audits.append(audit)
        name = f"client {len(audits)}"
        client = SimulatedClient(world, server, audit, name, ClientOptions(max_waiting=10_000))
        if load:
            world.at(0.1, call, client, stream, load * capacity)
    world.run(_WARM_UP + seconds)
    answered = [sum(at >= _WARM_UP for at in audit.in_time) for audit in audits]
    return [one / (capacity * seconds) for one in answered]


def padding(seed: int, *, by_size: bool, texts: int = 4000) -> float:
    """Texts per second of a worker that pads each batch of 16 to its longest text.

    Lengths are log-normal, as those of sentences and paragraphs together are: a median of 20
    words, one text in forty beyond 140.
    """
    world = World(seed)
    server = Server(world, _NETWORK)
    audit = Audit(world, told_within=1.0)
    options = WorkerOptions(by_size=by_size, pads=True, each=0.0002, fixed=0.001)
    SimulatedWorker(world, server, audit, "worker", options)
    client = SimulatedClient(world, server, audit, "client", ClientOptions(texts))
    draw = random.Random(f"lengths {seed}")

    def call() -> None:
        for number in range(1, texts + 1):
            length = max(1.0, round(20.0 * draw.lognormvariate(0.0, 1.0)))
            client.call((number, length, "ok"), 1e6)

    began = 0.1
    world.at(began, call)
    while len(audit.in_time) < texts:
        world.run(world.now + 10.0)
    return texts / (audit.in_time[-1] - began)
