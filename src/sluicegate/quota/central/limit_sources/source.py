"""The interface of a limits source: where the entries of a central are stored.

A source is called from a thread, never from the central's loop, and by one thread at a time. It
may be slow, and it may fail: `ConfigError` (or `Unavailable`, when a machine does not answer) says
why in one sentence, with the value and what was expected, and the central keeps the limits it has.
One bad entry is not a failure: it is left out and reported as a complaint.

The central calls `version_token()` once a second. It is cheap and changes whenever `load()` may
return different entries. It may fail as `load()` may.

An editable source writes an entry before it returns, durably as far as the storage allows. If its
version tokens can distinguish its own writes from those of others, it implements
`TracksOwnWrites`: then not everything is read again after an edit.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger.limit_entry import Entry

__all__ = ["Limits", "LimitsSource", "NotEditable", "TracksOwnWrites"]

Limits: TypeAlias = Iterable[Entry | Mapping[str, object]]


class NotEditable(ConfigError):
    """The limits source is read-only."""


@runtime_checkable
class LimitsSource(Protocol):
    """Stores the limits of a central."""

    @property
    def name(self) -> str:
        """For logs: a path or a URL, without a password."""

    @property
    def is_editable(self) -> bool: ...

    def load(self) -> tuple[list[Entry], list[str]]:
        """All entries, and a complaint for each one that was left out."""

    def version_token(self) -> object:
        """A cheap token that changes whenever `load()` may return different entries."""

    def put(self, entry: Entry) -> None:
        """Set the entry of its service and user."""

    def remove(self, service: str, user: str) -> bool:
        """Remove the entry of a service and user; returns whether there was one."""

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries, atomically."""

    def close(self) -> None: ...


@runtime_checkable
class TracksOwnWrites(Protocol):
    """A source that can tell its own writes from those of others."""

    def is_own_write(self, before: object, after: object) -> bool:
        """Whether one write through this object is all that changed between two tokens."""
