"""What clients and workers ask of a queue, and what it answers: the messages of the scripts."""

from collections.abc import Sequence
from typing import NamedTuple

from sluicegate.dispatch.keys import TaskId

__all__ = [
    "BUSY",
    "DUPLICATE",
    "NO_WORKERS",
    "Cancelled",
    "Claimed",
    "Enqueued",
    "Finishing",
    "Heartbeat",
    "Outgoing",
]

BUSY, DUPLICATE, NO_WORKERS = 0, 1, 2  # why a request was refused


class Outgoing(NamedTuple):
    """A request to add. `once`: its idempotency key in Redis, or empty."""

    stream: int
    once: bytes
    payload: bytes


class Enqueued(NamedTuple):
    """`results` has for each request its id, or why it was refused."""

    length: int
    limit: int
    results: list[bytes | int]


class Finishing(NamedTuple):
    """A task to end. `reply_to` may be empty; `reason` puts it on the dead list."""

    task: TaskId
    reply_to: bytes
    response: bytes
    reason: str


class Cancelled(NamedTuple):
    """Where a cancelled request was: 0 ended before, 1 waiting, 2 with a worker for `had` s."""

    where: int
    had: float


class Claimed(NamedTuple):
    """A task that was given to a worker, and the fields of its entry."""

    task: TaskId
    deliveries: int
    fields: Sequence[bytes]


class Heartbeat(NamedTuple):
    time: float
    workers: int
