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

from headgate import AsyncRedisKeyed, Limit, ManualClock, ProtocolError, RateLimited, Unavailable
from headgate.stores import AsyncRedisPool, ErrorReply
from tests.parts import RedisServer

PATIENT = 5.0
NOISE = 0.25  # seconds that a busy machine may add


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


def test_it_has_the_verbs_of_redis_keyed_with_await(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "5/hour; 9/day", timeout=PATIENT) as keyed:
            assert await keyed.allow("a", 3)
            decision = await keyed.check("a", 3)
            assert (decision.allowed, decision.limit) == (False, Limit(5, 3600))
            assert decision.remaining == pytest.approx(2, abs=0.01)
            await keyed.refund("a", 1)
            assert (await keyed.check("a", 0)).remaining == pytest.approx(3, abs=0.01)
            await keyed.reset("a")
            assert (await keyed.check("a", 0)).remaining == 5
            assert (keyed.algorithm, keyed.mode) == ("token_bucket", "exact")
            assert keyed.limits == (Limit(5, 3600), Limit(9, 86400))
            assert keyed.metrics.calls == 2
            assert repr(keyed).startswith("AsyncRedisKeyed('5/hour; 9/day', algorithm=")

    run(main)


def test_many_calls_in_flight_share_one_connection(redis_server: RedisServer) -> None:
    async def main() -> None:
        with redis_server.client as client:
            before = client.info("clients")["connected_clients"]
            async with AsyncRedisKeyed(redis_server.url, "300/hour", timeout=PATIENT) as keyed:
                answers = await asyncio.gather(*(keyed.allow("a") for _ in range(1000)))
                assert sum(answers) == 300
                assert client.info("clients")["connected_clients"] == before + 1

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


