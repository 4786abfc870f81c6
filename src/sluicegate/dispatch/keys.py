"""The names of a queue's keys in Redis.

All have the queue's name as their hash tag, so they are on one server of a Redis Cluster, and one
script can use them together:

    sluicegate:{translate}:tasks:1         requests that wait or run, most urgent first: streams
    sluicegate:{translate}:tasks:0
    sluicegate:{translate}:tasks:-1
    sluicegate:{translate}:dead            requests that were given up: a stream
    sluicegate:{translate}:replies:ID      responses to one client: a stream
    sluicegate:{translate}:control:ID      what one worker is told: a stream
    sluicegate:{translate}:workers         until when each worker is alive: a sorted set
    sluicegate:{translate}:leases          the lease of each worker in ms: a hash
    sluicegate:{translate}:rates           requests per second by worker: a hash
    sluicegate:{translate}:rate            their sum: a string
    sluicegate:{translate}:reaper          whose turn it is to look for lost requests: a string
    sluicegate:{translate}:draining        present while new requests are refused: a string
    sluicegate:{translate}:taken:N:ID      since when a worker has a renewed task: a string
    sluicegate:{translate}:once:KEY        an idempotency key that was used: a string

In a queue's name `{`, `}` and `%` are written `%7B`, `%7D` and `%25`.
"""

from sluicegate._validate import encode_utf8

__all__ = ["GROUP", "PRIORITIES", "RETURNED", "QueueKeys", "TaskId", "check_priority"]

GROUP = b"workers"  # the consumer group of every stream of tasks
RETURNED = b"returned"  # the consumer that holds what stopped workers gave back
PRIORITIES = (1, 0, -1)  # urgent, normal, background: in the order in which they are served

TaskId = tuple[int, bytes]  # the place of its stream in `QueueKeys.tasks`, and its id there

_ESCAPES = str.maketrans({"{": "%7B", "}": "%7D", "%": "%25"})


class QueueKeys:
    """The keys of one queue."""

    def __init__(self, queue: str, prefix: str = "sluicegate:") -> None:
        if "{" in prefix or "}" in prefix:
            raise ValueError(
                f"prefix must not contain braces, which mark the hash tag, got {prefix!r}"
            )
        encode_utf8("queue", queue)
        if prefix:
            encode_utf8("prefix", prefix)
        self.queue = queue
        start = f"{prefix}{{{queue.translate(_ESCAPES)}}}:".encode()
        self.tasks = tuple(b"%btasks:%d" % (start, priority) for priority in PRIORITIES)
        self.dead = start + b"dead"
        self.workers = start + b"workers"
        self.leases = start + b"leases"
        self.rates = start + b"rates"
        self.rate = start + b"rate"
        self.reaper = start + b"reaper"
        self.draining = start + b"draining"
        self.control_start = start + b"control:"
        self.replies_start = start + b"replies:"
        self.taken_start = start + b"taken:"
        self._once_start = start + b"once:"

    def control(self, worker: bytes) -> bytes:
        return self.control_start + worker

    def replies(self, client: bytes) -> bytes:
        return self.replies_start + client

    def once(self, idempotency_key: str) -> bytes:
        return self._once_start + encode_utf8("idempotency_key", idempotency_key)

    def __repr__(self) -> str:
        return f"QueueKeys({self.queue!r})"


def check_priority(priority: int) -> int:
    """The index of the stream of a priority."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"priority must be an int, got {priority!r}")
    if priority not in PRIORITIES:
        raise ValueError(f"priority must be -1, 0 or 1, got {priority!r}")
    return PRIORITIES.index(priority)
