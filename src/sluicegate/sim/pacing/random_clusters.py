"""Pacing clusters drawn at random from the whole space that real users live in.

`draw(seed)` makes a cluster out of a number:

    nodes         1 to 50, log-uniform
    target        1 to 1,000,000 per period, log-uniform
    period        10 seconds to a day, log-uniform
    load          0.3 to 20: what comes against what the target needs, log-uniform
    sync          every 0.5 to 10 seconds, log-uniform
    traffic       even, skewed, moving between nodes, or on and off
    rewards       with each pass; or of a part of the passes, late, every n-th or by chance
    store         0 to 100 ms away; some lose replies, some are away for a while
    nodes         some join, leave, crash and start again
    clocks        some are off by up to 5 seconds

A run must be short. Each node has some 40 to 300 syncs in it, six times as many in one of twenty
clusters; so of a long period only a part is run: the last part of one and the first of the next,
and the cluster is on its line when it begins. Where the target would bring less than some 20 passes
in such a part, the period is shorter. A run has 10,000 requests at most, in one of five clusters
40,000: where the target needs more, a request costs more than 1.
"""

import math
import random
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sluicegate.sim.pacing.scenario import PacingScenario, read

__all__ = ["REGIMES", "Bounds", "Facts", "RandomCluster", "Regime", "draw"]

_SHAPES = {"even": 4, "skewed": 2, "moving": 2, "bursty": 2}
_NODE_SYNCS = 900  # of all nodes together, that a run aims at
_LEAST_SYNCS = 40  # of one node
_MOST_SYNCS = 300
_LONG_RUN = 6  # times as many, in one cluster of twenty
_REQUESTS = 10_000
_MANY_REQUESTS = 40_000  # in one cluster of five
_LEAST_PASSES = 20
_LEAST_PERIOD = 10.0
_MOST_PERIODS = 4


class Bounds(NamedTuple):
    """What a figure may be: in half of the clusters, in 95 of 100, and in the worst."""

    median: float
    percentile_95: float
    worst: float


@dataclass(slots=True, frozen=True)
class Regime:
    """A kind of clusters, and what must hold for them."""

    about: str
    short: Bounds  # part of what was possible that did not pass, less one request
    over: float  # over the target, as a part of it: the most of all
    gap: Bounds  # mean distance to what was possible, as a part of the target


# In this order: a cluster belongs to the first that it fits.
REGIMES = {
    "few rewards": Regime(
        "rewards are estimated, from less than 200 of them in a period or in less than 20 syncs",
        Bounds(0.15, 0.65, 0.95),
        2.5,
        Bounds(0.1, 0.45, 0.9),
    ),
    "rare": Regime(
        "less than one request per node and sync",
        Bounds(0.02, 0.65, 1.0),
        0.0,
        Bounds(0.02, 0.2, 0.45),
    ),
    "store away": Regime(
        "no sync is answered for a while",
        Bounds(0.05, 0.35, 1.0),
        0.25,
        Bounds(0.02, 0.15, 0.6),
    ),
    "nodes come and go": Regime(
        "nodes join, leave, crash and restart",
        Bounds(0.03, 0.3, 0.8),
        0.01,
        Bounds(0.02, 0.15, 0.3),
    ),
    "late rewards": Regime(
        "rewards of a part of the passes, or later",
        Bounds(0.06, 0.3, 0.75),
        0.15,
        Bounds(0.02, 0.15, 0.3),
    ),
    "few syncs": Regime(
        "a period of less than ten syncs",
        Bounds(0.03, 0.55, 1.0),
        0.0,
        Bounds(0.02, 0.25, 0.6),
    ),
    "thin": Regime(
        "the target allows less than two requests per node and sync",
        Bounds(0.01, 0.2, 0.65),
        0.0,
        Bounds(0.01, 0.1, 0.35),
    ),
    "scarce": Regime(
        "less than 1.2 times what the target needs",
        Bounds(0.01, 0.25, 0.6),
        0.0,
        Bounds(0.01, 0.08, 0.2),
    ),
    "bursty": Regime(
        "on and off",
        Bounds(0.02, 0.12, 0.25),
        0.0,
        Bounds(0.02, 0.1, 0.25),
    ),
    "moving": Regime(
        "traffic moves between nodes",
        Bounds(0.06, 0.3, 0.4),
        0.0,
        Bounds(0.02, 0.1, 0.2),
    ),
    "skewed": Regime(
        "unequal nodes",
        Bounds(0.005, 0.03, 0.05),
        0.0,
        Bounds(0.005, 0.02, 0.05),
    ),
    "even": Regime(
        "all nodes alike",
        Bounds(0.005, 0.03, 0.06),
        0.0,
        Bounds(0.005, 0.02, 0.05),
    ),
}


