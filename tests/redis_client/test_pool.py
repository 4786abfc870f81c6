"""The connection for threads: one deadline, whatever the peer does."""

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from sluicegate.errors import ProtocolError, Unavailable
from sluicegate.redis_client import AsyncRedisPool, ErrorReply, RedisPool, pack, resp
from tests.harness.lateness import Lateness
from tests.harness.servers import RedisServer, reserve_port
from tests.harness.waits import PATIENCE

PATIENT = 20.0  # seconds for Redis where its being late is not the point
TIMEOUT = 0.2
ALLOWED_OVER = 0.1  # half of it: one that waits twice is found out


@contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does to each connection whatever it is told; the URL of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            accepted.append(connection)
            with connection, suppress(OSError):
                behave(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in accepted:
            with suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@contextmanager
def pool_of(url: str, timeout: float = PATIENT) -> Iterator[RedisPool]:
    pool = RedisPool(url, timeout)
    try:
        yield pool
    finally:
        pool.close()


def test_commands_and_pipelines_over_a_port_and_a_socket(redis_server: RedisServer) -> None:
    for url in (
        redis_server.url,
        redis_server.unix_url,
        redis_server.url.replace("127.0.0.1", "localhost"),
    ):
        with pool_of(url) as pool:
            assert pool.call("SET", "key", b"\0\xff value") == b"OK"
            assert pool.call("GET", "key") == b"\0\xff value"
            assert pool.call("INCRBYFLOAT", "number", 0.1) == b"0.1"
            many = b"".join(pack("RPUSH", "list", number) for number in range(1000))
            deadline = time.monotonic() + PATIENT
            assert pool.exchange(b"", many, 1000, deadline) == list(range(1, 1001))
            assert pool.call("DEL", "list", "number") == 2
            assert pool.idle == 1
            assert repr(pool).endswith("idle=1)")


def test_an_error_reply_is_a_value_in_a_pipeline_and_raised_by_call(
    redis_server: RedisServer,
) -> None:
    with pool_of(redis_server.url) as pool:
        both = pack("LPUSH", "list", 1) + pack("GET", "list") + pack("PING")
        _, wrong, pong = pool.exchange(b"", both, 3, time.monotonic() + PATIENT)
        assert (wrong.code, pong) == ("WRONGTYPE", b"PONG")
        with pytest.raises(ErrorReply, match="Redis error: ERR unknown command"):
            pool.call("NONSENSE")
        assert pool.idle == 1


def test_a_login_that_is_refused_says_so(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("redis://", "redis://nobody:wrong@")
    with pool_of(url) as pool, pytest.raises(Unavailable, match="WRONGPASS"):
        pool.call("PING")


def test_the_database_of_the_url_is_used(redis_server: RedisServer) -> None:
    with pool_of(f"{redis_server.url}/5") as fifth, pool_of(redis_server.url) as first:
        fifth.call("SET", "here", 1)
        assert (fifth.call("EXISTS", "here"), first.call("EXISTS", "here")) == (1, 0)


def silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def dribbling(connection: socket.socket) -> None:
    """A reply that never ends, a byte at a time: every single wait is short."""
    connection.recv(65536)
    connection.send(b"$1000\r\n")
    while True:
        connection.send(b"x")
        time.sleep(0.01)


def deaf(connection: socket.socket) -> None:
    """Never reads: what is sent to it fills the buffers and stays there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    until_the_end = select.poll()
    until_the_end.register(connection, 0)
    until_the_end.poll(PATIENCE * 1000)


@contextmanager
def expect_time_out() -> Iterator[float]:
    """Yields a deadline; the call in the body must fail because of it, neither early nor late."""
    with Lateness() as lateness:
        start = time.monotonic()
        with pytest.raises(Unavailable, match="timed out waiting for Redis"):
            yield start + TIMEOUT
        end = time.monotonic()
        assert end - start >= TIMEOUT / 2
        assert end - start <= TIMEOUT + ALLOWED_OVER + lateness.between(start, end)


@pytest.mark.parametrize(("behave", "size"), [(silent, 1), (dribbling, 1), (deaf, 20_000_000)])
def test_no_call_outlives_its_deadline(behave: Callable[[socket.socket], None], size: int) -> None:
    # Real time on purpose: a fifth of a second each.
    def answer_once(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"+PONG\r\n")
        behave(connection)

    payload = pack("SET", "key", b"x" * size)
    with peer(answer_once) as url, pool_of(url) as pool:
        pool.call("PING")
        with expect_time_out() as deadline:
            pool.exchange(b"", payload, 1, deadline)
        assert pool.idle == 0


def test_where_sockets_never_block_python_keeps_the_time(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As under gevent, and with TLS. Real time on purpose: a fifth of a second.
    monkeypatch.setattr(os, "get_blocking", lambda descriptor: False)
    with pool_of(redis_server.url) as pool:
        assert pool.call("PING") == b"PONG"
        assert pool.send_command(pack("SADD", "set", 1), time.monotonic() + PATIENT) == 1
        redis_server.stop()
        with expect_time_out() as deadline:
            pool.send_command(pack("PING"), deadline)


def test_a_name_that_does_not_resolve_in_time_costs_no_more_than_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Real time on purpose: three fifths of a second.
    asked = []
    go_on = threading.Event()

    def slow(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        go_on.wait(PATIENCE)
        raise OSError("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pool_of("redis://redis.invalid", TIMEOUT) as pool, Lateness() as lateness:
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(
                Unavailable, match=r"timed out after \d+ ms looking up the host 'redis.invalid'"
            ):
                pool.call("PING")
            end = time.monotonic()
            assert end - start <= TIMEOUT + ALLOWED_OVER + lateness.between(start, end)
        assert asked == ["redis.invalid"]  # one question, for all three
        go_on.set()
        with pytest.raises(Unavailable, match="no such host"):
            pool.exchange(b"", pack("PING"), 1, time.monotonic() + PATIENT)


def test_one_address_that_swallows_all_does_not_hide_the_other(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Real time on purpose: half of the time-out, which leaves the other half for the machine to be
    # late. A full backlog answers nobody, as a firewall.
    timeout = 3.0
    with socket.create_server(("127.0.0.1", 0), backlog=0) as swallows:
        where = swallows.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(where)
        both = [(socket.AF_INET, 1, 6, "", at) for at in (where, ("127.0.0.1", redis_server.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)

        async def main() -> None:
            with pool_of("redis://two.addresses", timeout) as pool:
                in_a_thread = asyncio.create_task(asyncio.to_thread(pool.call, "PING"))
                tasks = AsyncRedisPool("redis://two.addresses", timeout)
                assert await tasks.call("PING") == b"PONG"
                assert await in_a_thread == b"PONG"
                await tasks.close()

        asyncio.run(main())
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "Protocol error"),
        (b"*4000000000\r\n", "more than fits in memory"),
        (b"+PONG\r\n+PONG\r\n", "more replies than commands"),
        (b"$30000000\r\n" + b"x" * (17 * 1024 * 1024), "larger than 16777216 bytes"),
    ],
)
def test_garbage_from_the_peer_is_a_protocol_error(answer: bytes, reason: str) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)
        silent(connection)

    with peer(behave) as url, pool_of(url) as pool:
        with pytest.raises(ProtocolError, match=reason):
            pool.call("PING")
        assert pool.idle == 0


def test_nobody_listens() -> None:
    with (
        reserve_port() as closed,
        pool_of(f"redis://127.0.0.1:{closed.getsockname()[1]}") as pool,
        pytest.raises(Unavailable, match="refused"),
    ):
        pool.call("PING")


def test_a_connection_closed_while_idle_is_replaced_within_the_call(
    redis_server: RedisServer,
) -> None:
    with pool_of(redis_server.url) as pool:
        pool.call("PING")
        redis_server.restart()
        assert pool.call("PING") == b"PONG"
        with redis_server.client as client:
            client.client_kill_filter(_type="normal", skipme=True)
        assert pool.call("PING") == b"PONG"


def test_an_interrupted_call_leaves_no_reply_for_the_next(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool_of(redis_server.url) as pool:
        pool.call("PING")

        def interrupted(self: resp.Replies, most: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(resp.Replies, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.call("ECHO", "old")
        assert pool.call("ECHO", "new") == b"new"


def test_threads_share_the_connections(redis_server: RedisServer) -> None:
    with pool_of(redis_server.url) as pool:
        echoes: list[bool] = []

        def work(number: int) -> None:
            echoes.extend(
                pool.call("ECHO", f"{number} {turn}") == f"{number} {turn}".encode()
                for turn in range(100)
            )

        before = threading.active_count()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        assert threading.active_count() <= before + 8
        for thread in threads:
            thread.join(PATIENCE)
        assert echoes == [True] * 800
        assert 1 <= pool.idle <= 8


def test_a_forked_child_opens_connections_of_its_own(redis_server: RedisServer) -> None:
    code = f"""
import os
from sluicegate.redis_client import RedisPool
pool = RedisPool({redis_server.url!r}, 20)
mine = pool.call("CLIENT", "ID")
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b"%d" % pool.call("CLIENT", "ID"))
    os._exit(0)
os.wait()
childs = int(os.read(reader, 100))
assert childs != mine, (childs, mine)
assert pool.call("CLIENT", "ID") == mine
assert pool.call("ECHO", "still in step") == b"still in step"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)


