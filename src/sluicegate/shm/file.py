"""`SharedFile`: the file behind shared memory. It is found by name, created atomically, and locked.

- A name stands for a file in /dev/shm of the user who runs the process; a name with a
  slash in it is a path of its own. Only its owner may read it (0600).
- A new file is filled before it has a name: nobody ever sees one that is half made, of
  two who make it at once one wins, and one who is killed over it leaves nothing.
- It is as large as it may ever become, but only what is committed has memory behind it.
  Memory is committed before it is written to: a full /dev/shm is an error that can be
  met, where a page that is not to be had kills the process (SIGBUS).
- Locks are the kernel's, on bytes of the open file (OFD locks). They end with the
  process that holds them, whatever kills it, and know nothing of process ids, which
  containers do not share. One byte is locked by every process
  that has the file open, and one for each process slot by the process that has it.
  They would also live as long as memory that is mapped from the same descriptor, in
  forked children too; so memory is mapped from another.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sluicegate.errors import ConfigError

__all__ = ["MAGIC", "SharedFile", "is_foreign", "path_of", "remove", "wait_for"]

MAGIC = b"SLUICEGT"  # the first bytes of every such file

_SHM_FOLDER = Path("/dev/shm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PRESENCE = 1 << 40  # the lock bytes lie far behind all data
_PROCESS_SLOTS = _PRESENCE + 1
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_WAIT_SECONDS = 10.0  # seconds that an open waits for another that is looking through the file

Fill = Callable[[int], None]  # writes the first bytes of a new file, given its descriptor


def path_of(name: str | os.PathLike[str]) -> Path:
    """Where the memory called `name` is."""
    text = os.fspath(name)
    if not isinstance(text, str):
        raise TypeError(f"name must be a str or a path, got {name!r}")
    if "/" in text:
        return Path(text)
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"name must be 1 to 100 letters, digits, dots, dashes or underscores, starting with a "
            f"letter or digit (or a path, with a slash), got {text!r}"
        )
    if not _SHM_FOLDER.is_dir():
        raise ConfigError(f"{_SHM_FOLDER} does not exist: use a path instead of the name {text!r}")
    return _SHM_FOLDER / f"sluicegate-{os.geteuid()}-{text}"


def remove(name: str | os.PathLike[str]) -> bool:
    """Remove the file; False when there is none. Processes that have it open keep using it."""
    path = path_of(name)
    try:
        with _opened(path) as descriptor:
            if is_foreign(os.pread(descriptor, len(MAGIC), 0)):
                raise ConfigError(
                    f"{path} is not a shared memory file of sluicegate; it was not removed"
                )
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def is_foreign(start: bytes) -> bool:
    """Whether a file that starts so is somebody else's; one that is empty or torn is not."""
    return start != MAGIC and any(start)


