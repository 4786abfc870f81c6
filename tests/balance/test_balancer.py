"""What all policies share: servers that come and go, calls and their outcomes, threads."""

import asyncio
import copy
import functools
import gc
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock, Unavailable
from sluicegate.balance import (
    POLICIES,
    Balancer,
    Call,
    Health,
    LeastActive,
    NoServers,
    RoundRobin,
    Server,
    make,
)
from tests.harness.children import Children
from tests.harness.threads import run_in_threads

every_policy = pytest.mark.parametrize("policy", POLICIES)


@every_policy
def test_an_empty_set_and_one_that_is_all_down_raise_at_once(policy: str) -> None:
    balancer = make(policy)
    with pytest.raises(NoServers, match="the balancer has none"):
        balancer.pick("key")
    balancer.add("a")
    balancer.add("b")
    assert balancer.pick("key").address in "ab"
    balancer.mark_down("a")
    balancer.mark_down("b")
    for ask in (balancer.pick, balancer.use):
        with pytest.raises(NoServers, match="all 2 are marked down") as caught:
            ask("key")
        assert isinstance(caught.value, Unavailable)
    balancer.mark_up("b")
    assert balancer.pick("key") == Server("b")
    balancer.remove("b")
    with pytest.raises(NoServers, match="all 1 are marked down"):
        balancer.pick("key")


@every_policy
def test_servers_come_and_go(policy: str) -> None:
    balancer = make(policy, ["a", Server("b", 2)])
    balancer.add(Server("c", 3))
    assert balancer.servers == [Server("a"), Server("b", 2), Server("c", 3)]
    assert len(balancer) == 3
    assert "a" in balancer
    assert Server("c") in balancer
    assert 7 not in balancer
    balancer.remove("a")
    assert {balancer.pick(key).address for key in range(200)} == {"b", "c"}
    assert repr(balancer) == f"{type(balancer).__name__}(2 servers, 2 usable, 0 calls)"


@every_policy
def test_shares_follow_the_weights(policy: str) -> None:
    balancer = make(policy, [Server("a", 3), Server("b", 1)], seed=1)
    held = [balancer.use(key) for key in range(4000)]
    counts = Counter(call.server.address for call in held)
    if policy == "peak_ewma":  # nothing has ended, so it knows no times, and spreads the calls
        assert counts["a"] > counts["b"]
    else:
        assert counts["a"] == pytest.approx(3000, rel=0.06)


@every_policy
def test_calls_are_counted_until_they_end(policy: str) -> None:
    balancer = make(policy, ["a"])
    with balancer.use("key") as server:
        assert server == Server("a")
        assert balancer.status()[0].active == 1
    assert balancer.status()[0].active == 0
    call = balancer.use("key")
    call.end()
    call.end()
    assert balancer.status()[0].active == 0
    assert repr(call) == "Call(Server(address='a', weight=1), ended)"
    forgotten = balancer.use("key")
    assert balancer.status()[0].active == 1
    del forgotten
    gc.collect()
    status = balancer.status()[0]
    assert (status.active, status.picked, status.failures) == (0, 3, 0)


@every_policy
def test_looking_at_the_status_changes_no_pick(policy: str) -> None:
    servers = [Server("a", 5), Server("b"), Server("c")]
    plain, watched = (make(policy, servers, seed=1) for _ in range(2))
    for key in range(70):
        assert plain.pick(key) == watched.pick(key)
        watched.status()


@every_policy
def test_a_server_that_is_removed_may_end_its_calls(policy: str) -> None:
    balancer = make(policy, ["a", "b"])
    calls = [balancer.use(key) for key in range(10)]
    balancer.remove("a")
    for call in calls:
        call.report(3.0)
        call.end(failed=True)
    assert balancer.status()[0].active == 0
    balancer.add("a")
    assert balancer.status()[1] == (Server("a"), "up", True, 0, 0, 0, 0.0, None, None)


def failures(balancer: Balancer) -> int:
    return balancer.status()[0].failures


def test_the_outcome_of_a_block_is_that_of_the_call() -> None:
    balancer = LeastActive(["a"])
    for error, expected in (
        (ValueError(), 1),
        (TimeoutError(), 2),
        (KeyboardInterrupt(), 2),  # says nothing of the server
        (asyncio.CancelledError(), 2),
    ):
        with pytest.raises(type(error)), balancer.use():
            raise error
        assert failures(balancer) == expected
    call = balancer.use()
    with call:
        call.fail()  # an answer that is an error, without an exception
    assert failures(balancer) == 3
    balancer.use().end(failed=None)
    assert failures(balancer) == 3
    balancer.use().end(failed=True)
    assert failures(balancer) == 4
    with balancer.use():
        pass
    assert failures(balancer) == 0


