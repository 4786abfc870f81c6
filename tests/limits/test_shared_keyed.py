"""`SharedKeyed`: the same answers as `Keyed`, from memory that processes share."""

import math
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    Decision,
    Keyed,
    Limit,
    ManualClock,
    RateLimited,
    SharedKeyed,
    TableFull,
)
from tests.harness.waits import PATIENCE, wait_for

ALGORITHMS = ["token_bucket", "leaky_bucket", "fixed_window", "sliding_counter"]
KEYS: list[Any] = ["a", "bé", b"a", 1, -(10**30), ("a", 1), ("a", ("1",)), "\udcff", "x" * 255]

steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["allow", "check", "refund", "reserve", "look"]),
            st.sampled_from(KEYS),
            st.sampled_from([1.0, 0.5, 0.25]),
        ),
        st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0, 4.0])),
        st.tuples(st.just("reset"), st.sampled_from(KEYS), st.none()),
        st.tuples(
            st.just("override"),
            st.sampled_from(KEYS),
            st.sampled_from([None, "4/second", "9/minute; 2/second", ["1/second"] * 8]),
        ),
        st.tuples(
            st.just("advance"),
            st.one_of(st.sampled_from([0.1, 0.5, 1.0, 60.0]), st.floats(0, 200)),
            st.none(),
        ),
    ),
    max_size=60,
)


@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["2/second", "3/second; 10/minute", ["5/second", "9/minute", "50/hour"] * 2]),
    st.floats(0, 1e9),
    steps,
)
def test_it_gives_the_same_answers_as_keyed(
    folder: Path, algorithm: str, limit: Any, start: float, steps: Any
) -> None:
    clock = ManualClock(start)
    path = folder / "keyed"
    alone = Keyed(limit, algorithm=algorithm, clock=clock)
    one = SharedKeyed(path, limit, algorithm=algorithm, max_keys=20, clock=clock)
    other = SharedKeyed(path, limit, algorithm=algorithm, max_keys=20, clock=clock)
    reserved: list[tuple[Any, Any]] = []
    SharedKeyed.unlink(path)  # who has it open goes on; and the next example begins anew
    with one, other:
        for number, (verb, what, how) in enumerate(steps):
            shared = (one, other)[number % 2]
            if verb == "advance":
                clock.advance(what)
            elif verb == "look":
                assert shared.check(what, 0) == alone.check(what, 0)
            elif verb == "reserve":
                answers = [_reserve(keyed, what, how) for keyed in (alone, shared)]
                assert isinstance(answers[0], Decision) == isinstance(answers[1], Decision)
                if isinstance(answers[0], Decision):
                    assert answers[0] == answers[1]
                else:
                    reserved.append((answers[0], answers[1]))
            elif verb == "settle" and reserved:
                for reservation in reserved.pop(what % len(reserved)):
                    reservation.settle(how)
            elif verb in ("allow", "check", "refund", "override"):
                assert getattr(shared, verb)(what, how) == getattr(alone, verb)(what, how)
            elif verb == "reset":
                alone.reset(what)
                shared.reset(what)
        for key in KEYS:
            assert one.check(key, 0) == other.check(key, 0) == alone.check(key, 0)
            assert one.limits_of(key) == alone.limits_of(key)


def _reserve(keyed: Any, key: Any, cost: float) -> Any:
    try:
        return keyed.reserve(key, cost)
    except RateLimited as denied:
        return denied.decision


def test_two_processes_have_one_limit(name: str, children: Any) -> None:
    keyed = SharedKeyed(name, Limit(1, per=1e9, burst=10_000))
    passed = SharedKeyed(f"{name}-passed", Limit(1, per=1e9, burst=100_000))

    def ask() -> None:
        for _ in range(10_000):
            if keyed.allow("a"):
                passed.allow("all")

    try:
        for _ in range(3):
            children.start(ask)
        ask()
        children.join()
        assert passed.check("all", 0).remaining == pytest.approx(100_000 - 10_000, abs=0.01)
        assert not keyed.allow("a")
    finally:
        SharedKeyed.unlink(f"{name}-passed")


