"""The examples do what their first lines say: with real servers, so in real time."""

import asyncio
import contextlib
import fcntl
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from examples import dispatch_translation
from sluicegate import Central, SharedKeyed, Worker
from sluicegate.dispatch.queue_admin import QueueAdmin
from sluicegate.quota.node.core._user_keys import default_memory_name
from sluicegate.quota.node.core._user_table import UserTable
from tests.harness.servers import ROOT, RedisServer, serving
from tests.harness.waits import PATIENCE, wait_for


@contextlib.contextmanager
def client_of(port: int, address: str = "127.0.0.1", **headers: str) -> Iterator[httpx.Client]:
    """A patient client that calls from this address."""
    transport = httpx.HTTPTransport(local_address=address)
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(
        transport=transport, base_url=url, timeout=PATIENCE, headers=headers
    ) as client:
        yield client


@contextlib.contextmanager
def fresh(*names: str) -> Iterator[None]:
    """Without what an earlier run has used of these names, which are fixed: so one at a time."""
    lock = Path(tempfile.gettempdir()) / f"sluicegate-test-{os.geteuid()}-{names[0]}.lock"
    with lock.open("w") as file:

        def is_ours() -> bool:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        wait_for(is_ours, 120, lambda: f"another run of the tests holds {lock}")
        for name in names:
            SharedKeyed.unlink(name)
        yield
        for name in names:
            SharedKeyed.unlink(name)


@pytest.fixture(scope="module")
def flask_port() -> Iterator[int]:
    options = ("--workers", "4", "--threads", "2", "--bind", "127.0.0.1:PORT")
    with (
        fresh("example-flask", "example-flask-login"),
        serving("gunicorn", *options, "examples.flask_app:create_app()") as port,
    ):
        yield port


