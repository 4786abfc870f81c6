"""`sluicegate queue`, over a real Redis; what it waits for is in virtual time."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sluicegate import Busy, Dispatcher, ManualClock, Worker
from sluicegate.cli.main import main
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(action: str, *options: str, clock: ManualClock | None = None) -> tuple[int, str, str]:
        words = ["queue", action, "q", "--url", redis_server.url, *options]
        code = main(words, clock=clock or ManualClock())
        return code, *capsys.readouterr()

    return run


def add_requests(redis_server: RedisServer) -> None:
    """Two requests that wait, of different priorities, after a worker has come and gone."""

    async def scenario() -> None:
        client = Dispatcher(redis_server.url, "q", timeout=PATIENCE)
        async with client, Worker(redis_server.url, "q", lambda items: items):
            await client.call(1, timeout=PATIENCE)

    asyncio.run(scenario())
    with redis_server.client as redis:
        for stream in ("1", "-1"):
            redis.xadd("sluicegate:{q}:tasks:" + stream, {"request": "x"})


def test_the_status_of_a_queue_that_nobody_uses(command: Command) -> None:
    assert command("status") == (
        0,
        "workers alive: 0\n"
        "priority      waiting  running\n"
        "urgent              0        0\n"
        "normal              0        0\n"
        "background          0        0\n"
        "dead: 0\n",
        "",
    )


def test_the_status_tells_what_waits_and_runs_and_who_is_alive(
    command: Command, redis_server: RedisServer
) -> None:
    add_requests(redis_server)
    with redis_server.client as redis:
        redis.zadd("sluicegate:{q}:workers", {"alive\x1b": 9e15, "gone": 1})
        redis.set("sluicegate:{q}:rate", "412.5")
        redis.xreadgroup("workers", "alive", {"sluicegate:{q}:tasks:1": ">"})
    code, text, _ = command("status")
    assert code == 0
    assert text.splitlines() == [
        "workers alive: 1, 412.5 requests/s",
        "  alive?",  # a terminal is told nothing by the name of a worker
        "priority      waiting  running",
        "urgent              0        1",
        "normal              0        0",
        "background          1        0",
        "dead: 0",
    ]
    document = json.loads(command("status", "--json")[1])
    assert document == {
        "queue": "q",
        "waiting": {"1": 0, "0": 0, "-1": 1},
        "running": {"1": 1, "0": 0, "-1": 0},
        "workers": ["alive\x1b"],
        "rate": 412.5,
        "dead": 0,
        "is_draining": False,
    }
    assert command("status", "--prefix", "other:")[1].startswith("workers alive: 0\n")
    with redis_server.client as redis:
        redis.delete("sluicegate:{q}:workers")
    assert json.loads(command("status", "--json")[1])["rate"] is None  # nobody has one


class EmptyingClock(ManualClock):
    """A clock at whose third sleep the queue becomes empty."""

    def __init__(self, redis_server: RedisServer) -> None:
        super().__init__()
        self.sleeps = 0
        self._redis_server = redis_server

    def sleep(self, seconds: float, /) -> None:
        super().sleep(seconds)
        self.sleeps += 1
        if self.sleeps == 3:
            with self._redis_server.client as redis:
                redis.delete("sluicegate:{q}:tasks:1", "sluicegate:{q}:tasks:-1")


def test_drain_waits_until_the_queue_is_empty(command: Command, redis_server: RedisServer) -> None:
    add_requests(redis_server)
    clock = EmptyingClock(redis_server)
    code, text, _ = command("drain", clock=clock)
    assert (code, clock.sleeps) == (0, 3)
    assert text == (
        "empty; new requests are refused for 3600 s, or until:\n"
        f"  sluicegate queue drain q --url {redis_server.url} --resume\n"
    )
    assert "draining: new requests are refused\n" in command("status")[1]


def test_drain_gives_up_after_its_time_out(command: Command, redis_server: RedisServer) -> None:
    add_requests(redis_server)
    clock = ManualClock()
    code, text, _ = command("drain", "--timeout", "5", clock=clock)
    assert code == 1
    assert 5.0 <= clock.now() < 5.5
    hint, resume, workers = text.splitlines()[:3]
    assert hint == "not empty after 5 s; new requests are refused for 3600 s, or until:"
    assert resume == f"  sluicegate queue drain q --url {redis_server.url} --resume"
    assert workers == "workers alive: 0"
    code, text, _ = command("drain", "--timeout", "1", "--json")
    assert code == 1
    assert json.loads(text)["is_empty"] is False
    with redis_server.client as redis:
        assert 3000 < redis.ttl("sluicegate:{q}:draining") <= 3600


def test_the_hint_of_drain_is_a_command_for_the_same_queue_without_its_login(
    command: Command, redis_server: RedisServer
) -> None:
    assert command("drain", "--for", "60", "--prefix", "my keys:")[1] == (
        "empty; new requests are refused for 60 s, or until:\n"
        f"  sluicegate queue drain q --url {redis_server.url} --prefix 'my keys:' --resume\n"
    )
    with redis_server.client as redis:
        redis.config_set("requirepass", "secret")
        try:
            url = redis_server.url.replace("//", "//:secret@")
            text = command("drain", "--url", url)[1]
        finally:
            redis.config_set("requirepass", "")
    assert text.splitlines()[1] == "  sluicegate queue drain q --url URL --resume"


def test_a_drained_queue_refuses_requests_until_it_is_resumed(redis_server: RedisServer) -> None:
    def command(*options: str) -> int:
        words = ["queue", "drain", "q", "--url", redis_server.url, *options]
        return main(words, clock=ManualClock())

    async def scenario() -> None:
        client = Dispatcher(redis_server.url, "q", timeout=PATIENCE)
        async with client, Worker(redis_server.url, "q", lambda items: items):
            assert await asyncio.to_thread(command) == 0
            with pytest.raises(Busy) as caught:
                await client.call(1, timeout=PATIENCE)
            assert caught.value.limit == 0
            assert await asyncio.to_thread(command, "--resume") == 0
            assert await client.call(1, timeout=PATIENCE) == 1

    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))


def test_dead_requests_are_listed_and_put_back(command: Command, redis_server: RedisServer) -> None:
    assert command("dead") == (0, "no dead requests\n", "")
    request = {
        "content_type": "json",
        "reply_to": "sluicegate:{q}:replies:nobody",
        "correlation_id": "1",
        "timeout": 60,
        "data": ["a text " * 20],
    }
    with redis_server.client as redis:
        for reason, text in (("not readable", "{"), ("3 workers\ntook it", json.dumps(request))):
            redis.xadd(
                "sluicegate:{q}:dead",
                {
                    "reason": reason,
                    "stream": "sluicegate:{q}:tasks:-1",
                    "id": "1-1",
                    "request": text,
                },
            )
    code, text, _ = command("dead")
    assert code == 0
    head, first, fields, second, data = text.splitlines()
    assert head.split() == ["ID", "PRIORITY", "REASON,", "DATA"]
    assert first.split(maxsplit=1) == ["1-1", "background  not readable"]  # its id in the queue
    assert fields.strip() == "{'request': '{'}"
    assert second.endswith("3 workers?took it")
    assert data.strip().startswith("['a text ")
    assert data.endswith("...")
    rows: list[dict[str, Any]] = json.loads(command("dead", "--json")[1])["dead"]
    assert [row.get("data") for row in rows] == [None, request["data"]]
    assert [row.get("fields") for row in rows] == [{"request": "{"}, None]
    assert command("retry", "--most", "1")[1] == "requests put back: 1\n"
    assert json.loads(command("retry", "--json")[1]) == {"queue": "q", "retried": 1}
    assert json.loads(command("status", "--json")[1])["waiting"]["-1"] == 2


def test_data_that_json_cannot_say_is_shown_all_the_same(
    command: Command, redis_server: RedisServer
) -> None:
    data = {"content_type": "msgpack", "reply_to": "", "correlation_id": "1", "timeout": 1.0}
    payload = msgspec.msgpack.encode({**data, "data": b"\xff"})
    with redis_server.client as redis:
        redis.xadd("sluicegate:{q}:dead", {"reason": "r", "stream": "", "request": payload})
    assert command("dead")[1].endswith("b'\\xff'\n")
    assert json.loads(command("dead", "--json")[1])["dead"][0]["data"] == "b'\\xff'"


def test_without_redis_the_exit_code_is_1(command: Command, redis_server: RedisServer) -> None:
    redis_server.kill()
    for action in ("status", "drain", "dead", "retry"):
        code, out, error = command(action)
        assert (code, out) == (1, "")
        assert error.startswith("sluicegate queue: cannot connect to Redis at 127.0.0.1")
        assert error.endswith("; use --url if Redis is elsewhere\n")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status"], "QUEUE"),
        (["empty", "q"], "invalid choice"),
        (["status", ""], "queue must not be empty"),
        (["status", "q", "--url", "http://x"], "url must start with redis://"),
        (["dead", "q", "--most", "0"], "expected an integer above 0, got '0'"),
        (["drain", "q", "--timeout", "-1"], "expected a finite number above 0, got '-1'"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["queue", *words])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
