"""`TomlFile`: limits in a TOML file that people write with an editor.

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
from sluicegate.quota.central.limit_sources.source import NotEditable
from sluicegate.quota.ledger.limit_entry import Entry, read_entries

__all__ = ["TomlFile"]

_REST = 0.05
_TRIES = 20
_MAX_BYTES = 64 << 20


class TomlFile:
    """A read-only limits file."""

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
            raise ConfigError(f"{self.name} is empty: to have no limits, put a comment in it")
        try:
            entries, complaints = read_entries(text)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        self._had_limits = bool(entries)
        return entries, complaints

    def version_token(self) -> object:
        try:
            return _version_token(os.stat(self._path))
        except OSError as error:
            return str(error)

    def _text(self) -> str:
        try:
            for _ in range(_TRIES):
                with open(self._path, "rb") as file:
                    before = os.fstat(file.fileno())
                    data = file.read(_MAX_BYTES + 1)
                after = os.stat(self._path)
                rested = time.time() - after.st_mtime
                if _version_token(before) == _version_token(after) and not 0 <= rested < _REST:
                    break
                time.sleep(_REST)
            else:
                raise ConfigError(f"{self.name} keeps changing: cannot read a consistent version")
        except OSError as error:
            raise ConfigError(f"cannot read {self.name}: {error.strerror or error}") from None
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{self.name} is too large: expected at most {_MAX_BYTES} bytes")
        try:
            return data.decode("utf-8-sig")  # some editors write a byte order mark
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.name} must be UTF-8: {error}") from None

    def put(self, entry: Entry) -> None:
        raise self._not_editable()

    def remove(self, service: str, user: str) -> bool:
        raise self._not_editable()

    def replace(self, entries: Iterable[Entry]) -> None:
        raise self._not_editable()

    def _not_editable(self) -> NotEditable:
        return NotEditable(
            f"limits source is read-only: edit the file {self.name} (it is reloaded "
            "automatically), or keep the limits in FILE.db"
        )

    def close(self) -> None:
        pass


def _version_token(status: os.stat_result) -> tuple[int, ...]:
    # The last one shows a change by a writer that has set the modification time back.
    return (
        *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        status.st_ctime_ns,
    )
