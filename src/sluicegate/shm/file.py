"""The file behind shared memory: found by name, made whole or not at all, and its locks.

- A name stands for a file in /dev/shm of the user who runs the process; a name with a
  slash in it is a path of its own. Only its owner may read it (0600).
- A new file is filled before it has a name: nobody ever sees one that is half made, of
  two who make it at once one wins, and one who is killed over it leaves nothing.
- It is as large as it may ever become, but only what is committed has memory behind it.
  Memory is committed before it is written to: a full /dev/shm is an error that can be
  met, where a page that is not to be had kills the process (SIGBUS).
- Locks are the kernel's, on bytes of the open file (OFD locks). They end with the
  process that holds them, whatever kills it, and know nothing of process ids, which
  containers do not share. One tells who is here at all, one for each desk who sits at it.
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

_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PRESENCE = 1 << 40  # the lock bytes lie far behind all data
_DESKS = _PRESENCE + 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_PATIENCE = 10.0  # seconds that an open waits for another that is looking through the file

Fill = Callable[[int], None]  # writes the first bytes of a new file, given its descriptor


def path_of(name: str | os.PathLike[str]) -> Path:
    """Where the memory called `name` is."""
    text = os.fspath(name)
    if not isinstance(text, str):
        raise TypeError(f"a name is a str or a path, got {name!r}")
    if "/" in text:
        return Path(text)
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"a name has 1 to 100 letters, digits, dots, dashes or underscores, and starts with a "
            f"letter or digit (or it is a path, with a slash), got {text!r}"
        )
    if not _MEMORY.is_dir():
        raise ConfigError(f"{_MEMORY} is not there: give a path instead of the name {text!r}")
    return _MEMORY / f"sluicegate-{os.geteuid()}-{text}"


def remove(name: str | os.PathLike[str]) -> bool:
    """Remove the file; False when there is none. Who has it open goes on with what he has."""
    path = path_of(name)
    try:
        with _opened(path) as descriptor:
            if is_foreign(os.pread(descriptor, len(MAGIC), 0)):
                raise ConfigError(f"{path} is no shared memory of sluicegate's, and was left alone")
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
        wait_for("another to replace", self.path, self._lock_whole_file)  # ends with our handle
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

    def be_alone(self) -> bool:
        """Be the only one who is here, until `be_here`; False when somebody else is."""
        return self._lock(_PRESENCE, fcntl.F_WRLCK)

    def be_here(self) -> bool:
        """Be here, with others; False when one is alone."""
        return self._lock(_PRESENCE, fcntl.F_RDLCK)

    def be_gone(self) -> None:
        self._lock(_PRESENCE, fcntl.F_UNLCK)

    def take_desk(self, desks: int) -> int:
        """The number of a desk at which nobody sits."""
        for desk in range(desks):
            if self._lock(_DESKS + desk, fcntl.F_WRLCK):
                return desk
        raise ConfigError(f"{self.path} is open {desks} times already, which is the most")

    def another(self) -> int:
        """A descriptor of the same file that does not share our locks."""
        reason = "it is not there any more"
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
            f"{self.path} cannot be opened anew: {reason}; a child that was forked opens it "
            "itself, as the user that it runs as"
        )

    def reopen(self) -> None:
        """In a forked child: have locks of our own, not our parent's."""
        own = self.another()
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
    end = time.monotonic() + _PATIENCE
    while not is_there():
        if time.monotonic() > end:
            raise ConfigError(f"waited {_PATIENCE:g} s for {what} {path}: is that process stopped?")
        time.sleep(0.001)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
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
        descriptor, is_nameless = _new_file(path.parent, beside)
    except OSError as error:
        if folder >= 0:
            os.close(folder)
        raise ConfigError(f"{path} cannot be made: {error.strerror}") from error
    try:
        os.fchmod(descriptor, 0o600)  # whatever the umask is
        if not _commit(descriptor, 0, committed):
            raise ConfigError(
                f"{path} needs {committed / 1e6:.1f} MB and there is less left: take a smaller "
                "max_keys, or a path elsewhere"
            )
        os.truncate(descriptor, size)
        fill(descriptor)
        if is_nameless:
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
        if error.errno not in _NO_NAMELESS_FILES or not folder.is_dir():
            raise
    options = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(beside, options, 0o600), False


def _commit(descriptor: int, start: int, end: int) -> bool:
    try:
        if start < end:
            os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True