def test_tasks_use_it_with_async_with() -> None:
    balancer = RoundRobin(["a", "b"])

    async def call(fails: bool) -> str:
        async with balancer.use() as server:
            await asyncio.sleep(0)
            if fails:
                raise OSError
        return server.address

    async def main() -> list[str | BaseException]:
        return await asyncio.gather(call(False), call(True), call(False), return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first, type(second), third) == ("a", OSError, "a")
    assert [one.failures for one in balancer.status()] == [0, 1]


@every_policy
def test_a_second_try_avoids_the_servers_that_were_tried(policy: str) -> None:
    balancer = make(policy, ["a", "b", "c"])
    for first, second, third in ("abc", "bca", "cab"):
        assert balancer.use("key", avoid=[first, Server(second)]).server.address == third
    balancer.mark_down("c")
    assert balancer.use("key", avoid=["a", "c"]).server.address == "b"
    assert balancer.use("key", avoid=["a", "b"]).server.address in "ab"  # better than none


def test_among_the_others_a_second_try_takes_the_least_busy() -> None:
    balancer = RoundRobin(["a", "b", Server("c", 2)])
    calls = [balancer.use(avoid=["a"]) for _ in range(30)]
    counts = Counter(call.server.address for call in calls)
    assert counts == {"b": 10, "c": 20}


@every_policy
def test_threads_pick_and_use_while_servers_change(policy: str) -> None:
    balancer = make(policy, ["s0", "s1", "s2"], health=Health(max_failures=2, eject_seconds=0.001))
    problems: list[str] = []

    def work(seed: int) -> Callable[[], None]:
        chance = random.Random(seed)

        def use() -> None:
            for _ in range(300):
                with balancer.use(chance.randrange(1000)) as server:
                    if not server.address.startswith("s"):
                        problems.append(server.address)
                balancer.pick(chance.randrange(1000))
                balancer.use(chance.random().hex(), avoid=["s0"]).end(failed=chance.random() < 0.5)

        return use

    def change() -> None:
        for number in range(150):
            balancer.add(f"s{number + 3}")
            balancer.set_weight("s1", 1 + number % 3)
            balancer.mark_down(f"s{number + 3}")
            balancer.report("s1", number)
            balancer.status()
            balancer.mark_up(f"s{number + 3}")
            balancer.remove(f"s{number + 3}")

    run_in_threads([*(work(seed) for seed in range(4)), change])
    assert problems == []
    assert [one.active for one in balancer.status()] == [0, 0, 0]


@every_policy
@given(st.data())
def test_only_servers_that_are_there_and_up_are_picked(policy: str, data: st.DataObject) -> None:
    clock = ManualClock()
    balancer = make(policy, clock=clock, seed=1, health=Health(max_failures=2, panic=1.0))
    up: dict[str, bool] = {}
    names = [f"s{number}" for number in range(20)]
    for _ in range(data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["add", "remove", "down", "up", "weight", "fail", "time"]))
        name = data.draw(st.sampled_from(names))
        if act == "add" and name not in up:
            balancer.add(Server(name, data.draw(st.integers(1, 5))))
            up[name] = True
        elif act == "time":
            clock.advance(data.draw(st.floats(0, 30)))
        elif name not in up:
            continue
        elif act == "remove":
            balancer.remove(name)
            del up[name]
        elif act in ("down", "up"):
            (balancer.mark_down if act == "down" else balancer.mark_up)(name)
            up[name] = act == "up"
        elif act == "weight":
            balancer.set_weight(name, data.draw(st.integers(1, 5)))
        elif any(up.values()):
            balancer.use(name).end(failed=True)
        status = {one.server.address: one for one in balancer.status()}
        usable = {name for name, one in status.items() if one.is_usable}
        assert list(status) == [server.address for server in balancer.servers]
        assert usable <= {name for name, is_up in up.items() if is_up}
        assert bool(usable) == any(up.values())  # ejected servers are used if there is no other
        if usable:
            assert {balancer.pick(key).address for key in range(30)} <= usable


def test_a_forked_child_begins_without_the_calls_of_its_parent_and_picks_by_itself(
    children: Children, tmp_path: Path
) -> None:
    balancer = LeastActive([f"s{number}" for number in range(10)], seed=1)
    held = [balancer.use() for _ in range(5)]
    balancer.report("s0", 3)

    def picks() -> str:
        return "".join(balancer.pick().address for _ in range(50))

    def run_in_child(file: Path) -> None:
        assert sum(one.active for one in balancer.status()) == 0
        for call in held:
            call.end(failed=True)
        held.clear()
        assert sum(one.active for one in balancer.status()) == 0
        assert sum(one.failures for one in balancer.status()) == 0
        assert balancer.status()[0].load == 3.0
        file.write_text(picks())

    files = [tmp_path / "first", tmp_path / "second"]
    for file in files:
        children.start(functools.partial(run_in_child, file))
    children.join()
    assert len({*(file.read_text() for file in files), picks()}) == 3
    assert sum(one.active for one in balancer.status()) == 5


