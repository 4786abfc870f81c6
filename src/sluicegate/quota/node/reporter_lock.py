"""`ReporterLock`: elects the worker of a host that talks to the centrals, and knows the last one.

A file beside the shared memory, with two bytes that the kernel locks (OFD locks, as in
`shm/file.py`: they end with their process, whatever kills it, and ask for no process
id). The first byte is locked by the reporter. The second is locked by all present workers, shared;
a worker that can lock it exclusively is the last one.

    open          open the file
    enter         be present; False while a last worker is leaving
    take          try to become the reporter
    take_if_last  at the end: become the reporter if no other worker is present, to send the leave
    release       release all of it

Rules: a forked child shares its parent's locks and would keep them alive after the parent's
death, so it drops its copy before anything else, which ends nothing for the parent. The file
holds the process id of the reporter, for people to read; it is never removed, because a
lock on a file that has lost its name excludes nobody.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

from sluicegate.errors import ConfigError

__all__ = ["ReporterLock"]

_REPORTER_BYTE = 1 << 40  # far behind all data
_PRESENCE_BYTE = _REPORTER_BYTE + 1


class ReporterLock:
    """The lock of one worker. Without a path there are no other workers: all is granted."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.is_held = False
        self._descriptor = -1

    def open(self) -> None:
        """Open the file; ConfigError if that fails."""
        if self.path is not None and self._descriptor < 0:
            self._descriptor = _open(self.path)

    def enter(self) -> bool:
        """Be present, with the others; False while one of them is leaving as the last."""
        if self.path is None:
            return True
        self.open()
        return self._lock(_PRESENCE_BYTE, fcntl.F_RDLCK)

    def take(self) -> bool:
        """Become the reporter; False while another worker is."""
        if not self.is_held and self.path is None:
            self.is_held = True
        elif not self.is_held and self._lock(_REPORTER_BYTE, fcntl.F_WRLCK):
            self.is_held = True
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        return self.is_held

    def take_if_last(self) -> bool:
        """Become the reporter if no other worker is present; none can enter then until `release`.

        Of two workers that close at the same time one is the last: a worker that sees another
        gives up the reporter's byte before it looks again, and one that leaves tries for that byte
        after it has given up its presence.
        """
        if self.path is None:
            return True
        if self._descriptor < 0:
            return False
        self._lock(_PRESENCE_BYTE, fcntl.F_UNLCK)
        for _ in range(2):
            if self.take() and self._lock(_PRESENCE_BYTE, fcntl.F_WRLCK):
                return True
            self._lock(_REPORTER_BYTE, fcntl.F_UNLCK)
            self.is_held = False
        return False

    def release(self) -> None:
        """Release all locks."""
        self.is_held = False
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def reporter_pid(self) -> int | None:
        """The process id of the reporter, or of the last one; None if it is not known."""
        if self.path is None:
            return os.getpid() if self.is_held else None
        with contextlib.suppress(OSError, ValueError):
            return int(self.path.read_text())
        return None

    def _lock(self, byte: int, kind: int) -> bool:
        wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


def _open(path: Path) -> int:
    """Open the file, created if there is none. One of another user is not trusted."""
    options = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, options, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot open lock file {path}: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise ConfigError(
            f"invalid lock file {path}: expected a regular file of user {os.geteuid()}, "
            f"got mode {found.st_mode:o} and user {found.st_uid}"
        )
    return descriptor
