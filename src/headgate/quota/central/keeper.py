"""Keeps the ledger's limits those of the source, and knows what is wrong with them.

Reading may take seconds and belongs in a thread; the ledger belongs to the central's loop. So
there are two halves: `read` (and `edit`) ask the source, from any thread, and give a `Reading`;
`apply` puts it into the ledger and belongs on the loop. `refresh_async` and `edit_async` do both.
Readings are numbered, so that a slow thread cannot bring old limits back, and one that nobody
applied is read again.

A source that fails changes nothing: the limits stay, `error` says why until it works again, and
the log tells it once. Only the first reading (`begin`) raises: a central that has never had its
limits must not let everyone through.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.errors import ConfigError
from headgate.quota.entries import Entry, read_tables
from headgate.quota.ledger import Ledger
from headgate.quota.limits_table import LimitsTable
from headgate.quota.sources import LimitsSource

__all__ = ["LimitsKeeper", "Reading"]

_logger = logging.getLogger("headgate.quota")

_COMPLAINTS_LOGGED = 10
_PATIENCE = 10.0  # seconds, for another thread that asks the source

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """What the source said, or why it could not.

    Entries that are the same as before are the same list: to compare many is not for the loop.
    """

    number: int
    wall: float
    stamp: object
    entries: list[Entry] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    error: str | None = None
    table: LimitsTable | None = None


class LimitsKeeper:
    """The limits of a ledger and where they come from."""

    def __init__(self, source: LimitsSource, ledger: Ledger) -> None:
        self.source = source
        self.entries: list[Entry] = []
        self.complaints: list[str] = []
        self.error: str | None = None
        self.errors = 0  # how often the source failed
        self.loaded_at: float | None = None  # wall seconds of the newest reading that worked
        self._ledger = ledger
        self._lock = threading.Lock()  # one thread at a time asks the source
        self._stamp: object = object()
        self._read = 0
        self._applied = 0

    def __repr__(self) -> str:
        state = self.error or f"{len(self.entries)} entries"
        return f"LimitsKeeper({self.source.name}, {state})"

    def begin(self) -> None:
        """The first reading; `ConfigError` when there is none."""
        reading = self.read()
        if reading is not None:
            self.apply(reading)
        if self.error is not None:
            raise ConfigError(self.error)

    # In a thread

    def read(self) -> Reading | None:
        """Ask the source; None when it has nothing new to say, or another thread is asking."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask()
        finally:
            self._lock.release()

    def edit(self, change: Callable[[LimitsSource], _Result]) -> tuple[_Result, Reading | None]:
        """Change something in the source, and read what stands there then.

        `NotEditable` when it is not ours to change, `ConfigError` when it could not be done.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            raise ConfigError(f"{self.source.name} has been busy for {_PATIENCE:g} s; try again")
        try:
            return change(self.source), self._ask()
        finally:
            self._lock.release()

    def _ask(self) -> Reading | None:
        known = self.entries
        entries: list[Entry] = []
        complaints: list[str] = []
        failure = None
        table = None
        # No stamp goes with an error: what was wrong need not show in a stamp when it is mended.
        stamp: object = object()
        try:
            # Before the loading: what changes meanwhile is another stamp the next time.
            current = self.source.stamp()
            if current == self._stamp:
                return None
            loaded, complaints = self.source.load()
            entries, doubles = read_tables(loaded)
            complaints = complaints + doubles
            table = self._ledger.prepare(entries)
            stamp = current
        except ConfigError as error:
            failure = str(error)
        except Exception as error:  # a source may be anyone's, and must not stop the central
            _logger.exception("%s failed", self.source.name)
            failure = f"{self.source.name} failed: {error!r}"
        self._read += 1
        return Reading(
            self._read,
            time.time(),
            stamp,
            known if entries == known else entries,
            complaints,
            failure,
            table,
        )

    # On the loop

    def apply(self, reading: Reading) -> bool:
        """Take a reading up. Whether the limits are others now."""
        if reading.number <= self._applied:
            return False
        self._applied = reading.number
        self._stamp = reading.stamp
        if reading.error is not None:
            self.errors += 1
            if reading.error != self.error:
                _logger.error("the limits stay as they were: %s", reading.error)
            self.error = reading.error
            return False
        if self.error is not None:
            _logger.info("the limits can be read again from %s", self.source.name)
        is_first = self.loaded_at is None
        self.error = None
        self.loaded_at = reading.wall
        if reading.complaints != self.complaints:
            for complaint in reading.complaints[:_COMPLAINTS_LOGGED]:
                _logger.warning("%s: %s", self.source.name, complaint)
        self.complaints = reading.complaints
        if reading.entries is self.entries and not is_first:
            return False
        self._ledger.set_limits(reading.entries if reading.table is None else reading.table)
        self.entries = reading.entries
        _logger.info("%d limits from %s", len(self.entries), self.source.name)
        return True

    # Both, one after the other

    def refresh(self) -> bool:
        """Read and apply. Whether the limits are others now."""
        reading = self.read()
        return reading is not None and self.apply(reading)

    async def refresh_async(self) -> bool:
        """The same from a loop, which does not wait for the source."""
        reading = await asyncio.to_thread(self.read)
        return reading is not None and self.apply(reading)

    async def edit_async(self, change: Callable[[LimitsSource], _Result]) -> _Result:
        result, reading = await asyncio.to_thread(self.edit, change)
        if reading is not None:
            self.apply(reading)
        return result

    def put(self, entry: Entry) -> None:
        self._edit(lambda source: source.put(entry))

    def remove(self, service: str, user: str) -> bool:
        return self._edit(lambda source: source.remove(service, user))

    def replace(self, entries: Iterable[Entry]) -> None:
        entries = list(entries)
        self._edit(lambda source: source.replace(entries))

    def _edit(self, change: Callable[[LimitsSource], _Result]) -> _Result:
        result, reading = self.edit(change)
        if reading is not None:
            self.apply(reading)
        return result
