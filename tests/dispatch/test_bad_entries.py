"""Entries of streams that another program has written wrongly: they harm no other request."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from sluicegate import Dispatcher, Worker
from sluicegate.dispatch.keys import QueueKeys, TaskId
from sluicegate.dispatch.messages import Finishing
from sluicegate.dispatch.queue_admin import QueueAdmin
from sluicegate.dispatch.scripts import QueueScripts
from sluicegate.dispatch.wire import Response, encode_request, encode_response
from sluicegate.redis_client import AsyncRedisPool
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_until

KEYS = QueueKeys("translate")
TASKS = "sluicegate:{translate}:tasks:0"
REPLIES = "sluicegate:{translate}:replies:"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


def echo(items: list[Any]) -> list[Any]:
    return items


def request(reply_to: str, correlation_id: str | int = "1") -> bytes:
    return json.dumps(
        {
            "content_type": "msgpack",
            "reply_to": reply_to,
            "correlation_id": correlation_id,
            "timeout": 600,
            "data": 1,
        }
    ).encode()


JSON_REQUEST = request(REPLIES + "me", "7").replace(b"msgpack", b"json")


@pytest.mark.parametrize("options", [{}, {"size": len}])
def test_a_request_that_is_not_utf8_goes_to_the_dead_list(
    redis_server: RedisServer, options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        good = encode_request("msgpack", REPLIES + "me", "1", 600.0, "xy")
        bad_data = good.replace(b"\xa2xy", b"\xa2\xff\xfe")
        bad_name = good.replace(b"replies:me", b"replies:m\xff")
        async with (
            Worker(redis_server.url, "translate", echo, **options),
            Dispatcher(redis_server.url, "translate") as client,
        ):
            assert await client.call("a", timeout=PATIENCE) == "a"
            with redis_server.client as redis:
                redis.xadd(TASKS, {"request": bad_data})
                redis.xadd(TASKS, {"request": bad_name})
            assert await client.call_many(["b", "c"], timeout=PATIENCE) == ["b", "c"]
            admin = QueueAdmin(redis_server.url, "translate")
            dead = await admin.dead()
            await admin.close()
            assert len(dead) == 2
            assert all("invalid request" in one.reason for one in dead)

    run(scenario())


def test_a_bad_response_does_not_end_the_reader_of_the_client(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with (
            Worker(redis_server.url, "translate", echo),
            Dispatcher(redis_server.url, "translate") as client,
        ):
            text = encode_response("msgpack", Response("1", 0, "xy"))
            with redis_server.client as redis:
                redis.xadd(
                    REPLIES + client.name,
                    {"response": text.replace(b"\xa2xy", b"\xa2\xff\xfe"), "other": b"\xc1"},
                )
            assert await client.call("a", timeout=PATIENCE) == "a"

    run(scenario())


async def deliver(pool: AsyncRedisPool, *entries: dict[str, bytes]) -> list[TaskId]:
    """Add entries to the stream of normal tasks, and deliver them to the worker `w`."""
    await QueueScripts(pool, KEYS, PATIENCE).create_groups()
    ids = []
    for entry in entries:
        words = [word for field in entry.items() for word in field]
        ids.append((1, await pool.call("XADD", TASKS, "*", *words)))
    await pool.call("XREADGROUP", "GROUP", "workers", "w", "STREAMS", TASKS, ">")
    return ids


@pytest.mark.parametrize("bad", ["reply stream", "many fields", "dead list"])
def test_a_task_that_cannot_be_answered_or_buried_ends_and_harms_no_other(
    redis_server: RedisServer, bad: str
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        entry = {"request": b"x"}
        if bad == "many fields":
            entry = {**{f"field{number}": b"x" for number in range(5000)}, "request": b"x"}
        first, second, third = await deliver(pool, {"request": b"1"}, entry, {"request": b"3"})
        evil, good = KEYS.replies(b"evil"), KEYS.replies(b"good")
        if bad != "many fields":
            await pool.call("SET", evil if bad == "reply stream" else KEYS.dead, "no stream")
        ended = await QueueScripts(pool, KEYS, PATIENCE).finish(
            [
                Finishing(first, good, b"one", ""),
                Finishing(second, evil, b"two", "bad"),
                Finishing(third, good, b"three", ""),
            ]
        )
        assert ended == [1, 1, 1]
        assert await pool.call("XLEN", TASKS) == 0
        ((_, fields),) = await pool.call("XRANGE", good, "-", "+")
        assert fields == [b"response", b"one", b"response", b"three"]
        if bad != "dead list":
            ((_, fields),) = await pool.call("XRANGE", KEYS.dead, "-", "+")
            kept = 100 if bad == "many fields" else 1
            assert fields[:6:2] == [b"reason", b"stream", b"id"]
            assert fields[7::2] == [b"x"] * kept
        await pool.close()

    run(scenario())


def test_an_answer_that_cannot_be_encoded_does_not_take_others_with_it(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        async with Dispatcher(redis_server.url, "translate") as client:
            worker = Worker(redis_server.url, "translate", echo, max_batch=3, max_wait=PATIENCE)
            async with worker:
                with redis_server.client as redis:
                    redis.xadd(TASKS, {"request": request(REPLIES + "other", 10**30)})
                # The three are one batch, and are answered in one call.
                assert await client.call_many(["a", "b"], timeout=2 * PATIENCE) == ["a", "b"]
                admin = QueueAdmin(redis_server.url, "translate")
                (dead,) = await admin.dead()
                await admin.close()
                assert "correlation_id" in dead.reason

    run(scenario())


@pytest.mark.parametrize(
    ("field", "value"), [("timeout", None), ("timeout", -1), ("timeout", "soon"), ("data", None)]
)
def test_an_invalid_request_is_answered_if_its_sender_can_be_read(
    redis_server: RedisServer, field: str, value: Any
) -> None:
    async def scenario() -> None:
        fields = json.loads(request(REPLIES + "me", "7"))
        del fields[field]
        if value is not None:
            fields[field] = value
        async with Worker(redis_server.url, "translate", echo):
            with redis_server.client as redis:
                redis.xadd(TASKS, {"request": json.dumps(fields)})
                found = await asyncio.to_thread(
                    redis.xread, {REPLIES + "me": "0"}, block=int(PATIENCE * 1000)
                )
                assert redis.xlen("sluicegate:{translate}:dead") == 1
        ((_, ((_, response),)),) = found
        answer = json.loads(response["response"])
        assert (answer["correlation_id"], answer["status"]) == ("7", 520)
        assert field in answer["data"]["error"]

    run(scenario())


def test_numbers_that_other_programs_wrote_wrongly_do_not_stop_the_take_over(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        scripts = QueueScripts(pool, KEYS, PATIENCE)
        (task,) = await deliver(pool, {"request": b"1"})
        for name, lease in {"x": "abc", "y": "", "z": "2.5", "u": "-1", "v": "1e30"}.items():
            await pool.call("HSET", KEYS.leases, name, lease)
        await pool.call("HSET", KEYS.rates, "x", "fast")
        await scripts.heartbeat(b"other", 60.0, None)
        await asyncio.sleep(0.01)  # in Redis's time: until the lease has run out
        assert [one.task for one in await scripts.reap(b"other", 0.001, 5, 1.0)] == [task]
        await pool.close()

    run(scenario())


def test_a_request_that_is_too_large_to_read_does_not_keep_a_worker_from_the_others(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        async with (
            Worker(redis_server.url, "translate", echo, lease=10 * PATIENCE),
            Dispatcher(redis_server.url, "translate") as client,
        ):
            with redis_server.client as redis:
                redis.xadd(TASKS, {"request": b"x" * (20 << 20)})
                assert await client.call("a", timeout=PATIENCE) == "a"
                await wait_until(lambda: redis.xlen("sluicegate:{translate}:dead") == 1)
                ((_, dead),) = redis.xrange("sluicegate:{translate}:dead")
                assert "20971527 bytes, the limit is 8388608" in dead["reason"]
                assert redis.xlen(TASKS) == 0

    run(scenario())


def test_a_response_that_is_too_large_to_read_does_not_keep_a_client_from_the_others(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        async with (
            Worker(redis_server.url, "translate", echo),
            Dispatcher(redis_server.url, "translate") as client,
        ):
            assert await client.call("a", timeout=PATIENCE) == "a"
            with redis_server.client as redis:
                redis.xadd(REPLIES + client.name, {"response": b"x" * (40 << 20)})
            assert await client.call("b", timeout=PATIENCE) == "b"

    run(scenario())


@pytest.mark.parametrize(
    ("payload", "status"),
    [(request(REPLIES + "me", "7").replace(b"msgpack", b"xml"), 520), (b" \n" + JSON_REQUEST, 0)],
)
def test_json_is_answered_in_json(redis_server: RedisServer, payload: bytes, status: int) -> None:
    async def scenario() -> None:
        async with Worker(redis_server.url, "translate", echo):
            with redis_server.client as redis:
                redis.xadd(TASKS, {"request": payload})
                ((_, ((_, response),)),) = await asyncio.to_thread(
                    redis.xread, {REPLIES + "me": "0"}, block=int(PATIENCE * 1000)
                )
        assert json.loads(response["response"])["status"] == status

    run(scenario())
