"""Guava's timelines: R is a request and what it waited, U is time that went by unused.

The expected waits are worked out by hand from Guava's public documentation of
RateLimiter (the next request pays; stored permits; the warm-up trapezoid).
"""

import asyncio
import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock, RateLimiter

MICROSECOND = 1e-6


def play(limiter: RateLimiter, clock: ManualClock, script: str) -> str:
    """Run `R` (acquire 1), `R*n` (acquire n), `U1.5` (idle) and `rate=x`; write down the waits."""
    story = []
    for step in script.split():
        if step.startswith("U"):
            clock.advance(float(step[1:]))
            story.append(step)
        elif step.startswith("rate="):
            limiter.rate = float(step[5:])
            story.append(step)
        else:
            permits = float(step[2:] or 1)
            before = clock.now()
            waited = limiter.acquire(permits)
            assert waited == pytest.approx(clock.now() - before, abs=MICROSECOND)
            digits = f"{waited:.6f}".rstrip("0")
            story.append(f"{step}:{digits.ljust(digits.index('.') + 3, '0')}")
    return " ".join(story)


@pytest.mark.parametrize(
    ("rate", "story"),
    [
        # A steady rate, from empty: the first is free, each next one pays for it.
        (5, "R:0.00 R:0.20 R:0.20 R:0.20"),
        # A large request goes at once and the one after it pays.
        (1, "R:0.00 R:1.00 R*2:1.00 R*4:2.00 R*8:4.00 R:8.00"),
        # One second's worth is stored while idle, and no more; the stored one is free,
        # and the fresh one after it is paid for by the next.
        (1, "R:0.00 U10 R:0.00 R:0.00 R:1.00"),
        (5, "U10 R:0.00 R:0.00 R:0.00 R:0.00 R:0.00 R:0.00 R:0.20 R:0.20"),
        # A part of the idle time pays for a part of the debt.
        (5, "R:0.00 U0.1 R:0.10 U0.5 R:0.00 R:0.00 R:0.10 R:0.20"),
        # The next request pays at the old rate; only then the new one holds.
        (5, "R:0.00 R:0.20 rate=10 R:0.20 R:0.10 R:0.10"),
        (5, "U1 rate=10 R*10:0.00 R:0.00 R:0.10"),
        (10, "U0.5 rate=20 R*10:0.00 R:0.00 R:0.05"),
        # Infinity: nothing is paid; back from it, a full burst is stored.
        (math.inf, "R*1e9:0.00 R*1e9:0.00 rate=2 R:0.00 R:0.00 R:0.00 R:0.50 R:0.50"),
        (2, "R:0.00 R:0.50 rate=inf R:0.50 R:0.00 R*1e6:0.00 R:0.00"),
    ],
)
def test_a_bursty_limiter_keeps_guavas_timeline(
    rate: float, story: str, clock: ManualClock
) -> None:
    assert play(RateLimiter(rate, clock=clock), clock, script_of(story)) == story


@pytest.mark.parametrize(
    ("cold_factor", "story"),
    [
        # rate 2, warm_up 4: stable 0.5, cold 1.5, threshold 4, at most 8 stored, slope 0.25.
        # Cold: the stored permits 8, 7, 6, 5 cost 1.375, 1.125, 0.875, 0.625; then 0.5 each.
        (3, "R:0.00 R:1.375 R:1.125 R:0.875 R:0.625 R:0.50 R:0.50 R:0.50 R:0.50 R:0.50"),
        # All at once costs the whole area: 4 s of trapezoid, 2 s of rectangle, 2 fresh at 0.5.
        (3, "R*10:0.00 R:7.00 R:0.50"),
        # From empty, 1 s idle stores 2 (8 in 4 s), below the threshold: at the stable price.
        (3, "R*8:0.00 R:6.00 U0.5 U1 R:0.00 R:0.50 R:0.50"),
        # ... 3 s store 6: two of them above the threshold.
        (3, "R*8:0.00 R:6.00 U0.5 U3 R:0.00 R:0.875 R:0.625 R:0.50"),
        # Cold factor 1: no slope; at most 4 + 8 / 1 = 12 stored, all at the stable price.
        (1, "R:0.00 R:0.50 R:0.50 R:0.50"),
        # Cold factor 5: cold 2.5, at most 4 + 8 / 3 stored, slope 0.75. From the top:
        # 0.5 + 0.75 * (2.6667 - 0.5) = 2.125, then 1.375; the third takes the last 0.6667
        # above the threshold (0.6667 * 0.75) and 0.3333 below it (0.3333 * 0.5): 0.6667.
        (5, "R:0.00 R:2.125 R:1.375 R:0.666667 R:0.50"),
        # Twice the rate halves every interval and doubles the store: as cold as before.
        (3, "rate=4 R:0.00 R:0.71875 R:0.65625 R:0.59375"),
        # Warmed up, and then twice the rate: still warm, and the old debt is paid first.
        (3, "R*8:0.00 R:6.00 rate=4 R:0.50 R:0.25 R:0.25"),
        # Infinity has no warm-up; back from it, nothing is stored: warm.
        (3, "rate=inf R*1e9:0.00 R:0.00 rate=1 R:0.00 R:1.00 R:1.00 rate=inf R:1.00 R:0.00"),
    ],
)
def test_a_warming_limiter_keeps_guavas_timeline(
    cold_factor: float, story: str, clock: ManualClock
) -> None:
    limiter = RateLimiter(2, warm_up=4, cold_factor=cold_factor, clock=clock)
    assert play(limiter, clock, script_of(story)) == story


