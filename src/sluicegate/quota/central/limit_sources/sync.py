"""`LimitsSync`: keeps the ledger in sync with the limits source and records its errors.

Reading may take seconds and belongs in a thread; the ledger belongs to the central's loop. So
there are two halves: `read` (and `edit`) call the source, from any thread, and return a
`SourceReading`; `apply_reading` puts it into the ledger and belongs on the loop. `refresh_async`
and `edit_async` do both. Readings are numbered, so that a slow thread cannot bring old limits back,
and one that nobody applied is read again. After an edit through this object the loaded limits are
edited likewise, and nothing is read, if the source knows that nobody else has changed it meanwhile.

A source that fails or hangs changes nothing: the limits are kept, `error` says why until it works
again, and the error is logged once. The same holds for a source that has entries of which none is
valid: applying it would lift every limit. Only the first reading (`load_initial`) raises: a central
that has never had its limits must not let everyone through.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluicegate.errors import ConfigError, SluicegateError
from sluicegate.quota.central.daemon_thread import run_in_daemon_thread
from sluicegate.quota.central.limit_sources import LimitsSource, TracksOwnWrites
from sluicegate.quota.central.limit_sources.edits import Change, LoadedLimits, Put, Remove, Replace
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import ConfigIssue, Entry, read_tables, to_dict

__all__ = ["LimitsSync", "NoValidLimits", "SourceReading"]

_logger = logging.getLogger("sluicegate.quota")

_MAX_COMPLAINTS_SHOWN = 10
_LOCK_TIMEOUT = 10.0  # seconds, for another thread that uses the source
_HUNG_AFTER = 10.0  # seconds without an answer of the source, after which it is an error
_MAX_EDITS = 16  # at once: each has a thread


class NoValidLimits(ConfigError):
    """The source has entries, and all of them are invalid."""

    def __init__(self, source: str, complaints: list[str]) -> None:
        shown = complaints[:_MAX_COMPLAINTS_SHOWN]
        if len(complaints) > len(shown):
            shown.append(f"and {len(complaints) - len(shown)} more")
        super().__init__(
            f"{source} has entries, but none is valid: applying them would lift all limits: "
            + "; ".join(complaint.removesuffix("; skipped") for complaint in shown)
        )


@dataclass(frozen=True, slots=True)
class SourceReading:
    """The limits that were read from the source, or the error.

    If the limits are unchanged, they are the same object: comparing many entries would block the
    loop.
    """

    number: int
    wall: float
    version_token: object
    limits: LoadedLimits | None = None
    complaints: list[str] = field(default_factory=list)
    error: SluicegateError | None = None


class LimitsSync:
    """Keeps the limits of a ledger in sync with their source."""

    def __init__(self, source: LimitsSource, ledger: Ledger) -> None:
        self.source = source
        self.entries: list[Entry] = []
        self.complaints: list[str] = []
        self.error: str | None = None
        self.errors = 0  # number of failed readings
        self.loaded_at: float | None = None  # wall seconds of the last good reading
        self._ledger = ledger
        self._lock = threading.Lock()  # one thread at a time calls the source
        self._version_token: object = object()
        self._last_good: SourceReading | None = None
        self._readings = 0
        self._last_applied = 0
        self._edits = 0  # running, started from the loop

    def __repr__(self) -> str:
        state = self.error or f"{len(self.entries)} entries"
        return f"LimitsSync({self.source.name}, {state})"

    def load_initial(self) -> None:
        """Read and apply the limits for the first time; raises `ConfigError` or `Unavailable`."""
        reading = self.read()
        if reading is None:
            return
        if reading.error is not None:
            raise reading.error
        self.apply_reading(reading)

    # In a thread

    def read(self) -> SourceReading | None:
        """Read the source; None if it is unchanged, or another thread is reading it."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._read_if_changed()
        finally:
            self._lock.release()

    def edit(self, change: Change) -> tuple[bool, SourceReading | None]:
        """Edit the source. Returns whether it was done, and the limits after it.

        Raises `NotEditable` if the source is read-only, `ConfigError` or `Unavailable` if the edit
        failed.
        """
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT):
            raise ConfigError(
                f"{self.source.name} has been busy for {_LOCK_TIMEOUT:g} s; try again"
            )
        try:
            before = self._current_token()
            done = change.apply_to_source(self.source)
            return done, self._reading_after_edit(change, before) or self._read_if_changed()
        finally:
            self._lock.release()

    def _current_token(self) -> object | None:
        """The source's token if it tracks its writes and the loaded limits are current."""
        last_good = self._last_good
        if (
            last_good is None
            or last_good.complaints
            or not isinstance(self.source, TracksOwnWrites)
        ):
            return None
        version_token = self.source.version_token()
        return version_token if version_token == last_good.version_token else None

    def _reading_after_edit(self, change: Change, before: object | None) -> SourceReading | None:
        """A reading made from the edit alone. None: others may have changed the source, too."""
        if before is None:
            return None
        assert self._last_good is not None
        assert isinstance(self.source, TracksOwnWrites)
        try:
            after = self.source.version_token()
        except SluicegateError:
            return None
        limits = self._last_good.limits
        if limits is None or not self.source.is_own_write(before, after):
            return None
        entries, table = change.apply_to_table(limits)
        return self._make_reading(after, (entries, table))

    def _read_if_changed(self) -> SourceReading | None:
        # An error gets a token of its own: its repair need not change the source's token.
        try:
            # Read before loading: what changes meanwhile shows in the next token.
            version_token = self.source.version_token()
            if version_token == self._version_token:
                return None
            loaded, complaints = self.source.load()
            entries, doubles = read_tables(loaded)
            before = None if self._last_good is None else self._last_good.limits
            if before is not None:
                entries, complaints = _with_last_good(entries, complaints, before[0])
            # In an editable source, the last good entry may have been removed on purpose.
            if complaints and not entries and (before is None or not self.source.is_editable):
                raise NoValidLimits(self.source.name, complaints)
            table = self._ledger.prepare(entries, None if before is None else before[1])
            limits = entries, table
            return self._make_reading(version_token, limits, complaints=complaints + doubles)
        except SluicegateError as error:
            return self._make_reading(object(), None, error=error)
        except Exception as error:  # a source may be user code, and must not stop the central
            _logger.exception("limits source failed: %s", self.source.name)
            fault = ConfigError(f"{self.source.name} failed: {error!r}")
            return self._make_reading(object(), None, error=fault)

    def _make_reading(
        self,
        version_token: object,
        limits: LoadedLimits | None,
        *,
        complaints: Iterable[str] = (),
        error: SluicegateError | None = None,
    ) -> SourceReading:
        self._readings += 1
        before = None if self._last_good is None else self._last_good.limits
        if limits is not None and before is not None and limits[1].version == before[1].version:
            limits = before
        reading = SourceReading(
            self._readings, time.time(), version_token, limits, list(complaints), error
        )
        if limits is not None:
            self._last_good = reading
        return reading

    # On the loop

    def apply_reading(self, reading: SourceReading) -> bool:
        """Apply a reading to the ledger. Returns whether the limits have changed."""
        if reading.number <= self._last_applied:
            return False
        self._last_applied = reading.number
        self._version_token = reading.version_token
        if reading.limits is None:
            self._fail(str(reading.error))
            return False
        if self.error is not None:
            _logger.info("limits source recovered: %s", self.source.name)
        is_first = self.loaded_at is None
        self.error = None
        self.loaded_at = reading.wall
        if reading.complaints != self.complaints:
            for complaint in reading.complaints[:_MAX_COMPLAINTS_SHOWN]:
                _logger.warning("invalid entry in %s: %s", self.source.name, complaint)
        self.complaints = reading.complaints
        entries, table = reading.limits
        if entries is self.entries and not is_first:
            return False
        self._ledger.set_limits(table)
        self.entries = entries
        _logger.info("limits loaded from %s, entries: %d", self.source.name, len(self.entries))
        if not self.entries:
            _logger.warning("%s has no entries: no user is limited", self.source.name)
        return True

    def _fail(self, why: str) -> None:
        self.errors += 1
        if why != self.error:
            _logger.error("keeping the previous limits: %s", why)
        self.error = why

    # Both, one after the other

    def refresh(self) -> bool:
        """Read and apply. Returns whether the limits have changed."""
        reading = self.read()
        return reading is not None and self.apply_reading(reading)

    async def refresh_async(self) -> bool:
        """The same from the loop, without blocking it."""
        asked = run_in_daemon_thread(self.read)
        done, _ = await asyncio.wait([asked], timeout=_HUNG_AFTER)
        if not done:
            self._fail(f"{self.source.name} has not answered for {_HUNG_AFTER:g} s")
        reading = await asked
        if reading is None and not done:
            self._version_token = object()  # it answers again: the next reading clears the error
        return reading is not None and self.apply_reading(reading)

    async def edit_async(self, change: Change) -> bool:
        if self._edits >= _MAX_EDITS:
            raise ConfigError(
                f"too many edits of {self.source.name}: {_MAX_EDITS} are running; try again"
            )
        self._edits += 1
        edited = run_in_daemon_thread(lambda: self.edit(change))
        edited.add_done_callback(self._edit_finished)
        done, reading = await edited
        if reading is not None:
            self.apply_reading(reading)
        return done

    def _edit_finished(self, edited: object) -> None:
        self._edits -= 1

    def put(self, entry: Entry) -> None:
        self._edit(Put(entry))

    def remove(self, service: str, user: str) -> bool:
        return self._edit(Remove(service, user))

    def replace(self, entries: Iterable[Entry]) -> None:
        self._edit(Replace(list(entries)))

    def _edit(self, change: Change) -> bool:
        done, reading = self.edit(change)
        if reading is not None:
            self.apply_reading(reading)
        return done


def _with_last_good(
    entries: list[Entry], complaints: list[str], before: Iterable[Entry]
) -> tuple[list[Entry], list[str]]:
    """Keep the last good version of an entry that is bad now: a typo must not lift its limit."""
    bad = {
        complaint.owner: place
        for place, complaint in enumerate(complaints)
        if isinstance(complaint, ConfigIssue) and complaint.owner is not None
    }
    if not bad:
        return entries, complaints
    good = {(entry.service, entry.user) for entry in entries}
    shown = list(complaints)
    kept = list(entries)
    for entry in before:
        place = bad.get((entry.service, entry.user))
        if place is not None and (entry.service, entry.user) not in good:
            kept.append(entry)
            shown[place] = ConfigIssue.for_table(
                to_dict(entry), f"{shown[place]}: its previous value is kept"
            )
    return kept, shown
