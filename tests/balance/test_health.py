"""A server is left out, and comes back: ejection, slow start, panic."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock
from sluicegate.balance import POLICIES, Balancer, Health, RoundRobin, Server, make


def fail(balancer: Balancer, server: str, times: int = 1) -> None:
    """Failed calls to one server."""
    others = [one for one in balancer.servers if one.address != server]
    for _ in range(times):
        call = balancer.use("key", avoid=others)
        assert call.server.address == server
        call.end(failed=True)


def succeed(balancer: Balancer, server: str) -> None:
    balancer.use("key", avoid=[one for one in balancer.servers if one.address != server]).end()


def states(balancer: Balancer) -> list[str]:
    return [one.state for one in balancer.status()]


def usable(balancer: Balancer) -> str:
    return "".join(one.server.address for one in balancer.status() if one.is_usable)


def shares(balancer: Balancer, picks: int) -> dict[str, float]:
    counts = Counter(balancer.pick(key).address for key in range(picks))
    return {address: count / picks for address, count in sorted(counts.items())}


@pytest.mark.parametrize("policy", POLICIES)
def test_consecutive_failures_eject_a_server_and_one_success_forgives_them(
    policy: str, clock: ManualClock
) -> None:
    balancer = make(policy, ["a", "b", "c"], health=Health(max_failures=3), clock=clock)
    fail(balancer, "b", 2)
    succeed(balancer, "b")
    fail(balancer, "b", 2)
    assert states(balancer) == ["up", "up", "up"]
    fail(balancer, "b")
    assert states(balancer) == ["up", "ejected", "up"]
    assert balancer.status()[1].ejected_for == pytest.approx(10.0)
    clock.advance(9.99)
    assert set(shares(balancer, 200)) == {"a", "c"}
    clock.advance(0.02)
    assert usable(balancer) == "abc"


def test_each_further_ejection_is_twice_as_long_up_to_the_longest(clock: ManualClock) -> None:
    health = Health(max_failures=2, eject_seconds=10, max_eject_seconds=60, slow_start=0)
    balancer = RoundRobin(["a", "b", "c"], health=health, clock=clock)
    fail(balancer, "a", 2)
    for seconds in (10, 20, 40, 60, 60):
        assert balancer.status()[0].ejected_for == pytest.approx(seconds)
        clock.advance(seconds)
        assert states(balancer)[0] == "up"
        fail(balancer, "a")  # on probation: one is enough
        assert states(balancer)[0] == "ejected"


def test_ejections_are_forgotten_when_a_server_was_well_for_as_long_as_it_was_out(
    clock: ManualClock,
) -> None:
    health = Health(max_failures=2, eject_seconds=10, slow_start=0)
    balancer = RoundRobin(["a", "b", "c"], health=health, clock=clock)
    fail(balancer, "a", 2)
    clock.advance(10)
    fail(balancer, "a")
    assert balancer.status()[0].ejected_for == pytest.approx(20.0)
    clock.advance(40)  # 20 out, 20 back
    succeed(balancer, "a")
    fail(balancer, "a")
    assert states(balancer)[0] == "up"
    fail(balancer, "a")
    assert balancer.status()[0].ejected_for == pytest.approx(10.0)


def test_failures_of_calls_that_began_before_the_ejection_count_for_nothing(
    clock: ManualClock,
) -> None:
    balancer = RoundRobin(["a", "b", "c"], health=Health(max_failures=2), clock=clock)
    early = [balancer.use(avoid=["b", "c"]) for _ in range(9)]
    for call in early:
        call.end(failed=True)
    assert balancer.status()[0].ejected_for == pytest.approx(10.0)
    assert balancer.status()[0].failures == 2


def test_late_outcomes_of_calls_from_before_an_ejection_say_nothing_of_the_server_since(
    clock: ManualClock,
) -> None:
    health = Health(max_failures=2, eject_seconds=10)
    balancer = RoundRobin(["a", "b", "c"], health=health, clock=clock)
    early = [balancer.use(avoid=["b", "c"]) for _ in range(9)]
    fail(balancer, "a", 2)
    clock.advance(10)
    early.pop().end(failed=False)  # no success, either: it is still on probation
    for call in early:
        call.end(failed=True)
    assert states(balancer)[0] == "starting"
    fail(balancer, "a")
    assert balancer.status()[0].ejected_for == pytest.approx(20.0)


def test_with_0_failures_no_server_is_ever_ejected(clock: ManualClock) -> None:
    balancer = RoundRobin(["a", "b", "c"], health=Health(max_failures=0), clock=clock)
    fail(balancer, "a", 100)
    assert states(balancer) == ["up", "up", "up"]


def test_a_server_that_comes_back_starts_slowly(clock: ManualClock) -> None:
    balancer = RoundRobin(
        ["a", "b"], health=Health(max_failures=1, eject_seconds=5, slow_start=9), clock=clock
    )
    fail(balancer, "b")
    clock.advance(5)
    assert states(balancer) == ["up", "starting"]
    seen = []
    for _ in range(10):
        seen.append(shares(balancer, 1900)["b"])
        clock.advance(1)
    # A tenth of the weight more each second.
    assert seen == [pytest.approx(step / (10 + step), abs=0.01) for step in range(1, 11)]
    assert states(balancer) == ["up", "up"]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "consistent_hash"])
def test_all_policies_start_a_server_slowly(policy: str, clock: ManualClock) -> None:
    balancer = make(policy, ["a", "b"], health=Health(slow_start=9), clock=clock, seed=1)
    if policy == "peak_ewma":
        for server in "ab":
            call = balancer.use(avoid=["b" if server == "a" else "a"])
            call.end(latency=0.1)
    balancer.mark_unhealthy("b")
    assert shares(balancer, 50) == {"a": 1.0}
    balancer.mark_healthy("b")
    calls = [balancer.use() for _ in range(1100)]
    counts = Counter(call.server.address for call in calls)
    assert counts["b"] == pytest.approx(100, abs=35)
    clock.advance(9)
    for call in calls:
        call.end(failed=None)
    calls = [balancer.use() for _ in range(1000)]
    counts = Counter(call.server.address for call in calls)
    assert counts["b"] == pytest.approx(500, abs=80)


def test_who_marks_a_server_up_or_adds_it_gives_it_its_whole_share(clock: ManualClock) -> None:
    balancer = RoundRobin(["a", "b"], health=Health(slow_start=60), clock=clock)
    balancer.mark_down("a")
    balancer.mark_up("a")
    balancer.add("c")
    assert shares(balancer, 300) == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})


def test_marking_up_ends_an_ejection_and_what_a_check_has_found(clock: ManualClock) -> None:
    balancer = RoundRobin(["a", "b", "c"], health=Health(max_failures=2), clock=clock)
    fail(balancer, "a", 2)
    balancer.mark_unhealthy("a")
    balancer.mark_up("a")
    assert states(balancer)[0] == "up"
    fail(balancer, "a")
    assert states(balancer)[0] == "up"  # no probation either


def test_when_more_than_half_are_out_all_but_those_marked_down_are_used(
    clock: ManualClock,
) -> None:
    balancer = RoundRobin(list("abcde"), health=Health(max_failures=1), clock=clock)
    fail(balancer, "a")
    balancer.mark_unhealthy("b")
    assert usable(balancer) == "cde"
    balancer.mark_down("e")
    assert usable(balancer) == "cd"  # 2 of 4 are out: half, not more
    balancer.mark_unhealthy("c")
    assert usable(balancer) == "abcd"
    assert set(shares(balancer, 100)) == set("abcd")
    balancer.mark_healthy("c")
    assert usable(balancer) == "cd"
    clock.advance(10)
    assert usable(balancer) == "acd"


def test_a_server_that_is_alone_is_used_whatever_it_does(clock: ManualClock) -> None:
    balancer = RoundRobin(["a"], health=Health(max_failures=1), clock=clock)
    fail(balancer, "a", 5)
    assert states(balancer) == ["ejected"]
    assert usable(balancer) == "a"


def test_with_a_panic_of_1_only_the_last_servers_are_used_when_they_fail(
    clock: ManualClock,
) -> None:
    balancer = RoundRobin(list("abcd"), health=Health(panic=1.0), clock=clock)
    for server in "abc":
        balancer.mark_unhealthy(server)
    assert usable(balancer) == "d"


def test_a_clock_that_steps_back_brings_nobody_back_early(clock: ManualClock) -> None:
    clock.advance(1000)
    balancer = RoundRobin(["a", "b", "c"], health=Health(max_failures=1), clock=clock)
    fail(balancer, "a")
    clock.advance(-500)
    assert usable(balancer) == "bc"
    clock.advance(510)
    assert states(balancer)[0] == "starting"
    clock.advance(-5)
    assert shares(balancer, 2100)["a"] == pytest.approx(1 / 21, abs=0.01)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "ok", "unhealthy", "healthy", "time"]), st.integers(0, 4)
        ),
        max_size=60,
    )
)
def test_more_than_half_of_the_servers_are_always_used(acts: list[tuple[str, int]]) -> None:
    """Whatever fails: half of them are never out, or all are in."""
    clock = ManualClock()
    servers = [Server(name) for name in "abcde"]
    balancer = RoundRobin(servers, health=Health(max_failures=2), clock=clock)
    for act, number in acts:
        server = servers[number]
        if act == "time":
            clock.advance(4.0 * number)
        elif act == "unhealthy":
            balancer.mark_unhealthy(server)
        elif act == "healthy":
            balancer.mark_healthy(server)
        else:
            call = balancer.use(avoid=[one for one in servers if one is not server])
            call.end(failed=act == "fail")
        out = sum(one.state in ("unhealthy", "ejected") for one in balancer.status())
        assert len(usable(balancer)) == (5 if out > 2 else 5 - out)
