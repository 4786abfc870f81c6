"""Keeps the ledger's limits those of the source, and knows what is wrong with them.

Reading may take seconds and belongs in a thread; the ledger belongs to the central's loop. So
there are two halves: `read` (and `edit`) ask the source, from any thread, and give a `Reading`;
`apply` puts it into the ledger and belongs on the loop. `refresh_async` and `edit_async` do both.
Readings are numbered, so that a slow thread cannot bring old limits back, and one that nobody
applied is read again. After a change of ours what is known is changed likewise, and nothing is
read, if the source can tell that nobody else has changed it meanwhile.

A source that fails or hangs changes nothing: the limits stay, `error` says why until it works
again, and the log tells it once. So does one in which entries are written and none is valid: to
take it up would lift every limit. Only the first reading (`begin`) raises: a central that has
never had its limits must not let everyone through.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluicegate.errors import ConfigError, SluicegateError
from sluicegate.quota.central.daemon_thread import apart
from sluicegate.quota.central.sources import LimitsSource, TellsChanges
from sluicegate.quota.central.sources.edits import Change, Known, Put, Remove, Replace
from sluicegate.quota.ledger.entry import Complaint, Entry, read_tables, table_of
from sluicegate.quota.ledger.ledger import Ledger

__all__ = ["LimitsKeeper", "NoValidLimits", "Reading"]

_logger = logging.getLogger("sluicegate.quota")

_COMPLAINTS_TOLD = 10
_PATIENCE = 10.0  # seconds, for another thread that asks the source
_SILENCE = 10.0  # seconds without an answer of the source, after which it is told
_MOST_EDITS = 16  # at once: each has a thread


class NoValidLimits(ConfigError):
    """Entries are written, and each of them is wrong."""

    def __init__(self, source: str, complaints: list[str]) -> None:
        told = complaints[:_COMPLAINTS_TOLD]
        if len(complaints) > len(told):
            told.append(f"and {len(complaints) - len(told)} more")
        super().__init__(
            f"{source} has entries and none is valid, so nobody would have a limit: "
            + "; ".join(complaint.removesuffix("; skipped") for complaint in told)
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What the source said, or why it could not.

    What is the same as before is the same object: to compare many entries is not for the loop.
    """

    number: int
    wall: float
    stamp: object
    known: Known | None = None
    complaints: list[str] = field(default_factory=list)
    error: SluicegateError | None = None


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
        self._newest: Reading | None = None  # of those that worked
        self._read = 0
        self._applied = 0
        self._edits = 0  # that go on, from the loop

    def __repr__(self) -> str:
        state = self.error or f"{len(self.entries)} entries"
        return f"LimitsKeeper({self.source.name}, {state})"

    def begin(self) -> None:
        """The first reading; `ConfigError` or `Unavailable` when there is none."""
        reading = self.read()
        if reading is None:
            return
        if reading.error is not None:
            raise reading.error
        self.apply(reading)

    # In a thread

    def read(self) -> Reading | None:
        """Ask the source; None when it has nothing new to say, or another thread is asking."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask()
        finally:
            self._lock.release()

    def edit(self, change: Change) -> tuple[bool, Reading | None]:
        """Change something in the source. Whether it was done, and what stands there then.

        `NotEditable` when it is not ours to change, `ConfigError` or `Unavailable` when it could
        not be done.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            raise ConfigError(f"{self.source.name} has been busy for {_PATIENCE:g} s; try again")
        try:
            before = self._known_stamp()
            done = change.make(self.source)
            return done, self._changed(change, before) or self._ask()
        finally:
            self._lock.release()

    def _known_stamp(self) -> object | None:
        """The source's stamp, if we know what it says and it will tell of changes. None: not so."""
        newest = self._newest
        if newest is None or newest.complaints or not isinstance(self.source, TellsChanges):
            return None
        stamp = self.source.stamp()
        return stamp if stamp == newest.stamp else None

    def _changed(self, change: Change, before: object | None) -> Reading | None:
        """A reading without reading. None: somebody else may have changed something too."""
        if before is None:
            return None
        assert self._newest is not None
        assert isinstance(self.source, TellsChanges)
        try:
            after = self.source.stamp()
        except SluicegateError:
            return None
        known = self._newest.known
        if known is None or not self.source.is_ours(before, after):
            return None
        entries, table = change.after(known, self._ledger.prepare)
        return self._reading(after, (entries, table))

    def _ask(self) -> Reading | None:
        # No stamp goes with an error: what was wrong need not show in a stamp when it is mended.
        try:
            # Before the loading: what changes meanwhile is another stamp the next time.
            stamp = self.source.stamp()
            if stamp == self._stamp:
                return None
            loaded, complaints = self.source.load()
            entries, doubles = read_tables(loaded)
            before = None if self._newest is None else self._newest.known
            if before is not None:
                entries, complaints = _with_last_good(entries, complaints, before[0])
            # Of a place that we edit, the last good entry may have been removed on purpose.
            if complaints and not entries and (before is None or not self.source.is_editable):
                raise NoValidLimits(self.source.name, complaints)
            table = self._ledger.prepare(entries, None if before is None else before[1])
            known = entries, table
            return self._reading(stamp, known, complaints=complaints + doubles)
        except SluicegateError as error:
            return self._reading(object(), None, error=error)
        except Exception as error:  # a source may be anyone's, and must not stop the central
            _logger.exception("%s failed", self.source.name)
            fault = ConfigError(f"{self.source.name} failed: {error!r}")
            return self._reading(object(), None, error=fault)

    def _reading(
        self,
        stamp: object,
        known: Known | None,
        *,
        complaints: Iterable[str] = (),
        error: SluicegateError | None = None,
    ) -> Reading:
        self._read += 1
        before = None if self._newest is None else self._newest.known
        if known is not None and before is not None and known[1].version == before[1].version:
            known = before
        reading = Reading(self._read, time.time(), stamp, known, list(complaints), error)
        if known is not None:
            self._newest = reading
        return reading

    # On the loop

    def apply(self, reading: Reading) -> bool:
        """Take a reading up. Whether the limits are others now."""
        if reading.number <= self._applied:
            return False
        self._applied = reading.number
        self._stamp = reading.stamp
        if reading.known is None:
            self._fail(str(reading.error))
            return False
        if self.error is not None:
            _logger.info("the limits can be read again from %s", self.source.name)
        is_first = self.loaded_at is None
        self.error = None
        self.loaded_at = reading.wall
        if reading.complaints != self.complaints:
            for complaint in reading.complaints[:_COMPLAINTS_TOLD]:
                _logger.warning("%s: %s", self.source.name, complaint)
        self.complaints = reading.complaints
        entries, table = reading.known
        if entries is self.entries and not is_first:
            return False
        self._ledger.set_limits(table)
        self.entries = entries
        _logger.info("%d limits from %s", len(self.entries), self.source.name)
        return True

    def _fail(self, why: str) -> None:
        self.errors += 1
        if why != self.error:
            _logger.error("the limits stay as they were: %s", why)
        self.error = why

    # Both, one after the other

    def refresh(self) -> bool:
        """Read and apply. Whether the limits are others now."""
        reading = self.read()
        return reading is not None and self.apply(reading)

    async def refresh_async(self) -> bool:
        """The same from a loop, which does not wait for the source."""
        asked = apart(self.read)
        done, _ = await asyncio.wait([asked], timeout=_SILENCE)
        if not done:
            self._fail(f"{self.source.name} has not answered for {_SILENCE:g} s")
        reading = await asked
        if reading is None and not done:
            self._stamp = object()  # it answers again: read it, and the error is gone
        return reading is not None and self.apply(reading)

    async def edit_async(self, change: Change) -> bool:
        if self._edits >= _MOST_EDITS:
            raise ConfigError(f"{_MOST_EDITS} changes of {self.source.name} go on; try again")
        self._edits += 1
        edited = apart(lambda: self.edit(change))
        edited.add_done_callback(self._edit_is_over)
        done, reading = await edited
        if reading is not None:
            self.apply(reading)
        return done

    def _edit_is_over(self, edited: object) -> None:
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
            self.apply(reading)
        return done


def _with_last_good(
    entries: list[Entry], complaints: list[str], before: Iterable[Entry]
) -> tuple[list[Entry], list[str]]:
    """An entry that is bad now stays what it was: a slip in it must not lift the limit."""
    bad = {
        complaint.whose: place
        for place, complaint in enumerate(complaints)
        if isinstance(complaint, Complaint) and complaint.whose is not None
    }
    if not bad:
        return entries, complaints
    good = {(entry.service, entry.user) for entry in entries}
    told = list(complaints)
    kept = list(entries)
    for entry in before:
        place = bad.get((entry.service, entry.user))
        if place is not None and (entry.service, entry.user) not in good:
            kept.append(entry)
            told[place] = Complaint.about(table_of(entry), f"{told[place]}: it stays as it was")
    return kept, told
