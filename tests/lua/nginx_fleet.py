"""End nodes of nginx under test, clients that send requests to them, and what a central has booked.

    with NginxNode(folder, [central.url], "web-1") as node, Clients(node, "ann") as clients:
        ...
    clients.admitted()

A node serves tests/lua/front.lua. Every request has a connection of its own: nginx may close one
that is idle at any time, at a reload above all, and any worker may get it.
"""

import asyncio
import http.client
import json
import math
import re
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.harness.nginx import Nginx
from tests.harness.waits import PATIENCE, wait_for

__all__ = ["Clients", "NginxNode", "Response", "assert_all_recorded", "wait_until_reported"]

_FOLDER = Path(__file__).parent
_AHEAD = 0.1  # seconds

_HTTP = """
lua_shared_dict counts 4m;
lua_socket_log_errors off;
{dict}
{more}
init_by_lua_block {{
    package.path = "{folder}/?.lua;" .. package.path
}}
init_worker_by_lua_block {{
    require("throttle.node").init {{ {options} }}
}}
"""
_SERVER = """
location / {
    access_by_lua_block { require("front").access() }
    content_by_lua_block { require("front").content() }
    log_by_lua_block { require("front").log() }
}
location = /wrong { content_by_lua_block { require("front").consume_wrong() } }
location = /many { content_by_lua_block { require("front").serve_many() } }
location = /delays { content_by_lua_block { require("front").show_delays() } }
location = /counts { content_by_lua_block { require("front").show_counts() } }
location = /keys { content_by_lua_block { require("front").show_keys() } }
location = /status { content_by_lua_block { require("front").show_status() } }
"""


class Response:
    """Of one request; without a status if there was none, and why."""

    def __init__(self, status: int, text: str, retry_after: str | None = None) -> None:
        self.status = status
        self.text = text
        self.retry_after = retry_after

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.text!r})"


class NginxNode(Nginx):
    """An nginx that is an end node. `options`: those of `node.init` beyond the usual, as Lua."""

    def __init__(
        self,
        folder: Path,
        centrals: Sequence[str],
        node_id: str,
        *,
        workers: int = 2,
        options: dict[str, str] | None = None,
        dict_size: str | None = "16m",
        http: str = "",
        server: str = "",
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.node_id = node_id
        urls = [url.replace("http", "ws", 1) for url in centrals]
        given = {
            "active_services": '{ "front" }',
            "shared_dict_name": '"throttle"',
            "centrals": "{ " + ", ".join(f'"{url}"' for url in urls) + " }",
            "node_id": f'"{node_id}"',
            "memory": f'"{folder}/memory"',
            **(options or {}),
        }
        super().__init__(
            folder,
            http=_HTTP.format(
                folder=_FOLDER,
                dict="" if dict_size is None else f"lua_shared_dict throttle {dict_size};",
                options=", ".join(f"{name} = {value}" for name, value in given.items() if value),
                more=http,
            ),
            server=_SERVER + server,
            workers=workers,
        )

    def get(self, path: str = "/", **arguments: object) -> Response:
        """Send one request and wait for its response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", _target(path, arguments), headers={"Connection": "close"})
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            return Response(response.status, text, response.headers.get("Retry-After"))
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        """What the worker that answers knows of the node."""
        return json.loads(self.get("/status").text)  # type: ignore[no-any-return]

    def counts(self, what: str) -> dict[str, float]:
        """By user: how many requests were `admitted`, or what those that ended have `consumed`."""
        found = json.loads(self.get("/counts").text)
        start = what + " "
        return {key.removeprefix(start): found[key] for key in found if key.startswith(start)}

    def consumed(self, user: str) -> float:
        return self.counts("consumed").get(user, 0.0)

    def keys(self) -> dict[str, float]:
        """What the node shows in its dict."""
        return json.loads(self.get("/keys").text)  # type: ignore[no-any-return]

    def reporter(self) -> int | None:
        """The worker that reports, if it is known. Every worker knows only of itself."""
        for _ in range(50 * len(self.worker_pids())):
            status = self.status()
            if status.get("is_reporting"):
                return int(status["pid"])
        return None

    def is_connected(self) -> bool:
        """Whether a leader is heard."""
        status = self.status()
        return bool(status["is_initialised"]) and not status["is_alone"]

    def wait_until_connected(self) -> None:
        wait_for(self.is_connected, seen=lambda: self.errors)

    def log_lines(self, text: str) -> list[str]:
        """The lines of the error log that contain a text."""
        return [line for line in self.errors.splitlines() if text in line]


class Clients:
    """Clients that ask for one user again and again, in a thread, from `with` to its end.

    `count` of them, each with `pause` seconds between a response and the next request. With `once`
    each of them asks once.
    """

    def __init__(
        self,
        node: NginxNode,
        user: str,
        *,
        count: int = 4,
        pause: float = 0.02,
        once: bool = False,
        **arguments: object,
    ) -> None:
        self.responses: list[tuple[float, int, str]] = []  # when it came, status, why there is none
        self._node = node
        self._target = _target("/", {"user": user, **arguments})
        self._count = count
        self._pause = pause
        self._once = once
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "a client waits for its response"

    def admitted(self, begin: float = 0.0, end: float = math.inf) -> int:
        """How many were admitted between two moments of the monotonic clock."""
        return sum(status == 200 and begin <= at < end for at, status, _ in self.responses)

    def statuses(self) -> Counter[int]:
        return Counter(status for _, status, _ in self.responses)

    def failures(self) -> list[str]:
        """What was neither admitted nor refused."""
        return [f"{status} {why}" for _, status, why in self.responses if status not in (200, 429)]

    async def _run(self) -> None:
        await asyncio.gather(*(self._ask_again_and_again() for _ in range(self._count)))

    async def _ask_again_and_again(self) -> None:
        while not self._is_over.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    status, why = await self._ask()
            except (OSError, EOFError, TimeoutError) as error:
                status, why = 0, repr(error)
            self.responses.append((time.monotonic(), status, why))
            if self._once:
                return
            await asyncio.sleep(self._pause)

    async def _ask(self) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._node.port)
        try:
            head = f"GET {self._target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            text = (await reader.read()).decode(errors="replace")
        finally:
            writer.close()
        found = re.match(r"HTTP/1\.1 (\d+) ", text)
        return (int(found[1]), "") if found else (0, f"no response: {text!r}")


class Books(Protocol):
    """A central: what it has booked."""

    def recorded(self, user: str) -> float: ...

    def get(self, path: str) -> Any: ...


def wait_until_reported(central: Books, nodes: Iterable[str]) -> None:
    """Until the central has booked everything that nodes have counted up to now."""
    # The clocks of nodes, which ask the central for the time, may be ahead by a moment.
    slot = math.floor(time.time() + _AHEAD)

    def missing() -> dict[str, int | None]:
        last = {one["name"]: one["last_slot"] for one in central.get("/api/nodes")["nodes"]}
        return {node: last.get(node) for node in nodes if (last.get(node) or -1) < slot}

    wait_for(lambda: not missing(), seen=lambda: f"expected {slot}, found {missing()}")


def assert_all_recorded(
    central: Books, user: str, nodes: Sequence[NginxNode], admitted: Callable[[], float]
) -> None:
    """All that clients were admitted for is booked, and nothing else."""
    # A worker counts a request after the client has its response.
    wait_for(lambda: sum(node.consumed(user) for node in nodes) == admitted())
    wait_until_reported(central, [node.node_id for node in nodes])
    assert central.recorded(user) == admitted()


def _target(path: str, arguments: dict[str, object]) -> str:
    return path + "?" + urllib.parse.urlencode(arguments)