@dataclass(slots=True, frozen=True)
class Facts:
    """What was drawn. Times are seconds."""

    seed: int
    regime: str
    nodes: int
    target: float
    period: float
    start: float  # place in the period at which the run begins
    seconds: float
    sync_interval: float
    load: float
    shape: str
    unit: float  # cost of a request
    per_node_sync: float  # requests that the target allows for each node until its next sync
    conversion: float
    reward_delay: float
    round_trip: float
    loss: float
    outage: float  # seconds
    events: int
    skew: float

    @property
    def most_over(self) -> float:
        """What may pass over the target, by the regime and by what else is amiss."""
        amiss = {
            "late rewards": self.conversion < 1.0 or self.reward_delay > 0.0,
            "store away": self.outage > 0.0,
            "nodes come and go": self.events > 0,
        }
        regimes = [self.regime, *(name for name, applies in amiss.items() if applies)]
        return max(REGIMES[name].over for name in regimes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.regime}: {self.nodes} nodes, target {self.target:g} per {self.period:g} s, "
            f"load {self.load:g}, {self.shape}, sync every {self.sync_interval:g} s, "
            f"{self.per_node_sync:.3g} passes per node and sync by the target\n"
            f"requests of {self.unit:g}, conversion {self.conversion:g} after "
            f"{self.reward_delay:g} s, round trip {1000 * self.round_trip:.3g} ms, "
            f"loss {self.loss:g}, store away {self.outage:g} s, {self.events} events, "
            f"clocks off by {self.skew:g} s\n"
            f"{self.seconds:g} s from {self.start:g} s after the begin of a period"
        )


@dataclass(slots=True, frozen=True)
class RandomCluster:
    """A cluster that was drawn: its facts, and the scenario as text and as it was read."""

    facts: Facts
    text: str
    scenario: PacingScenario


def draw(seed: int) -> RandomCluster:
    """The cluster of a number."""
    rng = random.Random(f"pacing cluster {seed}")
    nodes = _whole(rng, 1, 50)
    target = float(_whole(rng, 1, 1_000_000))
    sync = _round(_log_uniform(rng, 0.5, 10.0))
    load = _round(_log_uniform(rng, 0.3, 20.0))
    shape = rng.choices(list(_SHAPES), list(_SHAPES.values()))[0]
    conversion, delay, is_random = _draw_rewards(rng)
    syncs = min(max(_NODE_SYNCS / nodes, _LEAST_SYNCS), _MOST_SYNCS)
    if rng.random() < 0.05:
        syncs *= _LONG_RUN
    period = _round(_log_uniform(rng, 10.0, 86_400.0))
    period, start, seconds = _place(period, syncs * sync, target * min(load, 1.0))
    delay = min(delay, _round(0.4 * min(period, seconds)))
    amount = load * target / conversion * seconds / period
    unit = float(math.ceil(amount / (_MANY_REQUESTS if rng.random() < 0.2 else _REQUESTS)))
    unit = min(unit, target)
    per_node_sync = target / conversion * sync / period / nodes / unit
    round_trip = _round(rng.uniform(0.0, 0.2)) if rng.random() < 0.5 else 0.004
    loss = _round(rng.uniform(0.005, 0.05)) if rng.random() < 0.2 else 0.0
    skew = _round(rng.uniform(0.1, 5.0)) if rng.random() < 0.3 else 0.0
    outage = _round(rng.uniform(2.0 * sync, 0.25 * seconds)) if rng.random() < 0.1 else 0.0
    events = rng.randint(1, 3) if rng.random() < 0.15 else 0
    lines = [
        f"nodes = {nodes}",
        f"start = {start:g}",
        f"seconds = {seconds:g}",
        f"reached = {start / period!r}",
        f"warm_up = {1 if start == 0.0 else 0}",
        "[pacing]",
        f"target = {target:.0f}",
        f"period = {period:g}",
        f"sync_interval = {sync:g}",
    ]
    if conversion < 1.0 or delay:
        lines += [f"reward_within = {_round(1.2 * delay + 1.0):g}", f"reward_rate = {conversion:g}"]
        lines += ["[rewards]", f"conversion = {conversion:g}", f"delay = {delay:g}"]
        lines.append(f"random = {'true' if is_random else 'false'}")
    lines += ["[traffic]", f"load = {load:g}", f"unit = {unit:g}"]
    lines += _shape_lines(rng, shape, nodes, sync)
    lines += ["[store]", f"delay = {0.4 * round_trip:g}", f"jitter = {0.1 * round_trip:g}"]
    lines += [f"loss = {loss:g}", "[clocks]", f"skew = {skew:g}"]
    if outage:
        at = rng.uniform(0.3 * seconds, 0.6 * seconds)
        lines += ["[[outage]]", f"at = {_round(at):g}", f"seconds = {outage:g}"]
    lines += _event_lines(rng, events, nodes, seconds)
    facts = Facts(
        seed,
        "",
        nodes,
        target,
        period,
        start,
        seconds,
        sync,
        load,
        shape,
        unit,
        per_node_sync,
        conversion,
        delay,
        round_trip,
        loss,
        outage,
        events,
        skew,
    )
    regime = _regime(facts)
    head = [f'title = "Pacing: random cluster {seed}"', f'about = "{regime}: drawn at random."']
    text = "\n".join([*head, *lines]) + "\n"
    scenario = read(text, file="pacing-random", name="pacing-random")
    return RandomCluster(_with_regime(facts, regime), text, scenario)


