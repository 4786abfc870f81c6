"""The scripts on a real Redis, in random orders, compared with a plain model of a queue."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
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

from sluicegate.dispatch.keys import QueueKeys, TaskId
from sluicegate.dispatch.messages import BUSY, DUPLICATE, NO_WORKERS, Finishing, Outgoing
from sluicegate.dispatch.scripts import QueueScripts
from sluicegate.redis_client import AsyncRedisPool, ErrorReply, pack
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

KEYS = QueueKeys("model")
LIMIT = 6
LEASE = 3600.0  # never passes by itself: tests let leases run out
WORKERS = (b"a", b"b")


@dataclass
class ModelTask:
    """A request: with which worker it is, and whether that one's lease has run out."""

    payload: bytes
    owner: bytes | None = None
    is_lapsed: bool = False
    deliveries: int = 0


@dataclass
class Model:
    tasks: dict[TaskId, ModelTask] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    alive: set[bytes] = field(default_factory=set)
    replies: Counter[bytes] = field(default_factory=Counter)
    dead: int = 0
    ended: list[TaskId] = field(default_factory=list)

    def waiting(self) -> list[TaskId]:
        """In the order of delivery."""
        return sorted(
            (id for id, task in self.tasks.items() if task.owner is None),
            key=lambda id: (id[0], *map(int, id[1].split(b"-"))),
        )


