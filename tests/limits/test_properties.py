"""What must always hold, for every algorithm, under any schedule of calls."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    FixedWindow,
    Keyed,
    LeakyBucket,
    ManualClock,
    RateLimiter,
    SlidingCounter,
    SlidingWindow,
    TokenBucket,
)

# A limit of 10 units per 4 seconds, and how much more than rate * t may pass in t seconds.
AMOUNT, PER = 10, 4.0
RATE = AMOUNT / PER
SINGLES: dict[str, tuple[Callable[[ManualClock], Any], float]] = {
    "token_bucket": (lambda clock: TokenBucket(RATE, AMOUNT, clock=clock), AMOUNT),
    "fixed_window": (lambda clock: FixedWindow(AMOUNT, PER, clock=clock), 2 * AMOUNT),
    "sliding_window": (lambda clock: SlidingWindow(AMOUNT, PER, clock=clock), AMOUNT),
    "sliding_counter": (lambda clock: SlidingCounter(AMOUNT, PER, clock=clock), 2 * AMOUNT),
}
steps = st.one_of(
    st.just(0.0),
    st.floats(0, 10),
    st.floats(-20, 0),
    st.sampled_from([0.1, 0.4, 1.0, 3.999999, 4.0, 4.000001, 8.0, 1000.0, -4.0, -0.1]),
)
schedules = st.lists(st.tuples(steps, st.integers(1, AMOUNT)), max_size=80)
forward_schedules = st.lists(st.tuples(steps.map(abs), st.integers(1, AMOUNT)), max_size=80)
starts = st.sampled_from([0.0, 3.9, -100.0, 1_700_000_000.0, 1e-3])
# What passes when a clock goes back and forth is judged by the ground it gains, so the
# slack of a clock in Unix time (two steps of a double, 0.5 us) has its place.
SLACK = 1e-5


def gained(times: list[float]) -> list[float]:
    """The time a clock has gained: going over the same ground again gains nothing."""
    return list(itertools.accumulate(times, max))


def most_above_the_rate(events: list[tuple[float, float]]) -> float:
    """The most that passed in any stretch of time, over RATE times its length."""
    worst = 0.0
    excess = lowest = 0.0
    last = events[0][0] if events else 0.0
    for when, amount in events:
        excess -= (when - last) * RATE
        last = when
        lowest = min(lowest, excess)
        excess += amount
        worst = max(worst, excess - lowest)
    return worst


@pytest.mark.parametrize("algorithm", SINGLES)
@given(schedule=schedules, start=starts)
def test_never_more_passes_than_the_rate_and_the_burst(
    algorithm: str, schedule: list[tuple[float, int]], start: float
) -> None:
    clock = ManualClock(start)
    make, burst = SINGLES[algorithm]
    limiter = make(clock)
    passed = []
    for step, amount in schedule:
        clock.advance(step)
        if limiter.try_acquire(amount):
            passed.append((clock.now(), amount))
    times = gained([when for when, _ in passed])
    amounts = [amount for _, amount in passed]
    assert most_above_the_rate(list(zip(times, amounts, strict=True))) <= burst + SLACK


@given(schedule=forward_schedules, start=starts)
def test_the_exact_window_never_holds_more_than_its_limit(
    schedule: list[tuple[float, int]], start: float
) -> None:
    clock = ManualClock(start)
    limiter = SlidingWindow(AMOUNT, PER, clock=clock)
    passed: list[tuple[float, int]] = []
    for step, amount in schedule:
        clock.advance(step)
        if limiter.try_acquire(amount):
            passed.append((clock.now(), amount))
            inside = [n for when, n in passed if when > clock.now() - PER + 1e-6]
            assert sum(inside) <= AMOUNT


@given(schedule=forward_schedules, start=starts)
def test_a_fixed_window_never_holds_more_than_its_limit(
    schedule: list[tuple[float, int]], start: float
) -> None:
    clock = ManualClock(start)
    limiter = FixedWindow(AMOUNT, PER, clock=clock)
    windows: dict[float, int] = {}
    for step, amount in schedule:
        clock.advance(step)
        if limiter.try_acquire(amount):
            # A window turns a tick early: a nanosecond, or two steps of the clock.
            tick = max(1e-9, 2 * math.ulp(start))
            window = (clock.now() - start + start % PER + tick) // PER
            windows[window] = windows.get(window, 0) + amount
    assert all(used <= AMOUNT for used in windows.values())


@pytest.mark.parametrize("algorithm", SINGLES)
@given(schedule=schedules, start=starts)
def test_check_and_try_acquire_agree_and_a_refusal_changes_nothing(
    algorithm: str, schedule: list[tuple[float, int]], start: float
) -> None:
    clock = ManualClock(start)
    make, _ = SINGLES[algorithm]
    trying, checking = make(clock), make(clock)
    for step, amount in schedule:
        clock.advance(step)
        before = checking.check(0)
        decision = checking.check(amount)
        assert trying.try_acquire(amount) is decision.allowed
        if decision.allowed:
            assert decision.retry_after == 0.0
            assert decision.remaining == pytest.approx(before.remaining - amount, abs=1e-3)
        else:
            assert decision.retry_after > 0.0
            assert checking.check(0) == before
            # Too much for now is refused, and leaves as much for the next one as there was.
            assert decision.remaining == before.remaining < amount + 1e-3


@pytest.mark.parametrize("algorithm", SINGLES)
@given(schedule=forward_schedules, start=starts)
def test_what_is_refused_passes_after_retry_after_and_not_before(
    algorithm: str, schedule: list[tuple[float, int]], start: float
) -> None:
    clock = ManualClock(start)
    make, _ = SINGLES[algorithm]
    limiter = make(clock)
    for step, amount in schedule:
        clock.advance(step)
        decision = limiter.check(amount)
        if not decision.allowed:
            if decision.retry_after > 0.001:
                clock.advance(decision.retry_after - 0.001)
                assert not limiter.try_acquire(amount)
                clock.advance(0.001)
            else:
                clock.advance(decision.retry_after)
            assert limiter.try_acquire(amount)


@pytest.mark.parametrize("algorithm", SINGLES)
@given(
    schedule=st.lists(
        st.tuples(steps.map(abs), st.sampled_from("abcde"), st.integers(1, AMOUNT)), max_size=100
    ),
    start=starts,
)
def test_keyed_is_a_dictionary_of_single_ones(
    algorithm: str, schedule: list[tuple[float, str, int]], start: float
) -> None:
    clock = ManualClock(start)
    make, _ = SINGLES[algorithm]
    keyed = Keyed(f"{AMOUNT}/{PER:g} seconds", algorithm=algorithm, clock=clock)
    singles = {key: make(clock) for key in "abcde"}
    for step, key, amount in schedule:
        clock.advance(step)
        ours, theirs = keyed.check(key, amount), singles[key].check(amount)
        assert ours.allowed is theirs.allowed
        assert ours.remaining == pytest.approx(theirs.remaining, abs=1e-6)
        assert ours.retry_after == pytest.approx(theirs.retry_after, abs=1e-6)


@pytest.mark.parametrize("algorithm", [*SINGLES, "leaky_bucket"])
@given(schedule=schedules, start=starts, max_keys=st.sampled_from([1, 3, 1000]))
def test_keyed_never_lets_a_key_have_more_than_the_rate_and_the_burst(
    algorithm: str, schedule: list[tuple[float, int]], start: float, max_keys: int
) -> None:
    clock = ManualClock(start)
    burst = 1 if algorithm == "leaky_bucket" else SINGLES[algorithm][1]
    keyed = Keyed(f"{AMOUNT}/{PER:g} seconds", algorithm=algorithm, max_keys=max_keys, clock=clock)
    passed = []
    for number, (step, amount) in enumerate(schedule):
        clock.advance(step)
        cost = 1 if algorithm == "leaky_bucket" else amount
        keyed.allow(number)  # a flood of new keys beside it
        keyed.allow(-number)
        if keyed.allow("limited", cost):
            passed.append((clock.now(), cost))
    times = gained([when for when, _ in passed])
    costs = [cost for _, cost in passed]
    assert most_above_the_rate(list(zip(times, costs, strict=True))) <= burst + SLACK


@given(schedule=forward_schedules)
def test_a_leaky_bucket_lets_no_two_through_within_a_beat(
    schedule: list[tuple[float, int]],
) -> None:
    clock = ManualClock()
    bucket = LeakyBucket(RATE, 1_000_000, clock=clock)
    left = []
    for step, count in schedule:
        clock.advance(step)
        left += [clock.now() + bucket.reserve() for _ in range(count)]
    assert all(b - a >= 1 / RATE - 1e-6 for a, b in itertools.pairwise(left))


@given(schedule=forward_schedules, burst_seconds=st.floats(0, 10))
def test_a_rate_limiter_grants_no_more_than_the_rate_the_burst_and_the_one_request_in_advance(
    schedule: list[tuple[float, int]], burst_seconds: float
) -> None:
    clock = ManualClock()
    limiter = RateLimiter(RATE, burst_seconds=burst_seconds, clock=clock)
    granted: list[tuple[float, float]] = []
    for step, permits in schedule:
        clock.advance(step)
        # The one granted last is still to be paid for, by the one after it.
        granted.append((clock.now() + limiter.reserve(permits), permits))
        paid = granted[:-1]
        assert most_above_the_rate(paid) <= RATE * burst_seconds + AMOUNT + SLACK
