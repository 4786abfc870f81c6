"""The file behind shared memory: found by name, made whole or not at all, and its locks.

- A name stands for a file in /dev/shm of the user who runs the process; a name with a
  slash in it is a path of its own. Only its owner may read it (0600).
- A new file is filled under another name and then linked to its own: nobody ever sees
  one that is half made, and of two who make it at once one wins.
- It is as large as it may ever become, but only what is committed has memory behind it.
  Memory is committed before it is written to: a full /dev/shm is an error that can be
  met, where a page that is not to be had kills the process (SIGBUS).
- Locks are the kernel's, on bytes of the open file (OFD locks). They end with the
  process that holds them, whatever kills it, and know nothing of process ids, which
  containers do not share. One tells who is here at all, one for each desk who sits at it.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from headgate.errors import ConfigError

__all__ = ["SharedFile", "path_of", "remove"]

_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PRESENCE = 1 << 40  # the lock bytes lie far behind all data
_DESKS = _PRESENCE + 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


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
    return _MEMORY / f"headgate-{os.geteuid()}-{text}"


def remove(name: str | os.PathLike[str]) -> bool:
    """Remove the file; False when there is none. Who has it open goes on with what he has."""
    try:
        path_of(name).unlink()
    except FileNotFoundError:
        return False
    return True


class SharedFile:
    """An open file and its memory. `memory` is the same bytes for all who have it open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = os.fstat(descriptor).st_size
        # An empty file cannot be mapped; nor is there anything in it.
        self.memory = mmap.mmap(descriptor, self.size) if self.size else mmap.mmap(-1, 1)
        self.descriptor = descriptor

    @classmethod
    def open(
        cls, path: Path, size: int, committed: int, fill: Callable[[mmap.mmap], None]
    ) -> "SharedFile":
        """Open the file, after making it where there is none: `fill` writes its first bytes."""
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                _make(path, size, committed, fill)
                continue
            except OSError as error:
                raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
            try:
                _check_owner(path, descriptor)
                return cls(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise

    def replace(self, size: int, committed: int, fill: Callable[[mmap.mmap], None]) -> None:
        """Put a new file in the place of this one, unless somebody has done so already."""
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)  # of the old file: it ends with our handle
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path), os.fstat(self.descriptor)):
                with _made(self.path, size, committed, fill) as made:
                    os.rename(made, self.path)

    def commit(self, start: int, end: int) -> bool:
        """Have memory behind these bytes; False when there is none to be had."""
        return _commit(self.descriptor, start, end)

    def is_alone(self) -> bool:
        """Be the only one who is here, until `welcome_others`; False when somebody else is."""
        return self._lock(_PRESENCE, fcntl.F_WRLCK)

    def welcome_others(self) -> None:
        """Be here, with others; waits for one who is alone."""
        self._lock(_PRESENCE, fcntl.F_RDLCK, wait=True)

    def take_desk(self, desks: int) -> int:
        """The number of a desk at which nobody sits."""
        for desk in range(desks):
            if self._lock(_DESKS + desk, fcntl.F_WRLCK):
                return desk
        raise ConfigError(f"{self.path} is open {desks} times already, which is the most")

    def reopen(self) -> None:
        """In a forked child: have locks of our own, not our parent's, on the same memory."""
        try:
            own = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be opened anew after a fork: {error.strerror}; "
                "open it in the child, as the user that it runs as"
            ) from error
        os.close(self.descriptor)
        self.descriptor = own

    def close(self) -> None:
        self.memory.close()
        os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        """One that nobody closed: the memory goes by itself, a descriptor does not."""
        if getattr(self, "descriptor", -1) >= 0:
            os.close(self.descriptor)

    def _lock(self, byte: int, kind: int, *, wait: bool = False) -> bool:
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        try:
            fcntl.fcntl(self.descriptor, command, struct.pack("hhqqi4x", kind, 0, byte, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES) and not wait:
                return False
            raise
        return True


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


def _make(path: Path, size: int, committed: int, fill: Callable[[mmap.mmap], None]) -> None:
    with _made(path, size, committed, fill) as made, contextlib.suppress(FileExistsError):
        os.link(made, path)


@contextlib.contextmanager
def _made(
    path: Path, size: int, committed: int, fill: Callable[[mmap.mmap], None]
) -> Iterator[Path]:
    """A new file under a name of its own, which is gone in the end."""
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}") from error
    try:
        try:
            os.fchmod(descriptor, 0o600)  # whatever the umask is
            if not _commit(descriptor, 0, committed):
                raise ConfigError(
                    f"{path} needs {committed / 1e6:.1f} MB and there is less left: take a smaller "
                    "max_keys, or a path elsewhere"
                )
            os.truncate(descriptor, size)
            with mmap.mmap(descriptor, size) as memory:
                fill(memory)
        finally:
            os.close(descriptor)
        yield made
    finally:
        with contextlib.suppress(FileNotFoundError):
            made.unlink()


def _commit(descriptor: int, start: int, end: int) -> bool:
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True
