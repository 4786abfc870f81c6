"""What the HTTP API and the metrics see of a central, and nothing more of it.

Times called `now` and `quota_sent` are monotonic, `started` and `since` are wall seconds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sluicegate.quota.central.sources.sync import LimitsSync
from sluicegate.quota.central.state import CentralState

if TYPE_CHECKING:
    from sluicegate.quota.central.http.metrics import CentralMetrics

__all__ = ["CentralView", "ConnectionView", "is_late"]

_ASSIGNMENT_SLOTS = 3  # a leader whose last assignment is older is not well


class ConnectionView(Protocol):
    """A node's connection."""

    @property
    def node(self) -> str | None:
        """None: it has not said yet who it is."""

    @property
    def kind(self) -> str:
        """sluicegate.v1 or classic."""

    @property
    def address(self) -> str: ...

    @property
    def since(self) -> float: ...

    @property
    def frames(self) -> int: ...

    @property
    def last_slot(self) -> int | None:
        """The highest slot it has reported."""

    @property
    def quota_sent(self) -> float | None:
        """When it was last sent a quota."""


class CentralView(Protocol):
    """A central, as far as others may look at it."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> CentralState: ...

    @property
    def keeper(self) -> LimitsSync: ...

    @property
    def metrics(self) -> "CentralMetrics": ...

    @property
    def started(self) -> float: ...

    def now(self) -> float: ...

    def connections(self) -> Sequence[ConnectionView]: ...


def is_late(view: CentralView) -> str | None:
    """Why the central is not well: it leads and has not assigned for a while. None: it is well."""
    state = view.state
    slot_seconds = state.ledger.slot_seconds
    now = view.now()
    age = now - state.due(now) + slot_seconds
    if not state.leads or age <= _ASSIGNMENT_SLOTS * slot_seconds:
        return None
    return f"the last assignment is {age:.1f} s old, expected at most {_ASSIGNMENT_SLOTS} slots"
