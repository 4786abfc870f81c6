"""`ReporterLock`: of all workers of a host, which one talks to the centrals, and who is the last.

A file beside the shared memory, with two bytes that the kernel locks (OFD locks, as in
`shm/file.py`: they end with their process, whatever kills it, and ask for no process
id). The first byte is held by the one that reports. The second is held by all who are present,
together; who can have it alone is the last one.

    open       have the file
    enter      be present; False while a last one is leaving
    take       try to be the one that reports
    is_last    at the end: nobody else is present, and we report: it is ours to say good-bye
    drop       give up all of it

Rules: a forked child shares its parent's locks and would keep them alive after the parent's
death, so it drops its copy before anything else, which ends nothing for the parent. The file
holds the process id of the one that reports, for people to read; it is never removed, because a
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

_REPORTS = 1 << 40  # far behind all data
_PRESENT = _REPORTS + 1


class ReporterLock:
    """The lock of one worker. Without a path it is alone in the world: all is granted."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.is_held = False
        self._descriptor = -1

    def open(self) -> None:
        """Have the file; ConfigError if it cannot be had."""
        if self.path is not None and self._descriptor < 0:
            self._descriptor = _open(self.path)

    def enter(self) -> bool:
        """Be present, with the others; False while one of them is leaving as the last."""
        if self.path is None:
            return True
        self.open()
        return self._lock(_PRESENT, fcntl.F_RDLCK)

    def take(self) -> bool:
        """Be the one that reports; False while another is."""
        if not self.is_held and self.path is None:
            self.is_held = True
        elif not self.is_held and self._lock(_REPORTS, fcntl.F_WRLCK):
            self.is_held = True
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        return self.is_held

    def is_last(self) -> bool:
        """Whether nobody else is present; if so we report, and nobody can enter until `drop`.

        Two who close at the same time both come here, and one of them is the last: who sees
        another gives the right to report away before he looks again, and who goes looks for it
        after he has gone.
        """
        if self.path is None:
            return True
        if self._descriptor < 0:
            return False
        self._lock(_PRESENT, fcntl.F_UNLCK)
        for _ in range(2):
            if self.take() and self._lock(_PRESENT, fcntl.F_WRLCK):
                return True
            self._lock(_REPORTS, fcntl.F_UNLCK)
            self.is_held = False
        return False

    def drop(self) -> None:
        """Be gone."""
        self.is_held = False
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def reporter(self) -> int | None:
        """The process that reports, or reported last; None if it is not known."""
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
    """The file, made where there is none. What another user has put there is not ours to trust."""
    options = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, options, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise ConfigError(
            f"{path} belongs to user {found.st_uid} or is no regular file; "
            f"expected a file of user {os.geteuid()}"
        )
    return descriptor
