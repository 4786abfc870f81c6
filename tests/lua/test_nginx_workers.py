"""Workers of an nginx that is an end node: reloaded, killed and stopped under load.

What clients were admitted for, or what nginx has counted beside the node, is what a real central
has booked, to the unit.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.demo.process import stop
from tests.harness.lateness import Lateness
from tests.harness.nginx import find_luajit
from tests.harness.waits import PATIENCE, wait_for
from tests.lua.nginx_fleet import (
    Clients,
    NginxNode,
    assert_all_recorded,
    wait_until_reported,
)
from tests.system.fleet import CentralUnderTest, toml

LIMIT = 60.0
TAKE_OVER_SECONDS = 1.0  # another worker tries for the lock five to ten times a second


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CentralUnderTest]:
    central = CentralUnderTest(tmp_path_factory.mktemp("central"), toml(("*", LIMIT, 1.0)))
    central.start()
    try:
        wait_for(central.is_listening, seen=central.last_output)
        yield central
    finally:
        stop([central], PATIENCE)


def wait_for_reporter(node: NginxNode, *, other_than: int | None = None) -> int:
    def found() -> int | None:
        pid = node.reporter()
        return None if pid == other_than else pid

    return int(wait_for(found, seen=lambda: node.errors))


@pytest.mark.parametrize("workers", [2, 4])
def test_reloads_under_load_fail_no_request_and_lose_no_count(
    tmp_path: Path, central: CentralUnderTest, workers: int
) -> None:
    name = f"reloaded-{workers}"
    with NginxNode(tmp_path / "node", [central.url], name, workers=workers) as node:
        node.wait_until_connected()
        with Clients(node, name) as clients:
            first = wait_for_reporter(node)
            for _ in range(3):
                time.sleep(0.3)  # requests come all the time
                node.reload()
            second = wait_for_reporter(node)
            assert second != first
            assert second in node.worker_pids()
            admitted = clients.admitted()
            wait_for(lambda: clients.admitted() > admitted)
        assert clients.failures() == []
        assert_all_recorded(central, name, [node], clients.admitted)
        assert "error" not in node.errors


@pytest.mark.parametrize("is_reporting", [True, False])
def test_a_killed_worker_loses_its_own_requests_and_no_count(
    tmp_path: Path, central: CentralUnderTest, is_reporting: bool
) -> None:
    name = f"killed-{is_reporting}"
    count = 4
    with (
        NginxNode(tmp_path / "node", [central.url], name, workers=2) as node,
        Lateness() as lateness,
    ):
        node.wait_until_connected()
        with Clients(node, name, count=count) as clients:
            time.sleep(0.5)
            reporter = wait_for_reporter(node)
            other = next(pid for pid in node.worker_pids() if pid != reporter)
            node.kill_worker(reporter if is_reporting else other)
            dead = time.monotonic()
            if is_reporting:
                wait_for_reporter(node, other_than=reporter)
                now = time.monotonic()
                assert now - dead <= TAKE_OVER_SECONDS + lateness.between(dead, now)
            else:
                assert wait_for_reporter(node) == reporter
            admitted = clients.admitted()
            wait_for(lambda: clients.admitted() > admitted)
        # Each client had one request at most on its way to the worker, or on it.
        assert len(clients.failures()) <= count, clients.failures()
        counted = node.counts("admitted")[name]
        consumed = node.consumed(name)
        assert consumed <= counted <= consumed + count
        wait_until_reported(central, [name])
        # It may have been killed between the call of consume and the count beside it.
        assert node.consumed(name) <= central.recorded(name) <= node.consumed(name) + count
        assert clients.admitted() <= central.recorded(name)


def test_a_worker_that_is_killed_again_and_again_is_replaced(
    tmp_path: Path, central: CentralUnderTest
) -> None:
    name, kills, count = "killed-often", 6, 3
    with NginxNode(tmp_path / "node", [central.url], name, workers=3) as node:
        node.wait_until_connected()
        with Clients(node, name, count=count, pause=0.005) as clients:
            for _ in range(kills):
                node.kill_worker(node.worker_pids()[0])
            admitted = clients.admitted()
            wait_for(lambda: clients.admitted() > admitted)
        assert len(clients.failures()) <= kills * count, clients.failures()
        wait_for_reporter(node)
        wait_until_reported(central, [name])
        consumed = node.consumed(name)
        assert consumed <= central.recorded(name) <= consumed + kills * count


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_nginx_that_is_stopped_gracefully_leaves(
    tmp_path: Path, central: CentralUnderTest, workers: int
) -> None:
    name = f"stopped-{workers}"
    with NginxNode(tmp_path / "node", [central.url], name, workers=workers) as node:
        node.wait_until_connected()
        for _ in range(10):
            assert node.get(user=name).status == 200
        node.quit()
        assert_has_left(central, name)
        assert central.recorded(name) == 10


def test_requests_that_end_while_nginx_stops_are_booked(
    tmp_path: Path, central: CentralUnderTest
) -> None:
    name, count = "slow", 8
    with NginxNode(tmp_path / "node", [central.url], name, workers=2) as node:
        node.wait_until_connected()
        with Clients(node, name, count=count, sleep=1.0, once=True) as clients:
            wait_for(lambda: node.counts("admitted").get(name) == count)
            assert node.consumed(name) == 0
            node.quit()
        assert clients.statuses() == {200: count}
        assert_has_left(central, name)
        assert central.recorded(name) == count


@pytest.mark.parametrize("is_graceful", [True, False])
def test_an_nginx_that_is_started_again_goes_on_with_its_counts(
    tmp_path: Path, central: CentralUnderTest, is_graceful: bool
) -> None:
    name = f"restarted-{is_graceful}"
    admitted = 0
    with NginxNode(tmp_path / "node", [central.url], name) as node:
        for life in range(2):
            if life > 0:
                node.start()
            node.wait_until_connected()
            for _ in range(10):
                admitted += node.get(user=name).status == 200
            if is_graceful:
                node.quit()
            node.stop()
        node.start()
        node.wait_until_connected()
        wait_until_reported(central, [name])
        assert central.recorded(name) == admitted > 0


def test_a_node_that_has_left_has_no_credit_to_come_back_with(
    tmp_path: Path, central: CentralUnderTest
) -> None:
    """The central has given it to others."""
    name = "returned"
    with NginxNode(tmp_path / "node", [central.url], name) as node:
        node.wait_until_connected()
        with Clients(node, name) as clients:
            wait_for(lambda: clients.admitted() >= 20)
        node.quit()
    script = Path(__file__).with_name("audit_memory.lua")
    done = subprocess.run(
        [find_luajit(), script, tmp_path / "node" / "memory", name, "1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    cell = json.loads(done.stdout)["users"][name]["requests"]
    assert cell["consumed"] == clients.admitted()
    assert cell["granted"] > 0
    assert cell["granted"] - cell["returned"] - cell["consumed"] < 1e-6


def test_a_central_that_cannot_be_reached_does_not_delay_the_next_reporter(
    tmp_path: Path, central: CentralUnderTest
) -> None:
    """The old worker is still connecting to that central when it is to hand over."""
    name = "handed-over"
    with (
        black_hole() as url,
        NginxNode(tmp_path / "node", [central.url, url], name) as node,
        Lateness() as lateness,
    ):
        node.wait_until_connected()
        first = wait_for_reporter(node)
        node.reload()
        begin = time.monotonic()
        assert wait_for_reporter(node) != first
        node.wait_until_connected()
        end = time.monotonic()
        assert end - begin <= TAKE_OVER_SECONDS + lateness.between(begin, end)


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """The URL of a server that does not answer: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_stopped_reporter_leaves_the_others_their_safe_shares(
    tmp_path: Path, central: CentralUnderTest
) -> None:
    name, seconds = "stopped", 3.5
    with NginxNode(tmp_path / "node", [central.url], name, workers=3) as node:
        node.wait_until_connected()
        with Clients(node, name) as clients:
            time.sleep(0.5)
            reporter = wait_for_reporter(node)
            os.kill(reporter, signal.SIGSTOP)
            try:
                begin = time.monotonic()
                time.sleep(seconds)
                end = time.monotonic()
            finally:
                os.kill(reporter, signal.SIGCONT)
            node.wait_until_connected()
            admitted = clients.admitted()
            wait_for(lambda: clients.admitted() > admitted)
        # What a node holds passes first, then two slots without news, then the safe share.
        assert 1 <= clients.admitted(begin + 1, end) <= LIMIT * (end - begin + 1)
        assert clients.failures() == []
        assert_all_recorded(central, name, [node], clients.admitted)


def assert_has_left(central: CentralUnderTest, name: str) -> None:
    """It said so in its last report, which the central has booked before nginx ended."""
    said = [
        line for line in central.output().splitlines() if f"node disconnected: '{name}'" in line
    ]
    assert said, central.output()
    assert "the node left" in said[-1]


def test_workers_of_a_reload_without_a_central_know_its_limits(tmp_path: Path) -> None:
    """New users have the share of newcomers. The fallback may be more than the limit."""
    central = CentralUnderTest(tmp_path, toml(("*", 1.0, 1.0)))
    central.start()
    wait_for(central.is_listening, seen=central.last_output)
    with NginxNode(tmp_path / "node", [central.url], "reloaded") as node:
        try:
            node.wait_until_connected()
            wait_for(lambda: node.get(user="first").status == 200)
        finally:
            stop([central], PATIENCE)
        wait_for(lambda: node.status()["is_alone"])
        node.reload()
        begin, admitted = time.monotonic(), 0
        while time.monotonic() < begin + 3.0:  # the next reporter has published a window by then
            admitted += node.get(user="second").status == 200
            time.sleep(0.01)
        assert node.status()["is_alone"]
        assert admitted <= time.monotonic() - begin + 3.0  # one per second, not ten
