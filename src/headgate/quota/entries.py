"""The limits as people write them: entries of a TOML file.

    [[limit]]
    service = "front"
    user = "user_foo"            # "*" = every user that has no entry of his own
    burst_seconds = 10           # how much unused quota may pile up; default 10
    traffic_up = 1048576000      # units per second; any resource name
    database_read = 51200

Every key but `service`, `user` and `burst_seconds` names a resource. One bad entry is told and
skipped, the others hold: a typing error in one customer's entry must not lift the limits of all.
A file that is no TOML at all holds nothing that could be trusted, and raises.

Rates are units per second, burst_seconds are seconds.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.errors import ConfigError

__all__ = ["Entry", "read_entries"]

_LONGEST_NAME = 256
_LARGEST = 1e15  # amounts up to here are exact to the unit
_KEYS = ("service", "user", "burst_seconds")


@dataclass(frozen=True, slots=True)
class Entry:
    """What `user` may take of each resource of `service`, over all nodes. "*" is everyone else."""

    service: str
    user: str
    burst_seconds: float = 10.0
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _name("service", self.service)
        _name("user", self.user)
        object.__setattr__(self, "burst_seconds", _amount("burst_seconds", self.burst_seconds))
        if not self.rates:
            raise ValueError("rates must name at least one resource, got none")
        rates = {}
        for resource, rate in self.rates.items():
            _name("a resource", resource)
            rates[resource] = _amount(resource, rate)
        object.__setattr__(self, "rates", rates)


def read_entries(text: str) -> tuple[list[Entry], list[str]]:
    """The entries of a limits file, and what is wrong with those that were skipped."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with 5,000 digits
        raise ConfigError(f"the limits are not valid TOML: {error}") from None
    entries: list[Entry] = []
    faults = [
        f"expected only [[limit]] tables, got {key!r}; skipped"
        for key in document
        if key != "limit"
    ]
    tables = document.get("limit", [])
    if not isinstance(tables, list):
        faults.append(f"limit must be a list of tables, [[limit]], got {tables!r}; skipped")
        return [], faults
    first_place: dict[tuple[str, str], int] = {}
    for place, table in enumerate(tables, 1):
        try:
            entry = _entry(table)
        except ValueError as error:
            faults.append(f"limit {place}{_whose(table)}: {error}; skipped")
            continue
        earlier = first_place.setdefault((entry.service, entry.user), place)
        if earlier != place:
            faults.append(
                f"limit {place}{_whose(table)}: expected one entry for each service and user, "
                f"got a second one after limit {earlier}; skipped"
            )
            continue
        entries.append(entry)
    return entries, faults


def _entry(table: object) -> Entry:
    if not isinstance(table, dict):
        raise ValueError(f"a limit must be a table, got {table!r}")
    for key in ("service", "user"):
        if key not in table:
            raise ValueError(f"{key} is missing, expected a name")
    return Entry(
        service=table["service"],
        user=table["user"],
        burst_seconds=table.get("burst_seconds", 10.0),
        rates={key: value for key, value in table.items() if key not in _KEYS},
    )


def _whose(table: object) -> str:
    if not isinstance(table, dict):
        return ""
    return f" (service {table.get('service')!r}, user {table.get('user')!r})"


def _name(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a name that is not empty, got {value!r}")
    if len(value) > _LONGEST_NAME:
        raise ValueError(
            f"{what} must have at most {_LONGEST_NAME} characters, got {len(value)}: "
            f"{value[:40]!r}..."
        )
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in value):
        raise ValueError(f"{what} must have no control characters, got {value!r}")
    if any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise ValueError(f"{what} must be text that can be written as UTF-8, got {value!r}")


def _amount(what: str, value: object) -> float:
    # TOML's true is an int to Python, and would be a rate of 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number from 0 to {_LARGEST:g}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{what} must be a number from 0 to {_LARGEST:g}, got {value!r}")
    return number
