"""`ConsistentHash`: stable, even, moves few keys, and keeps its bound."""

import gc
import math
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.balance import Balancer, Call, ConsistentHash, Health, Server
from tests.balance.reference_ring import ReferenceRing

TEXT = 1  # the kind of a str among keys
METHODS = ["ring", "maglev"]


def addresses(count: int) -> list[str]:
    return [f"10.0.{number // 250}.{number % 250}:8000" for number in range(count)]


def owners(balancer: Balancer, keys: int) -> list[str]:
    return [balancer.pick(key).address for key in range(keys)]


def test_the_same_key_gets_the_same_server_in_every_process_and_version() -> None:
    """These are a promise: clients of two versions share their caches."""
    script = (
        "from sluicegate.balance import ConsistentHash as C\n"
        "keys = ['', 'a', 'user:1234', 'ünal', b'a', 0, -1, 2**70, ('a', 1), 'x' * 1000]\n"
        "for method in ('ring', 'maglev'):\n"
        "    c = C([f'10.0.0.{n}' for n in range(10)], method=method)\n"
        "    print(*(c.pick(key).address[-1] for key in keys))\n"
    )
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert run.stdout.splitlines() == ["1 5 0 1 4 2 4 7 5 8", "6 9 4 1 1 6 3 7 8 5"]


KEYS = st.text(max_size=40)
SERVERS = st.lists(
    st.builds(Server, st.sampled_from(addresses(12)), st.integers(1, 3)),
    min_size=1,
    max_size=8,
    unique_by=lambda server: server.address,
)


@given(SERVERS, st.lists(KEYS, min_size=1, max_size=30), st.data())
def test_the_ring_is_a_sorted_list_of_points(
    servers: list[Server], keys: list[str], data: st.DataObject
) -> None:
    balancer = ConsistentHash(servers, points=5)
    reference = ReferenceRing(servers, 5, TEXT)
    names = [server.address for server in servers]
    down = set(data.draw(st.lists(st.sampled_from(names), max_size=len(names) - 1)))
    usable = set(names) - down or {names[0]}
    for name in set(names) - usable:
        balancer.mark_down(name)
    for key in keys:
        assert balancer.pick(key).address == reference.pick(key, usable)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_in_which_servers_were_given_makes_no_difference(method: str) -> None:
    names = addresses(20)
    shuffled = random.Random(1).sample(names, len(names))
    grown = ConsistentHash(shuffled[:5], method=method)
    for name in shuffled[5:]:
        grown.add(name)
    grown.add("more")
    grown.remove("more")
    assert owners(ConsistentHash(names, method=method), 3000) == owners(grown, 3000)


@pytest.mark.parametrize(
    ("method", "count", "most", "least"),
    [
        ("ring", 10, 1.10, 0.90),
        ("ring", 100, 1.10, 0.90),
        ("ring", 1000, 1.12, 0.88),
        ("maglev", 10, 1.03, 0.97),
        ("maglev", 100, 1.05, 0.95),
    ],
)
def test_loads_are_even(method: str, count: int, most: float, least: float) -> None:
    """The most and the least loaded, over the mean. Chance alone is 1 / sqrt(keys of each)."""
    balancer = ConsistentHash(addresses(count), method=method)
    keys = 10_000 * count if count < 1000 else 1_000_000
    loads = Counter(balancer.pick(key).address for key in range(keys))
    chance = 4 / math.sqrt(keys / count) if count == 1000 else 0.0
    assert max(loads.values()) * count / keys <= most + chance
    assert min(loads.values()) * count / keys >= least - chance


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_a_server_that_goes_moves_its_own_keys_alone(count: int) -> None:
    balancer = ConsistentHash(addresses(count))
    gone = addresses(count)[3]
    before = owners(balancer, 50_000)
    balancer.remove(gone)
    after = owners(balancer, 50_000)
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {gone}
    assert len(moved) <= 1.3 * 50_000 / count
    balancer.add(gone)
    assert owners(balancer, 50_000) == before


@pytest.mark.parametrize("count", [10, 100])
def test_with_maglev_few_other_keys_move(count: int) -> None:
    balancer = ConsistentHash(addresses(count), method="maglev")
    gone = addresses(count)[3]
    before = owners(balancer, 50_000)
    balancer.remove(gone)
    after = owners(balancer, 50_000)
    moved = Counter(old == gone for old, new in zip(before, after, strict=True) if old != new)
    assert moved[True] == before.count(gone)
    assert moved[False] <= 0.01 * 50_000


@pytest.mark.parametrize("method", METHODS)
def test_keys_of_a_server_that_is_down_are_spread_and_come_back(method: str) -> None:
    balancer = ConsistentHash(addresses(10), method=method, health=Health(slow_start=10.0))
    lost = addresses(10)[3]
    before = owners(balancer, 20_000)
    for leave, return_ in (
        (balancer.mark_down, balancer.mark_up),
        (balancer.mark_unhealthy, balancer.mark_healthy),
    ):
        leave(lost)
        after = owners(balancer, 20_000)
        moved = Counter(new for old, new in zip(before, after, strict=True) if old == lost)
        assert [new for old, new in zip(before, after, strict=True) if old != lost] == [
            old for old in before if old != lost
        ]
        assert len(moved) == 9
        assert max(moved.values()) <= 2 * min(moved.values())
        return_(lost)
        assert owners(balancer, 20_000) == before  # at once: moving twice would cost twice