class SharedFile:
    """An open file of shared memory: its descriptor, its size, its locks."""

    def __init__(self, path: Path, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self.path = path
        self.size = found.st_size
        self._identity = (found.st_dev, found.st_ino)
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path, size: int, committed: int, fill: Fill) -> "SharedFile":
        """Open the file, after making it where there is none."""
        while True:
            try:
                with _opened(path) as descriptor:
                    _check_owner(path, descriptor)
                    return cls(path, os.dup(descriptor))
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    _make(path, size, committed, fill, replace=False)

    def replace(self, size: int, committed: int, fill: Fill) -> None:
        """Put a new file in the place of this one, unless somebody has done so already."""
        wait_for(
            "another process to replace", self.path, self._lock_whole_file
        )  # ends with our handle
        with contextlib.suppress(FileNotFoundError):
            if self._is_same(os.stat(self.path)):
                _make(self.path, size, committed, fill, replace=True)

    def commit(self, start: int, end: int) -> bool:
        """Have memory behind these bytes; False when there is none to be had, or it was closed."""
        try:
            return self.descriptor >= 0 and _commit(self.descriptor, start, end)
        except OSError as error:
            if error.errno == errno.EBADF:  # by another thread, just now
                return False
            raise

    def lock_exclusive(self) -> bool:
        """Lock out all other processes, until `lock_shared`; False when another has it open."""
        return self._lock(_PRESENCE, fcntl.F_WRLCK)

    def lock_shared(self) -> bool:
        """Lock it together with others; False when one has locked all others out."""
        return self._lock(_PRESENCE, fcntl.F_RDLCK)

    def unlock(self) -> None:
        self._lock(_PRESENCE, fcntl.F_UNLCK)

    def lock_process_slot(self, slots: int) -> int:
        """The number of a process slot that no process has."""
        for slot in range(slots):
            if self._lock(_PROCESS_SLOTS + slot, fcntl.F_WRLCK):
                return slot
        raise ConfigError(f"{self.path} is already open {slots} times, which is the maximum")

    def open_unlocked(self) -> int:
        """A descriptor of the same file that does not share our locks."""
        reason = "it no longer exists"
        for where in (f"/proc/self/fd/{self.descriptor}", self.path):
            try:
                own = os.open(where, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                reason = str(error.strerror)
                continue
            # A daemon may have closed our descriptor, and opened a file of its own there.
            if self._is_same(os.fstat(own)):
                return own
            os.close(own)
        raise ConfigError(
            f"cannot reopen {self.path}: {reason}; a forked child opens it "
            "itself, as the user that it runs as"
        )

    def reopen(self) -> None:
        """In a forked child: have locks of our own, not our parent's."""
        own = self.open_unlocked()
        self.close()
        self.descriptor = own

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        with contextlib.suppress(OSError):  # closed by somebody else
            if descriptor >= 0 and self._is_same(os.fstat(descriptor)):
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self.close()

    def _is_same(self, found: os.stat_result) -> bool:
        return (found.st_dev, found.st_ino) == self._identity

    def _lock_whole_file(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _lock(self, byte: int, kind: int) -> bool:
        wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


def wait_for(what: str, path: Path, is_there: Callable[[], bool]) -> None:
    """Wait for another process that is opening the file; not for ever, for it may be stopped."""
    end = time.monotonic() + _WAIT_SECONDS
    while not is_there():
        if time.monotonic() > end:
            raise ConfigError(
                f"timed out after {_WAIT_SECONDS:g} s waiting for {what} {path}: "
                "is that process stopped?"
            )
        time.sleep(0.001)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_owner(path: Path, descriptor: int) -> None:
    """/dev/shm is open to all: what another user has put there is not ours to trust."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a regular file")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}; "
            f"expected user {os.geteuid()} and 0600"
        )


def _make(path: Path, size: int, committed: int, fill: Fill, *, replace: bool) -> None:
    """Make a file and give it its name. FileExistsError where one is there, and not replaced."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    folder = -1
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptor, is_unnamed = _new_file(path.parent, beside)
    except OSError as error:
        if folder >= 0:
            os.close(folder)
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error
    try:
        os.fchmod(descriptor, 0o600)  # whatever the umask is
        if not _commit(descriptor, 0, committed):
            raise ConfigError(
                f"not enough memory for {path}: it needs {committed / 1e6:.1f} MB; use a smaller "
                "max_keys, or a path elsewhere"
            )
        os.truncate(descriptor, size)
        fill(descriptor)
        if is_unnamed:
            # With a folder, os.link follows the link in /proc to the file itself.
            here = f"/proc/self/fd/{descriptor}"
            os.link(here, beside if replace else path, src_dir_fd=folder)
        elif not replace:
            os.link(beside, path)
        if replace:
            os.rename(beside, path)
    finally:
        os.close(descriptor)
        os.close(folder)
        beside.unlink(missing_ok=True)


def _new_file(folder: Path, beside: Path) -> tuple[int, bool]:
    """A file without a name, or where the file system has none such, with one."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600), True
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES or not folder.is_dir():
            raise
    options = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(beside, options, 0o600), False


def _commit(descriptor: int, start: int, end: int) -> bool:
    try:
        if start < end:
            os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno in _NO_SPACE:
            return False
        raise
    return True
