"""The examples do what their first lines say: with real servers, so in real time."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from headgate import Central, SharedKeyed
from headgate.quota._host import Host
from headgate.quota._names import name_of_memory

ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def served(*command: str) -> Iterator[str]:
    """The URL of an example, started as its docstring says on a port of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        [sys.executable, "-m", *(part.replace("PORT", port) for part in command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/health")
                break
            assert server.poll() is None, server.communicate()[0]
            time.sleep(0.1)  # a real process takes its time to listen
        yield url
    finally:
        server.terminate()
        server.communicate(timeout=30)


@contextlib.contextmanager
def fresh(*names: str) -> Iterator[None]:
    """Without what an earlier run has used of these."""
    for name in names:
        SharedKeyed.unlink(name)
    yield
    for name in names:
        SharedKeyed.unlink(name)


@pytest.fixture
def flask_url() -> Iterator[str]:
    options = ("--workers", "4", "--threads", "2", "--bind", "127.0.0.1:PORT")
    with (
        fresh("example-flask", "example-flask-login"),
        served("gunicorn", *options, "examples.flask_app:create_app()") as url,
    ):
        yield url


def test_fastapi_with_four_workers_lets_through_what_one_limit_says() -> None:
    options = ("--workers", "4", "--port", "PORT", "--log-level", "warning")
    with (
        fresh("example-fastapi", "example-fastapi-search"),
        served("uvicorn", "examples.fastapi_app:app", *options) as url,
        httpx.Client(base_url=url) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        searches = Counter(client.get("/search").status_code for _ in range(8))
        assert searches == {200: 5, 429: 3}
        # A refusal of the route gives back what the middleware took: 45 are left, and one
        # more drips in every 1.2 seconds, should the machine be that slow.
        answers = list(pool.map(lambda _: client.get("/"), range(60)))
        statuses = Counter(answer.status_code for answer in answers)
        assert 45 <= statuses[200] <= 50
        assert statuses[200] + statuses[429] == 60
        assert answers[0].headers["ratelimit-policy"] == '"all";q=50;w=60'
        assert {client.get("/health").status_code for _ in range(60)} == {200}


def test_flask_under_gunicorn_lets_through_what_the_limit_says(flask_url: str) -> None:
    with httpx.Client(base_url=flask_url) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.get("/"), range(40)))
        statuses = Counter(answer.status_code for answer in answers)
        # One more drips in every two seconds, should the machine be that slow.
        assert 30 <= statuses[200] <= 33
        assert statuses[200] + statuses[429] == 40
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["ratelimit-policy"] == '"all";q=30;w=60'
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert refused.json()["rule"] == "all"
        assert {client.get("/health").status_code for _ in range(40)} == {200}


def test_flask_holds_each_name_to_three_attempts(flask_url: str) -> None:
    with httpx.Client(base_url=flask_url) as client:

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
                served(*QUOTA_SERVERS[framework]) as url,
                httpx.Client(base_url=url, headers={"X-User": "bob"}) as client,
            ):
                began = time.monotonic()
                statuses: Counter[int] = Counter()
                while time.monotonic() - began < 2.0:
                    statuses[client.get("/").status_code] += 1
                lasted = time.monotonic() - began
                assert set(statuses) == {200, 429}
                # Ten a second until the central has answered, and then five.
                assert 5 <= statuses[200] <= 5 * lasted + 20
                assert {client.get("/health").status_code for _ in range(20)} == {200}
                assert f'headgate_node_users{{node="{node_id}"' in client.get("/metrics").text
            usage = httpx.get(f"{central.url}/api/usage", params={"service": "front"}).json()
            [bob] = [user for user in usage["users"] if user["user"] == "bob"]
            assert bob["resources"]["requests"]["recorded"] == statuses[200]
            assert bob["resources"]["database_read"]["recorded"] == 3 * statuses[200]
    finally:
        Host.unlink(name_of_memory(node_id))


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
