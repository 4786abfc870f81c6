"""Traffic out of a file: what would a limit have done to last week?

A file has one line per request and resource: CSV with a header line, or JSON lines, by its suffix.

    time,user,resource,amount[,node][,service]
    1700000000.25,alice,requests,1
    {"time": 1700000000.25, "user": "alice", "resource": "requests", "amount": 1}

Times are seconds from anywhere; the earliest is the beginning of the simulation. The lines need
not be in order. Lines without a node, or with one the cluster does not have or that is down, go to
the nodes that are up, in turn. Lines that are alike in the same step are kept as one with a count:
a week of a busy log fits in memory.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sluicegate.errors import ConfigError
from sluicegate.sim.measures import STEPS
from sluicegate.sim.scenario import Scenario

__all__ = ["Replay", "Request", "read_traffic"]

_KNOWN = {"time", "user", "resource", "amount", "node", "service"}
_NEEDED = ("time", "user", "resource", "amount")
_MOST_SLOTS = 1_000_000  # from the first line to the last: a time that is wrong is soon far away
_MOST_AMOUNT = 1e12


class Request(NamedTuple):
    service: str
    user: str
    resource: str
    amount: float
    node: str  # "": none was named


class Replay:
    """The requests of a file, by the step they come in."""

    def __init__(
        self, requests: Iterable[tuple[float, Request]], step_seconds: float, file: str = ""
    ) -> None:
        self.file = file
        timed = list(requests)
        start = min((time for time, _ in timed), default=0.0)
        self.seconds = max((time for time, _ in timed), default=0.0) - start + step_seconds
        if self.seconds > _MOST_SLOTS * STEPS * step_seconds:
            raise ConfigError(
                f"{file}: from {start!r} to {start + self.seconds:.17g} seconds: expected at most "
                f"{_MOST_SLOTS:,} slots from the first line to the last"
            )
        self._steps: dict[int, Counter[Request]] = {}
        for time, request in timed:
            step = int((time - start) / step_seconds)
            self._steps.setdefault(step, Counter())[request] += 1

    def of_step(self, step: int) -> Iterable[tuple[Request, int]]:
        counter = self._steps.get(step)
        return counter.items() if counter is not None else ()

    def users(self) -> set[tuple[str, str]]:
        """All of them, with their services."""
        return {
            (request.service, request.user)
            for counter in self._steps.values()
            for request in counter
        }

    def scenario(self, scenario: Scenario) -> Scenario:
        """The scenario with this traffic: as long as it, without a warm-up."""
        faults = tuple(fault for fault in scenario.faults if fault.at < self.seconds)
        return replace(
            scenario,
            seconds=self.seconds,
            warm_up=0.0,
            traffic=(),
            faults=faults,
            options=("--traffic", self.file),
        )

    def __len__(self) -> int:
        return sum(counter.total() for counter in self._steps.values())


def read_traffic(path: str | Path, scenario: Scenario) -> Replay:
    """The traffic in a file. Lines that name no service are of the scenario's first one."""
    path = Path(path)
    service = scenario.limits[0].service if scenario.limits else "front"
    if path.suffix not in (".csv", ".jsonl"):
        raise ConfigError(f"{path}: expected a file that ends in .csv or .jsonl")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _csv(file, path) if path.suffix == ".csv" else _json_lines(file, path)
            replay = Replay(
                (_request(row, f"{path}, line {line}", service) for line, row in rows),
                scenario.slot_seconds / STEPS,
                str(path),
            )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot read the traffic: {error}") from error
    if not len(replay):
        raise ConfigError(f"{path}: expected at least one request, got none")
    return replay


def _csv(file: Iterable[str], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(file)
    head = reader.fieldnames or []
    missing = [name for name in _NEEDED if name not in head]
    if missing:
        raise ConfigError(
            f"{path}, line 1: expected a header line with {', '.join(_NEEDED)}, "
            f"got {','.join(head)!r}"
        )
    for row in reader:
        yield reader.line_num, row


def _json_lines(file: Iterable[str], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(file, 1):
        if text.strip():
            try:
                row = json.loads(text)
            except ValueError as error:
                raise ConfigError(f"{path}, line {line}: invalid JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{path}, line {line}: expected an object, got {row!r}")
            yield line, row


def _request(row: dict[str, Any], place: str, service: str) -> tuple[float, Request]:
    if None in row:  # where csv puts what no head stands over
        raise ConfigError(f"{place}: expected no more fields than the header line has")
    unknown = [name for name in row if name not in _KNOWN]
    if unknown:
        raise ConfigError(f"{place}: {unknown[0]!r} is unknown: expected {', '.join(_NEEDED)}")
    time = _number(row, "time", place)
    amount = _number(row, "amount", place)
    if not 0 <= amount <= _MOST_AMOUNT:
        raise ConfigError(f"{place}: amount = {amount!r}: expected from 0 to {_MOST_AMOUNT:g}")
    return time, Request(
        _text(row, "service", place, service),
        _text(row, "user", place),
        _text(row, "resource", place),
        amount,
        _text(row, "node", place, ""),
    )


def _text(row: dict[str, Any], name: str, place: str, default: str | None = None) -> str:
    text = row.get(name)
    if default is not None and (text is None or text == ""):
        return default
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{place}: {name} = {text!r}: expected a string")
    return text


def _number(row: dict[str, Any], name: str, place: str) -> float:
    try:
        value = row.get(name)
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{place}: {name} = {row.get(name)!r}: expected a finite number")
    return number
