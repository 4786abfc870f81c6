"""`SqliteFile`: limits in an SQLite database, for limits that are edited through the API.

One row is one entry:

    CREATE TABLE limits (service TEXT, user TEXT, burst_seconds REAL, rates TEXT, ...)

where `rates` is a JSON object of units per second, `{"requests": 50.0}`. The file is created if it
is missing at the start; if it disappears later, that is an error: it would lift all limits. Several
centrals of a host may share it, and people may write to it with any tool: each commit of another
connection changes what SQLite calls the data version, and a file that was put in the place of
this one is opened anew.

Every change is one transaction, with SQLite's own journal and not a write-ahead log: such a log is
a file beside the database, which would be taken for that of the file put in its place. What it
would buy, readers that do not wait for writers, is of no use in a thread that has time.
"""

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger.limit_entry import Entry, read_tables

__all__ = ["SqliteFile"]

_TABLE = """
CREATE TABLE IF NOT EXISTS limits (
    service TEXT NOT NULL,
    user TEXT NOT NULL,
    burst_seconds REAL NOT NULL DEFAULT 10,
    rates TEXT NOT NULL,
    PRIMARY KEY (service, user)
) WITHOUT ROWID
"""
_PUT = "INSERT OR REPLACE INTO limits (service, user, burst_seconds, rates) VALUES (?, ?, ?, ?)"
_BUSY_TIMEOUT = 5.0  # seconds, for another writer


class SqliteFile:
    """A database of limits. One connection, one thread at a time."""

    is_editable = True

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # which file the connection is to
        self._opened = 0

    def __repr__(self) -> str:
        return f"SqliteFile({self.name!r})"

    def load(self) -> tuple[list[Entry], list[str]]:
        with self._open() as connection:
            rows = connection.execute(
                "SELECT service, user, burst_seconds, rates FROM limits ORDER BY service, user"
            ).fetchall()
        return _read(rows)

    def version_token(self) -> object:
        with self._open() as connection:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            return (self._file, self._opened, version), connection.total_changes

    def is_own_write(self, before: object, after: object) -> bool:
        """The first half of a token changes when others commit, or when the file is reopened."""
        return isinstance(before, tuple) and isinstance(after, tuple) and before[0] == after[0]

    def put(self, entry: Entry) -> None:
        with self._open() as connection, connection:
            connection.execute(_PUT, _row(entry))

    def remove(self, service: str, user: str) -> bool:
        with self._open() as connection, connection:
            done = connection.execute(
                "DELETE FROM limits WHERE service = ? AND user = ?", (service, user)
            )
            return done.rowcount > 0

    def replace(self, entries: Iterable[Entry]) -> None:
        rows = [_row(entry) for entry in entries]
        with self._open() as connection, connection:
            connection.execute("DELETE FROM limits")
            connection.executemany(_PUT, rows)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread; errors of SQLite become `ConfigError`."""
        with self._lock:
            try:
                file = _file(self._path)
                if file is None and self._file is not None:
                    raise OSError("the file has disappeared")
                if self._connection is None or self._file != file:
                    self.close()
                    self._connection = self._connect(is_new=self._file is None)
                    self._file = _file(self._path)
                    self._opened += 1  # a new connection starts a new count
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                self.close()
                raise ConfigError(f"cannot use {self.name}: {error}") from None

    def _connect(self, *, is_new: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT, check_same_thread=False)
        try:
            if is_new:
                with connection:
                    connection.execute(_TABLE)
        except BaseException:
            connection.close()
            raise
        return connection


def _file(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _row(entry: Entry) -> tuple[str, str, float, str]:
    return entry.service, entry.user, entry.burst_seconds, json.dumps(dict(entry.rates))


def _read(rows: list[tuple[object, ...]]) -> tuple[list[Entry], list[str]]:
    tables: list[object] = []
    bad: list[str] = []
    for service, user, burst_seconds, text in rows:
        try:
            rates = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            rates = None
        if isinstance(rates, dict):
            tables.append(
                rates | {"service": service, "user": user, "burst_seconds": burst_seconds}
            )
        else:
            bad.append(
                f"row of service {service!r}, user {user!r}: rates must be a JSON object of "
                f"numbers, got {text!r}; skipped"
            )
    entries, faults = read_tables(tables)
    return entries, bad + faults
