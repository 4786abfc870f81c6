"""Clusters drawn at random from the whole space that real users live in.

The shipped scenarios are chosen by hand: large limits, lasting overload, traffic on every node. A
rule may be exact there and fail elsewhere. `draw(seed)` makes any cluster out of a number:

    nodes         1 to 50, log-uniform
    limit         0.1 to 5,000 requests per second of the scarcest resource, log-uniform
    load          0.3 to 10: what is asked for in the mean against the limit, log-uniform
    burst         0.5 to 60 seconds, log-uniform
    resources     1 to 4, with any costs and ratios; any of them is the scarcest
    costs         constant, or in a quarter of the clusters one with a heavy tail
    duration      0 to 10 seconds
    delay         0 to 100 ms one way
    spread        all nodes, one, weighted, hopping, on and off, moving
    wait          whether a request may wait for an answer: a fact for those who can make it wait

A run has some thousand requests, and lasts for several times of whatever takes time in it: the
burst that is saved between two bursts of traffic, a request, a stay at a node, the time between two
requests of the limit. So large rates come in packets: `together` requests at once, at least about
four packets per node and slot. Requests whose cost is drawn, or that run, are simulated one by one;
their limits are lower instead, since a run could not last otherwise.

A cluster is written as a scenario file and read back: `text` can be saved, changed and run again.
"""

import math
import random
from dataclasses import asdict, dataclass
from typing import Any

from sluicegate.sim.scenario import Scenario, read

__all__ = ["REGIMES", "Cluster", "Facts", "draw"]

# In this order: a cluster belongs to the first that it fits.
REGIMES = {
    "rare, no wait": "nobody may wait, and a node has less than a request in 20 s",
    "thin, no wait, small burst": "as below, with a burst of less than 5 s",
    "thin, no wait": "less than two requests per node and slot, nobody may wait",
    "small bucket": "a bucket that holds less than three requests",
    "long requests": "requests of 3 to 10 s, cost known at the end",
    "moving": "all traffic moves to other nodes",
    "hopping, on and off": "one node at a time, or bursts of traffic and silence",
    "several resources": "two to four resources",
    "thin, wait": "less than two requests per node and slot, a request may wait",
    "dense": "two or more requests per node and slot, round trip of at most 20 ms",
    "dense, far": "two or more requests per node and slot, longer round trip",
}

_RESOURCES = ("requests", "tokens", "reads", "bytes")
_SPREADS = {"all": 40, "one": 10, "weighted": 15, "hopping": 13, "on and off": 13, "moving": 9}
_MOST_LIMIT = 5000.0
_REQUESTS = 2000  # that a run aims at
_PACKETS = 2500  # the most that come in a run, but for clusters of many nodes
_SINGLE_REQUESTS = 3000  # the most that are simulated one by one
_LEAST_SECONDS = 20.0
_RARE_SECONDS = 20.0
_MOST_WARM_UP = 60.0
_ADMITTED = 60  # requests of the limit, so that one of them does not decide
_LEAST_ADMITTED = 25  # the same for many nodes, whose slots take long to run
_NODE_SLOTS = 3000
_HALF_TIME = "HALF-TIME"  # in the lines of a spread; it is known when the limit is


@dataclass(slots=True, frozen=True)
class Facts:
    """What was drawn. Rates are requests per second, times seconds."""

    seed: int
    regime: str
    nodes: int
    busy_nodes: float  # that have traffic at a time; of weighted ones, as if all were equal
    per_node_slot: float  # requests that the limit allows for each of them in a slot
    limit: float
    load: float
    burst: float
    resources: int
    scarcest: str
    tail: float | None  # index of the Pareto distribution of one cost
    duration: float
    round_trip: float
    spread: str
    wait: bool
    together: int  # requests in a packet

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.regime}: {self.limit:g} requests/s, load {self.load:g}, burst {self.burst:g} s,"
            f" {self.per_node_slot:.3g} requests per node and slot\n"
            f"{self.resources} resources (scarcest: {self.scarcest}), "
            f"{'constant costs' if self.tail is None else f'costs of tail {self.tail:g}'}, "
            f"requests of {self.duration:g} s, {self.together} at once, "
            f"round trip {1000 * self.round_trip:.3g} ms, "
            f"spread: {self.spread}, {'may wait' if self.wait else 'no wait'}"
        )


