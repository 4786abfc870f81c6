"""The examples do what their first lines say: with real servers, so in real time."""

import contextlib
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

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def flask_url() -> Iterator[str]:
    """examples/flask_app.py under gunicorn, as its docstring starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["--threads", "8", "--bind", address, "examples.flask_app:create_app()"]
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = f"http://{address}"
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
