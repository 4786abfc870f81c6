"""The health check: a leader must have made an assignment within the last slots."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluicegate.quota.central.net.registry import ConnectionRegistry

__all__ = ["unhealthy_reason"]

_MAX_ASSIGNMENT_AGE = 3  # slots


def unhealthy_reason(registry: "ConnectionRegistry") -> str | None:
    """Why the central is unhealthy: it leads and has not assigned for a while. None: healthy."""
    state = registry.state
    slot_seconds = state.ledger.slot_seconds
    now = registry.now()
    age = now - state.due(now) + slot_seconds
    if not state.leads or age <= _MAX_ASSIGNMENT_AGE * slot_seconds:
        return None
    return f"the last assignment is {age:.1f} s old, expected at most {_MAX_ASSIGNMENT_AGE} slots"