def _draw_rewards(rng: random.Random) -> tuple[float, float, bool]:
    """Conversion, delay, and whether it is by chance."""
    if rng.random() < 0.8:
        return 1.0, 0.0, False
    conversion = _round(_log_uniform(rng, 0.02, 1.0))
    delay = _round(rng.uniform(0.0, 60.0)) if rng.random() < 0.7 else 0.0
    return conversion, delay, rng.random() < 0.5


def _place(period: float, seconds: float, amount: float) -> tuple[float, float, float]:
    """The period, where in it the run begins, and how long it takes.

    `amount`: what may pass in a period.
    """
    if amount * seconds / period < _LEAST_PASSES:
        period = min(period, max(_round(seconds / 3.0), _LEAST_PERIOD))
        seconds = max(seconds, 2.0 * period)
    if seconds >= 2.0 * period:
        return period, 0.0, period * min(_MOST_PERIODS, math.floor(seconds / period))
    if seconds > period:
        return period, 0.0, 2.0 * period
    seconds = _round(seconds)
    return period, _round(period - 0.6 * seconds), seconds


def _shape_lines(rng: random.Random, shape: str, nodes: int, sync: float) -> list[str]:
    lines = [f'shape = "{shape}"', f'arrival = "{rng.choice(["poisson", "even"])}"']
    if shape == "skewed":
        lines.append(f"skew = {_round(rng.uniform(0.5, 2.0)):g}")
    elif shape == "moving":
        lines.append(f"stay = {_round(sync * _log_uniform(rng, 2.0, 20.0)):g}")
        lines.append(f"busy = {rng.randint(1, max(1, nodes // 2))}")
    elif shape == "bursty":
        on, off = (_round(_log_uniform(rng, 0.5, 20.0)) for _ in range(2))
        lines.append(f"cycle = [{on:g}, {min(off, 3.0 * on):g}]")
    return lines


def _event_lines(rng: random.Random, count: int, nodes: int, seconds: float) -> list[str]:
    lines = []
    for _ in range(count):
        what = rng.choice(["join", "leave", "crash", "restart"] if nodes > 3 else ["join"])
        lines += ["[[event]]", f"at = {_round(rng.uniform(0.1, 0.8) * seconds):g}"]
        lines.append(f'what = "{what}"')
        if what != "join":
            lines.append(f"node = {rng.randint(1, nodes)}")
    return lines


def _regime(facts: Facts) -> str:
    is_estimated = facts.conversion < 1.0 or facts.reward_delay > 0.0
    few = facts.target / facts.unit < 200.0 or facts.period < 20.0 * facts.sync_interval
    fits = {
        "few rewards": is_estimated and few,
        "rare": facts.per_node_sync * facts.load < 1.0,
        "store away": facts.outage > 0.0,
        "nodes come and go": facts.events > 0,
        "late rewards": is_estimated,
        "few syncs": facts.period < 10.0 * facts.sync_interval,
        "thin": facts.per_node_sync < 2.0,
        "scarce": facts.load < 1.2,
    }
    return next((name for name, is_so in fits.items() if is_so), facts.shape)


def _with_regime(facts: Facts, regime: str) -> Facts:
    return Facts(**{**asdict(facts), "regime": regime})


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _whole(rng: random.Random, least: int, most: int) -> int:
    return min(most, max(least, round(_log_uniform(rng, least, most))))


def _round(value: float) -> float:
    """To three digits, as a person would write it."""
    return float(f"{value:.3g}")
