import asyncio
import time

import pytest

from sluicegate.clock import Clock, ManualClock, SystemClock


def test_a_manual_clock_moves_only_when_told(clock: ManualClock) -> None:
    assert clock.now() == 0.0
    clock.advance(1.5)
    clock.sleep(0.5)
    assert clock.now() == 2.0
    assert repr(clock) == "ManualClock(now=2)"


def test_a_manual_clock_can_be_stepped_back_but_not_slept_back(clock: ManualClock) -> None:
    clock.advance(-3.0)
    assert clock.now() == -3.0
    with pytest.raises(ValueError, match="seconds >= 0, got -1"):
        clock.sleep(-1)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_manual_clock_refuses_times_that_are_no_times(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        ManualClock(wrong)
    with pytest.raises(ValueError, match="finite"):
        ManualClock().advance(wrong)


def test_sleeping_tasks_wake_in_the_order_of_their_times(clock: ManualClock) -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep_async(seconds)
        woken.append((name, clock.now()))

    async def main() -> None:
        await asyncio.gather(sleeper("c", 3), sleeper("a", 1), sleeper("b", 2), sleeper("b2", 2))

    asyncio.run(main())
    assert woken == [("a", 1.0), ("b", 2.0), ("b2", 2.0), ("c", 3.0)]


def test_a_cancelled_sleeper_moves_no_clock(clock: ManualClock) -> None:
    async def main() -> None:
        task = asyncio.create_task(clock.sleep_async(100))
        await asyncio.sleep(0)
        task.cancel()
        await clock.sleep_async(1)

    asyncio.run(main())
    assert clock.now() == 1.0


def test_advancing_by_hand_wakes_a_sleeper(clock: ManualClock) -> None:
    async def main() -> None:
        first = asyncio.create_task(clock.sleep_async(5))
        second = asyncio.create_task(clock.sleep_async(10))
        await asyncio.sleep(0)
        clock.advance(20)
        await asyncio.gather(first, second)

    asyncio.run(main())
    assert clock.now() == 20.0


def test_the_system_clock_tells_monotonic_and_wall_time() -> None:
    clock = SystemClock()
    before = time.monotonic(), time.time()
    clock.sleep(0)
    asyncio.run(clock.sleep_async(0))
    assert before[0] <= clock.now() <= time.monotonic()
    assert before[1] <= clock.wall() <= time.time()
    assert repr(clock) == "SystemClock()"


def test_both_are_clocks() -> None:
    assert isinstance(SystemClock(), Clock)
    assert isinstance(ManualClock(), Clock)


def test_a_loop_closed_over_its_sleepers_does_not_hold_up_the_next(clock: ManualClock) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(clock.sleep_async(5))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    asyncio.run(clock.sleep_async(10))
    assert clock.now() == 10.0
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_nobody_sleeps_for_ever(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="finite seconds"):
        asyncio.run(clock.sleep_async(float("inf")))
    assert clock.now() == 0.0
