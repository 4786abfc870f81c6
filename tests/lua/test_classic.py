"""The nginx node with an original central, which offers no subprotocol."""

import asyncio
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.harness.nginx import Nginx
from tests.harness.waits import PATIENCE, wait_for

SHARE = 8.0


class OriginalCentral:
    """Answers each report with the same share for the next slot."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        async with serve(self._answer, "127.0.0.1", 0) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._ready.set()
            await self._stop.wait()

    async def _answer(self, connection: ServerConnection) -> None:
        async for text in connection:
            report = json.loads(text)
            self.reports.append(report)
            users = {user for part in report["consumption"].values() for user in part} | {"ann"}
            shares = {user: {"requests": SHARE} for user in users if user != "stranger"}
            await connection.send(
                json.dumps({"front": {str(report["slot_number"] + 1): shares}, "other": {}})
            )

    def reported(self, kind: str, user: str) -> float:
        return sum(
            report[kind].get("front", {}).get(user, {}).get("requests", 0)
            for report in list(self.reports)
        )

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        self._loop.close()


@pytest.fixture(scope="module")
def central() -> Iterator[OriginalCentral]:
    central = OriginalCentral()
    yield central
    central.close()


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory, central: OriginalCentral) -> Iterator[Nginx]:
    folder: Path = tmp_path_factory.mktemp("nginx")
    http_block = f"""
    init_worker_by_lua_block {{
        require("throttle.node").init {{
            active_services = {{ "front" }},
            centrals = {{ "127.0.0.1:{central.port}" }},
            node_id = "classic-1",
            memory = "{folder}/memory",
        }}
    }}
    """
    server_block = """
    location / {
        access_by_lua_block {
            if not require("throttle.node").throttle("front", ngx.var.arg_user) then
                return ngx.exit(429)
            end
        }
        content_by_lua_block { ngx.say("ok") }
        log_by_lua_block {
            require("throttle.node").consume("front", ngx.var.arg_user, { requests = 1 })
        }
    }
    """
    with Nginx(folder, http=http_block, server=server_block, workers=2) as nginx:
        yield nginx


def _ask(nginx: Nginx, user: str, seconds: float) -> Counter[int]:
    """Requests without a pause: their status codes."""
    found: Counter[int] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=PATIENCE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.request("GET", f"/?user={user}")
        response = connection.getresponse()
        response.read()
        found[response.status] += 1
        time.sleep(0.01)
    connection.close()
    return found


def test_a_user_has_the_share_of_each_slot_and_no_more(
    nginx: Nginx, central: OriginalCentral
) -> None:
    wait_for(lambda: len(central.reports) > 1)
    began = time.monotonic()
    found = _ask(nginx, "ann", 3.5)
    lasted = time.monotonic() - began
    # Of each slot that it touches the share, and once what a node without any quota lets through.
    assert 2 * SHARE <= found[200] <= (lasted + 2) * SHARE + 20
    assert found[429] > 0
    assert set(found) == {200, 429}


def test_everything_is_reported_once(nginx: Nginx, central: OriginalCentral) -> None:
    consumed, rejected = (central.reported(kind, "bob") for kind in ("consumption", "rejection"))
    found = _ask(nginx, "bob", 2.5)
    wait_for(
        lambda: central.reported("consumption", "bob") - consumed == found[200],
        seen=lambda: (found, [report for report in central.reports if "bob" in str(report)]),
    )
    # Those that were refused before any share had come are in no report.
    assert 0 < central.reported("rejection", "bob") - rejected <= found[429]
    slots = [report["slot_number"] for report in central.reports]
    assert slots == sorted(set(slots))
    assert {report["node_id"] for report in central.reports} == {"classic-1"}


def test_a_user_without_a_share_is_not_unlimited(nginx: Nginx) -> None:
    began = time.monotonic()
    found = _ask(nginx, "stranger", 2.0)
    assert 10 <= found[200] <= 10 * (time.monotonic() - began + 2)
    assert found[429] > 0