def script_of(story: str) -> str:
    return " ".join(step.split(":")[0] for step in story.split())


@pytest.mark.parametrize(("burst_seconds", "free"), [(0, 1), (0.5, 3), (1, 5), (10, 41)])
def test_burst_seconds_say_how_much_is_stored(
    burst_seconds: float, free: int, clock: ManualClock
) -> None:
    limiter = RateLimiter(4, burst_seconds=burst_seconds, clock=clock)
    clock.advance(100)
    assert sum(limiter.try_acquire() for _ in range(100)) == free


def model_waits(rate: float, warm_up: float, cold_factor: float, idles: list[float]) -> list[float]:
    """A second opinion: the area under the curve by its antiderivative, from the definitions."""
    stable = 1 / rate
    threshold = warm_up / 2 / stable
    most = threshold + 2 * warm_up / (stable + cold_factor * stable)
    slope = stable * (cold_factor - 1) / (most - threshold)

    def area(stored: float) -> float:
        above = max(stored - threshold, 0.0)
        return stable * stored + slope * above * above / 2

    now = next_free = 0.0
    stored = most
    waits = []
    for idle in idles:
        now += idle
        if now > next_free:
            stored = min(most, stored + (now - next_free) * most / warm_up)
            next_free = now
        waits.append(next_free - now)
        now = next_free
        taken = min(1.0, stored)
        next_free += area(stored) - area(stored - taken) + (1 - taken) * stable
        stored -= taken
    return waits


@given(
    rate=st.floats(0.1, 1000),
    warm_up=st.floats(0.01, 100),
    cold_factor=st.floats(1, 20),
    idles=st.lists(st.floats(0, 50), max_size=40),
)
def test_any_warm_up_agrees_with_the_area_under_the_curve(
    rate: float, warm_up: float, cold_factor: float, idles: list[float]
) -> None:
    clock = ManualClock()
    limiter = RateLimiter(rate, warm_up=warm_up, cold_factor=cold_factor, clock=clock)
    for idle, expected in zip(idles, model_waits(rate, warm_up, cold_factor, idles), strict=True):
        clock.advance(idle)
        assert limiter.acquire() == pytest.approx(expected, abs=MICROSECOND)


def test_a_try_with_a_timeout_decides_at_once(clock: ManualClock) -> None:
    limiter = RateLimiter(5, clock=clock)
    assert limiter.try_acquire()
    assert not limiter.try_acquire()
    assert not limiter.try_acquire(timeout=0.1)
    assert clock.now() == 0.0
    assert limiter.try_acquire(timeout=0.2)
    assert clock.now() == pytest.approx(0.2)
    assert limiter.try_acquire(3, timeout=None)
    assert clock.now() == pytest.approx(0.4)


def test_a_try_that_fails_has_changed_nothing(clock: ManualClock) -> None:
    limiter = RateLimiter(5, clock=clock)
    limiter.try_acquire(5)
    for _ in range(100):
        assert not limiter.try_acquire(timeout=0.9)
    assert limiter.acquire() == pytest.approx(1.0)


