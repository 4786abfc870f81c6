"""`LeastActive`, `LeastConnections` and `PeakEwma`: where the least is going on."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock
from sluicegate.balance import Balancer, Call, LeastActive, LeastConnections, PeakEwma, Server


def active(balancer: Balancer) -> dict[str, int]:
    return {one.server.address: one.active for one in balancer.status()}


@pytest.mark.parametrize("policy", [LeastActive, LeastConnections])
@given(st.data())
def test_the_least_busy_for_its_weight_is_picked(
    policy: type[Balancer], data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=16))
    servers = {f"s{number}": weight for number, weight in enumerate(weights)}
    balancer = policy([Server(name, weight) for name, weight in servers.items()])
    calls: list[Call] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if calls and data.draw(st.booleans()):
            calls.pop(data.draw(st.integers(0, len(calls) - 1))).end()
            continue
        busy = {name: Fraction(count, servers[name]) for name, count in active(balancer).items()}
        calls.append(balancer.use())
        assert busy[calls[-1].server.address] == min(busy.values())


def test_least_active_chooses_among_equals_at_random() -> None:
    balancer = LeastActive(["a", "b", "c", "d"], seed=1)
    counts = Counter(balancer.pick().address for _ in range(4000))
    assert all(count == pytest.approx(1000, abs=150) for count in counts.values())
    busy = balancer.use()
    others = Counter(balancer.pick().address for _ in range(3000))
    assert set(others) == set("abcd") - {busy.server.address}
    assert all(count == pytest.approx(1000, abs=150) for count in others.values())


@pytest.mark.parametrize("policy", [LeastActive, LeastConnections])
def test_idle_servers_are_picked_by_their_weights(policy: type[Balancer]) -> None:
    balancer = policy([Server("a", 3), Server("b", 1)], seed=1)
    counts = Counter(balancer.pick().address for _ in range(4000))
    assert counts["b"] == pytest.approx(1000, abs=120)


def test_least_connections_fills_what_has_become_free() -> None:
    balancer = LeastConnections([f"s{number}" for number in range(50)])
    connections = [balancer.use() for _ in range(100)]
    assert set(active(balancer).values()) == {2}
    connections[33].end()
    assert balancer.use().server == connections[33].server


def test_of_many_servers_the_better_of_two_is_taken() -> None:
    """Of 100, all but one busy, the idle one is one of the two in 2 of 100 picks."""
    balancer = LeastActive([f"s{number}" for number in range(100)], seed=2)
    calls = [balancer.use(avoid=["s0"]) for _ in range(99)]
    assert active(balancer)["s0"] == 0
    counts = Counter(balancer.pick().address for _ in range(10_000))
    assert counts["s0"] == pytest.approx(200, abs=60)
    assert len(calls) == 99


def test_the_better_of_two_keeps_the_longest_queue_short() -> None:
    """n calls to n servers: about ln ln n in the longest queue, where chance alone has ln n."""
    balancer = LeastActive([f"s{number}" for number in range(1000)], seed=3)
    calls = [balancer.use() for _ in range(1000)]
    assert max(active(balancer).values()) <= 4
    assert len(calls) == 1000


def test_a_reported_load_beats_what_this_client_sees() -> None:
    clock = ManualClock()
    balancer = LeastActive(["a", "b"], clock=clock, load_decay=5.0)
    mine = balancer.use(avoid=["b"])
    balancer.report("a", 1)
    balancer.report("b", 20)  # of other clients
    assert {balancer.pick().address for _ in range(20)} == {"a"}
    # What was sent since a report is added to it.
    more = [balancer.use(avoid=["b"]) for _ in range(25)]
    assert {balancer.pick().address for _ in range(20)} == {"b"}
    for call in more:
        call.end()
    assert {balancer.pick().address for _ in range(20)} == {"a"}
    clock.advance(60.0)  # the reports have faded: only the call to `a` counts
    assert [one.load for one in balancer.status()] == [1.0, 20.0]
    assert {balancer.pick().address for _ in range(20)} == {"b"}
    mine.end()


def test_a_load_that_comes_with_a_response_is_without_the_request_itself() -> None:
    balancer = LeastActive(["a", "b"], clock=ManualClock())
    mine = balancer.use(avoid=["b"])
    mine.report(3.0)
    other = balancer.use(avoid=["a"])
    other.report(3.0)
    other.end()
    assert {balancer.pick().address for _ in range(20)} == {"b"}  # at `a` it is one more
    mine.end()
    assert {balancer.pick().address for _ in range(20)} == {"a", "b"}
    mine.report(4.0)  # after the end: it was not in progress any more
    assert {balancer.pick().address for _ in range(20)} == {"b"}
    assert [one.load for one in balancer.status()] == [4.0, 3.0]


def test_a_load_fades_into_what_is_typical(clock: ManualClock) -> None:
    """A server that has not reported for long does not look idle beside those that do."""
    balancer = LeastActive(["silent", "quick"], clock=clock, load_decay=10.0)
    for _ in range(50):
        balancer.use(avoid=["quick"]).report(80.0)
    clock.advance(30.0)
    for _ in range(50):
        balancer.use(avoid=["silent"]).report(2.0)
    assert {balancer.pick().address for _ in range(20)} == {"quick"}


def latencies(balancer: PeakEwma) -> list[float | None]:
    return [one.latency for one in balancer.status()]


def call_of(balancer: Balancer, server: str, seconds: float, clock: ManualClock) -> None:
    others = [one for one in balancer.servers if one.address != server]
    call = balancer.use(avoid=others)
    assert call.server.address == server
    clock.advance(seconds)
    call.end()


def test_peak_ewma_believes_bad_news_at_once_and_good_news_slowly(clock: ManualClock) -> None:
    balancer = PeakEwma(["a", "b"], clock=clock, decay=10.0)
    call_of(balancer, "a", 0.1, clock)
    assert latencies(balancer) == [pytest.approx(0.1), None]
    call_of(balancer, "a", 2.0, clock)
    assert latencies(balancer)[0] == pytest.approx(2.0)
    for _ in range(5):
        call_of(balancer, "a", 1.0, clock)
        # Each second of calls of 1 s moves it a tenth of the way.
        expected = 1.0 + (latencies(balancer)[0] or 0.0) - 1.0
        assert latencies(balancer)[0] == pytest.approx(expected)
    assert latencies(balancer)[0] == pytest.approx(1.0 + math.exp(-0.5))


def test_peak_ewma_avoids_the_slow_and_the_busy(clock: ManualClock) -> None:
    balancer = PeakEwma(["quick", "slow"], clock=clock)
    call_of(balancer, "quick", 0.01, clock)
    call_of(balancer, "slow", 0.1, clock)
    calls = []
    for _ in range(8):
        calls.append(balancer.use())
        assert calls[-1].server.address == "quick"
    with_ten = [balancer.use() for _ in range(4)]
    assert {call.server.address for call in with_ten} == {"quick", "slow"}  # 10 x 0.01 = 1 x 0.1


def test_peak_ewma_tries_a_new_server_with_one_call(clock: ManualClock) -> None:
    balancer = PeakEwma(["a", "b"], clock=clock)
    call_of(balancer, "a", 0.01, clock)
    first = balancer.use()
    assert first.server.address == "b"
    assert {balancer.use().server.address for _ in range(5)} == {"a"}
    first.end()


def test_peak_ewma_tries_a_slow_server_again_after_a_while(clock: ManualClock) -> None:
    balancer = PeakEwma(["a", "b"], clock=clock, decay=10.0)
    call_of(balancer, "b", 1.0, clock)
    call_of(balancer, "a", 0.1, clock)
    began = clock.now()
    while balancer.pick().address == "a":
        call_of(balancer, "a", 0.1, clock)
        clock.advance(0.9)
    assert 15 < clock.now() - began < 45  # e^-2.3 is a tenth; `a` itself is measured each second


def test_quick_errors_do_not_make_a_server_look_quick(clock: ManualClock) -> None:
    balancer = PeakEwma(["a", "b"], clock=clock)
    call_of(balancer, "a", 0.1, clock)
    call_of(balancer, "b", 0.2, clock)
    for _ in range(3):
        balancer.use(avoid=["a"]).end(failed=True, latency=0.0001)
    assert latencies(balancer)[1] == pytest.approx(0.2)
    balancer.use(avoid=["a"]).end(failed=True, latency=3.0)  # slow errors do count
    assert latencies(balancer)[1] == pytest.approx(3.0)


def test_a_server_that_hangs_is_avoided_though_all_calls_to_it_are_given_up(
    clock: ManualClock,
) -> None:
    balancer = PeakEwma(["hanging", "good"], clock=clock, seed=1)
    counts = Counter[str]()
    for _ in range(300):
        call = balancer.use()
        counts[call.server.address] += 1
        hangs = call.server.address == "hanging"
        clock.advance(0.3 if hangs else 0.01)
        call.end(failed=None if hangs else False)
    assert counts["hanging"] <= 10


def test_a_stream_that_was_answered_does_not_count_as_slow(clock: ManualClock) -> None:
    balancer = PeakEwma(["a", "b"], clock=clock, seed=1)
    call_of(balancer, "a", 0.05, clock)
    call_of(balancer, "b", 0.05, clock)
    stream = balancer.use(avoid=["b"])
    clock.advance(0.05)
    stream.answered()
    for _ in range(100):
        clock.advance(1.0)
        call_of(balancer, "a", 0.05, clock)
        call_of(balancer, "b", 0.05, clock)
    counts = Counter(balancer.pick().address for _ in range(100))
    assert counts == {"b": 100}  # one call more is in flight at `a`
    held = [balancer.use(avoid=["a"]) for _ in range(2)]
    assert {balancer.pick().address for _ in range(100)} == {"a"}
    stream.end()
    assert latencies(balancer)[0] == pytest.approx(0.05)
    assert len(held) == 2


def test_weights_hold_where_the_better_of_two_is_taken() -> None:
    servers = [Server("heavy", 10), *(Server(f"s{number}") for number in range(30))]
    clock = ManualClock()
    for policy in (LeastActive, PeakEwma):
        balancer = policy(servers, clock=clock, seed=1)
        for server in servers:
            balancer.use(avoid=[one for one in servers if one != server]).end(latency=0.1)
        idle = Counter(balancer.pick().address for _ in range(8000))
        assert idle["heavy"] == pytest.approx(2000, rel=0.25)
        held = [balancer.use() for _ in range(800)]
        busy = Counter(call.server.address for call in held)
        assert busy["heavy"] == pytest.approx(200, rel=0.25)


def test_idle_servers_share_the_requests_of_one_client_beside_a_busy_one(
    clock: ManualClock,
) -> None:
    """One request at a time: a server that has not reported, or not lately, must not starve."""
    balancer = LeastActive(["busy", "a", "b"], clock=clock, seed=1)
    counts = Counter[str]()
    for _ in range(600):
        call = balancer.use()
        counts[call.server.address] += 1
        clock.advance(0.1)
        call.report(10.0 if call.server.address == "busy" else 0.0)
        call.end()
    assert counts["busy"] <= 10
    assert min(counts["a"], counts["b"]) >= 150


def test_one_server_that_reports_far_too_much_changes_little_for_the_others(
    clock: ManualClock,
) -> None:
    balancer = LeastActive(["liar", "a", "b"], clock=clock, seed=1)
    for _ in range(20):
        for server in ("a", "b"):
            call = balancer.use(avoid=["liar", "b" if server == "a" else "a"])
            call.report(5.0)
            call.end()
    balancer.use(avoid=["a", "b"]).report(1_000_000)
    clock.advance(5.0)
    counts = Counter(balancer.pick().address for _ in range(3000))
    assert counts["liar"] == 0
    assert counts["a"] == pytest.approx(1500, abs=150)


def test_a_call_that_was_given_up_says_nothing_unless_it_took_long(clock: ManualClock) -> None:
    balancer = PeakEwma(["a"], clock=clock)
    balancer.use().end(failed=None, latency=0.001)
    assert latencies(balancer) == [None]
    balancer.use().end(latency=0.1)
    balancer.use().end(failed=None, latency=0.001)
    assert latencies(balancer) == [pytest.approx(0.1)]
    balancer.use().end(failed=None, latency=5.0)
    assert latencies(balancer) == [pytest.approx(5.0)]


def test_a_server_that_fails_from_the_first_call_on_does_not_look_quick(
    clock: ManualClock,
) -> None:
    balancer = PeakEwma(["dead", "good"], clock=clock)
    balancer.use(avoid=["good"]).end(failed=True, latency=0.0001)
    assert latencies(balancer) == [pytest.approx(1.0), None]
    call_of(balancer, "good", 0.05, clock)
    assert {balancer.pick().address for _ in range(20)} == {"good"}


def test_a_wrong_decay_is_refused() -> None:
    with pytest.raises(ValueError, match="decay must be a finite number above 0, got 0"):
        PeakEwma(["a"], decay=0)