@pytest.mark.parametrize("method", METHODS)
def test_a_server_of_three_times_the_weight_has_three_times_the_keys(method: str) -> None:
    servers = [Server(name, 3 if number == 0 else 1) for number, name in enumerate(addresses(10))]
    balancer = ConsistentHash(servers, method=method)
    loads = Counter(owners(balancer, 100_000))
    assert loads[servers[0].address] == pytest.approx(25_000, rel=0.07)
    balancer.set_weight(servers[0], 1)
    assert owners(balancer, 20_000) == owners(ConsistentHash(addresses(10), method=method), 20_000)


@given(
    st.integers(2, 12),
    st.sampled_from([1.0, 1.1, 1.25, 2.0]),
    st.sampled_from(METHODS),
    st.lists(st.integers(0, 3) | st.integers(0, 1000), min_size=1, max_size=120),
    st.randoms(use_true_random=False),
)
def test_no_server_has_more_calls_than_its_bound(
    count: int, bound: float, method: str, keys: list[int], chance: random.Random
) -> None:
    """However uneven the keys, and whatever ends when."""
    balancer = ConsistentHash(addresses(count), bound=bound, method=method, points=20)
    calls: list[Call] = []
    for key in keys:
        call = balancer.use(key)
        calls.append(call)
        active = {one.server.address: one.active for one in balancer.status()}
        assert active[call.server.address] <= math.ceil(bound * len(calls) / count)
        while calls and chance.random() < 0.4:
            calls.pop(chance.randrange(len(calls))).end()


def test_within_the_bound_a_key_stays_and_beyond_it_goes_to_the_next() -> None:
    balancer = ConsistentHash(addresses(5), bound=1.25)
    home = balancer.pick("hot").address
    calls = [balancer.use("hot") for _ in range(20)]
    went = [call.server.address for call in calls]
    assert went[0] == home
    assert Counter(went)[home] == 5  # a quarter more than a fifth of 20
    for call in calls:
        call.end()
    assert balancer.pick("hot").address == home


def test_a_call_that_avoids_servers_takes_the_next_on_the_ring() -> None:
    balancer = ConsistentHash(addresses(5))
    home = balancer.pick("key")
    with balancer.use("key", avoid=[home]) as second:
        assert second != home
    balancer.mark_down(home)
    assert balancer.pick("key") == second
    with balancer.use("key", avoid=balancer.servers) as any_server:
        assert any_server == second  # there is no other


def test_a_second_try_goes_beyond_the_bound_rather_than_to_the_same_server() -> None:
    balancer = ConsistentHash(["a", "b"], bound=1.0)
    key = next(key for key in range(99) if balancer.pick(key).address == "a")
    first, busy = balancer.use(key), balancer.use(key, avoid=["a"])
    first.end(failed=True)
    assert balancer.use(key, avoid=["a"]).server == busy.server == Server("b")


def test_code_that_the_collector_runs_may_change_the_servers() -> None:
    """Whoever changes them last, the ring is that of the servers there are."""
    balancer = ConsistentHash(addresses(5), points=50)
    late: list[str] = []

    def collected(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and len(late) < 40:
            late.append(f"late-{len(late)}")
            balancer.add(late[-1])
            balancer.pick("key")

    threshold = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        for number in range(40):
            balancer.add(f"new-{number}")
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert late
    fresh = ConsistentHash(balancer.servers, points=50)
    assert owners(balancer, 2000) == owners(fresh, 2000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rendezvous"}, "method must be 'ring' or 'maglev', got 'rendezvous'"),
        ({"bound": 0.9}, "bound must be from 1 to 1000, got 0.9"),
        ({"points": 0}, "points must be from 1 to 2.53, got 0"),
        ({"points": 2**24}, "ring would have more than 33,554,432 points"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConsistentHash(addresses(5), **options)  # type: ignore[arg-type]


def test_a_key_must_be_given_and_be_one_that_means_the_same_everywhere() -> None:
    balancer = ConsistentHash(["a", "b"])
    with pytest.raises(TypeError, match="ConsistentHash needs a key"):
        balancer.pick()
    with pytest.raises(TypeError, match="key must be a str, bytes, int or a tuple of these"):
        balancer.use(1.5)
    assert balancer.status()[0].active == balancer.status()[1].active == 0


def test_a_change_that_cannot_be_made_changes_nothing() -> None:
    balancer = ConsistentHash([Server("a"), Server("b")])
    before = owners(balancer, 100)
    with pytest.raises(ValueError, match="smaller weights"):
        balancer.set_weight("a", 1_000_000)
    with pytest.raises(ValueError, match="smaller weights"):
        balancer.add(Server("c", 1_000_000))
    assert balancer.servers == [Server("a"), Server("b")]
    assert owners(balancer, 100) == before
    assert "c" not in balancer
