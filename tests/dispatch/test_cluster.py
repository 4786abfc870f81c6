"""Queues in a real cluster of three servers, also while slots move between them."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from sluicegate import Busy, Dispatcher, Duplicate, Worker
from sluicegate.cli.main import main
from sluicegate.dispatch.keys import QueueKeys
from sluicegate.dispatch.queue_admin import QueueAdmin
from sluicegate.redis_client import AsyncRedisPool, BlockingReader, pack
from tests.harness.counting_core import CountingCore
from tests.harness.redis_cluster import RedisCluster
from tests.harness.waits import PATIENCE, wait_until

QUEUES = ["text", "images", "translate", "a{b}", "50%"]  # on all three servers


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> RedisCluster:
    shared_cluster.clear()
    return shared_cluster


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


def dead_list(queue: str) -> str:
    return QueueKeys(queue).dead.decode()


def echo(items: list[Any]) -> list[Any]:
    return items


class Gate:
    """A handler that notes its items and waits, in its thread, until it may go on."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.opened = threading.Event()

    def __call__(self, items: list[Any]) -> list[Any]:
        self.items += items
        assert self.opened.wait(PATIENCE)
        return items


def test_one_worker_serves_queues_of_several_servers(cluster: RedisCluster) -> None:
    async def scenario() -> None:
        clients = [Dispatcher(cluster.url, queue) for queue in QUEUES]
        async with Worker(cluster.url, QUEUES, echo), Worker(cluster.url, QUEUES[::-1], echo):
            calls = [
                client.call_many(
                    [f"{client.queue} {item}" for item in range(100)], timeout=PATIENCE
                )
                for client in clients
            ]
            for client, results in zip(clients, await asyncio.gather(*calls), strict=True):
                assert results == [f"{client.queue} {item}" for item in range(100)]
                await client.close()
        assert {cluster.owner(dead_list(queue)) for queue in QUEUES} == {0, 1, 2}
        for number in range(3):  # each server has the streams of its own queues
            held = {key for key in cluster.keys(number) if ":tasks:" in key}
            own = [queue for queue in QUEUES if cluster.owner(dead_list(queue)) == number]
            assert held == {key.decode() for queue in own for key in QueueKeys(queue).tasks}

    run(scenario())


@pytest.mark.parametrize("queue", ["text", "a{b}", "50%"])
def test_priorities_cancellations_and_idempotency_keys_hold_in_a_cluster(
    cluster: RedisCluster, queue: str
) -> None:
    async def scenario() -> None:
        gate = Gate()
        redis = cluster.client_of(dead_list(queue))
        urgent, normal, background = (key.decode() for key in QueueKeys(queue).tasks)
        worker = Worker(cluster.url, queue, gate, max_batch=1)
        async with worker, Dispatcher(cluster.url, queue) as client:
            calls = [client.submit("first", timeout=PATIENCE, idempotency_key="once")]
            await wait_until(lambda: gate.items)
            calls += [client.submit(one, timeout=PATIENCE, priority=one) for one in (-1, 0, 1)]
            cancelled = client.submit("cancelled", timeout=PATIENCE)
            await wait_until(lambda: redis.xlen(normal) == 3)
            with pytest.raises(Duplicate, match="once"):
                await client.call("again", timeout=PATIENCE, idempotency_key="once")
            cancelled.cancel()
            await wait_until(lambda: redis.xlen(normal) == 2)
            assert (redis.xlen(urgent), redis.xlen(background)) == (1, 1)
            gate.opened.set()
            assert await asyncio.gather(*calls) == ["first", -1, 0, 1]
            assert gate.items == ["first", 1, 0, -1]

    run(scenario())


