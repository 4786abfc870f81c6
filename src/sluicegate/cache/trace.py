"""Traces: the keys that were asked for, in their order, out of a file or any iterable.

A trace file has one key per line, as it is, or is a table of which one column has the keys:

    user:42                         time,key,size
    /index.html                     1700000000.25,user:42,512

A file is a table if a column is named or it ends in .csv or .tsv (before .gz, which is unpacked).
It is read line by line: of a trace that is replayed, each key is kept once, and a request takes
8 bytes.
"""

import csv
import gzip
import io
import itertools
import os
import zlib
from array import array
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Self

from sluicegate.errors import ConfigError, reason_of

__all__ = ["Trace", "read_trace"]

_DELIMITERS = ("\t", ",", ";")  # looked for in the first line, in this order; then a space,
_SUFFIXES = (".csv", ".tsv")  # but not in these
_LONGEST_LINE = 1 << 20  # bytes
_SHOWN = 60  # characters of a wrong line that its error shows


class Trace:
    """Keys as numbers from 0, in the order in which they came first: alike in every process."""

    __slots__ = ("distinct", "numbers")

    def __init__(self, keys: Iterable[Hashable]) -> None:
        number_of: dict[Hashable, int] = {}
        self.numbers = array("q", (number_of.setdefault(key, len(number_of)) for key in keys))
        self.distinct = len(number_of)
        if not self.numbers:
            raise ValueError("trace must have at least one key, got none")

    @classmethod
    def load(cls, source: "str | os.PathLike[str] | Iterable[Hashable] | Trace") -> Self:
        """A trace of a file, or of keys."""
        if isinstance(source, cls):
            return source
        if isinstance(source, str | os.PathLike):
            return cls(read_trace(source))
        if not isinstance(source, Iterable):
            raise TypeError(f"trace must be a path or an iterable of keys, got {source!r}")
        return cls(source)

    @property
    def requests(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"Trace(requests={self.requests}, distinct={self.distinct})"


def read_trace(
    path: str | os.PathLike[str],
    column: str | int | None = None,
    *,
    delimiter: str | None = None,
    header: bool | None = None,
) -> Iterator[str]:
    """The keys of a file, one by one. `ConfigError` says in which line one cannot be read.

    `column` is a name in the header line, or a number from 1. A table of one column needs
    none. There is a header line if `header` says so; left out, if `column` is a name. The
    delimiter is the first of tab, comma and semicolon that the first line has, else a
    space (not in .csv and .tsv).
    """
    if isinstance(column, bool) or not isinstance(column, str | int | None):
        raise TypeError(f"column must be a name, a number from 1 or None, got {column!r}")
    if column == "" or (isinstance(column, int) and column < 1):
        raise ValueError(f"column must be a name, a number from 1 or None, got {column!r}")
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise ValueError(f"delimiter must be one character or None, got {delimiter!r}")
    if header is False and isinstance(column, str):
        raise ValueError(f"header must not be False when column is a name, got {column!r}")
    path = Path(path)
    if column is None and delimiter is None and not _is_table(path):
        return _plain(path, bool(header))
    return _column(path, column, delimiter, bool(header) or isinstance(column, str))


def _is_table(path: Path) -> bool:
    """By its name."""
    return path.name.lower().removesuffix(".gz").endswith(_SUFFIXES)


def _plain(path: Path, has_header: bool) -> Iterator[str]:
    is_empty = True
    for number, line in _lines(path):
        key = line.strip()
        if key and not (has_header and number == 1):
            is_empty = False
            yield key
    if is_empty:
        raise _no_request(path)


def _column(
    path: Path, column: str | int | None, delimiter: str | None, has_header: bool
) -> Iterator[str]:
    """The keys of a table."""
    lines = (line for _, line in _lines(path))
    start = []  # up to the first line that is not empty
    for line in lines:
        start.append(line)
        if line.strip():
            break
    if not start:
        raise _no_request(path)
    if delimiter is None:
        otherwise = "," if _is_table(path) else " "
        delimiter = next((one for one in _DELIMITERS if one in start[-1].strip()), otherwise)
    rows = csv.reader(
        itertools.chain(start, lines), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    index: int | None = None
    is_empty = True
    try:
        for row in rows:
            if not any(row):
                continue
            if index is None:
                index = _index(row, column, f"{path}, line {rows.line_num}")
                if has_header:
                    continue
            key = row[index].strip() if index < len(row) else ""
            if not key:
                raise ConfigError(
                    f"{path}, line {rows.line_num}: expected a key in column {index + 1}, got "
                    f"{_shorten(delimiter.join(row))!r}"
                )
            is_empty = False
            yield key
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}") from error
    if is_empty:
        raise _no_request(path)


def _index(row: list[str], column: str | int | None, place: str) -> int:
    """Which field of the rows has the keys, by the first of them."""
    names = [name.strip() for name in row]
    if column is None and len(row) > 1:
        raise ConfigError(
            f"{place}: expected one column, got {len(row)} ({_shorten(', '.join(names))}): "
            "say which has the keys, by its name or its number from 1"
        )
    if isinstance(column, str):
        if column not in names:
            raise ConfigError(
                f"{place}: expected a column {column!r}, got {_shorten(', '.join(names))!r}"
            )
        return names.index(column)
    return 0 if column is None else column - 1


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines and their numbers, from 1."""
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    raise ConfigError(
                        f"{path}, line {number}: expected at most {_LONGEST_LINE:,} bytes, got "
                        f"{line[:_SHOWN]!r}..."
                    )
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}, line {number}: expected UTF-8, got {error.object[:_SHOWN]!r}"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}, after line {number}: cannot unpack it: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the trace: {reason_of(error)}") from error


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _no_request(path: Path) -> ConfigError:
    return ConfigError(f"{path}: expected at least one key, got none")


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