def test_reserve_says_how_long_and_leaves_the_waiting_to_the_caller(clock: ManualClock) -> None:
    limiter = RateLimiter(10, clock=clock)
    assert [round(limiter.reserve(), 6) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert limiter.reserve(5) == pytest.approx(0.3)
    assert limiter.reserve() == pytest.approx(0.8)
    assert clock.now() == 0.0


def test_waiting_tasks_go_in_their_order(clock: ManualClock) -> None:
    limiter = RateLimiter(10, clock=clock)
    went: list[tuple[int, float]] = []

    async def task(number: int) -> None:
        await limiter.acquire_async()
        went.append((number, round(clock.now(), 6)))

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(5)))

    asyncio.run(main())
    assert went == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert limiter.waiting == 0


def test_a_cancelled_task_gives_its_permits_and_its_place_back(clock: ManualClock) -> None:
    limiter = RateLimiter(10, clock=clock)
    went: list[tuple[str, float]] = []

    async def task(name: str, permits: int) -> None:
        await limiter.acquire_async(permits)
        went.append((name, round(clock.now(), 6)))

    async def main() -> None:
        tasks = [
            asyncio.create_task(task(name, permits))
            for name, permits in [("first", 1), ("cancelled", 20), ("second", 1), ("third", 1)]
        ]
        await asyncio.sleep(0)  # all have asked; only then one is cancelled
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert went == [("first", 0.0), ("second", 0.1), ("third", 0.2)]


def test_a_place_reserved_by_hand_does_not_move_when_one_before_it_leaves(
    clock: ManualClock,
) -> None:
    limiter = RateLimiter(10, clock=clock)

    async def main() -> list[float]:
        limiter.reserve()
        waiter = asyncio.create_task(limiter.acquire_async())
        await asyncio.sleep(0)
        by_hand = limiter.reserve()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        return [by_hand, limiter.reserve()]

    assert asyncio.run(main()) == pytest.approx([0.2, 0.3])


def test_it_limits_a_block(clock: ManualClock) -> None:
    limiter = RateLimiter(10, clock=clock)
    with limiter, limiter:
        assert clock.now() == pytest.approx(0.1)

    async def main() -> None:
        async with limiter:
            assert clock.now() == pytest.approx(0.2)

    asyncio.run(main())


def test_the_repr_shows_the_live_state(clock: ManualClock) -> None:
    limiter = RateLimiter(10, clock=clock)
    limiter.acquire(5)
    assert repr(limiter) == "RateLimiter(rate=10/s, stored=0, next_free_in=0.5 s)"
    warming = RateLimiter(2, warm_up=4, clock=clock)
    assert repr(warming) == "RateLimiter(rate=2/s, warm_up=4 s, stored=8, next_free_in=0 s)"


WRONG: list[Callable[[], object]] = [
    lambda: RateLimiter(0),
    lambda: RateLimiter(-1),
    lambda: RateLimiter(math.nan),
    lambda: RateLimiter("5"),  # type: ignore[arg-type]
    lambda: RateLimiter(1, burst_seconds=-1),
    lambda: RateLimiter(1, warm_up=math.inf),
    lambda: RateLimiter(1, cold_factor=0.5),
    lambda: RateLimiter(1, clock=object()),  # type: ignore[arg-type]
    lambda: RateLimiter(1, clock=ManualClock()).acquire(0),
    lambda: RateLimiter(1, clock=ManualClock()).try_acquire(-1),
    lambda: RateLimiter(1, clock=ManualClock()).reserve(math.nan),
    lambda: RateLimiter(1, clock=ManualClock()).reserve(math.inf),
    lambda: RateLimiter(1, clock=ManualClock()).try_acquire(timeout=-1),
    lambda: setattr(RateLimiter(1), "rate", 0),
]


@pytest.mark.parametrize("wrong", WRONG, ids=itertools.count())
def test_wrong_arguments_raise_and_say_what_was_wrong(wrong: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError), match="got"):
        wrong()


def test_a_wrong_rate_leaves_the_old_one(clock: ManualClock) -> None:
    limiter = RateLimiter(5, clock=clock)
    with pytest.raises(ValueError, match="above 0 .* got -1"):
        limiter.rate = -1
    assert limiter.rate == 5
