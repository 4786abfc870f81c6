"""A bounded, coalescing queue of the messages for a node that is slow to read.

A message supersedes all earlier ones of its kind, so of those that wait only the newest count: one
acknowledgement, one whole quota, and one amendment, which has the newest shares and the newest hint
of each user that was in any. No grant is lost: grants are told as totals. They are kept as messages
and written when they are sent: what is written on a wire builds on what was written before it.
"""

from sluicegate.quota.messages import Ack, Hint, Quota, ServiceQuota, Share

__all__ = ["SendQueue"]


class SendQueue:
    """The messages that wait for one node, in the order in which they must be sent."""

    def __init__(self) -> None:
        self._ack: Ack | None = None
        self._whole: Quota | None = None
        self._amendment: Quota | None = None

    def __len__(self) -> int:
        waiting = (self._ack, self._whole, self._amendment)
        return sum(message is not None for message in waiting)

    def put(self, message: Ack | Quota) -> None:
        if isinstance(message, Ack):
            self._ack = message
        elif message.whole:
            self._whole = message
        elif self._amendment is None:
            self._amendment = message
        else:
            self._amendment = _merge(self._amendment, message)

    def take(self) -> Ack | Quota | None:
        """Remove and return the next message to send; None when the queue is empty."""
        message: Ack | Quota | None
        if self._ack is not None:
            message, self._ack = self._ack, None
        elif self._whole is not None:
            message, self._whole = self._whole, None
        else:
            message, self._amendment = self._amendment, None
        return message


def _merge(older: Quota, newer: Quota) -> Quota:
    """Both amendments in one."""
    services = dict(newer.services)
    passed = max(0.0, newer.time - older.time)
    for name, before in older.services.items():
        after = services.get(name)
        users: dict[str, dict[str, Share]] = {
            user: shares
            for user, shares in before.users.items()
            # A user without a limit is so until the limits change.
            if shares or older.version == newer.version
        }
        hints = {
            user: Hint(max(0.0, hint.wait - passed), hint.recall, hint.may_float)
            for user, hint in before.hints.items()
        }
        if after is not None:
            users.update(after.users.items())
            hints.update(after.hints)
        newcomers = before.newcomers if after is None else after.newcomers
        services[name] = ServiceQuota(users, newcomers, hints)
    return newer._replace(services=services)
