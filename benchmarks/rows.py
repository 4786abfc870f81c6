"""Subjects that call something for a key, and rows that compare two times."""

import os
import subprocess
import sys
from typing import Any

from benchmarks.harness import Row, Subject, Times

__all__ = ["call", "empty", "faster", "slower", "two_processes"]


class Empty:
    def method(self) -> None:
        pass


def call(statement: str, **names: Any) -> Subject:
    return Subject(statement, {"key": "user:1234", **names})


def empty() -> Subject:
    return call("empty.method()", empty=Empty())


def slower(what: str, times: dict[str, Times], peer: str, most: float | None, name: str) -> Row:
    """A row that says how many times the peer's thread time ours takes."""
    ours, theirs = times["ours"].thread, times[peer].thread
    goal = "" if most is None else f"<= {most:g} x"
    met = None if most is None else ours <= theirs * most
    ratio = ours / theirs
    return Row(
        what, f"{ours:.0f} ns", f"{theirs:.0f} ns ({name})", ratio, f"{ratio:.2f} x", goal, met
    )


def faster(what: str, times: dict[str, Times], peer: str, least: float | None, name: str) -> Row:
    """A row that says how many times faster than the peer we are."""
    ours, theirs = times["ours"].thread, times[peer].thread
    goal = "" if least is None else f">= {least:g} x faster"
    met = None if least is None else theirs >= ours * least
    ratio = theirs / ours
    text = f"{ratio:.1f} x faster"
    return Row(what, f"{ours:.0f} ns", f"{theirs:.0f} ns ({name})", ratio, text, goal, met)


def two_processes(what: str, loop: str, name: str, goal: float) -> list[Row]:
    """A row: what two processes do together, pinned to a core each, beside one that is alone.

    `loop` is a program that is given `name`, a key of its own and its core; it says that it is
    ready, waits for a line, and prints how many calls it made in a second.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        return []
    one = two = 0.0
    for _ in range(5):
        one = max(one, _calls_per_second(loop, name, cores[:1]))
        two = max(two, _calls_per_second(loop, name, cores))
    return [
        Row(
            f"{what}, two processes on two cores, different keys",
            f"{two / 1e6:.1f} M/s",
            f"{one / 1e6:.1f} M/s (one process)",
            two / one,
            f"{two / one:.2f} x",
            f">= {goal:g} x",
            two >= goal * one,
        )
    ]


def _calls_per_second(loop: str, name: str, cores: list[int]) -> float:
    """Of one process on each core together, all asking at the same time."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", loop, name, f"user:{core}", str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in cores
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in running)