def queue_command(cluster: RedisCluster, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main(["queue", *words, "--url", cluster.url, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("queue", ["text", "a{b}", "50%"])
def test_an_operator_drains_a_queue_and_retries_its_dead_requests_in_a_cluster(
    cluster: RedisCluster, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        redis = cluster.client_of(dead_list(queue))
        _, normal, _ = (key.decode() for key in QueueKeys(queue).tasks)
        client = Dispatcher(cluster.url, queue)
        async with client, QueueAdmin(cluster.url, queue) as admin:
            async with Worker(cluster.url, queue, echo) as worker:
                await admin.drain(3600)
                with pytest.raises(Busy, match="is being drained"):
                    await client.call(1, timeout=PATIENCE)
                redis.xadd(normal, {"request": "{"})
                await wait_until(lambda: redis.xlen(dead_list(queue)) == 1)
                assert await admin.wait_until_empty(PATIENCE)
                words = (cluster, capsys, "status", queue)
                status = await asyncio.to_thread(queue_command, *words)
                assert (status["workers"], status["dead"]) == ([worker.name], 1)
                assert status["is_draining"]
                await admin.resume()
                assert await client.call(1, timeout=PATIENCE) == 1
            (dead,) = await admin.dead()
            assert "invalid request" in dead.reason
            assert await admin.retry() == 1
            assert (await admin.status()).waiting == {1: 0, 0: 1, -1: 0}

    run(scenario())


@pytest.mark.parametrize("queue", ["translate", "a{b}", "50%"])
def test_every_call_is_answered_once_while_the_slot_of_its_queue_moves(
    cluster: RedisCluster, queue: str
) -> None:
    """Requests come at every step: before, between and after the moves of the single keys."""
    key = dead_list(queue)

    async def scenario() -> None:
        calls: list[asyncio.Future[Any]] = []
        answered = 0  # before the slot moves for the first, the second time

        async def request(count: int) -> None:
            for _ in range(count):
                priority = len(calls) % 3 - 1
                calls.append(client.submit(len(calls), timeout=PATIENCE, priority=priority))
                await asyncio.sleep(0)

        worker = Worker(cluster.url, queue, echo)
        client = Dispatcher(cluster.url, queue, max_waiting=100_000)
        async with worker, client:
            client._core = core = CountingCore(queue)
            for _ in range(2):
                await request(50)
                await wait_until(lambda answered=answered: len(core.responses) > answered)
                to = (cluster.owner(key) + 1) % 3
                cluster.begin_move(key, to)
                await request(50)
                while keys := cluster.keys_of_slot(key):
                    for one in keys:
                        await asyncio.to_thread(cluster.move_key, one, to)
                        await request(10)
                cluster.end_move(key, to)
                await request(50)
                assert await asyncio.gather(*calls) == list(range(len(calls)))
                answered = len(calls)
                assert cluster.owner(key) == to
            assert set(core.responses.values()) == {1}
            tasks = worker.cores[queue].stats.tasks  # an answer counts when Redis has confirmed it
            await wait_until(lambda: tasks["answered"] == len(calls))
            assert tasks["disowned"] == 0

    run(scenario())


def test_the_status_is_whole_while_some_keys_of_a_queue_have_moved(cluster: RedisCluster) -> None:
    queue, key = "translate", dead_list("translate")
    keys = QueueKeys(queue)

    async def scenario() -> None:
        async with Worker(cluster.url, queue, echo):
            pass  # it has made the streams
        redis = cluster.client_of(key)
        for number, stream in enumerate([*keys.tasks, keys.dead], 1):
            for _ in range(number):
                redis.xadd(stream.decode(), {"request": "x"})
        to = (cluster.owner(key) + 1) % 3
        async with QueueAdmin(cluster.url, queue) as admin:
            before = await admin.status()
            assert (before.waiting, before.dead) == ({1: 1, 0: 2, -1: 3}, 4)
            cluster.begin_move(key, to)
            assert await admin.status() == before
            for one in cluster.keys_of_slot(key):
                cluster.move_key(one, to)
                assert await admin.status() == before
                assert len(await admin.dead()) == 4
            cluster.end_move(key, to)
            assert await admin.status() == before

    run(scenario())


def test_a_reader_that_waits_follows_its_stream_to_another_server(cluster: RedisCluster) -> None:
    stream = "sluicegate:{translate}:replies:me"
    patience = 20.0  # seconds for Redis; less than the test has, so that it fails by itself

    async def scenario() -> None:
        pool = AsyncRedisPool(cluster.url, patience)
        readers = [BlockingReader(pool, stream.encode(), patience) for _ in range(2)]

        async def read(reader: BlockingReader, after: str) -> list[bytes]:
            command = pack("XREAD", "BLOCK", int(patience * 1000), "STREAMS", stream, after)
            reply = await reader.read(command, patience)
            return [fields[1] for _, fields in reply[0][1]]

        source = cluster.client_of(stream)
        to = (cluster.owner(stream) + 1) % 3
        first = source.xadd(stream, {"number": 1})
        waiting = asyncio.create_task(read(readers[1], first))
        await wait_until(lambda: source.info("clients")["blocked_clients"] == 1)
        assert await read(readers[0], "0") == [b"1"]
        cluster.begin_move(stream, to)
        assert await read(readers[0], "0") == [b"1"]
        cluster.move_key(stream, to)
        assert await read(readers[0], "0") == [b"1"]  # by ASK
        cluster.end_move(stream, to)
        assert await read(readers[0], "0") == [b"1"]  # by MOVED
        cluster.client_of(stream).xadd(stream, {"number": 2})
        assert await waiting == [b"2"]
        for reader in readers:
            await reader.close()
        await pool.close()

    run(scenario())
