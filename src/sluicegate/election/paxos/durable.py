"""`DurableFile`: what a member must not forget: how often it has started, and its epoch.

One line of JSON, with a CRC-32 of the rest:

    {"format": "sluicegate-paxos-1", "name": "a", "restart": 7, "epoch": 1763000012, "crc32": ...}

It is written to `.FILE.new`, synced, renamed, and the folder synced: a crash at any instruction
leaves the old content or the new one. A file that is corrupt stops the start: to begin anew by
itself could repeat an epoch. A file that does not exist yet begins both numbers at the wall clock
(seconds since 1970), so that a member that has lost its disk does not repeat them either.

`FILE.lock` is locked as long as the member runs. Two processes with one name would be one vote that
can be given twice.
"""

import fcntl
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluicegate.errors import ConfigError, Unavailable, reason_of

__all__ = ["DurableFile"]

_FORMAT = "sluicegate-paxos-1"
_KEYS = ("format", "name", "restart", "epoch", "crc32")
_LARGEST = 4096  # bytes


class DurableFile:
    """The file of one member, which must be opened before it is used.

    `restart` and `epoch` are what is on the disk. `open` and `raise_epoch` may run in a thread;
    `close` waits for them, so that no other process writes at the same time.
    """

    def __init__(
        self, path: str | os.PathLike[str], name: str, wall: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self.name = name
        self.restart = 0
        self.epoch = 0
        self._wall = wall
        self._lock: int | None = None
        self._is_closed = False
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"DurableFile({str(self.path)!r}, restart={self.restart}, epoch={self.epoch})"

    def open(self) -> None:
        """Lock the file, read it, and count this start. Blocks for as long as the disk takes."""
        with self._mutex:
            if self._is_closed:
                raise ValueError(f"{self!r} was closed")
            self._take_lock()
            try:
                restart, epoch = self._read()
                self._write(restart + 1, epoch)
            except BaseException as error:
                self._give_lock_back()
                if isinstance(error, Unavailable):
                    raise ConfigError(str(error)) from error
                raise

    def raise_epoch(self, epoch: int) -> None:
        """Make a higher epoch durable. Raises `Unavailable` if the disk does not take it."""
        with self._mutex:
            if self._lock is None:
                raise ValueError(f"{self!r} is not open")
            if epoch > self.epoch:
                self._write(self.restart, epoch)

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            self._give_lock_back()

    def _give_lock_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        path = self.path.with_name(f"{self.path.name}.lock")
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot open {path}: {reason_of(error)}; expected a writable folder"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(
                f"{self.path} is in use by another process: stop it, or give each member a file "
                "of its own"
            ) from None
        self._lock = lock

    def _read(self) -> tuple[int, int]:
        try:
            with open(self.path, "rb") as file:
                raw = file.read(_LARGEST + 1)
        except FileNotFoundError:
            start = max(0, int(self._wall()))
            return start, start
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {reason_of(error)}") from error
        try:
            return self._parse(raw)
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is corrupt: {error}; restore it, or remove it while all members have "
                "been stopped for a lease"
            ) from None

    def _parse(self, raw: bytes) -> tuple[int, int]:
        if len(raw) > _LARGEST:
            raise ValueError(f"expected at most {_LARGEST} bytes, got more")
        try:
            found = json.loads(raw)
        except RecursionError:
            raise ValueError("expected one flat JSON object") from None
        if not isinstance(found, dict) or tuple(found) != _KEYS:
            raise ValueError(f"expected a JSON object with {', '.join(_KEYS)}, got {found!r:.200}")
        if found["format"] != _FORMAT:
            raise ValueError(f"expected the format {_FORMAT!r}, got {found['format']!r}")
        for key in ("restart", "epoch", "crc32"):
            value = found[key]
            if type(value) is not int or not 0 <= value <= 2**53:
                raise ValueError(f"expected {key} from 0 to 2^53, got {value!r}")
        checksum = found.pop("crc32")
        if checksum != _checksum(found):
            raise ValueError(f"expected the checksum {_checksum(found)}, got {checksum}")
        if found["name"] != self.name:
            raise ValueError(f"it belongs to {found['name']!r}, and this member is {self.name!r}")
        return found["restart"], found["epoch"]

    def _write(self, restart: int, epoch: int) -> None:
        content: dict[str, Any] = {
            "format": _FORMAT,
            "name": self.name,
            "restart": restart,
            "epoch": epoch,
        }
        content["crc32"] = _checksum(content)
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            with open(temporary, "wb") as file:
                file.write(json.dumps(content).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self._sync_folder()
        except OSError as error:
            raise Unavailable(f"cannot write {self.path}: {reason_of(error)}") from error
        self.restart, self.epoch = restart, epoch

    def _sync_folder(self) -> None:
        """The new name is safe only when the folder is on the disk."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())
