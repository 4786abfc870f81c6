"""Dispatch under random faults in virtual time: 300 swarms; `make soak` runs thousands."""

import os
from collections import Counter

import pytest

from sluicegate.dispatch.client_core import ClientCore
from sluicegate.dispatch.fetcher import Fetcher, Pause, Step
from sluicegate.dispatch.messages import Claimed, Enqueued, Finishing
from sluicegate.dispatch.task import Ending, Task
from sluicegate.dispatch.worker_core import WorkerCore
from sluicegate.sim.dispatch import run
from sluicegate.sim.dispatch.queue_model import Pending, QueueModel
from sluicegate.sim.dispatch.random_runs import SWARMS

# Whole swarms in virtual time, which take three times as long when they are traced.
pytestmark = pytest.mark.no_cover

PARTS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 3
PART = 100


@pytest.mark.parametrize("part", range(PARTS))
def test_every_call_ends_once_and_in_time_whatever_fails(part: int) -> None:
    outcomes = SWARMS.run_many(range(part * PART, (part + 1) * PART))
    assert not any(outcome.violations for outcome in outcomes), SWARMS.table(outcomes)
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    assert [event for event in SWARMS.events if not counts[event]] == []
    assert counts["answered"] > 10 * PART


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(17) == run(17)
    assert run(17).counts != run(18).counts


# Rules that were weakened: the audit must find each within a few hundred swarms.


def answer_what_was_ended_before(self: QueueModel, tasks: list[Finishing]) -> list[int]:
    for (place, id), reply_to, response, _ in tasks:
        if id not in self.streams[place].pending and reply_to:
            self.replies.setdefault(reply_to, []).append([response])
    return _finish(self, tasks)


def add_beyond_the_limit(self: QueueModel, *arguments: object) -> Enqueued:
    now, requests, limit, *more = arguments
    reply = _enqueue(self, now, requests, limit + 1, *more)  # type: ignore[operator, arg-type]
    return reply._replace(limit=limit)


def never_bury(self: WorkerCore, now: float, task: Task, *more: object) -> Ending | None:
    task.deliveries = 1
    return _refuse(self, now, task, *more)  # type: ignore[arg-type]


def fetch_as_many_of_each_priority(
    self: QueueModel, now: float, worker: bytes, wanted: list[int]
) -> list[Claimed]:
    return self.read(now, worker, wanted[-1])


def lapse_by_the_lease_of_the_reaper(
    self: QueueModel, now: float, pending: Pending, lease: float
) -> bool:
    return now * 1000.0 - pending.renewed_at >= lease * 1000.0


def pause_after_each_fetch(self: Fetcher, *arguments: object) -> Step:
    has_fetched, self._has_fetched = self._has_fetched, False
    return Pause(None) if has_fetched else _step(self, *arguments)  # type: ignore[arg-type]


_step = Fetcher.step
_finish, _enqueue, _refuse = QueueModel.finish, QueueModel.enqueue, WorkerCore._refuse

MUTANTS = {
    "finish answers tasks that others have ended": (
        (QueueModel, "finish", answer_what_was_ended_before),
        "was answered 2 times",
    ),
    "leases are not renewed": (
        (WorkerCore, "due_renewals", lambda *_: []),
        "had begun at",
    ),
    "the reaper ignores the lease": (
        (QueueModel, "is_lapsed", lambda *_: True),
        "had begun at",
    ),
    "the reaper applies its own lease to the tasks of others": (
        (QueueModel, "is_lapsed", lapse_by_the_lease_of_the_reaper),
        "had begun at",
    ),
    "only what is late already is dropped": (
        (WorkerCore, "margin", 0.0),
        "expected to take",
    ),
    "workers are not told of cancellations": (
        (QueueModel, "tell", lambda *_: None),
        "after it was cancelled",
    ),
    "cancellations that overtake their tasks are forgotten": (
        (WorkerCore, "cancel", WorkerCore.disown),
        "had been told",
    ),
    "the client does not look at deadlines again": (
        (ClientCore, "next_deadline", lambda _: None),
        "after its deadline",
    ),
    "one more than the limit is added": (
        (QueueModel, "enqueue", add_beyond_the_limit),
        "the limit is",
    ),
    "tasks that kill their workers are never given up": (
        (WorkerCore, "_refuse", never_bury),
        "th time",
    ),
    "a fetch takes as many of each priority": (
        (QueueModel, "fetch", fetch_as_many_of_each_priority),
        "which is more urgent",
    ),
    "a worker that has fetched sleeps though another slot is free": (
        (Fetcher, "step", pause_after_each_fetch),
        "is idle while tasks wait",
    ),
    "ended tasks are held for ever": (
        (WorkerCore, "confirm", lambda *_: None),
        "still holds",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_weakened_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (owner, rule, weaker), sign = MUTANTS[name]
    monkeypatch.setattr(owner, rule, weaker)
    for seed in range(400):
        found = run(seed).violations
        if any(sign in what for what in found):
            return
    pytest.fail(f"no swarm of 400 found that {name}")


def test_a_violation_is_shown_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QueueModel, "finish", answer_what_was_ended_before)
    text = SWARMS.table(SWARMS.run_many(range(5)))
    assert f"VIOLATED: {SWARMS.replay_command(0)}\n" in text
    assert "was answered 2 times" in text
