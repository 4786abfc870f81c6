"""`Audit`: what must hold in every run of dispatch, checked from what happens alone.

1. A call ends once: with an answer, a refusal or a failure before its deadline, or at its deadline;
   at the latest `GRACE` after it, or when its frozen client is thawed. An answer is its own.
2. The queue holds at most one response to a request.
3. No batch begins that would end after the deadline of a task, by the worker's estimate and a
   margin of 30 %; but for a single task after a second without any.
4. A task that was cancelled while it waited is never begun; one that was with a worker, not by this
   worker once it was told, and it is told in time.
5. A task is not begun again while the worker that began it lives and has had no fault; nor more
   often than it may be delivered.
6. No request is added beyond the limit.
7. Without faults of the network no call fails with `Unavailable`.
8. A worker that looks for tasks is given none while a more urgent one waits, nor does it begin one
   while it has a more urgent one in its pool.
9. No task waits for long while a worker that has had no fault is idle.
10. When all is quiet, nothing is left of requests and dead workers.

The checks keep their own account of times and deadlines. Of the worker they use the estimate.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluicegate.dispatch.client_core import GRACE
from sluicegate.dispatch.errors import HandlerFailed, TimedOut
from sluicegate.dispatch.keys import RETURNED, TaskId
from sluicegate.dispatch.messages import Enqueued
from sluicegate.dispatch.task import Task
from sluicegate.dispatch.wire import decode_response
from sluicegate.dispatch.worker_core import Batch
from sluicegate.errors import SluicegateError, Unavailable
from sluicegate.sim.dispatch.process import Process
from sluicegate.sim.dispatch.queue_model import QueueModel
from sluicegate.sim.world import World

if TYPE_CHECKING:
    from sluicegate.sim.dispatch.worker import SimulatedWorker

__all__ = ["Audit", "Sent"]

_MARGIN = 1.3
_TRY_EVERY = 1.0
_ROUNDING = 1e-3
_LONGEST_IDLE = 1.0  # seconds
_DEAF = 5.0  # seconds for which a worker may hear nothing after a lost exchange, and a retry


@dataclass(slots=True, eq=False)
class Sent:
    """A call as the audit knows it. Times are those of the world."""

    client: Process
    number: int
    began_at: float
    timeout: float
    is_given_up: bool = False
    outcomes: list[float] = field(default_factory=list)  # when it ended


@dataclass(slots=True)
class _Begun:
    worker: "SimulatedWorker"
    at: float


class Audit:
    """`has_losses`: whether exchanges may fail. `told_within`: of one who is not disturbed."""

    def __init__(self, world: World, *, has_losses: bool = True, told_within: float = 0.0) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.in_time: list[float] = []  # when calls were answered
        self._world = world
        self._has_losses = has_losses
        self._told_within = told_within
        self._sent: list[Sent] = []
        self._begun: dict[TaskId, list[_Begun]] = {}
        self._cancelled: dict[TaskId, tuple[float, bytes]] = {}  # when, and with which worker
        self._told: set[tuple[bytes, TaskId]] = set()
        self._last_run: dict[bytes, float] = {}
        self._idle_since: dict[bytes, float] = {}  # workers that are, while tasks wait

    # Calls

    def sent(self, client: Process, number: int, timeout: float) -> Sent:
        self.counts["sent"] += 1
        sent = Sent(client, number, self._world.now, timeout)
        self._sent.append(sent)
        return sent

    def gave_up(self, sent: Sent) -> None:
        self.counts["given up"] += 1
        sent.is_given_up = True

    def enqueued(self, calls: Sequence[Sent], reply: Enqueued) -> None:
        added = [
            call for call, one in zip(calls, reply.results, strict=True) if one.__class__ is bytes
        ]
        self.counts["enqueued"] += len(added)
        if added and reply.length > reply.limit:
            self._violate(f"{reply.length} requests in the queue, the limit is {reply.limit}")

    def completed(self, sent: Sent, result: Any, error: SluicegateError | None) -> None:
        now = self._world.now
        kind = "answered" if error is None else type(error).__name__
        self.counts[kind] += 1
        if sent.is_given_up or sent.outcomes:
            self._violate(f"call {sent.number} ended twice, the second time with {kind}")
        sent.outcomes.append(now)
        deadline = max(sent.began_at + sent.timeout, sent.client.frozen_until)
        latest = deadline + GRACE + _ROUNDING
        if now > latest:
            self._violate(f"call {sent.number} ended {now - latest:.3f} s after its deadline")
        if error is None:
            self.in_time.append(now)
            if result != 2 * sent.number:
                self._violate(f"call {sent.number} was answered {result!r}")
        elif isinstance(error, Unavailable) and not self._has_losses:
            self._violate(f"call {sent.number} failed without a fault: {error}")
        elif isinstance(error, TimedOut) and error.waited + error.ran > now - sent.began_at + 0.1:
            self._violate(f"call {sent.number} waited longer than it lived: {error}")
        elif isinstance(error, HandlerFailed) and not error.message:
            self._violate(f"call {sent.number} failed without a reason")

    # Tasks

    def delivered(self, tasks: Sequence[Task]) -> None:
        self.counts["delivered"] += len(tasks)
        self.counts["redelivered"] += sum(task.deliveries > 1 for task in tasks)

    def fetched(
        self, worker: "SimulatedWorker", model: QueueModel, tasks: Sequence[TaskId]
    ) -> None:
        """Redis has given these tasks to a worker that looked for some."""
        least = max((place for place, _ in tasks), default=0)
        for place, stream in enumerate(model.streams[:least]):
            if stream.waiting:
                self._violate(
                    f"{worker.name} was given a task of stream {least} while "
                    f"{len(stream.waiting)} of stream {place} waited, which is more urgent"
                )

    def began(self, worker: "SimulatedWorker", now: float, batch: Batch) -> None:
        """A batch begins. `now`: the time of Redis as the worker knows it."""
        self.counts["batches"] += 1
        self.counts["begun"] += len(batch.tasks)
        core = worker.core
        seconds = _MARGIN * core.time.estimate(core.batcher.load(batch.tasks))
        since = now - self._last_run.get(worker.id, float("-inf"))
        is_trial = len(batch.tasks) == 1 and since >= _TRY_EVERY - _ROUNDING
        for task in batch.tasks:
            if task.deadline <= now or (task.deadline < now + seconds - _ROUNDING and not is_trial):
                self._violate(
                    f"{worker.name} began {task!r} at {now:.3f}, expected to take {seconds:.3f} s"
                )
            self._check_cancelled(worker, task)
            self._check_begun_before(worker, task)
        if worker.core.pooled and worker.core.first.id[0] < max(batch.tasks).id[0]:
            self._violate(
                f"{worker.name} began {max(batch.tasks)!r} before {worker.core.first!r}, which is "
                "more urgent"
            )
        self._last_run[worker.id] = now

    def ended(self, worker: "SimulatedWorker") -> None:
        self._last_run[worker.id] = worker.now()

    def cancelling(self, model: QueueModel, tasks: Iterable[TaskId]) -> None:
        """Redis is about to cancel tasks."""
        for place, id in tasks:
            stream = model.streams[place]
            pending = stream.pending.get(id)
            if pending is not None or id in stream.waiting:
                self.counts["cancelled"] += 1
                holder = RETURNED if pending is None else pending.consumer
                self._cancelled[place, id] = (self._world.now, holder)

    def told(self, worker: "SimulatedWorker", tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self.counts["told"] += 1
            self._told.add((worker.id, task))

    def _check_cancelled(self, worker: "SimulatedWorker", task: Task) -> None:
        cancelled = self._cancelled.get(task.id)
        if cancelled is None:
            return
        at, holder = cancelled
        if holder == RETURNED and not self._was_disturbed(worker):
            self._violate(f"{worker.name} began {task!r}, which was cancelled while it waited")
        if (worker.id, task.id) in self._told:
            self._violate(f"{worker.name} began {task!r}, and had been told that it was cancelled")
        if (
            holder == worker.id
            and self._world.now > at + self._told_within
            and max(worker.listening_since, worker.faulted_at + _DEAF) < at
        ):
            late = self._world.now - at
            self._violate(f"{worker.name} began {task!r} {late:.3f} s after it was cancelled")

    def _was_disturbed(self, worker: "SimulatedWorker") -> bool:
        """Whether tasks in its pool may have been given to others, and it does not know yet."""
        if worker.is_dead or worker.is_frozen:
            return True
        return worker.faulted_at > self._world.now - 2.0 * worker.options.lease - 5.0

    def _check_begun_before(self, worker: "SimulatedWorker", task: Task) -> None:
        now = self._world.now
        before = self._begun.setdefault(task.id, [])
        if before:
            self.counts["begun again"] += 1
        for one in before:
            if not self._was_disturbed(one.worker) and not self._was_disturbed(worker):
                self._violate(
                    f"{worker.name} began {task!r} at {now:.3f}, which {one.worker.name} had "
                    f"begun at {one.at:.3f}"
                )
        before.append(_Begun(worker, now))
        if len(before) > worker.options.max_deliveries:
            self._violate(f"{worker.name} began {task!r}: the {len(before)}th time")

    def check_idle(self, model: QueueModel, workers: Iterable["SimulatedWorker"]) -> None:
        """Called from time to time."""
        now = self._world.now
        for worker in workers:
            is_idle = len(worker.slots.ends) < worker.slots.count and not worker.core.pooled
            if not model.has_waiting or not is_idle or self._was_disturbed(worker):
                self._idle_since.pop(worker.id, None)
            elif now - self._idle_since.setdefault(worker.id, now) > _LONGEST_IDLE:
                self._violate(f"{worker.name} is idle while tasks wait")
                del self._idle_since[worker.id]

    # The end

    def check_quiet(self, model: QueueModel, workers: Iterable["SimulatedWorker"]) -> None:
        """All has ended: what is left?"""
        for sent in self._sent:
            if not sent.outcomes and not sent.is_given_up and not sent.client.is_dead:
                self._violate(f"call {sent.number} of {sent.client.name} never ended")
        answers: Counter[str | int] = Counter()
        for entries in model.replies.values():
            for responses in entries:
                answers.update(decode_response(one).correlation_id for one in responses)
        self.counts["responses"] = sum(answers.values())
        for number, count in answers.items():
            if count > 1:
                self._violate(f"request {number} was answered {count} times")
        if model.length:
            self._violate(f"{model.length} requests are left in the queue")
        alive = {worker.id for worker in workers if not worker.is_dead}
        for stream in model.streams:
            for name in stream.consumers.keys() - alive - {RETURNED}:
                self._violate(f"the consumer of dead worker {name.decode()} is left")
        for name in (model.control.keys() | model.workers.keys() | model.leases.keys()) - alive:
            self._violate(f"dead worker {name.decode()} is remembered")
        for worker in workers:
            if not worker.is_dead and worker.core.held:
                self._violate(f"{worker.name} still holds {worker.core.held} tasks")

    def check_answers_again(self, answered: bool) -> None:
        if not answered:
            self._violate("no worker answers after the faults have ended")

    def _violate(self, what: str) -> None:
        self.violations.append(f"{self._world.now:.3f}: {what}")
