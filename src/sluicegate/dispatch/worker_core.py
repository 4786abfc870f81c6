"""`WorkerCore`: the tasks that a worker holds of one queue, without I/O.

It decides how many tasks to fetch, which to run together, which to drop, and whose lease to renew.
All times are those of Redis, and arguments.

A task is held from its delivery until Redis has confirmed its end: in the pool, in a batch that
runs, or ended and not confirmed. Its lease is renewed for as long, and should the reaper deliver it
to this worker once more, it is not run once more.

**Fetching.** An idle worker fetches one batch. A busy one fetches the next when the running one is
about to end, not earlier: until then another worker may become idle. Nor does it fetch in the last
millisecond: the answers would wait behind that, and the next batch be smaller. Tasks in the pool
leave room for more urgent ones that still wait in Redis: the next batch has the most urgent of all.

**Dropping.** A task whose batch would probably end after its deadline (now + 1.3 times the
estimate) is answered at once that it has timed out: to run it would make those behind it late, too.
Under overload that is the difference between nearly all answers in time and nearly none. The
estimate could be wrong, and nothing would correct it if nothing ran: when nothing has run for a
while, a single task is tried whatever the estimate says. If it takes less than half of the
estimate, what was learned before is forgotten: a first batch that loads a model for six seconds
would otherwise cost nine seconds of refusals, one try in each. A batch that `max_wait` holds back
begins early enough for the first of its deadlines.

**Last deliveries.** A task that kills its worker would take its whole batch to the dead list, since
those that were delivered together are delivered again together. A task that may not be delivered
once more runs alone.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence

from sluicegate.dispatch.batcher import Batcher
from sluicegate.dispatch.estimate import BatchTime
from sluicegate.dispatch.keys import PRIORITIES, TaskId
from sluicegate.dispatch.stats import WorkerStats
from sluicegate.dispatch.task import Ending, Task
from sluicegate.dispatch.wire import FAILED, TIMED_OUT, Request, decode_data
from sluicegate.errors import ProtocolError, describe

__all__ = ["Batch", "WorkerCore"]

FETCH_AHEAD = 0.05  # seconds before the end of a batch at which the next may be fetched
_LEAST_AHEAD = 0.001
_SPARE = 0.02  # seconds before the latest begin at which a batch that is held back begins
_MOST_EARLY = 1000  # cancellations of tasks that were not delivered yet, or one fetch of them
_TRY_EVERY = 1.0  # seconds without a batch after which one is tried whatever the estimate says


class Batch:
    """Tasks that run together. `ends_at`: the expected end; None before any batch has run.

    `is_try`: by the estimate it would have been dropped.
    """

    __slots__ = ("began_at", "ends_at", "is_try", "tasks")

    def __init__(self, tasks: list[Task], began_at: float, ends_at: float | None) -> None:
        self.tasks = tasks
        self.began_at = began_at
        self.ends_at = ends_at
        self.is_try = False


class WorkerCore:
    margin = 1.3  # by how much batches may take longer than estimated

    def __init__(self, batcher: Batcher, *, lease: float = 10.0, max_deliveries: int = 3) -> None:
        self.batcher = batcher
        self.lease = lease
        self.max_deliveries = max_deliveries
        self.time = BatchTime()
        self.stats = WorkerStats()
        self._pool: list[Task] = []  # in the order in which they are served
        self._held: dict[TaskId, Task] = {}
        self._cancelled_early: dict[TaskId, None] = {}
        self._last_run = float("-inf")

    @property
    def pooled(self) -> int:
        """Tasks that were fetched and have not begun."""
        return len(self._pool)

    @property
    def first(self) -> Task:
        """The most urgent and oldest of the tasks that have not begun."""
        return self._pool[0]

    @property
    def held(self) -> int:
        """Tasks that were fetched and whose end is not confirmed."""
        return len(self._held)

    def held_ids(self) -> list[TaskId]:
        """The ids of the tasks that are held."""
        return list(self._held)

    @property
    def is_full(self) -> bool:
        """Whether the pool has room for more urgent tasks alone."""
        return len(self._pool) >= self.batcher.pool_size

    def wanted(self, now: float, free: int, next_free_at: float | None) -> tuple[int, ...]:
        """For each stream how many tasks to fetch of it and the more urgent ones; () for none.

        `free`: batches that could begin now; else when one could.
        """
        if not free and (
            next_free_at is None or not _LEAST_AHEAD <= next_free_at - now <= FETCH_AHEAD
        ):
            return ()
        wanted = []
        pooled = Counter(task.id[0] for task in self._pool)
        more_urgent, less_urgent = 0, len(self._pool)
        for stream in range(len(PRIORITIES)):
            more_urgent += pooled[stream]
            less_urgent -= pooled[stream]
            # Where less urgent tasks would take them, all free places count, not one batch alone.
            pools = free if free and less_urgent else 1
            wanted.append(max(pools * self.batcher.pool_size - more_urgent, 0))
        return tuple(wanted) if any(wanted) else ()

    def reapable(self, now: float, free: int, next_free_at: float | None) -> int:
        """How many tasks of others to take over, though the pool may be full.

        They are the oldest: under load they would wait for ever if only the idle took them.
        """
        if not free and (next_free_at is None or next_free_at - now > self.lease / 2):
            return 0
        return max(2 * self.batcher.pool_size - len(self._pool), 0)

    def add(self, now: float, tasks: Sequence[Task], begins_at: float) -> list[Ending]:
        """Tasks were delivered. Returns those that end at once.

        `begins_at`: when the next batch can begin.
        """
        endings = []
        # As if all came into one batch: a task that only a smaller one could finish in time would
        # be dropped when that one begins, and leave its place empty.
        together = min(len(self._pool) + len(tasks), self.batcher.max_batch)
        for task in tasks:
            if task.id in self._held:
                continue
            if self._cancelled_early and task.id in self._cancelled_early:
                del self._cancelled_early[task.id]
                self.stats.tasks["cancelled"] += 1
                continue
            task.arrived_at = task.renewed_at = now
            task.runs_alone = 1 < self.max_deliveries == task.deliveries
            self._held[task.id] = task
            ending = self._refuse(now, task, begins_at, together)
            if ending is None:
                insort(self._pool, task)
            else:
                endings.append(ending)
        return endings

    def take(self, now: float) -> tuple[Batch | None, list[Ending]]:
        """The next batch, if one is due, and the tasks that are dropped."""
        endings: list[Ending] = []
        while self._pool and self._ready_at() <= now:
            tasks = self.batcher.pick(self._pool)
            late = self._late(now, tasks)
            is_try = False
            if late and now - self._last_run >= _TRY_EVERY:
                in_time = [task for task in tasks if task.deadline > now]
                if in_time:
                    tasks, late, is_try = in_time[:1], [], True
            self._remove(late or tasks)
            if not late:
                batch = self._begin(now, tasks)
                batch.is_try = is_try
                return batch, endings
            needed = self.margin * self.time.estimate(self.batcher.load(tasks))
            endings += [self._drop(now, task, needed) for task in late]
        return None, endings

    def due_at(self) -> float | None:
        """When `take` must be called again though nothing has happened."""
        return self._ready_at() if self._pool else None

    def end_batch(self, now: float, batch: Batch) -> None:
        """A batch has run."""
        self._last_run = now
        seconds = max(now - batch.began_at, 0.0)
        load = self.batcher.load(batch.tasks)
        if batch.is_try and seconds < self.time.estimate(load) / 2:
            self.time = BatchTime()
        self.time.observe(load, seconds)
        self.stats.run_seconds.observe(seconds)

    def confirm(self, tasks: Iterable[Task]) -> None:
        """Redis has confirmed the end of tasks, or does not count them as ours any more."""
        for task in tasks:
            self._held.pop(task.id, None)

    def cancel(self, ids: Iterable[TaskId]) -> list[Task]:
        """Nobody waits for these tasks any more. Returns those that would have run.

        A cancellation may overtake its task, which comes over another connection: such a task is
        ended when it comes.
        """
        cancelled = list(ids)
        for id in cancelled:
            if id not in self._held:
                self._cancelled_early[id] = None
        most = max(_MOST_EARLY, 4 * self.batcher.pool_size)
        while len(self._cancelled_early) > most:
            del self._cancelled_early[next(iter(self._cancelled_early))]
        return self.disown(cancelled)

    def disown(self, ids: Iterable[TaskId]) -> list[Task]:
        """These tasks are no longer this worker's. Returns those that would have run."""
        disowned = set(ids)
        pooled = [task for task in self._pool if task.id in disowned]
        self._remove(pooled)
        self.confirm(pooled)
        self.stats.tasks["cancelled"] += len(pooled)
        return pooled

    def due_renewals(self, now: float) -> list[Task]:
        """The tasks whose leases to renew now; it is tried three times in a lease."""
        due = [task for task in self._held.values() if now - task.renewed_at >= self.lease / 3]
        for task in due:
            task.renewed_at = now
        return due

    def rate(self, concurrency: int) -> float | None:
        """Requests per second that this worker can run; None while that is not known."""
        full = self.batcher.max_batch if self.batcher.cost is None else self.batcher.max_cost
        rate = self.time.rate(full)
        if rate is None:
            return None
        return rate * concurrency / self._mean_cost()

    def release(self) -> list[Task]:
        """Empty the pool, to give its tasks back."""
        released = list(self._pool)
        self._remove(released)
        self.confirm(released)
        return released

    def forget(self) -> None:
        """Hold nothing: all tasks were given back, and each may be delivered here once more."""
        self._pool.clear()
        self._held.clear()

    def _ready_at(self) -> float:
        """When a batch may begin: early enough for each of its tasks, though it is to wait."""
        ready_at = self.batcher.ready_at(self._pool)
        if not ready_at:
            return ready_at
        seconds = self.time.estimate(self.batcher.load(self._pool))
        spare = _SPARE + 2.0 * (self.margin - 1.0) * seconds
        deadline = min(task.deadline for task in self._pool)
        # Before any batch has run, its time may be half of what the first task has.
        latest = deadline - self.margin * seconds - spare
        if not self.time.is_known:
            latest = min((task.arrived_at + task.deadline) / 2.0 for task in self._pool)
        return min(ready_at, latest)

    def _begin(self, now: float, tasks: list[Task]) -> Batch:
        self._last_run = now
        self.stats.batch_sizes.observe(len(tasks))
        for task in tasks:
            self.stats.wait_seconds.observe(max(now - task.enqueued_at, 0.0))
        ends_at = None
        if self.time.is_known:
            ends_at = now + self.time.estimate(self.batcher.load(tasks))
        return Batch(tasks, now, ends_at)

    def _refuse(self, now: float, task: Task, begins_at: float, together: int) -> Ending | None:
        """How a new task ends at once, if it does; `together`: the size of its batch."""
        if task.deliveries > 1:
            self.stats.tasks["redelivered"] += 1
        if not isinstance(task.request, Request):
            return self._bury(task, str(task.request))
        if task.deliveries > self.max_deliveries:
            times = task.deliveries - 1
            return self._bury(
                task, f"{times} workers took this request, and none of them has answered"
            )
        if self.batcher.needs_data:
            try:
                task.data = decode_data(task.request)
                self.batcher.measure(task)
            except ProtocolError as error:
                return self._bury(task, str(error))
            except (Exception, SystemExit) as error:  # noqa: BLE001  they are the user's functions
                self.stats.tasks["failed"] += 1
                reason = f"size or cost of the worker failed: {describe(error)}"
                return Ending(task, FAILED, {"error": reason})
        load = float(together) if self.batcher.cost is None else task.cost
        ends_at = max(now, begins_at) + self.margin * self.time.estimate(load)
        is_hopeless = task.deadline <= now or (
            task.deadline < ends_at and now - self._last_run < _TRY_EVERY
        )
        return self._drop(now, task, ends_at - now) if is_hopeless else None

    def _late(self, now: float, tasks: Sequence[Task]) -> list[Task]:
        """The tasks of a batch that would probably end after their deadlines."""
        ends_at = now + self.margin * self.time.estimate(self.batcher.load(tasks))
        return [task for task in tasks if task.deadline < ends_at or task.deadline <= now]

    def _drop(self, now: float, task: Task, needed: float) -> Ending:
        """`needed`: how many seconds it would probably have taken to the end of its batch."""
        self.stats.tasks["late" if task.deadline <= now else "hopeless"] += 1
        waited = max(now - task.enqueued_at, 0.0)
        return Ending(task, TIMED_OUT, {"waited": waited, "ran": 0.0, "needed": needed})

    def _bury(self, task: Task, reason: str) -> Ending:
        self.stats.tasks["buried"] += 1
        return Ending(task, FAILED, {"error": reason}, reason)

    def _mean_cost(self) -> float:
        if self.batcher.cost is None or not self._pool:
            return 1.0
        return sum(task.cost for task in self._pool) / len(self._pool) or 1.0

    def _remove(self, tasks: Sequence[Task]) -> None:
        if len(tasks) == len(self._pool):
            self._pool.clear()
            return
        gone = {task.id for task in tasks}
        self._pool = [task for task in self._pool if task.id not in gone]

    def __repr__(self) -> str:
        return f"WorkerCore(pooled={self.pooled}, held={self.held}, time={self.time!r})"