@dataclass(slots=True, frozen=True)
class Cluster:
    """A cluster that was drawn: its facts, and the scenario as text and as it was read."""

    facts: Facts
    text: str
    scenario: Scenario

    def __str__(self) -> str:
        return str(self.facts)


@dataclass(slots=True, frozen=True)
class _Spread:
    """How traffic is spread: the lines of a scenario file, and what they mean."""

    name: str
    lines: str
    busy_nodes: float
    period: float = 0.0  # seconds of a cycle or a stay
    active: float = 1.0  # the part of the time in which there is traffic


def draw(seed: int) -> Cluster:
    """The cluster of this number."""
    rng = random.Random(f"cluster {seed}")
    nodes = min(50, int(_log(rng, 1.0, 51.0)))
    load = _log(rng, 0.3, 10.0)
    burst = _log(rng, 0.5, 60.0)
    resources = rng.choices((1, 2, 3, 4), (60, 20, 12, 8))[0]
    has_tail = rng.random() < 0.25
    duration = _duration(rng)
    one_way = 0.0 if rng.random() < 0.1 else _log(rng, 0.0005, 0.1)
    jitter = _short(one_way * rng.uniform(0.0, 0.5))
    wait = rng.random() < 0.5
    spread = _spread(rng, nodes)
    warm_up = math.ceil(10.0 + 2.0 * duration + spread.period)
    least = max(_LEAST_SECONDS, 4.0 * duration, 4.0 * spread.period)
    if spread.name == "on and off":
        least = max(least, 2.0 * burst)
    most = _MOST_LIMIT
    if has_tail or duration:
        most = min(most, _SINGLE_REQUESTS / (load * (warm_up + least)))
    limit = _log(rng, 0.1, most)
    # Warm: most nodes have met the user.
    warm_up = max(warm_up, math.ceil(min(_MOST_WARM_UP, 3.0 * nodes / (limit * load))))
    measured = math.ceil(max(least, _measured(limit, load, nodes)))
    seconds = warm_up + measured
    packets = max(_PACKETS / seconds, 4.0 * spread.busy_nodes)  # per second
    together = 1 if has_tail or duration else max(1, int(limit * load / packets))
    costs, rates, scarcest, tail = _resources(rng, resources, limit, has_tail)
    per_node_slot = limit / spread.busy_nodes
    facts = Facts(
        seed=seed,
        regime=_regime(
            duration=duration,
            per_node_slot=per_node_slot,
            load=load,
            burst=burst,
            held=limit * burst,
            wait=wait,
            spread=spread.name,
            resources=resources,
            round_trip=2.0 * one_way,
        ),
        nodes=nodes,
        busy_nodes=spread.busy_nodes,
        per_node_slot=per_node_slot,
        limit=limit,
        load=load,
        burst=burst,
        resources=resources,
        scarcest=scarcest,
        tail=tail,
        duration=duration,
        round_trip=2.0 * one_way,
        spread=spread.name,
        wait=wait,
        together=together,
    )
    text = f'''title = "Random cluster {seed}"
about = "{facts.regime}: {REGIMES[facts.regime]}"
seconds = {seconds}
warm_up = {warm_up}
nodes = {nodes}
centrals = 1
exact_arrivals = true
wait = {str(wait).lower()}
network = {{ delay = {_short(one_way - jitter)}, jitter = {jitter} }}

[[limit]]
user = "ann"
burst_seconds = {burst}
{rates}

[[traffic]]
user = "ann"
rate = {_short(limit * load / spread.active)}
cost = {{ {costs} }}
duration = {duration}
together = {together}
{spread.lines.replace(_HALF_TIME, str(warm_up + measured // 2))}
'''
    return Cluster(facts, text, read(text, file="random", name="random"))


def _log(rng: random.Random, least: float, most: float) -> float:
    """Log-uniform, as short a number as people would write."""
    return _short(math.exp(rng.uniform(math.log(least), math.log(most))))


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _duration(rng: random.Random) -> float:
    kind = rng.random()
    if kind < 0.6:
        return 0.0
    return _log(rng, 0.005, 3.0) if kind < 0.85 else _short(rng.uniform(3.0, 10.0))


