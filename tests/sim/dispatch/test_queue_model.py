"""The model of the queue beside the scripts on a real Redis: the same calls, in random orders.

Ids differ, for they are times: the test knows which belong together. In the model a second passes
with each step. A lease of a second has run out there after any step, and in Redis one of a
millisecond after a short sleep; one of an hour runs out in neither.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sluicegate.dispatch.keys import GROUP, QueueKeys, TaskId
from sluicegate.dispatch.messages import Claimed, Finishing, Outgoing
from sluicegate.dispatch.scripts import QueueScripts
from sluicegate.redis_client import AsyncRedisPool, pack
from sluicegate.sim.dispatch.queue_model import QueueModel
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

KEYS = QueueKeys("model")
WORKERS = st.sampled_from([b"a", b"b", b"c"])
SHORT, LONG = 0.001, 3600.0


def with_tuples(claimed: Sequence[Claimed]) -> list[Claimed]:
    return [one._replace(fields=tuple(one.fields)) for one in claimed]


class BothQueues(RuleBasedStateMachine):
    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.pool = AsyncRedisPool(self.server.url, PATIENCE)
        self.scripts = QueueScripts(self.pool, KEYS, PATIENCE)
        self.model = QueueModel()
        self.now = 1000.0
        self.real_ids: dict[TaskId, TaskId] = {}  # by those of the model
        self.requests = 0

    def teardown(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()

    def real(self, *words: Any) -> Any:
        return self.runner.run(self.pool.call(*words))

    def tick(self) -> float:
        time.sleep(2 * SHORT)  # in Redis's time: until what is short has passed
        self.now += 1.0
        return self.now

    def with_real_ids(self, claimed: Sequence[Claimed]) -> list[Claimed]:
        return [one._replace(task=self.real_ids[one.task]) for one in claimed]

    @initialize()
    def begin(self) -> None:
        self.real("FLUSHALL")
        self.runner.run(self.scripts.create_groups())
        self.beat(b"a", True, None)

    @rule(worker=WORKERS, stays=st.booleans(), rate=st.none() | st.floats(0.1, 50.0))
    def beat(self, worker: bytes, stays: bool, rate: float | None) -> None:
        now, lease = self.tick(), LONG if stays else SHORT
        beat = self.runner.run(self.scripts.heartbeat(worker, lease, rate))
        assert beat.workers == self.model.heartbeat(now, worker, lease, rate).workers

    @rule(
        requests=st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from([b"", b"", KEYS.once("x")])),
            min_size=1,
            max_size=4,
        ),
        limit=st.sampled_from([3, 8, 100]),
        seconds=st.sampled_from([0.0, 0.0, 0.2]),
    )
    def enqueue(self, requests: list[tuple[int, bytes]], limit: int, seconds: float) -> None:
        now = self.tick()
        outgoing = []
        for stream, once in requests:
            self.requests += 1
            outgoing.append(Outgoing(stream, once, b"request %d" % self.requests))
        reply = self.runner.run(self.scripts.enqueue(outgoing, limit, seconds, LONG))
        expected = self.model.enqueue(now, outgoing, limit, seconds, LONG)
        assert reply[:2] == expected[:2]
        for (stream, _), real, ours in zip(requests, reply.results, expected.results, strict=True):
            if isinstance(ours, bytes):
                assert isinstance(real, bytes)
                self.real_ids[stream, ours] = (stream, real)
            else:
                assert real == ours

    @rule(worker=WORKERS, room=st.lists(st.integers(0, 4), min_size=3, max_size=3))
    def fetch(self, worker: bytes, room: list[int]) -> None:
        now, wanted = self.tick(), sorted(room, reverse=True)
        real = with_tuples(self.runner.run(self.scripts.fetch(worker, wanted)))
        assert real == self.with_real_ids(self.model.fetch(now, worker, wanted))

    @rule(worker=WORKERS, count=st.integers(1, 4))
    def read(self, worker: bytes, count: int) -> None:
        now = self.tick()
        reply = self.real(
            *("XREADGROUP", "GROUP", GROUP, worker, "COUNT", count),
            *("STREAMS", *KEYS.tasks, *[">"] * len(KEYS.tasks)),
        )
        real = [
            Claimed((KEYS.tasks.index(key), id), 1, tuple(fields))
            for key, entries in reply or ()
            for id, fields in entries
        ]
        assert real == self.with_real_ids(self.model.read(now, worker, count))

    def some(self, data: st.DataObject) -> list[TaskId]:
        """Ids of the model, of tasks that have ended, too; no id twice."""
        newest = list(self.real_ids)[-12:]
        return data.draw(st.lists(st.sampled_from(newest), min_size=1, max_size=4, unique=True))

    @precondition(lambda self: self.real_ids)
    @rule(
        data=st.data(),
        client=st.sampled_from([b"", b"one", b"two"]),
        reason=st.sampled_from(["", "", "bad"]),
    )
    def finish(self, data: st.DataObject, client: bytes, reason: str) -> None:
        self.tick()
        reply_to = KEYS.replies(client) if client else b""
        tasks = self.some(data)
        ours = [Finishing(task, reply_to, b"%d %b" % task, reason) for task in tasks]
        real = [one._replace(task=self.real_ids[one.task]) for one in ours]
        assert self.runner.run(self.scripts.finish(real)) == self.model.finish(ours)

    @precondition(lambda self: self.real_ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        now, tasks = self.tick(), self.some(data)
        real = self.runner.run(self.scripts.cancel([self.real_ids[task] for task in tasks]))
        ours = self.model.cancel(now, tasks)
        assert [one.where for one in real] == [one.where for one in ours]

    @precondition(lambda self: self.real_ids)
    @rule(data=st.data(), worker=WORKERS)
    def renew(self, data: st.DataObject, worker: bytes) -> None:
        now, tasks = self.tick(), self.some(data)
        ids = [self.real_ids[task] for task in tasks]
        real = self.runner.run(self.scripts.renew(worker, LONG, ids))
        assert real == self.model.renew(now, worker, LONG, tasks)

    @rule(data=st.data(), worker=WORKERS)
    def recover(self, data: st.DataObject, worker: bytes) -> None:
        now = self.tick()
        held = self.some(data) if self.real_ids else []
        ids = [self.real_ids[task] for task in held]
        real = with_tuples(self.runner.run(self.scripts.recover(worker, ids)))
        assert real == self.with_real_ids(self.model.recover(now, worker, held))

    @rule(
        worker=WORKERS,
        lease=st.sampled_from([SHORT, LONG]),
        room=st.integers(1, 5),
        turn=st.sampled_from([SHORT, SHORT, LONG]),
    )
    def reap(self, worker: bytes, lease: float, room: int, turn: float) -> None:
        now = self.tick()
        real = with_tuples(self.runner.run(self.scripts.reap(worker, lease, room, turn)))
        assert real == self.with_real_ids(self.model.reap(now, worker, lease, room, turn))

    @rule()
    def end_the_turn(self) -> None:
        self.real("DEL", KEYS.reaper)
        self.model._reaper_until = 0

    @rule(worker=WORKERS)
    def leave(self, worker: bytes) -> None:
        now = self.tick()
        real = self.runner.run(self.scripts.leave(worker, 2 * LONG))
        assert real == self.model.leave(now, worker, 2 * LONG)

    @rule(is_draining=st.booleans())
    def drain(self, is_draining: bool) -> None:
        self.model.is_draining = is_draining
        self.real("SET", KEYS.draining, 1) if is_draining else self.real("DEL", KEYS.draining)

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        reads: list[tuple[Any, ...]] = []
        for key in KEYS.tasks:
            reads += [("XRANGE", key, "-", "+"), ("XPENDING", key, GROUP, "-", "+", 1000)]
            reads.append(("XINFO", "CONSUMERS", key, GROUP))
        reads += [("XRANGE", KEYS.replies(client), "-", "+") for client in (b"one", b"two")]
        reads += [("XRANGE", KEYS.control(worker), "-", "+") for worker in (b"a", b"b", b"c")]
        reads += [("XRANGE", KEYS.dead, "-", "+"), ("ZRANGE", KEYS.workers, 0, -1)]
        reads += [("GET", KEYS.rate), ("HKEYS", KEYS.leases)]
        payload = b"".join(pack(*words) for words in reads)
        deadline = time.monotonic() + PATIENCE
        replies = iter(self.runner.run(self.pool.exchange(b"", payload, len(reads), deadline)))
        model = self.model
        for place, stream in enumerate(model.streams):
            ours = {**stream.waiting, **stream.delivered}
            assert {id: fields[1] for id, fields in next(replies)} == {
                self.real_ids[place, id][1]: data for id, data in ours.items()
            }
            assert {id: (consumer, count) for id, consumer, _, count in next(replies)} == {
                self.real_ids[place, id][1]: (one.consumer, one.deliveries)
                for id, one in stream.pending.items()
            }
            assert {one[1] for one in next(replies)} == set(stream.consumers)
        for client in (b"one", b"two"):
            answers = [fields[1::2] for _, fields in next(replies)]
            assert answers == model.replies.get(KEYS.replies(client), [])
        for worker in (b"a", b"b", b"c"):
            told = [self.real_ids[task] for _, task in model.control.get(worker, [])]
            assert [fields[1] for _, fields in next(replies)] == [
                b"%d %b" % (place + 1, id) for place, id in told
            ]
        assert [(fields[1].decode(), fields[-1]) for _, fields in next(replies)] == [
            (reason, payload) for reason, _, payload in model.dead
        ]
        assert set(next(replies)) == set(model.workers)
        rate = next(replies)
        assert (rate and float(rate)) == model.rate
        assert set(next(replies)) == set(model.leases)


def test_the_model_and_the_scripts_agree(redis_server: RedisServer) -> None:
    BothQueues.server = redis_server
    examples = settings.get_profile(settings.get_current_profile_name()).max_examples // 6
    run_state_machine_as_test(
        BothQueues,
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None),
    )
