"""`AsyncRedisKeyed`: many calls on one connection, and none disturbs another."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate import AsyncRedisKeyed, Limit, ManualClock, ProtocolError, RateLimited, Unavailable
from sluicegate.redis_client import AsyncRedisPool, ErrorReply, pack
from tests.harness.lateness import Lateness
from tests.harness.servers import RedisServer, reserve_port
from tests.harness.waits import PATIENCE

PATIENT = 20.0  # seconds for Redis where its being late is not the point
TIMEOUT = 0.2
ALLOWED_OVER = 0.1  # half of it: one that waits twice is found out


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


async def until(
    condition: Callable[[], object], seen: Callable[[], object], seconds: float = PATIENCE
) -> None:
    """`wait_for` in an event loop."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds:g} s; last seen: {seen()!r}"
        await asyncio.sleep(0.005)


def test_it_has_the_verbs_of_redis_keyed_with_await(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "5/day; 9/week", timeout=PATIENT) as keyed:
            assert await keyed.allow("a", 3)
            decision = await keyed.check("a", 3)
            assert (decision.allowed, decision.limit) == (False, Limit(5, 86400))
            assert decision.remaining == pytest.approx(2, abs=0.01)
            await keyed.refund("a", 1)
            assert (await keyed.check("a", 0)).remaining == pytest.approx(3, abs=0.01)
            await keyed.reset("a")
            assert (await keyed.check("a", 0)).remaining == 5
            assert (keyed.algorithm, keyed.mode) == ("token_bucket", "exact")
            assert keyed.limits == (Limit(5, 86400), Limit(9, 604800))
            assert keyed.metrics.calls == 2
            assert repr(keyed).startswith("AsyncRedisKeyed('5/day; 9/week', algorithm=")

    run(main)


def test_many_calls_in_flight_share_one_connection(redis_server: RedisServer) -> None:
    async def main() -> None:
        with redis_server.client as client:
            before = client.client_id()
            async with AsyncRedisKeyed(redis_server.url, "300/week", timeout=PATIENT) as keyed:
                answers = await asyncio.gather(*(keyed.allow("a") for _ in range(1000)))
                assert sum(answers) == 300
                ids = [int(one["id"]) for one in client.client_list()]
                assert sum(number > before for number in ids) == 1

    run(main)


