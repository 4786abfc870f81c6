"""`StateFile`: what a central restores after a restart, its epoch and a snapshot of its ledger.

    8 bytes   "sgstate1"
    4 bytes   CRC-32 of the epoch
    8 bytes   the epoch, little-endian
    the rest  `Ledger.snapshot()`, which has a check sum of its own

It is written to a temporary file and renamed, so that a crash at any instruction leaves the old
one or the new one. A file that is torn all the same (a disk does that) is renamed and logged, and
the central starts with an empty ledger: slower for a second, but never dead. A file that cannot be
read for lack of permission, and one whose slots have a different length, stop the start:
overwriting it would lose its content.

A writer that was killed leaves its temporary file, `.FILE.xxxxxxxx.new`. Its lock on the file ended
with it: the next start removes temporary files that are not locked.
"""

import contextlib
import fcntl
import logging
import os
import re
import struct
import tempfile
import time
import zlib
from pathlib import Path

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.snapshot import SlotLengthMismatch, newest_report

__all__ = ["StateFile", "pack_state", "unpack_state"]

_logger = logging.getLogger("sluicegate.quota")

_MAGIC = b"sgstate1"
_HEAD = struct.Struct("<8sIQ")
_EPOCH = struct.Struct("<Q")


class StateFile:
    """Reads and writes one file. `write` may be called in a thread, one at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"StateFile({str(self.path)!r})"

    def restore(self, ledger: Ledger) -> int:
        """Restore a new ledger from the file. Returns the epoch in it; 0: none."""
        self.prepare()
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise ConfigError(
                f"cannot read state file {self.path}: {error}; make it readable or choose "
                f"another one"
            ) from None
        epoch = 0
        try:
            epoch, snapshot = unpack_state(raw)
            ledger.restore(snapshot)
        except SlotLengthMismatch as error:
            raise ConfigError(
                f"state file {self.path} has a different slot length (--slot): {error}; use the "
                f"same length as before, or choose another file"
            ) from None
        except ConfigError as error:
            self._set_aside(error)
        return epoch

    def newest(self) -> tuple[int, int]:
        """The epoch in the file and the slot of its newest report; (0, -1): none to be read."""
        try:
            epoch, snapshot = unpack_state(self.path.read_bytes())
            return epoch, newest_report(snapshot)
        except (OSError, ConfigError):
            return 0, -1

    def prepare(self) -> None:
        """Check that it can be written, and remove what writers that were killed have left."""
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"invalid state file {self.path}: must be a regular file")
        self._remove_leftovers()
        if not self.path.exists():
            self._check_folder()

    def _remove_leftovers(self) -> None:
        leftover = re.compile(rf"\.{re.escape(self.path.name)}\.[a-z0-9_]{{8}}\.new")
        with contextlib.suppress(OSError):  # a leftover does no harm
            for name in os.listdir(self.path.parent):
                if leftover.fullmatch(name):
                    _remove_unless_held(self.path.parent / name)

    def _check_folder(self) -> None:
        """Fail at the start, not at the first write."""
        folder = self.path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                f"cannot write state file {self.path}: {folder} must be a writable folder"
            )

    def _set_aside(self, error: ConfigError) -> None:
        aside = self.path.with_name(f"{self.path.name}.torn-{int(time.time())}")
        try:
            self.path.rename(aside)
        except OSError as failure:
            raise ConfigError(
                f"cannot rename corrupt state file {self.path}: {failure}; {error}"
            ) from None
        _logger.error("starting with an empty ledger: %s; old file renamed to %s", error, aside)

    def write(self, epoch: int, snapshot: bytes) -> int:
        """Replace the file; returns the number of bytes written."""
        head = _head(epoch)
        descriptor, temporary = tempfile.mkstemp(".new", f".{self.path.name}.", self.path.parent)
        try:
            with open(descriptor, "wb") as file:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                file.write(head)
                file.write(snapshot)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._sync_folder()
        return len(head) + len(snapshot)

    def _sync_folder(self) -> None:
        """The renaming itself is safe only when the folder is on the disk."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _remove_unless_held(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            _logger.info("removed %s, left by a writer that was killed", path)
        finally:
            os.close(descriptor)


def pack_state(epoch: int, snapshot: bytes) -> bytes:
    """The content of a state file, for a peer."""
    return _head(epoch) + snapshot


def unpack_state(raw: bytes) -> tuple[int, bytes]:
    """The epoch and the snapshot in it; ConfigError if the epoch is not intact."""
    if len(raw) < _HEAD.size:
        raise ConfigError(
            f"state file is too short: expected {_HEAD.size} bytes or more, got {len(raw)}"
        )
    magic, crc, epoch = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise ConfigError(f"invalid state file: expected {_MAGIC!r} at its start, got {magic!r}")
    if zlib.crc32(_EPOCH.pack(epoch)) != crc:
        raise ConfigError("invalid state file: checksum mismatch in the header")
    return int(epoch), raw[_HEAD.size :]


def _head(epoch: int) -> bytes:
    return _HEAD.pack(_MAGIC, zlib.crc32(_EPOCH.pack(epoch)), epoch)