class QueueMachine(RuleBasedStateMachine):
    """Calls the scripts and the model with the same arguments."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.pool = AsyncRedisPool(self.server.url, PATIENCE)
        self.scripts = QueueScripts(self.pool, KEYS, PATIENCE)
        self.model = Model()
        self.count = 0

    def teardown(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()

    def call(self, *words: Any) -> Any:
        return self.runner.run(self.pool.call(*words))

    @initialize()
    def begin(self) -> None:
        self.call("FLUSHALL")
        self.runner.run(self.scripts.create_groups())

    @rule(
        requests=st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["", "", "", "x", "y"])),
            min_size=1,
            max_size=4,
        )
    )
    def enqueue(self, requests: list[tuple[int, str]]) -> None:
        outgoing = []
        for stream, once in requests:
            self.count += 1
            payload = b"request %d" % self.count
            outgoing.append(Outgoing(stream, KEYS.once(once) if once else b"", payload))
        reply = self.runner.run(self.scripts.enqueue(outgoing, LIMIT, 0.0, 3600.0))
        model = self.model
        for (stream, once), one, result in zip(requests, outgoing, reply.results, strict=True):
            if not model.alive:
                assert result == NO_WORKERS
            elif len(model.tasks) >= LIMIT:
                assert result == BUSY
            elif once in model.used:
                assert result == DUPLICATE
            else:
                assert isinstance(result, bytes)
                model.tasks[stream, result] = ModelTask(one.payload)
                if once:
                    model.used.add(once)
        assert reply.length == len(model.tasks)
        assert reply.limit == LIMIT

    @rule(worker=st.sampled_from(WORKERS))
    def heartbeat(self, worker: bytes) -> None:
        self.model.alive.add(worker)
        beat = self.runner.run(self.scripts.heartbeat(worker, 3600.0, 2.5))
        assert beat.workers == len(self.model.alive)
        assert self.call("GET", KEYS.rate) == b"%g" % (2.5 * len(self.model.alive))

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 3))
    def fetch(self, worker: bytes, count: int) -> None:
        """What a worker's blocking read does, without waiting."""
        streams = (*KEYS.tasks, *[">"] * len(KEYS.tasks))
        reply = self.call(
            *("XREADGROUP", "GROUP", "workers", worker, "COUNT", count, "STREAMS", *streams)
        )
        got = [
            ((KEYS.tasks.index(key), id), fields[1])
            for key, entries in reply or ()
            for id, fields in entries
        ]
        expected = [
            id
            for stream in range(3)
            for id in [one for one in self.model.waiting() if one[0] == stream][:count]
        ]
        assert [id for id, _ in got] == expected
        for id, payload in got:
            task = self.model.tasks[id]
            assert payload == task.payload
            task.owner, task.is_lapsed, task.deliveries = worker, False, 1

    def ids(self) -> list[TaskId]:
        """Tasks that are there, and some that have ended."""
        return [*self.model.tasks, *self.model.ended[-3:]]

    @precondition(lambda self: self.ids())
    @rule(data=st.data(), is_dead=st.booleans())
    def finish(self, data: st.DataObject, is_dead: bool) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids()), min_size=1, max_size=4))
        clients = [data.draw(st.sampled_from([b"", b"one", b"two"])) for _ in ids]
        ended = self.runner.run(
            self.scripts.finish(
                [
                    Finishing(id, client and KEYS.replies(client), b"response", "bad" * is_dead)
                    for id, client in zip(ids, clients, strict=True)
                ]
            )
        )
        for id, client, is_ended in zip(ids, clients, ended, strict=True):
            task = self.model.tasks.get(id)
            assert is_ended == (task is not None and task.owner is not None)
            if is_ended:
                del self.model.tasks[id]
                self.model.ended.append(id)
                self.model.dead += is_dead
                self.model.replies[client] += 1

    @precondition(lambda self: self.ids())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ids()))
        (reply,) = self.runner.run(self.scripts.cancel([id]))
        task = self.model.tasks.pop(id, None)
        if task is None:
            assert reply.where == 0
        else:
            assert reply.where == (1 if task.owner in (None, b"returned") else 2)
            self.model.ended.append(id)

    @precondition(lambda self: any(task.owner for task in self.model.tasks.values()))
    @rule(data=st.data())
    def let_a_lease_run_out(self, data: st.DataObject) -> None:
        held = [id for id, task in self.model.tasks.items() if task.owner]
        id = data.draw(st.sampled_from(held))
        task = self.model.tasks[id]
        assert task.owner is not None
        idle = int(2 * LEASE * 1000)
        stream = KEYS.tasks[id[0]]
        self.call("XCLAIM", stream, "workers", task.owner, 0, id[1], "IDLE", idle, "JUSTID")
        task.is_lapsed = True

    @rule(worker=st.sampled_from(WORKERS), room=st.integers(1, 4))
    def reap(self, worker: bytes, room: int) -> None:
        self.call("DEL", KEYS.reaper)
        claimed = self.runner.run(self.scripts.reap(worker, LEASE, room, 3600.0))
        lapsed = {id for id, task in self.model.tasks.items() if task.is_lapsed}
        assert len(claimed) == min(room, len(lapsed))
        for id, deliveries, fields in claimed:
            assert id in lapsed
            task = self.model.tasks[id]
            task.owner, task.is_lapsed = worker, False
            task.deliveries += 1
            assert (deliveries, fields) == (task.deliveries, [b"request", task.payload])
        # It was somebody's turn: the next one has to wait.
        assert self.runner.run(self.scripts.reap(worker, LEASE, room, 3600.0)) == []

    @precondition(lambda self: self.ids())
    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def renew(self, worker: bytes, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids()), min_size=1, max_size=4))
        kept = self.runner.run(self.scripts.renew(worker, LEASE, ids))
        for id, is_kept in zip(ids, kept, strict=True):
            task = self.model.tasks.get(id)
            assert is_kept == (task is not None and task.owner == worker)
            if task is not None and is_kept:
                task.is_lapsed = False

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: bytes) -> None:
        held = [task for task in self.model.tasks.values() if task.owner == worker]
        assert self.runner.run(self.scripts.leave(worker, 2 * LEASE)) == len(held)
        self.model.alive.discard(worker)
        for task in held:
            task.owner, task.is_lapsed = b"returned", True
            task.deliveries -= 1

    @invariant()
    def the_queue_is_as_in_the_model(self) -> None:
        for place, key in enumerate(KEYS.tasks):
            entries = self.call("XRANGE", key, "-", "+")
            here = {id: task for (stream, id), task in self.model.tasks.items() if stream == place}
            assert {id: fields[1] for id, fields in entries} == {
                id: task.payload for id, task in here.items()
            }
            pending = self.call("XPENDING", key, "workers", "-", "+", 100)
            assert {id: (owner, count) for id, owner, _, count in pending} == {
                id: (task.owner, task.deliveries) for id, task in here.items() if task.owner
            }
        assert self.call("XLEN", KEYS.dead) == self.model.dead
        for client in (b"one", b"two"):
            entries = self.call("XRANGE", KEYS.replies(client), "-", "+")
            answers = sum(len(fields) // 2 for _, fields in entries)
            assert answers == self.model.replies[client]


def test_the_scripts_do_what_the_model_does(redis_server: RedisServer) -> None:
    QueueMachine.server = redis_server
    profile = settings.get_current_profile_name()
    examples = settings.get_profile(profile).max_examples // 6
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None),
    )


