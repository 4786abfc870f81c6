"""The nginx among the nodes of `sluicegate demo`, its client, and the demo without one."""

import asyncio
import io
import json
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sluicegate.cli import demo as demo_command
from sluicegate.demo import nginx, quota, quota_screen
from sluicegate.demo.nginx import INSTALL, Nginx, NginxProgram
from sluicegate.demo.nginx_client import NginxClient
from sluicegate.demo.quota import NodeView, QuotaDemo, StopFlag
from sluicegate.demo.quota_users import NODES, USERS, WORKERS
from sluicegate.demo.shared_counts import BIN_SECONDS
from sluicegate.demo.sparkline import BLOCKS, plain
from sluicegate.demo.traffic import Traffic
from sluicegate.demo.worker import LoadGenerator, WorkerPlan
from tests.harness.demo_command import folders_of, processes_of
from tests.harness.nginx import find_nginx
from tests.harness.waits import PATIENCE, wait_for

MOST_SECONDS = 120  # far beyond what a busy machine needs


# One run, in which a worker and then the master of nginx is killed


@dataclass
class NginxRun:
    views: list[NodeView] = field(default_factory=list)  # of nginx, at each step
    at_first: str = ""  # frames
    roomy: str = ""
    killed: int = 0  # process ids
    master: int = 0
    admitted: int = 0  # by nginx, after it was started again
    report: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"killed {self.killed} and {self.master}; nodes {self.views[-20:]}"


def admitted_by_nginx(demo: QuotaDemo) -> int:
    clients = demo._fleet.nodes[-1].workers
    bins = (each for client in clients for each in client.counts.bins(0, 60 * 20))
    return sum(admitted for users in bins for admitted, _ in users)


def kill_nginx(demo: QuotaDemo, run: NginxRun) -> Iterator[Callable[[], object]]:
    """Yields what the person waits for."""
    yield lambda: demo.recorded >= 1 and run.views[-1].reporter
    run.at_first = plain(quota_screen.frame(demo, None, 80, 24, BLOCKS))
    run.roomy = plain(quota_screen.frame(demo, None, 80, 60, BLOCKS))
    hint = re.search(r"kill -9 (\d+) +# nginx starts another$", run.roomy, re.M)
    assert hint is not None, run.roomy
    run.killed = int(hint[1])
    os.kill(run.killed, signal.SIGKILL)

    def is_replaced() -> bool:
        view = run.views[-1]
        is_there = len(view.workers) == WORKERS and view.reporter is not None
        return is_there and run.killed not in view.workers and view.restarts == 1

    yield is_replaced
    master = run.views[-1].master
    assert master is not None
    run.master = master
    os.kill(master, signal.SIGKILL)
    yield lambda: run.views[-1].master not in (None, master) and run.views[-1].state == "fresh"
    before = admitted_by_nginx(demo)
    yield lambda: admitted_by_nginx(demo) > before
    run.admitted = admitted_by_nginx(demo) - before


@pytest.fixture(scope="module")
def run() -> NginxRun:
    find_nginx()
    run, flag = NginxRun(), StopFlag()
    with QuotaDemo(flag) as demo:
        story = kill_nginx(demo, run)
        waits_for: list[Callable[[], object]] = []

        def look() -> None:
            run.views.append(demo.nodes()[-1])
            if not waits_for or waits_for[-1]():
                try:
                    waits_for.append(next(story))
                except StopIteration:
                    flag.set(signal.SIGINT)

        demo.run(MOST_SECONDS, look)
        run.report = json.loads(json.dumps(quota.report(demo, flag.number)))
    assert flag.is_set(), str(run)
    return run


def test_the_last_node_is_an_nginx(run: NginxRun) -> None:
    kinds = {node["node"]: node["kind"] for node in run.report["nodes"]}
    assert kinds == {"node-1": "python", "node-2": "python", "node-3": "nginx"}
    assert re.search(r"^nodes +node-1 \w+, node-2 \w+, node-3 \(nginx\) fresh$", run.at_first, re.M)
    first = next(view for view in run.views if view.reporter is not None)
    pids = "".join(
        f"{' and' if number else ''} {pid}{' (reports)' if pid == first.reporter else ''}"
        for number, pid in enumerate(first.workers)
    )
    assert f"node-3   fresh   nginx {first.master}, workers{pids}" in run.roomy.splitlines()


def test_another_worker_of_nginx_reports_when_one_is_killed(run: NginxRun) -> None:
    of_this_master = [view for view in run.views if view.master == run.master]
    assert any(view.reporter == run.killed for view in of_this_master), str(run)
    assert of_this_master[-1].reporter not in (None, run.killed), str(run)
    assert run.killed not in of_this_master[-1].workers, str(run)


def test_nginx_is_started_again_when_its_master_is_killed(run: NginxRun) -> None:
    assert any(view.master is None and view.workers == () for view in run.views), str(run)
    assert run.views[-1].master not in (None, run.master)
    assert run.views[-1].restarts == 2, str(run)
    assert run.admitted > 0


def test_what_to_try_with_nginx_is_on_a_large_screen(run: NginxRun) -> None:
    assert re.search(
        r'^  curl -iH "X-User: greedy" 127\.[\d.]+:\d+ +# 204, or 429$', run.roomy, re.M
    )
    assert max(map(len, run.roomy.splitlines())) <= 80, run.roomy
    assert "no nginx" not in run.roomy


