"""`sluicegate queue`, over a real Redis; what it waits for is in virtual time."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from sluicegate import Busy, Dispatcher, ManualClock, Worker
from sluicegate.cli.main import main
from tests.harness.patient_dispatch import patient_dispatch
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

__all__ = ["patient_dispatch"]

ACTIONS = ("status", "drain", "dead", "retry")

NOT_SERVED = (
    "sluicegate queue: no worker has served a queue 'q' yet (with the prefix 'sluicegate:')\n"
)

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
        NOT_SERVED,
    )


def test_a_queue_that_no_worker_has_served_is_empty_and_named_as_such(
    command: Command, redis_server: RedisServer
) -> None:
    """Its name may be misspelt; but a queue may also be looked at before its first worker."""
    for action in ACTIONS:
        for options in ((), ("--json",)):
            code, out, error = command(action, *options)
            assert (code, error) == (0, NOT_SERVED)
            assert out
    command("drain", "--resume")
    add_requests(redis_server)
    for action in ACTIONS:
        assert command(action)[2] == ""


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
    assert command("dead") == (0, "no dead requests\n", NOT_SERVED)
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
    payload = msgspec.msgpack.encode({**data, "data": {b"\xff": 1}})  # nor as a key
    with redis_server.client as redis:
        redis.xadd("sluicegate:{q}:dead", {"reason": "r", "stream": "", "request": payload})
    assert command("dead")[1].endswith("{b'\\xff': 1}\n")
    assert json.loads(command("dead", "--json")[1])["dead"][1]["data"] == "{b'\\xff': 1}"


def test_without_redis_the_exit_code_is_1(command: Command, redis_server: RedisServer) -> None:
    redis_server.kill()
    for action in ("status", "drain", "dead", "retry"):
        code, out, error = command(action)
        assert (code, out) == (1, "")
        assert error.startswith("sluicegate queue: cannot connect to Redis at 127.0.0.1")
        assert error.endswith("; use --url if Redis is elsewhere\n")
        assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m"])
def test_a_cluster_or_sentinel_that_does_not_answer_is_named_in_one_line(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ACTIONS:
        assert main(["queue", action, "q", "--url", kind], clock=ManualClock()) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith(f"sluicegate queue: cannot find the {kind[6:].replace('://', ' ')}")
        assert error.endswith("; use --url if Redis is elsewhere\n")
        assert error.count("\n") == 1
        assert len(error) < 300


@pytest.fixture
def locked_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that needs the password `secret`."""
    with redis_server.client as redis:
        redis.config_set("requirepass", "secret")
        yield redis_server
        redis.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("login", "reason"),
    [("", "Redis needs a password (NOAUTH)"), (":wrong@", "Redis error: WRONGPASS")],
)
def test_a_redis_that_needs_a_password_is_exit_code_1(
    command: Command, locked_server: RedisServer, login: str, reason: str
) -> None:
    url = locked_server.url.replace("//", f"//{login}")
    for action in ACTIONS:
        code, out, error = command(action, "--url", url)
        assert (code, out) == (1, "")
        assert error.startswith(f"sluicegate queue: {reason}")
        assert error.endswith("; the password is part of --url: redis://:PASSWORD@HOST\n")
        assert error.count("\n") == 1
        assert "wrong@" not in error


def test_keys_of_other_programs_are_exit_code_1_without_advice_about_the_url(
    command: Command, redis_server: RedisServer
) -> None:
    with redis_server.client as redis:
        redis.set("sluicegate:{q}:dead", "not a stream")
    for action in ("status", "dead", "retry"):
        code, out, error = command(action)
        assert (code, out) == (1, "")
        assert "WRONGTYPE" in error
        assert "--url" not in error


def test_what_other_programs_call_workers_is_shown_with_replacement_characters(
    command: Command, redis_server: RedisServer
) -> None:
    with redis_server.client as redis:
        redis.zadd("sluicegate:{q}:workers", {b"w\xff1": 9e15})
        redis.set("sluicegate:{q}:rate", "many")
    assert command("status")[1].splitlines()[:2] == [
        "workers alive: 1, unknown rate",
        "  w\ufffd1",
    ]
    assert json.loads(command("status", "--json")[1])["workers"] == ["w\ufffd1"]
    assert json.loads(command("drain", "--json")[1])["is_empty"] is True


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_that_lacks_characters_of_a_name_shows_question_marks(
    redis_server: RedisServer, encoding: str
) -> None:
    with redis_server.client as redis:
        redis.zadd("sluicegate:{q}:workers", {"n\u00e4me": 9e15})
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate", "queue", "status", "q", "--url", redis_server.url],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0
    name = done.stdout.decode(encoding).splitlines()[1].strip()
    assert name == ("n?me" if encoding == "ascii" else "n\u00e4me")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status"], "QUEUE"),
        (["empty", "q"], "invalid choice"),
        (["status", ""], "queue must not be empty"),
        (["status", "\udcff"], r"queue must be encodable as UTF-8, got '\udcff'"),
        (["drain", "\udcff"], r"queue must be encodable as UTF-8, got '\udcff'"),
        (["dead", "\udcff"], r"queue must be encodable as UTF-8, got '\udcff'"),
        (["retry", "q", "--prefix", "\udcff"], r"prefix must be encodable as UTF-8, got '\udcff'"),
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
