"""Reads values out of a TOML table, and says what is wrong with one.

    table = Table(read, "my.toml", "traffic 2")
    rate = table.number("rate", least=0)
    table.done()          # whatever was not asked for is an error

Every complaint is a `ConfigError` that names the file, the key, the value and what was expected.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from sluicegate.errors import ConfigError

__all__ = ["Table"]

_MISSING = object()


class Table:
    """One TOML table that is being read."""

    def __init__(self, values: object, file: str, place: str = "") -> None:
        self._file = file
        self._place = place
        if not isinstance(values, Mapping):
            raise ConfigError(f"{file}: {place or 'the file'} = {values!r}: expected a table")
        self._values: Mapping[str, Any] = values
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def name(self, key: str) -> str:
        return f"{self._place}: {key}" if self._place else key

    def wrong(self, key: str, expected: str) -> NoReturn:
        got = repr(self._values[key]) if key in self._values else "nothing"
        raise ConfigError(f"{self._file}: {self.name(key)} = {got}: expected {expected}")

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Whatever stands there."""
        self._asked.add(key)
        if key in self._values:
            return self._values[key]
        if default is _MISSING:
            raise ConfigError(f"{self._file}: missing key: {self.name(key)}")
        return default

    def number(
        self,
        key: str,
        default: Any = _MISSING,
        *,
        least: float = 0.0,
        most: float = math.inf,
        above: bool = False,
    ) -> Any:
        """A finite number from `least` (or above it) to `most`; a default is taken as it is."""
        value = self.value(key, default)
        if key not in self._values:
            return value
        if not self._fits(value, least, most, above):
            more = "above" if above else "of at least"
            ceiling = f" and at most {most:g}" if most < math.inf else ""
            floor = f" {more} {least:g}" if least > -math.inf else ""
            self.wrong(key, f"a finite number{floor}{ceiling}")
        return float(value)

    @staticmethod
    def _fits(value: object, least: float, most: float, above: bool) -> bool:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and -math.inf < value < math.inf  # a whole number may be too large for a float
            and (least < value if above else least <= value)
            and value <= most
        )

    def whole(self, key: str, default: Any = _MISSING, *, least: int, most: int) -> Any:
        value = self.value(key, default)
        if key in self._values and not (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        ):
            self.wrong(key, f"an integer from {least} to {most}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: Any = _MISSING, *, of: Collection[str] | None = None) -> Any:
        value = self.value(key, default)
        if key not in self._values:
            return value
        if not isinstance(value, str) or not value:
            self.wrong(key, "a string")
        if of is not None and value not in of:
            self.wrong(key, "one of " + ", ".join(sorted(of)))
        return value

    def texts(self, key: str, default: Any = _MISSING) -> Any:
        """A list of texts; a single text is a list of one."""
        value = self.value(key, default)
        if key not in self._values:
            return value
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not value or not all(_is_text(part) for part in value):
            self.wrong(key, "a string or a list of strings")
        return value

    def part(self, key: str, values: object) -> "Table":
        """A table that is read in place of `key`, under its name."""
        return Table(values, self._file, self.name(key))

    def table(self, key: str) -> "Table":
        """The table under `key`; an empty one if there is none."""
        return Table(self.value(key, {}), self._file, self.name(key))

    def tables(self, key: str) -> list["Table"]:
        """The list of tables `[[key]]`; an empty one if there is none."""
        value = self.value(key, [])
        if not isinstance(value, list):
            self.wrong(key, f"a list of tables, [[{key}]]")
        return [
            Table(one, self._file, f"{self.name(key)} {number}")
            for number, one in enumerate(value, 1)
        ]

    def rest(self) -> dict[str, Any]:
        """All that has not been asked for; it counts as asked for then."""
        left = {key: value for key, value in self._values.items() if key not in self._asked}
        self._asked.update(left)
        return left

    def check(self, key: str, fits: Callable[[Any], bool], expected: str) -> None:
        if not fits(self._values.get(key)):
            self.wrong(key, expected)

    def done(self) -> None:
        """Complain about the first key that nobody has asked for."""
        for key in self._values:
            if key not in self._asked:
                known = ", ".join(sorted(self._asked))
                self.wrong(key, f"no such key; there are {known}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
