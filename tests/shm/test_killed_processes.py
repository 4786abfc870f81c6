"""Processes killed at any instruction: the memory stays whole, and no permit appears.

The writers note each success in memory of their own (one store each) after the call.
A kill between the call and the note loses one, so what was used is what was noted and
at most one more for each kill.
"""

import mmap
import os
import random
import time
from typing import Any

import pytest

from sluicegate import Limit, SharedKeyed, SharedTable
from tests.harness.waits import wait_for

KILLS = 5_000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 50
WRITERS = 4
BURST = 10**9


def kill_again_and_again(children: Any, write: Any, count: Any, enough: int) -> None:
    """Real time, for only a running process can be killed in the middle of something.

    The last ones are killed when `count()` says that enough has been done, however slowly.
    """
    numbers = random.Random(5)
    running = [children.start(lambda place=place: write(place)) for place in range(WRITERS)]
    for _ in range(KILLS - WRITERS):
        time.sleep(numbers.uniform(0.001, 0.008))
        place = numbers.randrange(WRITERS)
        children.kill(running[place])
        running[place] = children.start(lambda place=place: write(place))
    wait_for(lambda: count() > enough, seconds=120, seen=count)
    for child in running:
        children.kill(child)


@pytest.mark.parametrize(
    ("algorithm", "limits"),
    [
        ("token_bucket", [Limit(1, per=1e9, burst=BURST)]),
        ("token_bucket", [Limit(1, per=1e9, burst=BURST)] * 3),
        ("sliding_counter", [Limit(BURST, per=1e9)]),
    ],
)
def test_permits_neither_leak_beyond_one_per_kill_nor_appear(
    name: str, children: Any, algorithm: str, limits: list[Limit]
) -> None:
    keyed = SharedKeyed(name, limits, algorithm=algorithm, max_keys=64)
    keys = [f"user:{number}" for number in range(20)] + ["x" * size for size in (90, 180, 255)]
    noted = memoryview(mmap.mmap(-1, 8 * WRITERS)).cast("q")

    def write(place: int) -> None:
        mine = SharedKeyed(name, limits, algorithm=algorithm, max_keys=64)
        numbers = random.Random(os.getpid())
        while True:
            if mine.allow(numbers.choice(keys)):
                noted[place] += 1

    kill_again_and_again(children, write, lambda: sum(noted), enough=10_000)
    for look in (keyed, None):
        if look is None:  # alone with it, everything is looked at
            keyed.close()
            look = SharedKeyed(name, limits, algorithm=algorithm, max_keys=64)
        used = round(sum(BURST - look.check(key, 0).remaining for key in keys))
        assert 0 <= used - sum(noted) <= KILLS
        assert len(look) in range(len(keys), len(keys) + KILLS // 10)
    assert len(look) == len(keys)
    noted.release()


def test_a_table_that_keys_come_to_and_leave_stays_whole(name: str, children: Any) -> None:
    """Each writer notes what it adds before and after, and what it takes out likewise."""
    table = SharedTable(name, max_keys=2_000)
    began = memoryview(mmap.mmap(-1, 8 * WRITERS)).cast("q")
    ended = memoryview(mmap.mmap(-1, 8 * WRITERS)).cast("q")
    taken = memoryview(mmap.mmap(-1, 8 * WRITERS)).cast("q")

    def write(place: int) -> None:
        mine = SharedTable(name, max_keys=2_000)
        numbers = random.Random(os.getpid())
        while True:
            key = f"{numbers.randrange(3)}".rjust(numbers.choice((4, 100, 250)))
            began[place] += 1
            mine.incr(key)
            ended[place] += 1
            if numbers.random() < 0.3:
                for _, amount in mine.take(key):
                    taken[place] += int(amount)

    kill_again_and_again(children, write, lambda: sum(ended), enough=200 * KILLS)
    held = round(sum(amount for _, amount in table.items()))
    # All that is held was added, and what was added is held, or was taken; but a kill may
    # come between a counter that was taken out and the note of what it had held. That is 3 on
    # average, and few kills come just then.
    assert held + sum(taken) <= sum(began)
    assert held + sum(taken) >= sum(ended) - KILLS
    assert len(list(table.take())) <= 2_000
    kept = [table.incr(f"{number}") for number in range(2_000 - KILLS // 10)]
    assert kept == [1.0] * len(kept)
    table.close()
    with SharedTable(name, max_keys=2_000) as alone:
        assert len(alone) == len(kept) == len(list(alone.items()))
        for number in range(2_000):
            alone.incr(f"{number}")
    for note in (began, ended, taken):
        note.release()