async def answered(answer: bytes, *, silent: bool = True) -> tuple[float, Exception | None]:
    """What a call gets from a peer that sends this, and how long it takes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(answer)
        if silent:
            await reader.read(65536)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = AsyncRedisPool(f"redis://127.0.0.1:{port}", 0.1)
    start = time.monotonic()
    error: Exception | None = None
    try:
        await pool.call("PING")
    except (Unavailable, ProtocolError) as raised:
        error = raised
    took = time.monotonic() - start
    await pool.close()
    server.close()
    await server.wait_closed()
    return took, error


def test_garbage_silence_and_a_closed_door_are_told_apart() -> None:
    # Real time on purpose: a tenth of a second.
    async def main() -> None:
        _, error = await answered(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert isinstance(error, ProtocolError)
        _, error = await answered(b"+PONG\r\n+PONG\r\n")
        assert error is None
        took, error = await answered(b"$5\r\nhal")
        assert "did not answer in time" in str(error)
        assert took < 0.1 + NOISE
        _, error = await answered(b"", silent=False)
        assert "broke: closed by the server" in str(error)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        pool = AsyncRedisPool(f"redis://127.0.0.1:{port}")
        with pytest.raises(Unavailable, match="no connection to Redis at 127.0.0.1"):
            await pool.call("PING")
        await pool.close()

    run(main)


def test_a_name_that_does_not_resolve_in_time_costs_no_more_than_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Real time on purpose: a twentieth of a second.
    go_on = threading.Event()

    def slow(*_: object, **__: object) -> None:
        go_on.wait(5)
        raise OSError("no such host")

    async def main() -> None:
        pool = AsyncRedisPool("redis://redis.invalid", 0.05)
        start = time.monotonic()
        calls = (pool.call("PING") for _ in range(10))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - start < 0.05 + NOISE
        assert all(isinstance(error, Unavailable) for error in errors)
        go_on.set()
        with pytest.raises(Unavailable, match="no such host"):
            await AsyncRedisPool("redis://redis.invalid", 5).call("PING")
        await pool.close()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    run(main)


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
    # Real time on purpose, and a real Redis: see test_dead_redis.py for the allowance.
    took: list[float] = []
    overslept: list[float] = []

    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "1000000/second", timeout=0.1) as keyed:
            done = asyncio.Event()

            async def work() -> None:
                while not done.is_set():
                    start = time.monotonic()
                    await keyed.allow("a")
                    took.append(time.monotonic() - start)
                    await asyncio.sleep(0.002)

            async def until(*states: str, calls: int = 0) -> None:
                async with asyncio.timeout(10):
                    while keyed.metrics.state not in states or keyed.metrics.calls < calls:  # noqa: ASYNC110  nobody tells
                        await asyncio.sleep(0.005)

            async def sleep() -> None:
                """What the machine adds to a wait, it adds to this one too."""
                while not done.is_set():
                    start = time.monotonic()
                    await asyncio.sleep(0.1)  # the time-out itself, in real time like theirs
                    overslept.append(time.monotonic() - start - 0.1)

            workers = [asyncio.create_task(work()) for _ in range(20)]
            workers.append(asyncio.create_task(sleep()))
            await until("redis", calls=100)
            redis_server.stop()
            await until("local", "probing")
            await until("local", "probing", calls=keyed.metrics.calls + 1_000)
            redis_server.cont()
            await until("redis")
            redis_server.kill()
            await until("local", "probing")
            await asyncio.to_thread(redis_server.start)
            await until("redis")
            done.set()
            await asyncio.gather(*workers)
            assert keyed.metrics.denied == 0
            assert keyed.metrics.decided_locally > 0

    run(main)
    assert any(seconds >= 0.05 for seconds in took), "nobody had to wait at all"
    assert max(took) <= 0.1 + 0.05 + max(overslept)


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
            await asyncio.sleep(0.02)
            assert keyed.metrics.state == "probing"
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
            redis_server.cont()
            assert await keyed.allow("a")
            assert keyed.metrics.state == "redis"

    run(main)


def test_waiting_is_in_order_and_has_a_time_out(redis_server: RedisServer) -> None:
    # Real time on purpose: a tenth of a second.
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "50/second burst 1", timeout=PATIENT) as keyed:
            went: list[int] = []

            async def task(number: int) -> None:
                await keyed.acquire("a")
                went.append(number)

            await asyncio.gather(*(task(number) for number in range(6)))
            assert sorted(went[1:]) == went[1:]
            await keyed.acquire("b")
            start = time.monotonic()
            assert await keyed.acquire("b") == pytest.approx(time.monotonic() - start, abs=0.05)
        async with AsyncRedisKeyed(redis_server.url, "1/hour", timeout=PATIENT) as keyed:
            assert await keyed.acquire("a") == 0.0
            with pytest.raises(RateLimited, match="1/hour: 0 left"):
                await keyed.acquire("a", timeout=5)
            first = asyncio.create_task(keyed.acquire("a"))
            await asyncio.sleep(0.01)
            with pytest.raises(RateLimited):
                await keyed.acquire("a", timeout=0.01)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await keyed.refund("a", 1)
            assert await keyed.acquire("a", timeout=5) < 5

    run(main)


def test_leases_work_as_in_threads_and_are_given_back(redis_server: RedisServer) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"timeout": PATIENT}
        async with AsyncRedisKeyed(redis_server.url, "1000/hour", **options) as exact:
            async with AsyncRedisKeyed(
                redis_server.url, "1000/hour", mode="leased", lot=100, **options
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
from headgate import AsyncRedisKeyed
keyed = AsyncRedisKeyed({redis_server.url!r}, "10/day", timeout=5)
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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env={**os.environ})


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
            while not keyed._lines:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.001)
            async with asyncio.timeout(30):
                while not waiting.done():
                    await keyed.reset("a")
                    await asyncio.sleep(0.01)

    run(main)


def test_thousands_of_tasks_wait_together_for_the_first_connection(
    redis_server: RedisServer,
) -> None:
    async def main() -> None:
        async with AsyncRedisKeyed(redis_server.url, "100000/day", timeout=PATIENT) as keyed:
            answers = await asyncio.gather(*(keyed.allow("a") for _ in range(5_000)))
            assert all(answers)
            assert keyed.metrics.decided_locally == 0

    run(main)
