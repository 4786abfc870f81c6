"""`Task`: a request in the hands of a worker; `Ending`: how it ends."""

from typing import Any, NamedTuple

from sluicegate.dispatch.keys import TaskId
from sluicegate.dispatch.wire import InvalidRequest, Request

__all__ = ["Ending", "Task"]


class Task:
    """One request as it was delivered to this worker.

    Times are those of Redis. `request` is an error if it cannot be read; `data` is decoded when it
    is first needed.
    """

    __slots__ = (
        "arrived_at",
        "cost",
        "data",
        "deadline",
        "deliveries",
        "enqueued_at",
        "id",
        "order",
        "renewed_at",
        "request",
        "runs_alone",
        "size",
    )

    def __init__(self, id: TaskId, deliveries: int, request: Request | InvalidRequest) -> None:
        self.id = id
        self.deliveries = deliveries
        self.request = request
        milliseconds, _, sequence = id[1].partition(b"-")
        self.order = (id[0], int(milliseconds), int(sequence or 0))
        self.enqueued_at = self.order[1] / 1000.0
        self.deadline = float("inf")
        if isinstance(request, Request):
            self.deadline = self.enqueued_at + request.timeout
        self.arrived_at = 0.0
        self.renewed_at = 0.0
        self.runs_alone = False  # not in a batch with others
        self.data: Any = None
        self.size = 0.0
        self.cost = 1.0

    def __lt__(self, other: "Task") -> bool:
        """Whether it is served before another: more urgent, or older."""
        return self.order < other.order

    def __repr__(self) -> str:
        return f"Task({self.id[1].decode()}, deadline={self.deadline:.3f})"


class Ending(NamedTuple):
    """How a task ends: the response, why it goes to the dead list, if it does, and who ended it."""

    task: Task
    status: int
    data: Any
    reason: str = ""
    by_handler: bool = False