def test_nothing_is_left_behind(run: NginxRun) -> None:
    assert folders_of(os.getpid()) == processes_of(os.getpid()) == []


# Without nginx


def hide_nginx(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setattr(nginx, "_FOLDERS", ())


def test_without_nginx_all_nodes_are_python_and_a_note_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_nginx(monkeypatch, tmp_path)
    terminal, printed = io.StringIO(), io.StringIO()
    console = Console(
        file=terminal, force_terminal=True, width=100, height=40, _environ={"TERM": "xterm"}
    )

    def ends() -> None:
        wait_for(lambda: "Try in another terminal" in terminal.getvalue(), 2 * PATIENCE)
        os.kill(os.getpid(), signal.SIGTERM)

    person = threading.Thread(target=ends, daemon=True)
    person.start()
    with redirect_stdout(printed):
        code = demo_command.run_quota(30.0, as_json=True, console=console)
    person.join(PATIENCE)
    assert code == 128 + signal.SIGTERM
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert f"no nginx with Lua found: {INSTALL}" in shown
    assert re.search(rf"^no nginx with Lua found, which .*\n{INSTALL} *$", shown, re.M), shown
    report = json.loads(printed.getvalue())
    assert [node["kind"] for node in report["nodes"]] == ["python"] * NODES
    assert [user["user"] for user in report["users"]] == [user.name for user in USERS]


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_an_nginx_without_lua_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_nginx(monkeypatch, tmp_path)
    assert nginx.find_nginx() is None
    script(tmp_path, "nginx", "echo 'configure arguments: --with-threads' >&2")
    assert nginx.find_nginx() is None
    script(tmp_path, "nginx", f"echo '--modules-path={tmp_path}' >&2")
    assert nginx.find_nginx() is None
    script(tmp_path, "nginx", "exit 1")
    assert nginx.find_nginx() is None


def test_lua_may_be_a_module_or_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_nginx(monkeypatch, tmp_path)
    script(tmp_path, "nginx", f"echo '--modules-path={tmp_path} --with-compat' >&2")
    modules = [tmp_path / name for name in ("ndk_http_module.so", "ngx_http_lua_module.so")]
    for module in modules:
        module.touch()
    assert nginx.find_nginx() == NginxProgram(str(tmp_path / "nginx"), modules)
    script(tmp_path, "nginx", "echo '--add-module=../ngx_lua-0.10.21' >&2")
    assert nginx.find_nginx() == NginxProgram(str(tmp_path / "nginx"), [])


def test_an_nginx_that_refuses_the_configuration_cannot_run(tmp_path: Path) -> None:
    script(tmp_path, "nginx", "exit 1")

    def make(folder: str, program: NginxProgram) -> Nginx:
        (tmp_path / folder).mkdir()
        return Nginx(
            tmp_path / folder,
            program,
            address="127.0.0.1:0",
            node="node-3",
            centrals=["http://127.0.0.1:1"],
            workers=WORKERS,
        )

    assert not make("refuses", NginxProgram(str(tmp_path / "nginx"), [])).can_run()
    assert not make("missing", NginxProgram(str(tmp_path / "no-such"), [])).can_run()


# The client

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def ask(handler: Handler, times: int = 1) -> list[bool | None]:
    """The answers of a server to requests, one after the other."""

    async def story() -> list[bool | None]:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with NginxClient(f"127.0.0.1:{port}") as client:
                return [
                    await client.ask("ann", {"requests": 1.0, "tokens": 8.0}) for _ in range(times)
                ]

    return asyncio.run(asyncio.wait_for(story(), PATIENCE))


def test_requests_are_asked_over_one_connection_while_none_waits() -> None:
    connections: list[list[bytes]] = []
    answers = [
        b"HTTP/1.1 204 No Content\r\nServer: n\r\n\r\n",
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 5\r\n\r\nlater",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
    ]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received: list[bytes] = []
        connections.append(received)
        for text in answers:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(text)
        await reader.read()
        writer.close()

    assert ask(answer, times=4) == [True, False, True, False]
    assert len(connections) == 1
    assert b"\r\nX-User: ann\r\n" in connections[0][0]
    assert b"\r\nX-Costs: requests=1 tokens=8\r\n" in connections[0][0]


def test_a_request_that_is_refused_late_counts_when_it_was_sent(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.15)  # three bins
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        plan = WorkerPlan(tmp_path, "n", 0, [], [Traffic("ann", 1.0)], nginx=address)
        begin = time.monotonic() - 0.5
        with plan.open_counts() as counts, NginxClient(address) as client:
            generator = LoadGenerator(client, counts, plan, begin)
            sent = time.monotonic() - begin
            generator.send(sent)
            await generator.finish()
            took = time.monotonic() - begin - sent
            refused = [number for number, users in enumerate(counts.bins(0, 60)) if users[0][1]]
        server.close()
        assert len(refused) == 1
        if took < 0.3:  # one that waits for longer counts at the end
            assert refused[0] <= int((sent + 0.1) / BIN_SECONDS), (sent, took, refused)

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


def test_a_request_whose_connection_is_lost_is_refused_and_the_next_has_a_new_one() -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections == 2:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    assert ask(answer, times=2) == [False, True]


def test_nobody_is_asked_where_nothing_listens() -> None:
    async def story() -> bool | None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with NginxClient(f"127.0.0.1:{port}") as client:
            return await client.ask("ann", {})

    assert asyncio.run(story()) is None
