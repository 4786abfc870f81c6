"""A bounded, coalescing queue of the messages for a node that is slow to read.

A message supersedes all earlier ones of its kind, so of those that wait only the newest count: one
acknowledgement, one whole quota, and the amendments to it. When there are too many amendments, the
oldest are dropped: the node asks again. They are kept as messages and written when they are sent,
since what is written on a wire builds on what was written before it.
"""

from collections import deque

from sluicegate.quota.messages import Ack, Quota

__all__ = ["SendQueue"]

_MAX_AMENDMENTS = 64


class SendQueue:
    """The messages that wait for one node, in the order in which they must be sent."""

    def __init__(self) -> None:
        self._ack: Ack | None = None
        self._whole: Quota | None = None
        self._amendments: deque[Quota] = deque(maxlen=_MAX_AMENDMENTS)

    def __len__(self) -> int:
        return (self._ack is not None) + (self._whole is not None) + len(self._amendments)

    def put(self, message: Ack | Quota) -> None:
        if isinstance(message, Ack):
            self._ack = message
        elif message.whole:
            self._whole = message
            later = [each for each in self._amendments if each.slot > message.slot]
            self._amendments = deque(later, maxlen=_MAX_AMENDMENTS)
        else:
            self._amendments.append(message)

    def take(self) -> Ack | Quota | None:
        """Remove and return the next message to send; None when the queue is empty."""
        message: Ack | Quota | None
        if self._ack is not None:
            message, self._ack = self._ack, None
        elif self._whole is not None:
            message, self._whole = self._whole, None
        else:
            message = self._amendments.popleft() if self._amendments else None
        return message
