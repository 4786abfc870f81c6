"""The size limits of frames, checked before anything is allocated for a frame.

The defaults are wide enough for a node with a hundred thousand users, and as many who have just
gone; but no frame may be so long that others wait while it is read. Both ends must agree on them
only where a frame is larger than the other end takes.
"""

from typing import NamedTuple

__all__ = ["SUBPROTOCOL", "Bounds"]

SUBPROTOCOL = "sluicegate.v1"


class Bounds(NamedTuple):
    frame_bytes: int = 16 << 20
    lines: int = 50_000  # of a report, credits of an ask; and entries that either introduces
    asked: int = 20_000  # users of an ask
    users: int = 200_000  # in a string table
    entries: int = 800_000  # shares of a quota, entries of a string table
    services: int = 1000  # in one frame
    resources: int = 1000  # of one user
    name_bytes: int = 200
    service_bytes: int = 50
