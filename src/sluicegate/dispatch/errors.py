"""Errors of a call: refused at the door, not answered in time, or failed by its handler.

`Unavailable` is raised when Redis does not answer.
"""

from sluicegate.errors import SluicegateError

__all__ = ["Busy", "Duplicate", "HandlerFailed", "NoWorkers", "TimedOut"]


class Busy(SluicegateError):
    """The queue is full: `length` requests are waiting or running, `limit` are allowed.

    A limit of 0 means that the queue is being drained.
    """

    def __init__(self, queue: str, length: int, limit: int) -> None:
        super().__init__(
            f"queue {queue!r} is full: {length} requests are waiting or running, "
            f"the limit is {limit}"
            if limit
            else f"queue {queue!r} is being drained and accepts no new requests: "
            f"{length} are waiting or running"
        )
        self.queue = queue
        self.length = length
        self.limit = limit

    def __reduce__(self) -> tuple[type["Busy"], tuple[str, int, int]]:
        return type(self), (self.queue, self.length, self.limit)


class Duplicate(SluicegateError):
    """A request with this idempotency key was accepted before."""

    def __init__(self, queue: str, key: str) -> None:
        super().__init__(f"queue {queue!r} has accepted the idempotency key {key!r} before")
        self.queue = queue
        self.key = key

    def __reduce__(self) -> tuple[type["Duplicate"], tuple[str, str]]:
        return type(self), (self.queue, self.key)


class NoWorkers(SluicegateError):
    """No worker of the queue is alive."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue!r} has no live worker: start one with `sluicegate worker`")
        self.queue = queue

    def __reduce__(self) -> tuple[type["NoWorkers"], tuple[str]]:
        return type(self), (self.queue,)


class TimedOut(SluicegateError):
    """No answer within the time-out.

    `waited` and `ran` are the seconds that the request spent in the queue and with a worker, as far
    as they are known; a worker may have had it for a while before its batch began. `left` is above
    0 if a worker dropped the request that long before its deadline, because `needed` seconds (0 if
    unknown) would have been needed.
    """

    def __init__(
        self, queue: str, waited: float, ran: float, left: float = 0.0, needed: float = 0.0
    ) -> None:
        if left > 0.0:
            reason = f"about {needed:.3f} s were needed" if needed > 0.0 else "too little"
            message = (
                f"queue {queue!r} did not run a request: {left:.3f} s were left after it had "
                f"waited {waited:.3f} s, {reason}"
            )
        else:
            message = (
                f"no answer from queue {queue!r} in time: "
                f"waited {waited:.3f} s, with a worker for {ran:.3f} s"
            )
        super().__init__(message)
        self.queue = queue
        self.waited = waited
        self.ran = ran
        self.left = left
        self.needed = needed

    def __reduce__(self) -> tuple[type["TimedOut"], tuple[str, float, float, float, float]]:
        return type(self), (self.queue, self.waited, self.ran, self.left, self.needed)


class HandlerFailed(SluicegateError):
    """The worker's handler raised, or its result could not be used.

    `message` is the worker's error; `traceback` is empty unless the worker has `tracebacks=True`.
    """

    def __init__(self, queue: str, message: str, traceback: str = "") -> None:
        super().__init__(f"the handler of queue {queue!r} failed: {message}")
        self.queue = queue
        self.message = message
        self.traceback = traceback

    def __reduce__(self) -> tuple[type["HandlerFailed"], tuple[str, str, str]]:
        return type(self), (self.queue, self.message, self.traceback)
