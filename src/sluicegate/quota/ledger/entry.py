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

The same flat tables are what functions give, what databases hold and what the HTTP API takes:
`entry_of` reads one, `read_tables` many, `table_of` writes one. So no resource can be called like
one of the three keys.

Rates are units per second, burst_seconds are seconds. Names are as long as the wire takes them,
in bytes of UTF-8.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluicegate.errors import ConfigError

__all__ = ["Complaint", "Entry", "entry_of", "read_entries", "read_tables", "table_of"]

_LONGEST_NAME = 200
_LONGEST_SERVICE = 50
_MOST_RESOURCES = 8  # a node has room for so many of a user
_LARGEST = 1e15  # amounts up to here are exact to the unit
_KEYS = ("service", "user", "burst_seconds")


class Complaint(str):
    """What is wrong with an entry that was skipped, and whose it is as far as that can be told."""

    whose: tuple[str, str] | None = None

    @classmethod
    def about(cls, table: object, text: str) -> "Complaint":
        complaint = cls(text)
        if isinstance(table, Mapping):
            service, user = table.get("service"), table.get("user")
            if isinstance(service, str) and isinstance(user, str):
                complaint.whose = service, user
        return complaint


@dataclass(frozen=True, slots=True)
class Entry:
    """What `user` may take of each resource of `service`, over all nodes. "*" is everyone else."""

    service: str
    user: str
    burst_seconds: float = 10.0
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _name("service", self.service, _LONGEST_SERVICE)
        _name("user", self.user, _LONGEST_NAME)
        object.__setattr__(self, "burst_seconds", _amount("burst_seconds", self.burst_seconds))
        if not self.rates:
            raise ValueError("rates must name at least one resource, got none")
        if len(self.rates) > _MOST_RESOURCES:
            raise ValueError(
                f"rates must name at most {_MOST_RESOURCES} resources, got {len(self.rates)}"
            )
        rates = {}
        for resource, rate in self.rates.items():
            _name("a resource", resource, _LONGEST_NAME)
            if resource in _KEYS:
                raise ValueError(f"a resource must not be called {', '.join(_KEYS)}: {resource!r}")
            rates[resource] = _amount(resource, rate)
        object.__setattr__(self, "rates", rates)


def read_entries(text: str) -> tuple[list[Entry], list[str]]:
    """The entries of a limits file, and what is wrong with those that were skipped."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with 5,000 digits
        raise ConfigError(f"the limits are not valid TOML: {error}") from None
    faults = [
        f"expected only [[limit]] tables, got {key!r}; skipped"
        for key in document
        if key != "limit"
    ]
    if document and "limit" not in document:
        # A slip in the one word that counts must not lift every limit.
        raise ConfigError(f"expected [[limit]] tables, got only {', '.join(map(repr, document))}")
    tables = document.get("limit", [])
    if not isinstance(tables, list):
        faults.append(f"limit must be a list of tables, [[limit]], got {tables!r}; skipped")
        return [], faults
    entries, bad = read_tables(tables)
    return entries, faults + bad


def read_tables(tables: Iterable[object]) -> tuple[list[Entry], list[str]]:
    """The entries of flat tables (or entries as they are), and what is wrong with the others."""
    entries: list[Entry] = []
    faults: list[str] = []
    first_place: dict[tuple[str, str], int] = {}
    for place, table in enumerate(tables, 1):
        try:
            entry = table if isinstance(table, Entry) else entry_of(table)
        except ValueError as error:
            text = f"limit {place}{_whose(table)}: {error}; skipped"
            faults.append(Complaint.about(table, text))
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


def entry_of(table: object) -> Entry:
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


def table_of(entry: Entry) -> dict[str, str | float]:
    """The flat table that means `entry`."""
    return {
        "service": entry.service,
        "user": entry.user,
        "burst_seconds": entry.burst_seconds,
        **entry.rates,
    }


def _whose(table: object) -> str:
    if isinstance(table, Entry):
        table = table_of(table)
    if not isinstance(table, Mapping):
        return ""
    return f" (service {table.get('service')!r}, user {table.get('user')!r})"


def _name(what: str, value: object, longest: int) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a name that is not empty, got {value!r}")
    size = len(value.encode(errors="surrogatepass"))
    if size > longest:
        raise ValueError(
            f"{what} must have at most {longest} bytes of UTF-8, got {size}: {value[:40]!r}..."
        )
    if value.isascii() and value.isprintable():
        return  # as nearly all are, and a file may have many
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
