"""Measures subjects against each other on a machine that is not quiet.

The subjects of a comparison run in turns, many short rounds each, and for each the
best round counts: noise only ever adds time, and what slows one down slows down its
neighbours in the same turn too. A subject is a statement in a `for` loop, as in
timeit, so its time has the loop in it (some 14 ns); the loop is the same for all.

Two times are taken: of the thread (what the processor spent) and of the wall. Ratios
are of thread time.
"""

import gc
import itertools
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["Row", "Subject", "Times", "compare", "in_fresh_process", "report"]

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
ROUNDS = 15
ROUND_SECONDS = 0.02


@dataclass(frozen=True)
class Subject:
    """A statement and the names in it."""

    statement: str
    names: Mapping[str, Any]

    def loop(self) -> Callable[[int], tuple[int, int]]:
        source = f"""
def loop(rounds):
    turns = repeat(None, rounds)
    wall, thread = perf_counter_ns(), thread_time_ns()
    for _ in turns:
        {self.statement}
    return thread_time_ns() - thread, perf_counter_ns() - wall
"""
        names: dict[str, Any] = {
            "repeat": itertools.repeat,
            "perf_counter_ns": time.perf_counter_ns,
            "thread_time_ns": time.thread_time_ns,
            **self.names,
        }
        exec(source, names)
        return names["loop"]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Times:
    """Nanoseconds per call, the best of all rounds."""

    thread: float
    wall: float


@dataclass(frozen=True)
class Row:
    """One line of a table. `ratio` is what the goal speaks of; None: there is no goal."""

    what: str
    ours: str
    peer: str
    ratio: float | None
    ratio_text: str
    goal: str
    met: bool | None


def compare(**subjects: Subject) -> dict[str, Times]:
    """Measure the subjects in turns."""
    loops = {name: subject.loop() for name, subject in subjects.items()}
    counts = {name: _count(loop) for name, loop in loops.items()}
    best = {name: Times(math.inf, math.inf) for name in loops}
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for name, loop in loops.items():
                thread, wall = loop(counts[name])
                best[name] = Times(
                    min(best[name].thread, thread / counts[name]),
                    min(best[name].wall, wall / counts[name]),
                )
    finally:
        gc.enable()
    return best


def _count(loop: Callable[[int], tuple[int, int]]) -> int:
    """How many calls fill a round; the first calls also warm up."""
    count = 1
    # A pause in one of two does not make the rounds short.
    while (wall := min(loop(count)[1], loop(count)[1])) < ROUND_SECONDS * 1e9 / 4:
        count *= 4
    return max(1, round(count * ROUND_SECONDS * 1e9 / wall))


def in_fresh_process(code: str) -> Any:
    """Run code that prints one line of JSON, where memory and pauses are its own."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def report(part: str, rows: list[Row], notes: str) -> str:
    """Write the results down, as JSON and in the docs; return the table as text."""
    stamp = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": _machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    result = {**stamp, "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n")
    _write_into_docs(part, rows, stamp, notes)
    return _as_text(part, rows)


def _machine() -> str:
    cores = f"{sys.platform}, {platform.machine()}"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        if models:
            return f"{len(models)} x {models[0]}, {cores}"
    return cores


COLUMNS = ("what", "ours", "peer", "ratio", "goal", "met")


def _cells(row: Row) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: ""}[row.met]
    return (row.what, row.ours, row.peer, row.ratio_text, row.goal, met)


def _as_text(part: str, rows: list[Row]) -> str:
    table = [COLUMNS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    return "\n".join([part, lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _write_into_docs(part: str, rows: list[Row], stamp: dict[str, str], notes: str) -> None:
    begin, end = f"<!-- {part}: made by `make bench` -->", f"<!-- end of {part} -->"
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in [COLUMNS, ("---",) * 6])
    table += "".join(f"\n| {' | '.join(_cells(row))} |" for row in rows)
    measured = f"{stamp['date']}, Python {stamp['python']}, {stamp['machine']}"
    text = DOCS.read_text()
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    DOCS.write_text(f"{before}{begin}\n{measured}. {notes}\n\n{table}\n{end}{after}")