def test_a_closed_pool_opens_nothing(redis_server: RedisServer) -> None:
    pool = RedisPool(redis_server.url, PATIENT)
    pool.call("PING")
    pool.close()
    with pytest.raises(Unavailable, match="pool is closed"):
        pool.call("PING")


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
def test_a_server_that_sends_us_elsewhere_is_obeyed(redis_server: RedisServer, word: str) -> None:
    def behave(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(b"-%b 5 127.0.0.1:%d\r\n" % (word.encode(), redis_server.port))

    async def main() -> None:
        pool = AsyncRedisPool(url, PATIENT)
        assert await pool.call("ECHO", "here") == b"here"
        await pool.close()

    with peer(behave) as url:
        with pool_of(url) as pool:
            assert pool.call("ECHO", "here") == b"here"
        asyncio.run(main())


def test_servers_that_send_us_round_in_circles_are_left() -> None:
    def behave(connection: socket.socket) -> None:
        while connection.recv(65536):
            port = connection.getsockname()[1]
            connection.sendall(b"-MOVED 5 127.0.0.1:%d\r\n" % port)

    with peer(behave) as url, pool_of(url) as pool, pytest.raises(ErrorReply, match="MOVED"):
        pool.call("PING")


def test_the_short_way_and_the_long_way_are_one(redis_server: RedisServer) -> None:
    def ask(*words: bytes | str | int) -> object:
        return pool.send_command(pack(*words), time.monotonic() + PATIENT)

    with pool_of(redis_server.url) as pool:
        assert [ask("SADD", "set", 1), ask("SADD", "set", 1), ask("INCRBY", "n", 77)] == [1, 0, 77]
        assert ask("SET", "large", b"x" * 100_000) == b"OK"
        assert ask("GET", "large") == b"x" * 100_000
        assert ask("GET", "nothing") is None
        wrong = ask("NONSENSE")
        assert isinstance(wrong, ErrorReply)
        redis_server.restart()
        assert ask("PING") == b"PONG"
        redis_server.stop()
        with expect_time_out() as deadline:
            pool.send_command(pack("PING"), deadline)
        redis_server.cont()
        assert ask("ECHO", "new") == b"new"

    def talk_nonsense(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"nonsense\r\n")
        silent(connection)

    with peer(talk_nonsense) as url, pool_of(url) as pool:
        for _ in range(2):
            with pytest.raises(ProtocolError):
                pool.send_command(pack("PING"), time.monotonic() + PATIENT)


def test_connections_to_a_server_that_became_a_replica_are_closed(
    redis_server: RedisServer,
) -> None:
    """A failover moved the name of the master: only a new connection finds the new one."""

    async def scenario() -> None:
        pool = AsyncRedisPool(redis_server.url, PATIENCE)
        command = pack("SET", "key", 1)

        def begin() -> "asyncio.Future[list[Any]] | None":
            return pool.begin(b"key", command, 1, time.monotonic() + PATIENCE)

        assert await pool.call("PING") == b"PONG"
        own = await pool.connect(b"key", time.monotonic() + PATIENCE)
        begun = begin()
        assert begun is not None
        assert await begun == [b"OK"]
        with redis_server.client as client:
            client.replicaof("127.0.0.1", 1)
            try:
                refused = begin()
                assert refused is not None
                (reply,) = await refused
                assert reply.is_of_replica
                assert begin() is None
                assert not own.is_open
            finally:
                client.replicaof("NO", "ONE")
        assert await pool.call("SET", "key", 2) == b"OK"
        await pool.close()

    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))
