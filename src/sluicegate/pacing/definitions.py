"""`DefinitionsFile`: limiters from a file that people edit, TOML or the JSON of go-cluster-limiter.

    [[limiter]]
    name = "ads"
    target = 10000
    period = 60

The keys are the keywords of `Cluster.limiter`; `begin` and `end` are date-times with an offset. A
file whose name ends with .json is a list of the options of go-cluster-limiter: `Name`,
`RewardTarget`, `PeriodInterval` in nanoseconds, and so on.

One bad entry does no harm to the others. It keeps its last good version, if there was one, and is
reported with the file, the entry and the value. An entry that has vanished is removed: its limiter
lets nothing pass until the entry is back. When the file as a whole cannot be read, or has no entry
at all, nothing changes.
"""

import json
import logging
import os
import stat
import time
import tomllib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from sluicegate.errors import ConfigError, reason_of
from sluicegate.pacing._limiter import ClusterLimiter
from sluicegate.pacing.limiter_options import LimiterKeywords, LimiterOptions
from sluicegate.pacing.registry import Registry

__all__ = ["DefinitionsFile", "read_json", "read_toml"]

_REST = 0.05  # seconds without a change after which a file is believed to be whole
_MAX_BYTES = 16 << 20
_NANOSECONDS = 1e9  # in a second
_UNSET_YEAR = 1  # Go's zero time
# What wrong, huge or deeply nested values raise.
_BAD_VALUES = (ValueError, TypeError, ArithmeticError, RecursionError)

log = logging.getLogger("sluicegate.pacing")

Entry = tuple[str, "LimiterOptions | str"]  # a name, and its options or what is wrong with it