@pytest.mark.parametrize(
    ("address", "weight", "error", "message"),
    [
        ("", 1, ValueError, "address must not be empty"),
        (7, 1, TypeError, "address must be a str, got 7"),
        ("a", 0, ValueError, "weight must be from 1 to 1,000,000, got 0"),
        ("a", 1.5, TypeError, "weight must be an int, got 1.5"),
        ("a", 1_000_001, ValueError, "weight must be from 1 to 1,000,000, got 1000001"),
    ],
)
def test_a_wrong_server_is_refused(
    address: object, weight: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Server(address, weight)  # type: ignore[arg-type]


def test_wrong_arguments_are_refused_and_change_nothing() -> None:
    balancer = RoundRobin(["a"])
    for act, error, message in (
        (lambda: RoundRobin(["a", "a"]), ValueError, "different addresses"),
        (lambda: RoundRobin("abc"), TypeError, "must be a list, like .'abc'."),
        (lambda: RoundRobin([7]), TypeError, "must be a Server or an address, got 7"),  # type: ignore[list-item]
        (lambda: RoundRobin(["a"], health=5), TypeError, "health must be a Health, got 5"),  # type: ignore[arg-type]
        (lambda: RoundRobin(["a"], clock=5), TypeError, "clock must have a method now"),  # type: ignore[arg-type]
        (lambda: RoundRobin(["a"], seed=-1), ValueError, "seed must be from 0 to 2.53, got -1"),
        (lambda: RoundRobin(["a"], load_decay=0), ValueError, "load_decay must be"),
        (lambda: Balancer(["a"]), TypeError, "Balancer has no policy"),
        (lambda: make("fastest", ["a"]), ValueError, "one of weighted_random, round_robin"),
        (lambda: make(7, ["a"]), TypeError, "name must be a str, got 7"),  # type: ignore[arg-type]
        (lambda: balancer.use(avoid="a"), TypeError, "avoid must be a list, like .'a'."),
        (lambda: balancer.report("a", 1e300), ValueError, "load must be from 0 to 1,000,000"),
        (lambda: balancer.__init__(["a"]), RuntimeError, "is set up already"),  # type: ignore[misc]
        (lambda: Call(), TypeError, "a Call is made by the method use"),
        (lambda: copy.copy(balancer.use()), TypeError, "cannot be copied or pickled"),
        (lambda: Call.__new__(Call).server, AttributeError, "NoneType"),
        (lambda: Call.__new__(Call).end(), AttributeError, "NoneType"),
        (lambda: balancer.add("a"), ValueError, "server 'a' is there already"),
        (lambda: balancer.remove("b"), ValueError, "the balancer has no server 'b'"),
        (lambda: balancer.mark_down("b"), ValueError, "the balancer has no server 'b'"),
        (lambda: balancer.set_weight("a", 0), ValueError, "weight must be from 1"),
        (
            lambda: balancer.report("a", -1),
            ValueError,
            "load must be from 0 to 1,000,000 requests, got -1",
        ),
        (lambda: balancer.use().report(float("nan")), ValueError, "load must be from 0"),
        (lambda: balancer.use().end(latency=-1), ValueError, "latency must be finite seconds"),
        (lambda: Health(panic=2), ValueError, "panic must be from 0 to 1, got 2"),
        (
            lambda: Health(slow_start=-1),
            ValueError,
            "slow_start must be finite seconds >= 0, got -1",
        ),
        (lambda: Health(max_eject_seconds=1), ValueError, "at least eject_seconds"),
    ):
        with pytest.raises(error, match=message):
            act()
    assert balancer.servers == [Server("a")]
    assert balancer.status()[0].active == 0


def test_a_policy_is_found_however_its_name_is_written() -> None:
    for name in ("least_active", "LeastActive", "least-active", "LEASTACTIVE"):
        assert type(make(name, ["a"])) is LeastActive


def test_a_clock_that_tells_no_time_is_refused() -> None:
    class Broken:
        def now(self) -> float:
            return float("nan")

    with pytest.raises(ValueError, match="must return a finite time in seconds, got nan"):
        RoundRobin(["a"], clock=Broken())  # type: ignore[arg-type]