def test_a_cancelled_caller_does_not_upset_the_replies_of_others(redis_server: RedisServer) -> None:
    async def main() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENT)

        async def echo(number: int) -> bool:
            answer: bytes = await pool.call("ECHO", f"{number}")
            return answer == f"{number}".encode()

        await echo(0)
        tasks = [asyncio.create_task(echo(number)) for number in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(answers):
            if number % 3 == 0:
                assert isinstance(answer, asyncio.CancelledError)
            else:
                assert answer is True
        assert await echo(7)
        await pool.close()

    run(main)


def test_the_pool_tells_errors_and_follows_the_url(redis_server: RedisServer) -> None:
    async def main() -> None:
        name = redis_server.url.replace("127.0.0.1", "localhost")
        for url in (redis_server.unix_url, f"{name}/3"):
            pool = AsyncRedisPool(url, PATIENT)
            assert await pool.call("PING") == b"PONG"
            with pytest.raises(ErrorReply, match="unknown command"):
                await pool.call("NONSENSE")
            assert "AsyncRedisPool(" in repr(pool)
            await pool.close()
        wrong = AsyncRedisPool(redis_server.url.replace("//", "//x:y@"), PATIENT)
        with pytest.raises(Unavailable, match="WRONGPASS"):
            await wrong.call("PING")
        await wrong.close()

    run(main)


async def answered(answer: bytes, *, silent: bool = True) -> Exception | None:
    """What a call gets from a peer that sends this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(answer)
        if silent:
            await reader.read(65536)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = AsyncRedisPool(f"redis://127.0.0.1:{port}", PATIENT)
    error: Exception | None = None
    try:
        await pool.call("PING")
    except (Unavailable, ProtocolError) as raised:
        error = raised
    await pool.close()
    server.close()
    await server.wait_closed()
    return error


def test_garbage_silence_and_a_closed_door_are_told_apart() -> None:
    async def main() -> None:
        error = await answered(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert isinstance(error, ProtocolError)
        error = await answered(b"+PONG\r\n+PONG\r\n")
        assert error is None
        error = await answered(b"", silent=False)
        assert "lost the connection" in str(error)
        with reserve_port() as closed:
            pool = AsyncRedisPool(f"redis://127.0.0.1:{closed.getsockname()[1]}", PATIENT)
            with pytest.raises(
                Unavailable, match=r"cannot connect to Redis at 127.0.0.1.*Errno 111"
            ):
                await pool.call("PING")
            await pool.close()

    run(main)


def test_a_reply_that_stays_incomplete_costs_no_more_than_the_time_out() -> None:
    # Real time on purpose: a fifth of a second.
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"+PONG\r\n")
        await reader.read(65536)
        writer.write(b"$5\r\nhal")
        await reader.read(65536)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = AsyncRedisPool(f"redis://127.0.0.1:{port}", PATIENT)
        assert await pool.call("PING") == b"PONG"
        with Lateness() as lateness:
            start = time.monotonic()
            with pytest.raises(Unavailable, match="timed out waiting for Redis"):
                await pool.exchange(b"", pack("PING"), 1, start + TIMEOUT)
            end = time.monotonic()
            assert end - start >= TIMEOUT / 2
            assert end - start <= TIMEOUT + ALLOWED_OVER + lateness.between(start, end)
        await pool.close()
        server.close()
        await server.wait_closed()

    run(main)


def test_a_name_that_does_not_resolve_in_time_costs_no_more_than_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Real time on purpose: a fifth of a second.
    go_on = threading.Event()

    def slow(*_: object, **__: object) -> None:
        go_on.wait(PATIENCE)
        raise OSError("no such host")

    async def main() -> None:
        pool = AsyncRedisPool("redis://redis.invalid", TIMEOUT)
        with Lateness() as lateness:
            start = time.monotonic()
            calls = (pool.call("PING") for _ in range(10))
            errors = await asyncio.gather(*calls, return_exceptions=True)
            end = time.monotonic()
            assert end - start <= TIMEOUT + ALLOWED_OVER + lateness.between(start, end)
        assert all(isinstance(error, Unavailable) for error in errors)
        go_on.set()
        with pytest.raises(Unavailable, match="no such host"):
            await AsyncRedisPool("redis://redis.invalid", PATIENT).call("PING")
        await pool.close()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        run(main)
    finally:
        go_on.set()


def test_a_flushed_script_cache_is_not_noticed(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "1000/week", timeout=PATIENT) as keyed:
            with redis_server.client as client:
                for _ in range(5):
                    client.script_flush()
                    assert all(await asyncio.gather(*(keyed.allow("a") for _ in range(20))))
            assert (await keyed.check("a", 0)).remaining == pytest.approx(900, abs=0.1)
            assert keyed.metrics.errors == 0

    run(main)


def test_no_call_waits_longer_than_the_time_out_while_redis_is_stopped_killed_and_restarted(
    redis_server: RedisServer,
) -> None:
    # Real time on purpose, and a real Redis: see test_dead_redis.py.
    calls: list[tuple[float, float]] = []

    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "1000000/second", timeout=TIMEOUT) as keyed:
            done = asyncio.Event()

            async def work() -> None:
                while not done.is_set():
                    start = time.monotonic()
                    await keyed.allow("a")
                    calls.append((start, time.monotonic()))
                    await asyncio.sleep(0.002)

            async def reaches(*states: str, calls: int = 0) -> None:
                enough = keyed.metrics.calls + calls
                await until(
                    lambda: keyed.metrics.state in states and keyed.metrics.calls >= enough,
                    lambda: keyed.metrics,
                    90,  # should several probes meet a busy machine
                )

            workers = [asyncio.create_task(work()) for _ in range(20)]
            await reaches("redis", calls=100)
            redis_server.stop()
            await reaches("local", "probing")
            await reaches("local", "probing", calls=1_000)
            redis_server.cont()
            await reaches("redis")
            redis_server.kill()
            await reaches("local", "probing")
            await asyncio.to_thread(redis_server.start)
            await reaches("redis")
            done.set()
            await asyncio.gather(*workers)
            assert keyed.metrics.denied == 0
            assert keyed.metrics.decided_locally > 0

    with Lateness() as lateness:
        run(main)
        long = [(start, end) for start, end in calls if end - start >= TIMEOUT / 2]
        assert long, "no call had to wait at all"
        for start, end in long:
            assert end - start <= TIMEOUT + ALLOWED_OVER + lateness.between(start, end)


def test_a_restart_between_two_calls_is_not_noticed(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "10/day", timeout=PATIENT) as keyed:
            assert await keyed.allow("a")
            await asyncio.to_thread(redis_server.restart)
            assert await keyed.allow("a")
            assert keyed.metrics.errors == 0

    run(main)


def test_a_cancelled_probe_makes_way_for_the_next(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"timeout": PATIENT, "clock": clock}
        async with AsyncRedisKeyed(redis_server.url, "10/day", **options) as keyed:
            await keyed.allow("a")
            await asyncio.to_thread(redis_server.kill)
            await keyed.allow("a")
            assert keyed.metrics.state == "local"
            await asyncio.to_thread(redis_server.start)
            redis_server.stop()
            clock.advance(1)
            probe = asyncio.create_task(keyed.allow("a"))
            await until(lambda: keyed.metrics.state == "probing", lambda: keyed.metrics)
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
            redis_server.cont()
            assert await keyed.allow("a")
            assert keyed.metrics.state == "redis"

    run(main)


def test_waiting_is_in_order(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "1/week", timeout=PATIENT) as keyed:
            went: list[int] = []

            async def task(number: int) -> None:
                await keyed.acquire("a")
                went.append(number)

            tasks = [asyncio.create_task(task(number)) for number in range(6)]
            await until(lambda: went, lambda: went)
            for count in range(2, 7):
                await keyed.refund("a", 1)
                await until(lambda count=count: len(went) == count, lambda: went)  # type: ignore[misc]
            await asyncio.gather(*tasks)
            assert went == [0, 1, 2, 3, 4, 5]

    run(main)


def test_waiting_lasts_until_there_is_a_permit_and_has_a_time_out(
    redis_server: RedisServer,
) -> None:
    # Real time on purpose: a tenth of a second.
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "50/second burst 1", timeout=PATIENT) as keyed:
            start = time.monotonic()
            waited = [await keyed.acquire("b") for _ in range(6)]
            took = time.monotonic() - start
            assert took > 5 / 50 - 0.01
            assert took >= sum(waited)
        async with AsyncRedisKeyed(redis_server.url, "1/week", timeout=PATIENT) as keyed:
            assert await keyed.acquire("a") == 0.0
            with pytest.raises(RateLimited, match="1/week: 0 left"):
                await keyed.acquire("a", timeout=5)
            first = asyncio.create_task(keyed.acquire("a"))
            await until(lambda: keyed._queues, lambda: first)
            with pytest.raises(RateLimited):
                await keyed.acquire("a", timeout=0.01)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await keyed.refund("a", 1)
            assert await keyed.acquire("a", timeout=PATIENT) < PATIENT

    run(main)


def test_leases_work_as_in_threads_and_are_given_back(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"timeout": PATIENT, "clock": clock}  # on which no lease lapses
        async with AsyncRedisKeyed(redis_server.url, "1000/week", **options) as exact:
            async with AsyncRedisKeyed(
                redis_server.url, "1000/week", mode="leased", lot=100, **options
            ) as leased:
                assert all(await asyncio.gather(*(leased.allow("a") for _ in range(50))))
                assert leased.metrics.leases == 1
            remaining = (await exact.check("a", 0)).remaining
            assert remaining == pytest.approx(950, abs=1)

    run(main)


def test_each_event_loop_has_its_own_connection(redis_server: RedisServer) -> None:
    keyed = AsyncRedisKeyed(redis_server.url, "10/day", timeout=PATIENT)

    async def main() -> bool:
        async with keyed:
            return await keyed.allow("a")

    assert [asyncio.run(main()) for _ in range(3)] == [True] * 3
    assert keyed.metrics.errors == 0


def test_a_forked_child_leaves_the_connection_of_its_parent_alone(
    redis_server: RedisServer,
) -> None:
    code = f"""
import asyncio, os
from sluicegate import AsyncRedisKeyed
keyed = AsyncRedisKeyed({redis_server.url!r}, "10/day", timeout=20)
async def child():
    async with keyed:
        assert await keyed.allow("a") and keyed.metrics.errors == 0
async def main():
    assert await keyed.allow("a")
    pid = os.fork()
    if pid == 0:
        asyncio.events._set_running_loop(None)
        try:
            asyncio.run(child())
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert await keyed.allow("a") and keyed.metrics.errors == 0
    await keyed.close()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)


