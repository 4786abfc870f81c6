"""Picking a server: the time of a pick, and how evenly keys are spread, beside uhashring."""

import math
import random
from collections import Counter
from collections.abc import Callable

from uhashring import HashRing

from benchmarks.harness import ROUNDS, Row, compare
from benchmarks.rows import call, empty, faster, slower
from sluicegate.balance import POLICIES, ConsistentHash, RoundRobin, make
from sluicegate.sim.balance import BalanceScenario, run

NOTES = (
    f"Times are of the thread, per call, the best of {ROUNDS} rounds in turns, with the loop "
    "around them (as in timeit)."
)
KEYS = 200_000


def rows() -> list[Row]:
    return [*picks(), *calls(), *beside_peers(), *shares(), *tails()]


def servers(count: int) -> list[str]:
    return [f"10.0.0.{number}:8000" for number in range(count)]


def picks() -> list[Row]:
    rows = []
    for name, policy in POLICIES.items():
        for count in (10, 100):
            times = compare(
                ours=call("pick(key)", pick=make(name, servers(count)).pick), empty=empty()
            )
            what = f"{policy.__name__}.pick(key), {count} servers"
            rows.append(slower(what, times, "empty", 5.0, "empty method"))
    return rows


def calls() -> list[Row]:
    """A pick, the count of the call, and its outcome."""
    times = compare(
        ours=call("with use(): pass", use=make("least_active", servers(10)).use), empty=empty()
    )
    what = "with LeastActive.use(): pass, 10 servers"
    return [slower(what, times, "empty", None, "empty method")]


def beside_peers() -> list[Row]:
    names = servers(100)
    hashing = compare(
        ours=call("pick(key)", pick=ConsistentHash(names).pick),
        uhashring=call("get_node(key)", get_node=HashRing(names).get_node),
    )
    weights = [1 + number % 7 for number in range(100)]
    choice = compare(
        ours=call("pick()", pick=make("weighted_random", names).pick),
        random=call(
            "choices(names, cum_weights=weights)[0]",
            choices=random.Random(1).choices,
            names=names,
            weights=[sum(weights[: place + 1]) for place in range(100)],
        ),
    )
    turns = compare(
        ours=call("pick()", pick=RoundRobin(names).pick),
        naive=call("pick()", pick=naive_round_robin(names)),
    )
    return [
        faster("ConsistentHash.pick(key), 100 servers", hashing, "uhashring", None, "uhashring"),
        faster("WeightedRandom.pick(), 100 servers", choice, "random", None, "random.choices"),
        faster("RoundRobin.pick(), 100 servers", turns, "naive", None, "nginx's rule in Python"),
    ]


def naive_round_robin(names: list[str]) -> Callable[[], str]:
    """nginx's smooth weighted round robin, as it is often written in Python, without a lock."""
    current = dict.fromkeys(names, 0)

    def pick() -> str:
        for name in current:
            current[name] += 1
        best = max(current, key=current.__getitem__)
        current[best] -= len(current)
        return best

    return pick


def shares() -> list[Row]:
    """How even 100 servers are, and how many keys move when one goes."""
    names, gone = servers(100), servers(100)[50]
    ours, peer = ConsistentHash(names), HashRing(names)
    keys = [f"user:{number}" for number in range(KEYS)]
    our_owners = [ours.pick(key).address for key in keys]
    peer_owners = [peer.get_node(key) for key in keys]
    ours.remove(gone)
    peer.remove_node(gone)
    our_moved = sum(
        ours.pick(key).address != owner for key, owner in zip(keys, our_owners, strict=True)
    )
    peer_moved = sum(
        peer.get_node(key) != owner for key, owner in zip(keys, peer_owners, strict=True)
    )
    mean = KEYS / len(names)
    our_largest = max(Counter(our_owners).values()) / mean
    peer_largest = max(Counter(peer_owners).values()) / mean
    return [
        Row(
            "ConsistentHash, 100 servers: largest load over the mean",
            f"{our_largest:.3f}",
            f"{peer_largest:.3f} (uhashring)",
            our_largest,
            f"{our_largest:.3f}",
            "<= 1.10",
            our_largest <= 1.10,
        ),
        Row(
            "ConsistentHash, one of 100 servers goes: keys that move",
            f"{our_moved / KEYS:.2%}",
            f"{peer_moved / KEYS:.2%} (uhashring)",
            our_moved / KEYS,
            f"{our_moved / KEYS:.2%}",
            "<= 1.3 %",
            our_moved / KEYS <= 0.013,
        ),
    ]


def tails() -> list[Row]:
    """One of ten servers is ten times slower, in virtual time."""
    rows = []
    for clients in (1, 10, 100):
        scenario = BalanceScenario(slow=1, clients=clients)
        in_turn = run(scenario, "round_robin").p99 or 0.0
        for policy in ("least_active", "peak_ewma"):
            p99 = run(scenario, policy).p99 or math.inf
            rows.append(
                Row(
                    f"{POLICIES[policy].__name__}, one of 10 servers 10 x slower, "
                    f"{clients} client{'s' if clients > 1 else ''}: p99",
                    f"{p99:.2f} s",
                    f"{in_turn:.0f} s (RoundRobin)",
                    p99 / in_turn,
                    f"{p99 / in_turn:.3f} x",
                    "<= 0.3 x",
                    p99 <= 0.3 * in_turn,
                )
            )
    return rows
