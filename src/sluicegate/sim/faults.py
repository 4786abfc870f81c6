"""Carries out what a scenario says goes wrong, each fault at its time.

`mishaps` is chance: every so often, in the mean, a node crashes with or without its disk, or is
frozen, the leader dies, the network gets bad or falls apart, and all is well again some seconds
later. They are drawn from the run's random numbers: the same seed brings the same mishaps.
"""

from collections.abc import Callable, Sequence
from functools import partial

from sluicegate.sim.cluster import Cluster
from sluicegate.sim.network import Quality
from sluicegate.sim.scenario import Fault

__all__ = ["plan"]

_LONGEST_MISHAP = 20.0  # slots
_BAD = Quality(loss=0.05, double=0.05, late=0.05)


def plan(cluster: Cluster, happened: Callable[[float, str], object]) -> None:
    """Put all faults of the scenario on the cluster's calendar. `happened` is told of each."""
    for fault in cluster.scenario.faults:
        cluster.world.at(fault.at, _inject, cluster, fault, happened)


def _inject(cluster: Cluster, fault: Fault, happened: Callable[[float, str], object]) -> None:
    world = cluster.world
    if fault.what == "mishaps":
        until = world.now + fault.seconds if fault.seconds else cluster.scenario.seconds
        _inject_random(cluster, fault.every, until, happened, first=True)
        return
    happened(world.now, str(fault))
    over = _ACTS[fault.what](cluster, fault)
    if over is not None and fault.seconds is not None:
        world.at(world.now + fault.seconds, _end, cluster, fault, over, happened)


def _end(
    cluster: Cluster,
    fault: Fault,
    over: Callable[[], object],
    happened: Callable[[float, str], object],
) -> None:
    happened(cluster.world.now, f"end of {fault.what}")
    over()


def _names(cluster: Cluster, fault: Fault) -> list[str]:
    named = [cluster.leader if name == "leader" else name for name in fault.machines]
    return [name for name in named if name is not None]


def _crash(cluster: Cluster, fault: Fault) -> Callable[[], object]:
    names = _names(cluster, fault)
    for name in names:
        cluster.crash(name)
    return partial(_restart_all, cluster, names, fault.disk)


def _restart(cluster: Cluster, fault: Fault) -> None:
    _restart_all(cluster, _names(cluster, fault), fault.disk)


def _restart_all(cluster: Cluster, names: Sequence[str], disk: bool) -> None:
    for name in names:
        cluster.restart(name, disk)


def _freeze(cluster: Cluster, fault: Fault) -> Callable[[], object]:
    names = _names(cluster, fault)
    for name in names:
        cluster.freeze(name)
    return partial(_thaw_all, cluster, names)


def _thaw(cluster: Cluster, fault: Fault) -> None:
    _thaw_all(cluster, _names(cluster, fault))


def _thaw_all(cluster: Cluster, names: Sequence[str]) -> None:
    for name in names:
        cluster.thaw(name)


def _partition(cluster: Cluster, fault: Fault) -> Callable[[], object]:
    return partial(cluster.heal, cluster.cut(fault.groups))


def _sever(cluster: Cluster, fault: Fault) -> Callable[[], object]:
    return cluster.sever(_names(cluster, fault), fault.others)


def _network(cluster: Cluster, fault: Fault) -> Callable[[], object]:
    quality = fault.quality or _BAD
    cluster.network.spoil(quality)
    return partial(cluster.network.mend, quality)


def _step(cluster: Cluster, fault: Fault) -> None:
    for name in _names(cluster, fault):
        cluster.machine(name).step(fault.by)


def _join(cluster: Cluster, fault: Fault) -> None:
    cluster.join(fault.nodes)


def _leave(cluster: Cluster, fault: Fault) -> None:
    for name in _names(cluster, fault):
        cluster.leave(name)


def _stop(cluster: Cluster, fault: Fault) -> Callable[[], object]:
    names = _names(cluster, fault)
    for name in names:
        cluster.stop(name)
    return partial(_restart_all, cluster, names, True)


def _limits(cluster: Cluster, fault: Fault) -> None:
    cluster.set_limits(fault.limits)


_ACTS: dict[str, Callable[[Cluster, Fault], Callable[[], object] | None]] = {
    "crash": _crash,
    "restart": _restart,
    "freeze": _freeze,
    "thaw": _thaw,
    "partition": _partition,
    "sever": _sever,
    "network": _network,
    "step": _step,
    "join": _join,
    "leave": _leave,
    "stop": _stop,
    "limits": _limits,
}


def _inject_random(
    cluster: Cluster,
    every: float,
    until: float,
    happened: Callable[[float, str], object],
    first: bool = False,
) -> None:
    world = cluster.world
    rng = world.faults
    if not first:
        seconds = rng.uniform(1.0, _LONGEST_MISHAP) * cluster.scenario.slot_seconds
        _inject(cluster, _draw(cluster, world.now, seconds), happened)
    again = world.now + rng.expovariate(1.0 / every)
    if again < until:
        world.at(again, _inject_random, cluster, every, until, happened)


def _draw(cluster: Cluster, at: float, seconds: float) -> Fault:
    rng = cluster.world.faults
    node = (rng.choice(list(cluster.nodes)),)
    what = rng.choice(["node", "node", "freeze", "leader", "network", "partition", "step"])
    disk = rng.random() < 0.5
    if what == "node":
        return Fault(at, "crash", machines=node, seconds=seconds, disk=disk)
    if what == "freeze":
        return Fault(at, "freeze", machines=node, seconds=seconds)
    if what == "leader":
        return Fault(at, "crash", machines=("leader",), seconds=seconds, disk=True)
    if what == "network":
        return Fault(at, "network", seconds=seconds, quality=_BAD)
    if what == "step":
        return Fault(at, "step", machines=node, by=rng.uniform(-5.0, 5.0))
    names = list(cluster.nodes)
    rng.shuffle(names)
    return Fault(at, "partition", groups=(tuple(names[: len(names) // 3 or 1]),), seconds=seconds)