def test_fastapi_with_four_workers_lets_through_what_one_limit_says() -> None:
    options = ("--workers", "4", "--port", "PORT", "--log-level", "warning")
    with (
        fresh("example-fastapi", "example-fastapi-search"),
        serving("uvicorn", "examples.fastapi_app:app", *options) as port,
        client_of(port) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        start = time.monotonic()
        searches = Counter(client.get("/search").status_code for _ in range(8))
        refilled = (time.monotonic() - start) / 12  # 5 a minute
        assert 5 <= searches[200] <= 5 + refilled
        assert searches[200] + searches[429] == 8
        # A refusal of the route gives back what the middleware took: 45 are left.
        left = 50 - searches[200]
        answers = list(pool.map(lambda _: client.get("/"), range(60)))
        statuses = Counter(answer.status_code for answer in answers)
        refilled = (time.monotonic() - start) / 1.2  # 50 a minute
        assert left <= statuses[200] <= left + refilled
        assert statuses[200] + statuses[429] == 60
        assert answers[0].headers["ratelimit-policy"] == '"all";q=50;w=60'
        health = pool.map(lambda _: client.get("/health"), range(60))
        assert {answer.status_code for answer in health} == {200}


def test_flask_under_gunicorn_lets_through_what_the_limit_says(flask_port: int) -> None:
    with client_of(flask_port) as client, ThreadPoolExecutor(8) as pool:
        start = time.monotonic()
        answers = list(pool.map(lambda _: client.get("/"), range(40)))
        statuses = Counter(answer.status_code for answer in answers)
        refilled = (time.monotonic() - start) / 2  # 30 a minute
        assert 30 <= statuses[200] <= 30 + refilled
        assert statuses[200] + statuses[429] == 40
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["ratelimit-policy"] == '"all";q=30;w=60'
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert refused.json()["rule"] == "all"
        health = pool.map(lambda _: client.get("/health"), range(40))
        assert {answer.status_code for answer in health} == {200}


def test_flask_holds_each_name_to_three_attempts(flask_port: int) -> None:
    with client_of(flask_port, "127.0.0.2") as client:

        def attempts(name: str) -> list[int]:
            return [client.post("/login", data={"name": name}).status_code for _ in range(4)]

        assert attempts("ann") == [200, 200, 200, 429]
        assert attempts("bob") == [200, 200, 200, 429]


QUOTA_SERVERS = {
    "fastapi": ("uvicorn", "examples.quota_fastapi:app", "--workers", "2", "--port", "PORT"),
    "flask": (
        *("gunicorn", "--workers", "2", "--threads", "2", "--preload", "--bind", "127.0.0.1:PORT"),
        "examples.quota_flask:create_app()",
    ),
}


@pytest.mark.parametrize("framework", QUOTA_SERVERS)
def test_with_quotas_workers_hold_a_user_to_his_and_book_all_of_it_before_they_exit(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = f"example-{framework}-{os.getpid()}"
    monkeypatch.setenv("NODE_ID", node_id)
    try:
        with Central(str(ROOT / "examples/quota_limits.toml"), listen="127.0.0.1:0") as central:
            monkeypatch.setenv("CENTRAL", central.url)
            with (
                serving(*QUOTA_SERVERS[framework]) as port,
                client_of(port, **{"X-User": "bob"}) as client,
                httpx.Client(base_url=central.url, timeout=PATIENCE) as api,
            ):
                wait_for(lambda: api.get("/api/nodes").json()["nodes"])
                began = time.monotonic()
                statuses: Counter[int] = Counter()
                while (lasted := time.monotonic() - began) < 2.0 or not (
                    statuses[200] >= 5 <= statuses[429]
                ):
                    statuses[client.get("/").status_code] += 1
                    assert lasted < PATIENCE, statuses
                assert set(statuses) == {200, 429}
                # Ten a second until the central has answered, and then five.
                assert statuses[200] <= 5 * lasted + 20
                assert {client.get("/health").status_code for _ in range(20)} == {200}
                assert f'sluicegate_node_users{{node="{node_id}"' in client.get("/metrics").text
            usage = httpx.get(
                f"{central.url}/api/usage", params={"service": "front"}, timeout=PATIENCE
            ).json()
            [bob] = [user for user in usage["users"] if user["user"] == "bob"]
            assert bob["resources"]["requests"]["recorded"] == statuses[200]
            assert bob["resources"]["database_read"]["recorded"] == 3 * statuses[200]
    finally:
        UserTable.unlink(default_memory_name(node_id))


def test_the_crawler_reads_its_little_site() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.httpx_crawler"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *pages, last = run.stdout.splitlines()
    assert sorted(pages, key=lambda line: int(line.rpartition("/")[2])) == [
        re.sub(r"/\d+$", f"/{number}", pages[0]) for number in range(24)
    ]
    assert last.startswith("24 pages in ")
    assert "tried again" in last


def test_fastapi_answers_from_batched_workers(redis_server: RedisServer) -> None:
    batches: list[int] = []
    is_open = threading.Event()

    def handle(texts: list[str]) -> list[str]:
        batches.append(len(texts))
        return dispatch_translation.translate(texts)

    def hold(texts: list[str]) -> list[str]:
        assert is_open.wait(PATIENCE)
        return texts

    def fail(texts: list[str]) -> list[str]:
        raise ValueError("the model is broken")

    async def post(http: httpx.AsyncClient, timeout: float = 60.0) -> httpx.Response:
        return await http.post("/translate", json={"text": "hello world", "timeout": timeout})

    async def scenario(port: int) -> None:
        url, queue = redis_server.url, "translate"
        admin = QueueAdmin(url, queue, timeout=PATIENCE)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http:
            answer = await post(http)  # no worker is alive
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            async with Worker(url, queue, handle, max_wait=0.2):
                answers = await asyncio.gather(*(post(http) for _ in range(40)))
                assert {answer.status_code for answer in answers} == {200}
                assert answers[0].json() == {"text": "ellohay orldway"}
                await admin.drain(PATIENCE)
                answer = await post(http)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert "being drained" in answer.json()["error"]
                await admin.resume()
            async with Worker(url, queue, hold):
                answer = await post(http, timeout=0.05)
                assert answer.status_code == 504
                assert "in time" in answer.json()["error"]
                is_open.set()
            async with Worker(url, queue, fail):
                answer = await post(http)
                assert (answer.status_code, "broken" in answer.text) == (500, True)
            assert 'queue="translate",outcome="answered"} 40' in (await http.get("/metrics")).text
        await admin.close()

    with serving(
        *("uvicorn", "examples.dispatch_fastapi:app", "--port", "PORT", "--log-level", "warning"),
        REDIS=redis_server.url,
    ) as port:
        asyncio.run(asyncio.wait_for(scenario(port), 2 * PATIENCE))
    assert sum(batches) == 40
    assert len(batches) < 40


def test_batches_by_length_cost_less_padding(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_translation, "REDIS", redis_server.url)
    measured = [
        asyncio.run(asyncio.wait_for(dispatch_translation.measure(queue, size), 2 * PATIENCE))
        for queue, size in (("a", None), ("b", dispatch_translation.count_tokens))
    ]
    first_come, by_length = measured
    assert first_come.tokens == by_length.tokens
    # 1.8 to 1.9 as a rule: how well a batch fits depends on what had arrived when it began.
    assert first_come.padded >= 1.3 * by_length.padded