def test_a_process_that_was_not_forked_opens_it_by_name(name: str) -> None:
    keyed = SharedKeyed(name, "3/hour")
    assert keyed.allow("a", 2)
    code = (
        "from sluicegate import SharedKeyed\n"
        f"keyed = SharedKeyed({name!r}, '3/hour')\n"
        "print(keyed.allow('a'), keyed.allow('a'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert run.stdout == "True False\n"
    assert not keyed.allow("a")
    assert not SharedKeyed(name, "3/hour").allow("a")


def test_what_was_used_is_still_used_when_all_have_closed_and_one_comes_back(name: str) -> None:
    with SharedKeyed(name, "3/hour") as keyed:
        assert keyed.allow("a", 3)
    with SharedKeyed(name, "3/hour") as keyed:
        assert not keyed.allow("a")
        assert len(keyed) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_idle_keys_are_dropped_and_make_room(algorithm: str, name: str, clock: ManualClock) -> None:
    keyed = SharedKeyed(name, "5/second", algorithm=algorithm, max_keys=50, clock=clock)
    for number in range(2_000):
        assert keyed.allow(f"user:{number}")
        clock.advance(0.1)
    assert len(keyed) <= 50
    assert keyed.overflowed == 0
    clock.advance(10)
    for _ in range(100):
        clock.advance(0.002)
        keyed.allow("one")
    assert len(keyed) == 1


def test_at_the_cap_new_keys_share_cells_and_no_live_key_makes_room(
    name: str, clock: ManualClock
) -> None:
    keyed = SharedKeyed(name, "1/hour", max_keys=100, clock=clock)
    assert all(keyed.allow(number) for number in range(100))
    assert len(keyed) == 100
    flood = sum(keyed.allow(f"new:{number}") for number in range(50_000))
    assert 900 < flood <= 1024
    assert keyed.overflowed == 50_000
    assert len(keyed) == 100
    assert not any(keyed.allow(number) for number in range(100))
    assert "overflowed=50000" in repr(keyed)
    with SharedKeyed(name, "1/hour", max_keys=100, clock=clock) as other:
        assert not any(other.allow(f"new:{number}") for number in range(1_000))
    clock.advance(3600)
    assert keyed.allow("new:1")
    assert len(keyed) <= 100


def test_a_key_that_shares_does_not_buy_a_fresh_bucket_when_room_comes(
    name: str, clock: ManualClock
) -> None:
    keyed = SharedKeyed(name, "1/hour", max_keys=1, clock=clock)
    assert keyed.allow("first")
    assert keyed.allow("second")
    keyed.reset("first")
    assert len(keyed) == 0
    assert not keyed.allow("second")


def test_a_clock_that_steps_back_mints_nothing(name: str, clock: ManualClock) -> None:
    keyed = SharedKeyed(name, "2/second", max_keys=10, clock=clock)
    assert keyed.allow("a", 2)
    clock.advance(5)
    for _ in range(50):  # the hand goes round, and forgets the key
        clock.advance(0.002)
        keyed.allow("b")
    clock.advance(-5)
    denied = keyed.check("a")
    assert not denied.allowed
    assert denied.remaining == 0
    assert denied.retry_after == pytest.approx(5, abs=0.2)


def test_an_override_holds_in_all_processes(name: str, children: Any) -> None:
    keyed = SharedKeyed(name, "1/hour")
    other = SharedKeyed(name, "1/hour")
    keyed.override("vip", "100/hour; 1000/day")
    assert other.limits_of("vip") == (Limit(100, 3600), Limit(1000, 86400))
    assert other.check("vip", 50).remaining == pytest.approx(50, abs=0.01)
    children.start(lambda: other.override("vip", None))
    children.join()
    assert keyed.limits_of("vip") == keyed.limits == (Limit(1, 3600),)
    assert not keyed.allow("vip")  # what was used stays used


def test_an_override_that_has_no_room_is_refused(name: str, clock: ManualClock) -> None:
    keyed = SharedKeyed(name, "1/hour", max_keys=1, clock=clock)
    keyed.override("a", "2/hour")
    with pytest.raises(TableFull, match="no room to override the limits of 'b'"):
        keyed.override("b", "2/hour")
    keyed.override("a", "3/hour")
    assert len(keyed) == 1


def test_a_thousand_processes_may_come_and_go(name: str, children: Any) -> None:
    """Each leaves what it had in hand to the next one: the memory does not grow."""
    limit = Limit(1, per=1e9, burst=1_000_000)
    keyed = SharedKeyed(name, limit, max_keys=10)
    for _ in range(100):
        for _ in range(3):
            children.start(lambda: keyed.allow("a"))
        children.join()
    for _ in range(700):
        SharedKeyed(name, limit, max_keys=10).close()
    assert keyed.check("a", 0).remaining == pytest.approx(1_000_000 - 300, abs=0.01)
    blocks = os.stat(keyed.path or "").st_blocks * 512
    assert blocks < 2_000_000


def test_threads_of_a_forked_child_take_one_process_slot(name: str, children: Any) -> None:
    keyed = SharedKeyed(name, Limit(1, per=1e9, burst=10_000))

    def ask_from_threads() -> None:
        threads = [
            threading.Thread(target=lambda: [keyed.allow("a") for _ in range(500)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children.start(ask_from_threads)
    children.start(ask_from_threads)
    children.join()
    assert keyed.check("a", 0).remaining == pytest.approx(6_000, abs=0.01)


def test_waiting_goes_in_order_and_on_the_given_clock(name: str, clock: ManualClock) -> None:
    keyed = SharedKeyed(name, "10/second burst 1", clock=clock)
    assert keyed.acquire("a") == 0.0
    assert keyed.acquire("a") == pytest.approx(0.1)
    with pytest.raises(RateLimited) as denied:
        keyed.acquire("a", timeout=0.05)
    assert denied.value.retry_after == pytest.approx(0.1)
    assert keyed.waiting == 0


async def _acquire_twice(keyed: SharedKeyed) -> list[float]:
    return [await keyed.acquire_async("a"), await keyed.acquire_async("a")]


def test_tasks_wait_too(name: str, clock: ManualClock) -> None:
    import asyncio

    keyed = SharedKeyed(name, "10/second burst 1", clock=clock)
    assert asyncio.run(_acquire_twice(keyed)) == [0.0, pytest.approx(0.1)]


class SharedClock:
    """The same time in three processes. It moves on to the next alarm when all of them sleep."""

    def __init__(self) -> None:
        self.time = memoryview(mmap.mmap(-1, 8)).cast("d")
        self.alarms = memoryview(mmap.mmap(-1, 24)).cast("d")
        self.place = 0  # whose alarm is ours

    def now(self) -> float:
        return self.time[0]

    def sleep(self, seconds: float) -> None:
        end = self.alarms[self.place] = self.now() + seconds
        while self.now() < end:
            time.sleep(0.0005)

    async def sleep_async(self, seconds: float) -> None:
        raise NotImplementedError

    def run(self) -> None:
        """Until all alarms are off, at infinity."""
        while self.now() < math.inf:
            wait_for(lambda: min(self.alarms) > self.now(), seen=lambda: list(self.alarms))
            self.time[0] = min(self.alarms)


def test_processes_that_wait_for_one_limit_lose_nothing_of_it(name: str, children: Any) -> None:
    clock = SharedClock()
    keyed = SharedKeyed(name, "200/second burst 1", clock=clock)
    passed = memoryview(mmap.mmap(-1, 24)).cast("q")

    def work(place: int) -> None:
        clock.place = place
        while clock.now() < 0.25:
            keyed.acquire("a")
            passed[place] += 1
        clock.alarms[place] = math.inf

    for place in range(3):
        children.start(lambda place=place: work(place))
    clock.run()
    children.join()
    # One at once, one every 5 ms, and the last one of each process, which ends it.
    assert sum(passed) == pytest.approx(1 + 49 + 3, abs=1)


def test_wrong_arguments_are_told_at_once(name: str) -> None:
    for bad, error, message in [
        ({"limit": "nonsense"}, ValueError, "expected a number"),
        ({"algorithm": "sliding_window"}, ValueError, "use sliding_counter"),
        ({"algorithm": "magic"}, ValueError, "algorithm must be one of"),
        ({"algorithm": 3}, ValueError, "algorithm must be one of"),
        ({"max_keys": 0}, ValueError, "max_keys must be from 1"),
        ({"max_keys": 2**40}, ValueError, "max_keys must be at most"),
        ({"max_keys": "10"}, TypeError, "max_keys must be an int"),
        ({"limit": ["1/second"] * 9}, ValueError, "a key has at most 8, got 9"),
        ({"clock": 3}, TypeError, "clock must have a method now"),
    ]:
        arguments: dict[str, Any] = {"limit": "1/second", **bad}
        with pytest.raises(error, match=message):
            SharedKeyed(name, arguments.pop("limit"), **arguments)
    for bad_name in ("", "a b", ".hidden", "x" * 101, "ü"):
        with pytest.raises(ValueError, match="name must be 1 to 100 letters"):
            SharedKeyed(bad_name, "1/second")
    with pytest.raises(TypeError):
        SharedKeyed(3, "1/second")  # type: ignore[arg-type]
    assert not SharedKeyed.unlink(name)


def test_wrong_calls_are_told_at_once(name: str) -> None:
    keyed = SharedKeyed(name, "10/second")
    for cost in (0, -1, 11, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cost must be above 0 and at most 10"):
            keyed.allow("a", cost)
    for key in (None, 1.5, ["a"]):
        with pytest.raises(TypeError, match="key must be a str, bytes, int or a tuple"):
            keyed.allow(key)  # type: ignore[arg-type]
    for long in ("x" * 256, b"x" * 256, "é" * 128, 1 << 3000, ("x" * 200, "y" * 200)):
        with pytest.raises(ValueError, match="key must have at most 255 bytes"):
            keyed.allow(long)
    with pytest.raises(ValueError, match="finite number above 0"):
        keyed.refund("a", -1)
    with pytest.raises(ValueError, match="0 or more"):
        keyed.reserve("a").settle(-1)
    assert len(keyed) == 1


def test_a_closed_one_says_so(name: str) -> None:
    keyed = SharedKeyed(name, "10/second")
    keyed.close()
    keyed.close()
    assert repr(keyed) == "SharedKeyed(closed)"
    for call in (keyed.allow, keyed.check, keyed.reset, keyed.reserve, keyed.limits_of):
        with pytest.raises(ValueError, match="is closed"):
            call("a")
    for read in (lambda: len(keyed), lambda: keyed.max_keys, lambda: keyed.overflowed):
        with pytest.raises(ValueError, match="is closed"):
            read()


def test_one_that_was_never_made_is_useless_and_not_deadly() -> None:
    keyed = SharedKeyed.__new__(SharedKeyed)
    assert repr(keyed) == "SharedKeyed(closed)"
    with pytest.raises(ValueError, match="is closed"):
        keyed.allow("a")
