"""`Batcher`: which of the waiting tasks make up the next batch, and when.

Greedy by default: whatever is there, up to `max_batch`, at once. While a batch runs the next one
gathers, so batches grow by themselves with the load and an idle worker adds no delay. `max_wait`
holds a batch that is not full back for that long, for handlers whose time hardly depends on the
batch's size.

`size` (any measure of an item, say its length) makes batches of like sizes, for handlers that pad
their items to the longest: up to four batches are gathered and sorted by size, and of the runs of
neighbours that contain the first task the one with the least padding is taken. The first task,
which is the oldest of the most urgent, is in the next batch whatever its size, so none starves. The
run is of one priority; less urgent tasks fill up a batch that has all of the more urgent ones.

`max_cost` bounds the sum of `cost(item)` of a batch; an item that costs more goes alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sluicegate._validate import check_between, check_number, check_positive, check_whole
from sluicegate.dispatch.task import Task

__all__ = ["Batcher"]

_POOL_BATCHES = 4
_LARGEST = 1e100  # size or cost, whose square is a number, too


class Batcher:
    def __init__(
        self,
        max_batch: int = 16,
        max_wait: float = 0.0,
        *,
        size: Callable[[Any], float] | None = None,
        cost: Callable[[Any], float] | None = None,
        max_cost: float | None = None,
    ) -> None:
        self.max_batch = check_whole("max_batch", max_batch, 1)
        self.max_wait = check_number("max_wait", max_wait)
        if not 0.0 <= self.max_wait < float("inf"):
            raise ValueError(f"max_wait must be seconds >= 0, got {max_wait!r}")
        if max_cost is not None and cost is None:
            raise ValueError(f"max_cost needs a cost function, got max_cost={max_cost!r} alone")
        for name, function in (("size", size), ("cost", cost)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function of an item, got {function!r}")
        self.size = size
        self.cost = cost
        self.max_cost = float("inf") if max_cost is None else check_positive("max_cost", max_cost)
        self.pool_size = self.max_batch * (_POOL_BATCHES if size is not None else 1)

    @property
    def needs_data(self) -> bool:
        """Whether `measure` looks at the data of a task."""
        return self.size is not None or self.cost is not None

    def measure(self, task: Task) -> None:
        """Set the size and the cost of a task. Errors of the user's functions are raised."""
        if self.size is not None:
            task.size = check_between("size", self.size(task.data), -_LARGEST, _LARGEST)
        if self.cost is not None:
            task.cost = check_between("cost", self.cost(task.data), 0.0, _LARGEST)

    def load(self, tasks: Sequence[Task]) -> float:
        """What the time of a batch depends on: its cost, or the number of its items."""
        return float(len(tasks)) if self.cost is None else sum(task.cost for task in tasks)

    def ready_at(self, tasks: Sequence[Task]) -> float:
        """When a batch of these tasks, at least one, may begin."""
        if not self.max_wait or len(tasks) >= self.max_batch or self.load(tasks) >= self.max_cost:
            return 0.0
        return min(task.arrived_at for task in tasks) + self.max_wait

    def pick(self, tasks: Sequence[Task]) -> list[Task]:
        """The next batch of these tasks, most urgent and oldest first; at least one."""
        first = tasks[0]
        if first.runs_alone:
            return [first]
        if any(task.runs_alone for task in tasks):
            tasks = [task for task in tasks if not task.runs_alone]
        if self.size is None:
            return self._fit(tasks[: self.max_batch])
        equals = [task for task in tasks if task.id[0] == first.id[0]]
        others = tasks[len(equals) :]
        by_size = sorted(equals, key=_size)
        at = by_size.index(first)
        count = min(self.max_batch, len(by_size))
        starts = range(max(0, at - count + 1), min(at, len(by_size) - count) + 1)
        best = min(starts, key=lambda start: _padding(by_size[start : start + count]))
        run = by_size[best : best + count]
        # Those nearest in size to the first task, should all be too costly.
        run.sort(key=lambda task: (task is not first, abs(task.size - first.size)))
        if others and count < self.max_batch:
            nearest = sorted(others, key=lambda task: (task.id[0], abs(task.size - first.size)))
            run += nearest[: self.max_batch - count]
        return self._fit(run)

    def _fit(self, tasks: Sequence[Task]) -> list[Task]:
        if self.max_cost == float("inf"):
            return list(tasks)
        batch: list[Task] = []
        total = 0.0
        for task in tasks:
            total += task.cost
            if batch and total > self.max_cost:
                break
            batch.append(task)
        return batch


def _size(task: Task) -> float:
    return task.size


def _padding(run: Sequence[Task]) -> float:
    return len(run) * run[-1].size - sum(task.size for task in run)