class DefinitionsFile:
    """One file, and the limiters that came from it."""

    def __init__(self, path: Path, registry: Registry) -> None:
        self.path = path
        self.problems: tuple[str, ...] = ()
        self._registry = registry
        self._limiters: dict[str, ClusterLimiter] = {}  # in force
        self._removed: dict[str, ClusterLimiter] = {}
        self._read_version: object = None

    def reload_if_changed(self) -> None:
        """Read it again if it has changed, and rests. It costs one call of the system."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            self._complain((f"cannot read {self.path}: {reason_of(error)}",))
            return
        if (
            _version(status) != self._read_version
            and not 0 <= time.time() - status.st_mtime < _REST
        ):
            self.reload()

    def reload(self) -> None:
        """Read it. If it cannot be read, all stays as it is."""
        try:
            self.read()
        except ConfigError as error:
            self._complain((str(error),))

    def read(self) -> None:
        """Read it, and make, change and remove limiters. Raises `ConfigError`."""
        try:
            # A pipe would wait for a writer.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if stat.S_ISFIFO(status.st_mode):
                    raise ConfigError(f"cannot read {self.path}: it must be a file, got a pipe")
                self._read_version = _version(status)
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {reason_of(error)}") from None
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{self.path} is too large: expected at most {_MAX_BYTES} bytes")
        read = read_json if self.path.suffix == ".json" else read_toml
        try:
            entries, problems = read(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.path} must be UTF-8: {error}") from None
        except (ConfigError, *_BAD_VALUES) as error:
            raise ConfigError(f"{self.path}: {error}") from None
        if self._limiters and not entries and not problems:
            # A file that is being written is empty for a moment. To remove limiters, name one.
            raise ConfigError(f"{self.path} is empty: the last definitions are used")
        self._apply(entries, problems)

    def remove_all(self) -> None:
        """Remove what was made from it."""
        for name in list(self._limiters):
            self._remove(name)

    def _apply(self, entries: list[Entry], problems: list[str]) -> None:
        has_nameless = bool(problems)  # one of these may be any of those that are missing
        named: set[str] = set()
        self._notice_removals()
        for name, options in entries:
            problem = self._define(name, options, named)
            named.add(name)
            if problem is not None:
                problems.append(f"limiter {name!r}: {problem}")
        for name in () if has_nameless else self._limiters.keys() - named:
            self._remove(name)
            log.info("%s: limiter %r is gone, and lets nothing pass any more", self.path, name)
        self._complain(tuple(f"{self.path}: {problem}" for problem in problems))

    def _notice_removals(self) -> None:
        """The program may have removed limiters, and may have made others of their names."""
        for name, limiter in list(self._limiters.items()):
            if self._registry.find_limiter(name) is not limiter:
                self._removed[name] = self._limiters.pop(name)

    def _remove(self, name: str) -> None:
        self._removed[name] = self._limiters.pop(name)
        self._registry.remove(name)

    def _define(self, name: str, options: LimiterOptions | str, named: set[str]) -> str | None:
        """Make or change a limiter; returns what is wrong."""
        if name in named:
            return "the name occurs twice; the first one is used"
        if isinstance(options, str):
            return (
                f"{options}; the last good version is used" if name in self._limiters else options
            )
        try:
            if name not in self._limiters:
                if name in self._registry:
                    return "the program, or another file, has defined this name"
                if name in self._removed:  # whoever has the object goes on with it
                    limiter = self._removed[name]
                    self._registry.revive(limiter, options)
                    del self._removed[name]
                else:
                    limiter = self._registry.limiter(name, options)
                self._limiters[name] = limiter
                log.info("%s: limiter %r: target %g", self.path, name, options.target)
            elif self._registry.redefine(name, options):
                log.info("%s: limiter %r has changed: target %g", self.path, name, options.target)
        except _BAD_VALUES as error:
            return str(error)
        return None

    def _complain(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", problem)
        self.problems = problems


def read_toml(text: str) -> tuple[list[Entry], list[str]]:
    """The entries of a TOML file, and what is wrong with those that have no name."""
    try:
        document = tomllib.loads(text)
    except _BAD_VALUES as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    tables = document.pop("limiter", [])
    if document:
        raise ConfigError(f"expected [[limiter]] entries only, got {', '.join(document)}")
    if not isinstance(tables, list):
        raise ConfigError(f"expected [[limiter]] entries, got limiter = {tables!r}")
    return _read_entries(tables, "name", _from_toml)


def read_json(text: str) -> tuple[list[Entry], list[str]]:
    """The entries of a file of go-cluster-limiter, and what is wrong with nameless ones."""
    try:
        tables = json.loads(text)
    except _BAD_VALUES as error:
        raise ConfigError(f"not valid JSON: {error}") from None
    if not isinstance(tables, list):
        raise ConfigError(f"expected a list of objects, got {tables!r:.100}")
    return _read_entries(tables, "Name", _from_json)


def _read_entries(
    tables: list[Any], name_key: str, convert: Callable[[dict[str, Any]], LimiterOptions]
) -> tuple[list[Entry], list[str]]:
    entries: list[Entry] = []
    problems: list[str] = []
    for number, table in enumerate(tables, 1):
        name = table.pop(name_key, None) if isinstance(table, dict) else None
        if not isinstance(name, str) or not name:
            wrong = f"must be a text, got {name!r}" if name is not None else "is missing"
            problems.append(f"entry {number}: {name_key} {wrong}")
            continue
        try:
            entries.append((name, convert(table)))
        except _BAD_VALUES as error:
            entries.append((name, str(error)))
    return entries, problems


def _from_toml(table: dict[str, Any]) -> LimiterOptions:
    _check_keys(table, LimiterKeywords.__annotations__.keys(), "target")
    for key in ("begin", "end"):
        value = table.get(key)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            raise ValueError(
                f"{key} must be a date-time with an offset, such as 2026-12-01T00:00:00+01:00, "
                f"got {value!s}"
            )
    return LimiterOptions(**table)


# What go-cluster-limiter needs and we do not: shares and scores are measured, old data is kept.
_IGNORED = {
    "DiscardPreviousData",
    "InitLocalTrafficProportion",
    "InitIdealPassRate",
    "UpdatePassRateMinCount",
    "UpdateRewardRateMinCount",
    "RewardRatioDeclineExpRatio",
    "ScoreSamplesSortInterval",
    "ScoreSamplesMax",
}
_GO_TIMES = ("BeginTime", "EndTime", "CompletionTime")
_GO_DURATIONS = ("PeriodInterval", "ReserveInterval", "BurstInterval")
_GO_NUMBERS = {
    "MaxBoostFactor": "boost",
    "InitRewardRate": "reward_rate",
    "DeclineExpRatio": "decay",
}


def _from_json(table: dict[str, Any]) -> LimiterOptions:
    known = {"RewardTarget", "TakeWithScore", *_GO_TIMES, *_GO_DURATIONS, *_GO_NUMBERS, *_IGNORED}
    _check_keys(table, known, "RewardTarget")
    period, reserve, burst = (_duration(table, key) for key in _GO_DURATIONS)
    begin, end, completion = (_time(table, key) for key in _GO_TIMES)
    options: dict[str, Any] = {
        "target": _number(table, "RewardTarget"),
        "scored": table.get("TakeWithScore", False),
        "reserve": reserve,
    }
    if burst:
        options["burst_interval"] = burst
    for key, name in _GO_NUMBERS.items():  # 0 is "not set" in Go
        if number := _number(table, key):
            options[name] = number
    if period:
        options["period"] = period
    else:
        options |= {"begin": begin, "end": end}
        if completion is not None and end is not None:
            options["reserve"] = max((end - completion).total_seconds(), reserve)
    return LimiterOptions(**options)


def _check_keys(table: dict[str, Any], known: Any, needed: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {key} = {table[key]!r}; known: {', '.join(known)}")
    if needed not in table:
        raise ValueError(f"{needed} is missing")


def _number(table: dict[str, Any], key: str) -> float:
    value = table.get(key, 0)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{key} must be a number, got {value!r}")
    return value


def _duration(table: dict[str, Any], key: str) -> float:
    nanoseconds = _number(table, key)
    if nanoseconds < 0:
        raise ValueError(f"{key} must be nanoseconds >= 0, got {nanoseconds!r}")
    return nanoseconds / _NANOSECONDS


def _time(table: dict[str, Any], key: str) -> datetime | None:
    value = table.get(key)
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError("no offset")
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a time as in RFC 3339, got {value!r}") from None
    return None if found.year == _UNSET_YEAR else found


def _version(status: os.stat_result) -> tuple[int, ...]:
    # The last one shows a change by a writer that has set the modification time back.
    return (
        *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        status.st_ctime_ns,
    )
