"""`Alone`: the election of a fleet with one central. It leads at once, without a lease.

Its epoch is kept in a file: one number and a newline, which a person can read and mend. Each start
increments it, and the new number is on the disk before the candidate leads. The number is written
to a temporary file and renamed, so a crash at any instruction leaves the old one or the new one.

A lock of the kernel on `FILE.lock` keeps a second process from leading beside the first. It ends
with the process that holds it, however that ends.
"""

import contextlib
import fcntl
import math
import os
import re
from pathlib import Path

from sluicegate._validate import check_text
from sluicegate.election.change_signal import ChangeSignal
from sluicegate.election.election import Election
from sluicegate.errors import ConfigError, reason_of

__all__ = ["Alone"]

_CONTENT = re.compile(rb"([0-9]{1,15})\n")  # the newline shows that the number is whole


class Alone(Election):
    """One candidate that always leads. `path`: the file that keeps its epoch."""

    def __init__(self, name: str, *, path: str | Path) -> None:
        self.name = check_text("name", name)
        self._path = Path(path)
        self._lock: int | None = None  # the descriptor of the locked file while it leads
        self._epoch = 0
        self._signal = ChangeSignal(lambda: (self.is_leader, self._epoch))

    @property
    def is_leader(self) -> bool:
        return self._lock is not None

    @property
    def deadline(self) -> float:
        return math.inf if self.is_leader else -math.inf

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def leader(self) -> str | None:
        return self.name if self.is_leader else None

    async def changed(self) -> None:
        await self._signal.wait()

    async def start(self) -> None:
        """Increment the epoch on the disk, and lead.

        Not in a thread, though it waits for the disk: a start that is cancelled in the middle
        could not give the lock back.
        """
        if self._lock is not None:
            raise RuntimeError(f"the election of {self.name!r} has been started already")
        lock = _lock(self._path)
        try:
            self._epoch = _increment(self._path)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        self._signal.check()

    async def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self._signal.check()

    def __repr__(self) -> str:
        return f"Alone({self.name!r}, is_leader={self.is_leader}, epoch={self._epoch})"


def _lock(path: Path) -> int:
    try:
        descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _cannot_write(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"epoch file {path} is in use: another central leads with it; stop that one, or give "
            f"each its own file and use an election between them"
        ) from None
    return descriptor


def _increment(path: Path) -> int:
    epoch = _read(path) + 1
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb") as file:
            file.write(b"%d\n" % epoch)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from None
    return epoch


def _read(path: Path) -> int:
    """The epoch in the file; 0 if there is none."""
    try:
        with open(path, "rb") as file:
            content = file.read(100)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ConfigError(f"cannot read epoch file {path}: {reason_of(error)}") from None
    found = _CONTENT.fullmatch(content)
    if found is None:
        raise ConfigError(
            f"corrupt epoch file {path}: expected a whole number below 10^15 and a newline, got "
            f"{content!r}; write a number into it that is not below the last epoch (nodes ignore "
            f"lower ones), for example: echo 1000 > {path}"
        )
    return int(found[1])


def _sync_folder(folder: Path) -> None:
    """The renaming itself is safe only when the folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write epoch file {path}: {reason_of(error)}; {path.parent} must be a writable "
        f"folder with space left"
    )