def test_what_a_closed_loop_left_open_is_closed_when_another_comes(
    redis_server: RedisServer,
) -> None:
    keyed = AsyncRedisKeyed(redis_server.url, "1000/day", timeout=PATIENT)

    def use_and_leave() -> None:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(keyed.allow("a"))
        loop.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of asyncio, for what was left open
        for _ in range(3):
            use_and_leave()
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            use_and_leave()
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        asyncio.run(close(keyed))
        gc.collect()


async def close(keyed: AsyncRedisKeyed) -> None:
    await keyed.close()


def test_what_is_given_back_wakes_the_one_who_waits(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "1/day", timeout=PATIENT) as keyed:
            assert await keyed.allow("a")
            waiting = asyncio.create_task(keyed.acquire("a"))
            await until(lambda: keyed._queues, lambda: waiting)
            async with asyncio.timeout(PATIENCE):
                while not waiting.done():
                    await keyed.reset("a")
                    await asyncio.sleep(0.01)

    run(main)


def test_thousands_of_tasks_wait_together_for_the_first_connection(
    redis_server: RedisServer,
) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "100000/day", timeout=60) as keyed:
            answers = await asyncio.gather(*(keyed.allow("a") for _ in range(5_000)))
            assert all(answers)
            assert keyed.metrics.decided_locally == 0

    run(main)