def _measured(limit: float, load: float, nodes: int) -> float:
    """Seconds for enough requests of the limit, and not for too many in all."""
    admitted = limit * min(1.0, load)
    enough = min(_ADMITTED / admitted, max(_LEAST_ADMITTED / admitted, _NODE_SLOTS / nodes))
    return max(enough, min(_REQUESTS / (limit * load), 0.5 * _NODE_SLOTS / nodes))


def _spread(rng: random.Random, nodes: int) -> _Spread:
    name = rng.choices(list(_SPREADS), list(_SPREADS.values()))[0]
    if name == "on and off":
        on, off = _log(rng, 0.5, 10.0), _log(rng, 1.0, 20.0)
        return _Spread(name, f"cycle = [{on}, {off}]", nodes, on + off, on / (on + off))
    if nodes == 1 or name == "one":
        return _Spread("one", f'nodes = ["node-{rng.randint(1, nodes)}"]', 1.0)
    if name == "weighted":
        exponent = rng.uniform(0.5, 2.0)
        weights = [_short(rank**-exponent) for rank in range(1, nodes + 1)]
        rng.shuffle(weights)
        pairs = ", ".join(f"node-{node} = {weight}" for node, weight in enumerate(weights, 1))
        equal = sum(weights) ** 2 / sum(weight * weight for weight in weights)
        return _Spread(name, f"nodes = {{ {pairs} }}", equal)
    if name == "hopping":
        least = _log(rng, 0.3, 5.0)
        stay = least, _short(3.0 * least)
        return _Spread(name, f'nodes = "hopping"\nstay = [{stay[0]}, {stay[1]}]', 1.0, stay[1])
    if name == "moving":
        half = nodes // 2
        lines = (
            f'nodes = ["node-1..{half}"]\n'
            f'move = [{{ at = {_HALF_TIME}, nodes = ["node-{half + 1}..{nodes}"] }}]'
        )
        return _Spread(name, lines, nodes / 2)
    return _Spread(name, 'nodes = "all"', nodes)


def _resources(
    rng: random.Random, count: int, limit: float, has_tail: bool
) -> tuple[str, str, str, float | None]:
    """The costs and the limits as lines of a scenario, the scarcest resource, and the tail."""
    scarcest, tailed = rng.randrange(count), rng.randrange(count)
    tail = _short(rng.uniform(1.3, 3.0)) if has_tail else None
    costs, rates = [], []
    for number, name in enumerate(_RESOURCES[:count]):
        is_tailed = tail is not None and number == tailed
        # Drawn costs are whole numbers of at least 1: a smaller mean would not be kept.
        mean = _log(rng, 10.0 if is_tailed else 0.5, 10_000.0)
        if name == "requests" and not is_tailed and rng.random() < 0.7:
            mean = 1.0
        ratio = 1.0
        if number != scarcest:
            ratio = rng.uniform(1.01, 1.3) if rng.random() < 0.5 else _log(rng, 1.3, 20.0)
        costs.append(
            f"{name} = {{ mean = {mean}, tail = {tail} }}" if is_tailed else f"{name} = {mean}"
        )
        rates.append(f"{name} = {float(f'{limit * mean * ratio:.6g}')}")
    return ", ".join(costs), "\n".join(rates), _RESOURCES[scarcest], tail


def _regime(
    *,
    duration: float,
    per_node_slot: float,
    load: float,
    burst: float,
    held: float,
    wait: bool,
    spread: str,
    resources: int,
    round_trip: float,
) -> str:
    is_thin = per_node_slot < 2.0
    if is_thin and not wait:
        if per_node_slot * load < 1.0 / _RARE_SECONDS:
            return "rare, no wait"
        return "thin, no wait" if burst >= 5.0 else "thin, no wait, small burst"
    if held < 3.0:
        return "small bucket"
    if duration >= 3.0:
        return "long requests"
    if spread == "moving":
        return "moving"
    if spread in ("hopping", "on and off"):
        return "hopping, on and off"
    if resources > 1:
        return "several resources"
    if is_thin:
        return "thin, wait"
    return "dense" if round_trip <= 0.02 else "dense, far"
