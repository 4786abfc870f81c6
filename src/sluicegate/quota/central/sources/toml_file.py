"""Limits in a TOML file that people write with an editor.

Editors write in place or put another file in its place; both change what `stat` says. In place
there is a moment in which the file is empty or half there. So a file is believed when it has
rested for `_REST` seconds and was the same before and after it was read; and one that had limits
and is now quite empty is taken for one that is being written. (Whoever wants no limits leaves a
line of comment.) inotify would tell the same a second earlier, and not on every file system.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from sluicegate.errors import ConfigError
from sluicegate.quota.central.sources.source import NotEditable
from sluicegate.quota.ledger.entry import Entry, read_entries

__all__ = ["TomlFile"]

_REST = 0.05
_TRIES = 20
_MOST_BYTES = 64 << 20


class TomlFile:
    """A limits file. It is read, never written."""

    is_editable = False

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._had_limits = False

    def __repr__(self) -> str:
        return f"TomlFile({self.name!r})"

    def load(self) -> tuple[list[Entry], list[str]]:
        text = self._text()
        if self._had_limits and not text.strip():
            raise ConfigError(
                f"{self.name} is empty: if no limits are meant, leave a line of comment in it"
            )
        try:
            entries, complaints = read_entries(text)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        self._had_limits = bool(entries)
        return entries, complaints

    def stamp(self) -> object:
        try:
            return _stamp(os.stat(self._path))
        except OSError as error:
            return str(error)

    def _text(self) -> str:
        try:
            for _ in range(_TRIES):
                with open(self._path, "rb") as file:
                    before = os.fstat(file.fileno())
                    data = file.read(_MOST_BYTES + 1)
                after = os.stat(self._path)
                rested = time.time() - after.st_mtime
                if _stamp(before) == _stamp(after) and not 0 <= rested < _REST:
                    break
                time.sleep(_REST)
            else:
                raise ConfigError(f"{self.name} is written to all the time, expected it to rest")
        except OSError as error:
            raise ConfigError(f"{self.name} cannot be read: {error.strerror or error}") from None
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{self.name} is larger than {_MOST_BYTES} bytes")
        try:
            return data.decode("utf-8-sig")  # some editors begin a file with a mark
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.name} must be UTF-8: {error}") from None

    def put(self, entry: Entry) -> None:
        raise self._refusal()

    def remove(self, service: str, user: str) -> bool:
        raise self._refusal()

    def replace(self, entries: Iterable[Entry]) -> None:
        raise self._refusal()

    def _refusal(self) -> NotEditable:
        return NotEditable(
            f"the limits are in {self.name}, which is edited as a file: change it there "
            "(it is read again by itself), or keep the limits in FILE.db"
        )

    def close(self) -> None:
        pass


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    # The last one tells of a change by one who has set the time of it back.
    return (
        *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        status.st_ctime_ns,
    )
