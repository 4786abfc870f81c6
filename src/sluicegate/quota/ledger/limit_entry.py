"""Limit entries as configured: how they are read from TOML and from flat tables.

    [[limit]]
    service = "front"
    user = "user_foo"            # "*" = every user without an own entry
    burst_seconds = 10           # how much unused quota may pile up; default 10
    traffic_up = 1048576000      # units per second; any resource name
    database_read = 51200

Every key but `service`, `user` and `burst_seconds` names a resource. An invalid entry is reported
and skipped, the others hold: a typing error in one customer's entry must not lift all limits.
A file that is no TOML at all holds nothing that could be trusted, and raises.

The same flat tables are what functions give, what databases hold and what the HTTP API takes:
`parse_entry` reads one, `read_tables` many, `to_dict` writes one. So no resource can be called like
one of the three keys.

Rates are units per second, burst_seconds are seconds. Names are as long as the wire takes them,
in bytes of UTF-8.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluicegate.errors import ConfigError

__all__ = ["ConfigIssue", "Entry", "parse_entry", "read_entries", "read_tables", "to_dict"]

_MAX_NAME_BYTES = 200
_MAX_SERVICE_BYTES = 50
_MAX_RESOURCES = 8  # a node has room for so many of a user
_MAX_AMOUNT = 1e15  # amounts up to here are exact to the unit
_KEYS = ("service", "user", "burst_seconds")


class ConfigIssue(str):
    """Why an entry was skipped; `owner` is its (service, user) if both are known."""

    owner: tuple[str, str] | None = None

    @classmethod
    def for_table(cls, table: object, text: str) -> "ConfigIssue":
        issue = cls(text)
        if isinstance(table, Mapping):
            service, user = table.get("service"), table.get("user")
            if isinstance(service, str) and isinstance(user, str):
                issue.owner = service, user
        return issue


@dataclass(frozen=True, slots=True)
class Entry:
    """What `user` may take of each resource of `service`, over all nodes. "*" is everyone else."""

    service: str
    user: str
    burst_seconds: float = 10.0
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _name("service", self.service, _MAX_SERVICE_BYTES)
        _name("user", self.user, _MAX_NAME_BYTES)
        object.__setattr__(self, "burst_seconds", _amount("burst_seconds", self.burst_seconds))
        if not self.rates:
            raise ValueError("rates must name at least one resource, got none")
        if len(self.rates) > _MAX_RESOURCES:
            raise ValueError(
                f"rates must name at most {_MAX_RESOURCES} resources, got {len(self.rates)}"
            )
        rates = {}
        for resource, rate in self.rates.items():
            _name("a resource", resource, _MAX_NAME_BYTES)
            if resource in _KEYS:
                raise ValueError(
                    f"a resource must not be named {', '.join(_KEYS)}, got {resource!r}"
                )
            rates[resource] = _amount(resource, rate)
        object.__setattr__(self, "rates", rates)


def read_entries(text: str) -> tuple[list[Entry], list[str]]:
    """The entries of a limits file, and what is wrong with those that were skipped."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with 5,000 digits
        raise ConfigError(f"limits are not valid TOML: {error}") from None
    issues = [
        f"expected only [[limit]] tables, got {key!r}; skipped"
        for key in document
        if key != "limit"
    ]
    if document and "limit" not in document:
        # A slip in the one word that counts must not lift every limit.
        raise ConfigError(f"expected [[limit]] tables, got only {', '.join(map(repr, document))}")
    tables = document.get("limit", [])
    if not isinstance(tables, list):
        issues.append(f"limit must be a list of tables, [[limit]], got {tables!r}; skipped")
        return [], issues
    entries, bad = read_tables(tables)
    return entries, issues + bad


def read_tables(tables: Iterable[object]) -> tuple[list[Entry], list[str]]:
    """The entries of flat tables (or entries as they are), and what is wrong with the others."""
    entries: list[Entry] = []
    issues: list[str] = []
    first_place: dict[tuple[str, str], int] = {}
    for place, table in enumerate(tables, 1):
        try:
            entry = table if isinstance(table, Entry) else parse_entry(table)
        except ValueError as error:
            text = f"limit {place}{_owner_text(table)}: {error}; skipped"
            issues.append(ConfigIssue.for_table(table, text))
            continue
        earlier = first_place.setdefault((entry.service, entry.user), place)
        if earlier != place:
            issues.append(
                f"limit {place}{_owner_text(table)}: expected one entry for each service and user, "
                f"got a second one after limit {earlier}; skipped"
            )
            continue
        entries.append(entry)
    return entries, issues


def parse_entry(table: object) -> Entry:
    """The entry that a flat table means; ValueError says what is wrong with it."""
    if not isinstance(table, Mapping):
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


def to_dict(entry: Entry) -> dict[str, str | float]:
    """The flat table that means `entry`."""
    return {
        "service": entry.service,
        "user": entry.user,
        "burst_seconds": entry.burst_seconds,
        **entry.rates,
    }


def _owner_text(table: object) -> str:
    if isinstance(table, Entry):
        table = to_dict(table)
    if not isinstance(table, Mapping):
        return ""
    return f" (service {table.get('service')!r}, user {table.get('user')!r})"


def _name(what: str, value: object, longest: int) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a non-empty name, got {value!r}")
    size = len(value.encode(errors="surrogatepass"))
    if size > longest:
        raise ValueError(
            f"{what} must have at most {longest} bytes of UTF-8, got {size}: {value[:40]!r}..."
        )
    if value.isascii() and value.isprintable():
        return  # as nearly all are, and a file may have many
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in value):
        raise ValueError(f"{what} must contain no control characters, got {value!r}")
    if any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise ValueError(f"{what} must be text that UTF-8 can encode, got {value!r}")


def _amount(what: str, value: object) -> float:
    # TOML's true is an int to Python, and would be a rate of 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number from 0 to {_MAX_AMOUNT:g}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number <= _MAX_AMOUNT:
        raise ValueError(f"{what} must be a number from 0 to {_MAX_AMOUNT:g}, got {value!r}")
    return number