def test_one_entry_has_all_responses_to_one_client(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        await scripts.heartbeat(b"w", 60.0, None)
        outgoing = [Outgoing(1, b"", b"%d" % number) for number in range(5)]
        reply = await scripts.enqueue(outgoing, 100, 0.0, 1.0)
        await pool.call(*("XREADGROUP", "GROUP", "workers", "w", "STREAMS", KEYS.tasks[1], ">"))
        client = KEYS.replies(b"client")
        ids = [id for id in reply.results if isinstance(id, bytes)]
        await scripts.finish([Finishing((1, id), client, b"yes", "") for id in ids])
        ((_, fields),) = await pool.call("XRANGE", client, "-", "+")
        assert fields == [b"response", b"yes"] * 5
        assert 0 < await pool.call("TTL", client) <= 60
        await pool.close()

    asyncio.run(scenario())


def test_a_dead_worker_is_forgotten_when_its_tasks_are_taken(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        await scripts.heartbeat(b"dying", 0.001, 5.0)
        await pool.call("XADD", KEYS.tasks[1], "*", "request", "x")
        for stream in KEYS.tasks:
            await pool.call(*("XREADGROUP", "GROUP", "workers", "dying", "STREAMS", stream, ">"))
        await asyncio.sleep(0.01)  # in Redis's time: until it counts as dead
        beat = await scripts.heartbeat(b"living", 60.0, None)
        assert beat.workers == 1
        assert await pool.call("EXISTS", KEYS.rate) == 0
        for _ in range(2):
            await pool.call("DEL", KEYS.reaper)
            await scripts.reap(b"living", 0.001, 10, 0.001)
            await asyncio.sleep(0.01)
        names = {
            consumer[1]
            for stream in KEYS.tasks
            for consumer in await pool.call("XINFO", "CONSUMERS", stream, "workers")
        }
        assert names == {b"living"}
        await pool.close()

    asyncio.run(scenario())


def test_scripts_are_loaded_again_when_redis_has_forgotten_them(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        for _ in range(2):
            await pool.exchange(b"", pack("SCRIPT", "FLUSH"), 1, float("inf"))
            assert (await scripts.heartbeat(b"w", 60.0, None)).workers == 1
        await pool.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", [0.5, 100.0])
def test_a_limit_in_seconds_is_the_rate_times_the_seconds(
    redis_server: RedisServer, seconds: float
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.heartbeat(b"w", 60.0, 7.9)
        await scripts.heartbeat(b"v", 60.0, 2.5)
        reply = await scripts.enqueue([Outgoing(1, b"", b"x")], 50, seconds, 1.0)
        assert reply.limit == min(50, int(10.4 * seconds))
        await pool.close()

    asyncio.run(scenario())


def test_a_worker_is_told_of_all_that_is_cancelled(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        await scripts.heartbeat(b"w", 60.0, None)
        outgoing = [Outgoing(1, b"", b"x")] * 3000
        tasks: list[TaskId] = []
        for first in range(0, 3000, 500):
            reply = await scripts.enqueue(outgoing[first : first + 500], 10_000, 0.0, 1.0)
            tasks += [(1, id) for id in reply.results if isinstance(id, bytes)]
        await pool.call("XREADGROUP", "GROUP", "workers", "w", "STREAMS", KEYS.tasks[1], ">")
        for first in range(0, 3000, 500):
            await scripts.cancel(tasks[first : first + 500])
        assert await pool.call("XLEN", KEYS.control(b"w")) == len(tasks) == 3000
        await pool.close()

    asyncio.run(scenario())


def test_without_memory_workers_stay_alive_and_requests_can_be_cancelled(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        await scripts.heartbeat(b"w", 60.0, 1.0)
        reply = await scripts.enqueue([Outgoing(1, b"", b"x")] * 2, 100, 0.0, 1.0)
        first, second = [(1, id) for id in reply.results if isinstance(id, bytes)]
        await pool.call("XREADGROUP", "GROUP", "workers", "w", "STREAMS", KEYS.tasks[1], ">")
        await pool.call("CONFIG", "SET", "maxmemory", "1")
        try:
            with pytest.raises(ErrorReply, match="OOM"):
                await pool.call("SET", "more", "memory")
            assert (await scripts.heartbeat(b"w", 60.0, 2.0)).workers == 1
            assert await scripts.renew(b"w", 60.0, [first, second]) == [1, 1]
            ((where, _),) = await scripts.cancel([first])
            assert where == 2
            assert await scripts.finish([Finishing(second, KEYS.replies(b"c"), b"yes", "")]) == [1]
        finally:
            await pool.call("CONFIG", "SET", "maxmemory", "0")
        assert await pool.call("XLEN", KEYS.tasks[1]) == 0
        assert await pool.call("XLEN", KEYS.control(b"w")) == 1
        assert await pool.call("XLEN", KEYS.replies(b"c")) == 1
        await pool.close()

    asyncio.run(scenario())


async def deliver(pool: AsyncRedisPool, worker: bytes, count: int) -> list[TaskId]:
    """Add requests and deliver them to a worker; their ids."""
    ids = [await pool.call("XADD", KEYS.tasks[1], "*", "request", "x") for _ in range(count)]
    await pool.call("XREADGROUP", "GROUP", "workers", worker, "STREAMS", KEYS.tasks[1], ">")
    return [(1, id) for id in ids]


def test_a_task_is_taken_over_when_the_lease_of_its_own_worker_has_run_out(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        leases = {b"patient": 3600.0, b"hasty": 0.001}
        tasks = {}
        for worker, lease in leases.items():
            await scripts.heartbeat(worker, lease, None)
            (tasks[worker],) = await deliver(pool, worker, 1)
        await asyncio.sleep(0.01)  # in Redis's time: until the short lease has run out

        async def reap(worker: bytes) -> list[TaskId]:
            await pool.call("DEL", KEYS.reaper)
            return [one.task for one in await scripts.reap(worker, leases[worker], 10, 1.0)]

        assert await reap(b"patient") == [tasks[b"hasty"]]
        assert await reap(b"hasty") == []
        await pool.close()

    asyncio.run(scenario())


def test_lapsed_tasks_are_found_behind_many_of_longer_leases(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        for _ in range(4):
            await scripts.heartbeat(b"patient", 3600.0, None)
            await scripts.heartbeat(b"hasty", 0.001, None)
            await deliver(pool, b"patient", 90)
        (task,) = await deliver(pool, b"hasty", 1)
        await asyncio.sleep(0.01)  # in Redis's time: until the short lease has run out
        (claimed,) = await scripts.reap(b"other", 0.001, 5, 1.0)
        assert claimed.task == task
        await pool.close()

    asyncio.run(scenario())


def test_a_caller_learns_how_long_a_worker_had_its_request_though_the_lease_was_renewed(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        await scripts.heartbeat(b"w", 60.0, None)
        long, short = await deliver(pool, b"w", 2)
        await pool.call(
            *("XCLAIM", KEYS.tasks[1], "workers", "w", 0, long[1], "IDLE", 30_000, "JUSTID")
        )
        for _ in range(2):
            assert await scripts.renew(b"w", 60.0, [long, short]) == [1, 1]
        first, second = await scripts.cancel([long, short])
        assert (first.where, second.where) == (2, 2)
        assert 30.0 <= first.had < 30.0 + PATIENCE
        assert second.had < PATIENCE / 2
        await pool.close()

    asyncio.run(scenario())


def test_how_long_the_last_worker_had_a_request_does_not_count_for_the_next(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        await scripts.create_groups()
        await scripts.heartbeat(b"dead", 0.001, None)
        (task,) = await deliver(pool, b"dead", 1)
        await pool.call(
            *("XCLAIM", KEYS.tasks[1], "workers", "dead", 0, task[1], "IDLE", 900_000, "JUSTID")
        )
        await scripts.renew(b"dead", 60.0, [task])
        await asyncio.sleep(0.01)  # in Redis's time: until the lease has run out
        assert [one.task for one in await scripts.reap(b"next", 0.001, 5, 1.0)] == [task]
        (cancelled,) = await scripts.cancel([task])
        assert cancelled.had < 900.0 - PATIENCE
        await pool.close()

    asyncio.run(scenario())
