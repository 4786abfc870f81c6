"""Random clusters whose user sends requests of several costs.

`draw_mixed(seed)` is the cluster that `draw(seed)` gives, with its traffic cut into two or three
classes. The rate of all requests and what they cost in the mean stay, so the load does too:

    parts        the cheapest class has half to 95 of 100 requests, another one the rest, evenly
    ratio        a class costs 2 to 1,000 times as much as the one before it, log-uniform; a request
                 of the most expensive class takes at most four fifths of the bucket
    known costs  in three quarters of the clusters callers tell what a request costs; in the others
                 the classes run for the time of the cluster's requests, or a millisecond, and nodes
                 go by the mean

Numbers are drawn from a stream of their own: the clusters of `draw` do not change.
"""

import math
import random
from dataclasses import replace

from sluicegate.sim.random_clusters import Cluster, draw
from sluicegate.sim.scenario import Scenario
from sluicegate.sim.traffic import Cost, Rate, Traffic

__all__ = ["draw_mixed"]

_MOST_OF_BUCKET = 0.8
_SHORT_SECONDS = 0.001


def draw_mixed(seed: int) -> Cluster:
    """The cluster of this number, with requests of several costs."""
    cluster = draw(seed)
    rng = random.Random(f"mixed costs {seed}")
    facts, traffic = cluster.facts, cluster.scenario.traffic[0]
    parts = _parts(rng)
    ratios = _ratios(rng, len(parts))
    knows_costs = rng.random() < 0.75
    ratios = _bounded(ratios, parts, _MOST_OF_BUCKET * facts.limit * facts.burst)
    mean = sum(part * ratio for part, ratio in zip(parts, ratios, strict=True))
    duration = 0.0 if knows_costs else max(traffic.duration, _SHORT_SECONDS)
    classes = tuple(
        _class(traffic, part, ratio / mean, duration)
        for part, ratio in zip(parts, ratios, strict=True)
    )
    scenario: Scenario = replace(cluster.scenario, traffic=classes)
    facts = replace(facts, tail=None, duration=duration, together=classes[0].together)
    return Cluster(facts, cluster.text, scenario)


def _parts(rng: random.Random) -> list[float]:
    cheap = rng.uniform(0.5, 0.95)
    others = rng.choice((1, 2))
    return [cheap] + [(1.0 - cheap) / others] * others


def _ratios(rng: random.Random, count: int) -> list[float]:
    ratios = [1.0]
    for _ in range(count - 1):
        ratios.append(ratios[-1] * math.exp(rng.uniform(math.log(2.0), math.log(1000.0))))
    return ratios


def _bounded(ratios: list[float], parts: list[float], most: float) -> list[float]:
    """Bring the ratios together until the largest is at most `most` times the mean cost."""
    for _ in range(60):
        mean = sum(part * ratio for part, ratio in zip(parts, ratios, strict=True))
        if ratios[-1] <= most * mean:
            break
        ratios = [ratio**0.8 for ratio in ratios]
    return ratios


def _class(traffic: Traffic, part: float, scale: float, duration: float) -> Traffic:
    points = tuple((time, rate * part) for time, rate in traffic.rate.points)
    return replace(
        traffic,
        rate=Rate(points, traffic.rate.ramp, traffic.rate.cycle),
        cost={name: Cost(cost.mean * scale) for name, cost in traffic.cost.items()},
        duration=duration,
        together=1 if duration else max(1, int(traffic.together * part)),
    )
