"""What a source of limits is: the place where the entries of a central are kept.

A source is asked from a thread, never from the central's loop, and by one thread at a time. It
may take its time, and it may fail: `ConfigError` (or `Unavailable`, when a machine does not answer)
says why in one sentence for people, with the value and what was expected, and the central goes on
with the limits it has. One bad entry is no
failure: it is left out, and a complaint tells of it.

`stamp` is what the central asks once a second: something small that is another when `load` may
give something else. It may fail as `load` may.

Those that can be edited write an entry before they return, for good as far as the place allows.
One of them whose stamps tell our own changes from those of others says so (`TellsChanges`): then
not everything is read again after a change.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger.entry import Entry

__all__ = ["Limits", "LimitsSource", "NotEditable", "TellsChanges"]

Limits: TypeAlias = Iterable[Entry | Mapping[str, object]]


class NotEditable(ConfigError):
    """The limits come from a place that people write to in another way."""


@runtime_checkable
class LimitsSource(Protocol):
    """Where the limits of a central come from."""

    @property
    def name(self) -> str:
        """For people: a path or a URL, with no password in it."""

    @property
    def is_editable(self) -> bool: ...

    def load(self) -> tuple[list[Entry], list[str]]:
        """All entries, and what is wrong with those that were left out."""

    def stamp(self) -> object:
        """Cheap; another value when `load` may give something else."""

    def put(self, entry: Entry) -> None:
        """Set the entry of its service and user."""

    def remove(self, service: str, user: str) -> bool:
        """Whether there was one."""

    def replace(self, entries: Iterable[Entry]) -> None:
        """All at once, or not at all."""

    def close(self) -> None: ...


@runtime_checkable
class TellsChanges(Protocol):
    """A source that knows whether somebody else has changed it."""

    def is_ours(self, before: object, after: object) -> bool:
        """Whether all that changed between two stamps is one change made through this object."""
