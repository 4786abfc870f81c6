"""The whole node in real processes and threads, with a central it can lose and find again."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sluicegate import ManualClock, Node, Throttled
from sluicegate.errors import ConfigError
from sluicegate.quota import Entry
from sluicegate.quota.node import EndNodeStatus
from sluicegate.quota.node.reporter_lock import ReporterLock
from sluicegate.quota.node.reporter_thread import ReporterThread
from tests.harness.waits import PATIENCE, Output, wait_for

MakeCentral = Callable[..., Any]
MakeNode = Callable[..., Node]

REPORT = """
import sys
import threading
from sluicegate import Node
node = Node(sys.argv[1], node_id="web", services=["front"], shared=sys.argv[2])
node.start()
node.consume("front", "ann", {"requests": 5})
print("started", flush=True)
sys.stdin.read()
"""

FORK = r"""
import os, sys, time
from sluicegate import Node

def tell(who):  # in one piece: both write there
    os.write(1, f"{who} {os.getpid()} {node.status().is_reporting}\n".encode())

node = Node(sys.argv[1], node_id="web", services=["front"], shared=sys.argv[2])
node.start()
while not (node.status().centrals and node.status().centrals[0].is_connected):
    time.sleep(0.005)
if os.fork() == 0:
    tell("child")
    while not node.status().is_reporting:
        time.sleep(0.005)
    node.consume("front", "child", {"requests": 7})
    sys.stdin.read()
    node.close()
    os._exit(0)
tell("parent")
sys.stdin.read()
"""

EXIT = """
import sys
from sluicegate import Node
def serve():
    node = Node(sys.argv[1], node_id="web", services=["front"], shared=sys.argv[2])
    node.start()
    return node.consume
consume = serve()
if sys.argv[3] == "later":
    sys.stdin.readline()
consume("front", "ann", {"requests": 5})
sys.exit(3)
"""

EXIT_OF_FORKS = """
import gc, os, sys
from sluicegate import Node
def serve():
    node = Node(sys.argv[1], node_id="web", services=["front"], shared=sys.argv[2])
    node.start()
    return node.consume
consume = serve()
gc.collect()
for user in ("ann", "bob", "cid"):
    if os.fork() == 0:
        consume("front", user, {"requests": 5})
        sys.exit()  # as workers of gunicorn do
for _ in range(3):
    os.wait()
"""


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., Node]:
    def make(central: Any) -> Node:
        shared = str(tmp_path / "memory")
        return Node(central.url, node_id="web", services=["front"], shared=shared)

    return make


def is_connected(node: Node) -> bool:
    return any(central.is_connected for central in node.status().centrals)


@contextmanager
def python(
    code: str, *arguments: str, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it forked, too


def test_a_user_gets_his_share_from_the_central_and_no_more(
    make_central: MakeCentral, make_node: MakeNode
) -> None:
    central = make_central(Entry("front", "ann", rates={"requests": 50.0}, burst_seconds=1.0))
    with make_node(central) as node:
        node.allows("front", "ann")  # so that he is introduced

        def fresh() -> EndNodeStatus | None:
            status = node.status()
            is_fresh = status.quota is not None and status.quota.state == "fresh"
            return status if is_fresh and status.users == {"front": {"fresh": 1}} else None

        status = wait_for(fresh, seen=node.status)
        assert status.is_reporting
        assert status.reporter_pid == os.getpid()
        assert status.leader == node.centrals[0]
        # The first grant may be for the request above, if that passed as a newcomer's: ask again.
        wait_for(lambda: node.allows("front", "ann", {"requests": 1.0}), seen=node.status)
        node.consume("front", "ann", {"requests": 1.0})
        admitted = 1
        with pytest.raises(Throttled) as refused:
            while admitted < 1000:
                node.throttle("front", "ann", {"requests": 1.0})
                node.consume("front", "ann", {"requests": 1.0})
                admitted += 1
        # 50 in each slot, however many have passed meanwhile, and a burst of 50.
        assert admitted <= 50 * (node.status().slot - status.slot + 2)
        assert (refused.value.service, refused.value.resource) == ("front", "requests")
        assert "sluicegate_node_connected" in node.metrics()


def test_nothing_that_was_consumed_while_the_central_was_away_is_lost(
    make_central: MakeCentral, make_node: MakeNode
) -> None:
    central = make_central()
    with make_node(central) as node:
        node.consume("front", "ann", {"requests": 3.0})
        wait_for(lambda: central.consumed("front", "ann", "requests") == 3.0)
        central.stop()
        wait_for(lambda: not is_connected(node))
        node.consume("front", "ann", {"requests": 4.0})
        wait_for(lambda: node.status().centrals[0].failures >= 2)
        central.start()
        node.consume("front", "ann", {"requests": 5.0})
        wait_for(lambda: central.consumed("front", "ann", "requests") == 12.0)
        assert node.status().centrals[0].connections == 2


def test_requests_do_not_wait_for_a_central_that_is_not_there(
    tmp_path: Path, clock: ManualClock
) -> None:
    shared = str(tmp_path / "memory")
    with Node(
        "ws://127.0.0.1:9", node_id="web", services=["front"], shared=shared, clock=clock
    ) as node:
        began = time.monotonic()
        admitted = sum(node.allows("front", "ann") for _ in range(1000))
        assert time.monotonic() - began < 20.0  # they take 2 ms: none waits for as long as that
        assert admitted == 10  # the fallback of one slot
        status = node.status()
        assert (status.leader, status.quota_age) == (None, None)
        assert status.quota is not None
        assert status.quota.state == "none"


def test_the_last_to_close_says_that_the_node_leaves(
    make_central: MakeCentral, make_node: MakeNode, tmp_path: Path
) -> None:
    central = make_central()
    first, second = make_node(central), make_node(central)
    first.start()
    wait_for(lambda: is_connected(first))
    second.start()
    assert not second.status().is_reporting
    assert second.status().reporter_pid == os.getpid()
    assert 'sluicegate_node_reporting{node="web"} 0\n' in second.metrics()
    first.consume("front", "ann", {"requests": 1.0})
    slot = first.status().slot
    status = second.status()  # what stands in the memory that both share
    assert sum(status.users["front"].values()) == 1
    assert slot <= status.slot <= first.status().slot
    assert status.centrals == ()
    first.close()
    wait_for(lambda: second.status().is_reporting and is_connected(second))
    assert not any(report.leaving for report in central.reports)
    second.close()
    assert central.reports[-1].leaving


def test_a_worker_is_present_before_its_thread_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a sibling that exits meanwhile would take itself for the last."""
    runs = threading.Event()
    main = ReporterThread._main

    def main_when_it_runs(thread: ReporterThread) -> None:
        runs.wait(PATIENCE)
        main(thread)

    monkeypatch.setattr(ReporterThread, "_main", main_when_it_runs)
    shared = str(tmp_path / "memory")
    with Node("ws://127.0.0.1:9", node_id="web", services=["front"], shared=shared):
        sibling = ReporterLock(f"{shared}.lock")
        assert sibling.enter()
        assert not sibling.take_if_last()
        sibling.release()
        runs.set()


def test_a_good_bye_waits_for_a_central_that_pauses(
    make_central: MakeCentral, make_node: MakeNode
) -> None:
    central = make_central()
    central.pause(1.2)
    with make_node(central) as node:
        node.consume("front", "ann", {"requests": 5.0})
    wait_for(lambda: central.reports and central.reports[-1].leaving)
    assert central.consumed("front", "ann", "requests") == 5.0


def test_one_that_never_reported_says_it_if_it_is_the_last(
    make_central: MakeCentral, make_node: MakeNode, tmp_path: Path
) -> None:
    central = make_central()
    first, second = make_node(central), make_node(central)
    first.start()
    wait_for(lambda: is_connected(first))
    second.start()
    wait_for(lambda: second.status().is_started)
    first.close()
    second.close()  # before its next try for the lock, as a rule
    assert central.reports[-1].leaving


def test_another_process_goes_on_when_the_one_that_reports_is_killed(
    make_central: MakeCentral,
    make_node: MakeNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps = []
    pause = ReporterThread._pause

    async def noted_pause(thread: ReporterThread, seconds: float) -> None:
        naps.append(seconds)
        await pause(thread, seconds)

    monkeypatch.setattr(ReporterThread, "_pause", noted_pause)
    central = make_central()
    shared = str(tmp_path / "memory")
    with python(REPORT, central.url, shared) as other:
        assert other.stdout is not None
        Output(other.stdout).wait_for("started")
        wait_for(lambda: central.connections == 1)
        with make_node(central) as node:
            status = node.status()
            assert (status.is_reporting, status.reporter_pid) == (False, other.pid)
            other.send_signal(signal.SIGKILL)
            node.consume("front", "ann", {"requests": 6})
            wait_for(lambda: node.status().is_reporting and is_connected(node))
            # As reports of one life of the counters: nothing is lost, nothing counted twice.
            wait_for(lambda: central.consumed("front", "ann", "requests") == 11.0)
            assert len({report.boot for report in central.reports}) == 1
        assert 0.0 < max(naps) <= 0.2  # how long it takes, on a machine that has time for it


def test_a_worker_that_does_not_report_waits_for_what_the_one_that_does_is_told(
    make_central: MakeCentral, make_node: MakeNode, tmp_path: Path
) -> None:
    thin = Entry("front", "*", rates={"requests": 1.0}, burst_seconds=5.0)
    central = make_central(thin)
    with python(REPORT, central.url, str(tmp_path / "memory")) as other:
        assert other.stdout is not None
        Output(other.stdout).wait_for("started")
        with make_node(central) as node:
            wait_for(lambda: node._user_table.header.wait_seconds > 0.0)
            users = (f"user-{number}" for number in range(1000))

            def has_passed_after_a_wait() -> bool:
                before = node.status().waits
                passed = node.allows("front", next(users), {"requests": 1.0}, wait=None)
                return passed and node.status().waits > before

            wait_for(has_passed_after_a_wait, seen=node.status)
            assert not node.status().is_reporting


def test_a_child_of_a_fork_reports_for_itself_when_its_parent_dies(
    make_central: MakeCentral, tmp_path: Path
) -> None:
    central = make_central()
    with python(FORK, central.url, str(tmp_path / "memory")) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        output = Output(parent.stdout)
        assert output.wait_for("parent") == f"parent {parent.pid} True\n"
        assert output.wait_for("child").split()[2] == "False"
        parent.send_signal(signal.SIGKILL)
        wait_for(lambda: central.consumed("front", "child", "requests") == 7.0)
        # The child has let go of its parent's socket, or the first would seem to live on.
        wait_for(lambda: central.connections == 1)
        parent.stdin.close()  # the child reads its end
        wait_for(lambda: central.reports[-1].leaving)
        output.text()  # it has ended: nobody has the other end of the pipe any more


def test_a_node_is_of_use_in_an_event_loop(make_central: MakeCentral, make_node: MakeNode) -> None:
    central = make_central()

    async def story() -> None:
        async with make_node(central) as node:
            await asyncio.to_thread(wait_for, lambda: is_connected(node))
            assert node.allows("front", "ann")

    asyncio.run(story())
    wait_for(lambda: central.connections == 0)
    assert central.reports[-1].leaving


@pytest.mark.parametrize("bad", ["\udc80", "ü" * 100 + "\ud800"])
def test_a_name_that_no_frame_can_carry_is_refused_and_holds_up_nobody(
    make_central: MakeCentral, make_node: MakeNode, bad: str
) -> None:
    # One such user once stopped the reports of all others.
    central = make_central()
    with make_node(central) as node:
        for name, amounts in ((bad, {"requests": 1.0}), ("ann", {bad: 1.0})):
            with pytest.raises(ValueError, match="must"):
                node.consume("front", name, amounts)
        with pytest.raises(ValueError, match="user must be encodable as UTF-8"):
            node.allows("front", bad)
        with pytest.raises(ValueError, match="service must"):
            node.allows(bad, "ann")
        node.consume("front", "ann", {"requests": 2.0})
        wait_for(lambda: central.consumed("front", "ann", "requests") == 2.0)


def test_a_closed_node_is_over(make_central: MakeCentral, make_node: MakeNode) -> None:
    node = make_node(make_central())
    assert repr(node).endswith("node_id='web', not started)")
    assert not node.status().is_started
    node.start()
    node.start()
    assert repr(node).endswith("node_id='web', started)")
    node.close()
    node.close()
    with pytest.raises(RuntimeError, match="node 'web' is closed"):
        node.start()


def test_its_verbs_are_the_user_tables_own(tmp_path: Path) -> None:
    shared = str(tmp_path / "memory")
    node = Node("ws://127.0.0.1:9", node_id="web", services=["front"], shared=shared)
    assert vars(node)["allows"] == node._user_table.allows
    assert vars(node)["throttle"] == node._user_table.throttle
    assert vars(node)["consume"] == node._user_table.consume
    node.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"services": "front"}, TypeError, "services must be a list of names"),
        ({"services": []}, ValueError, "services must name at least one"),
        ({"services": ["x" * 51]}, ValueError, "service must have 1 to 50 bytes"),
        ({"node_id": ""}, ValueError, "node_id must have 1 to 200 bytes"),
        ({"node_id": "\udc80"}, ValueError, "node_id must be encodable as UTF-8"),
        ({"node_id": 7}, TypeError, "node_id must be a str, got 7"),
        ({"token": "two words"}, ValueError, "token must be"),
        ({"slot_seconds": 0.0}, ValueError, "slot_seconds"),
        ({"ca_file": "ca.pem"}, ValueError, "ca_file requires a wss://"),
        ({"centrals": "wss://a", "ca_file": "/no/such.pem"}, ConfigError, "cannot load ca_file"),
        ({"centrals": []}, ValueError, "centrals must be one or more URLs"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    usual = {"centrals": "ws://127.0.0.1:9", "node_id": "web", "services": ["front"]}
    usual["shared"] = str(tmp_path / "memory")
    with pytest.raises(error, match=message):
        Node(**usual | options)


def test_a_node_that_many_threads_start_has_one_thread_of_its_own(tmp_path: Path) -> None:
    def reporting() -> int:
        return sum(thread.name == "sluicegate-node" for thread in threading.enumerate())

    for _ in range(10):
        shared = str(tmp_path / "memory")
        node = Node("ws://127.0.0.1:9", node_id="web", services=["front"], shared=shared)
        together = threading.Barrier(8)

        def start(node: Node = node, together: threading.Barrier = together) -> None:
            together.wait(PATIENCE)
            node.start()

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert reporting() == 1
        node.close()
        assert reporting() == 0


@pytest.mark.parametrize("when", ["later", "at once"])
def test_a_worker_that_exits_without_close_reports_first(
    make_central: MakeCentral, tmp_path: Path, when: str
) -> None:
    """Also when nobody holds the node any more, and when it had no connection yet."""
    central = make_central()
    url = central.url.replace("127.0.0.1", "localhost")
    with python(EXIT, url, str(tmp_path / "memory"), when) as process:
        if when == "later":
            wait_for(lambda: central.reports)
        process.communicate("go\n", timeout=PATIENCE)
        assert process.returncode == 3
    wait_for(lambda: central.consumed("front", "ann", "requests") == 5.0)
    assert central.reports[-1].leaving


def test_the_last_of_forked_workers_that_exit_reports_for_all(
    make_central: MakeCentral, tmp_path: Path
) -> None:
    central = make_central()
    url = central.url.replace("127.0.0.1", "localhost")
    with python(EXIT_OF_FORKS, url, str(tmp_path / "memory")) as process:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    users = ("ann", "bob", "cid")
    wait_for(lambda: all(central.consumed("front", u, "requests") == 5.0 for u in users))
    assert [report.leaving for report in central.reports].count(True) == 1


def test_an_exit_does_not_wait_long_for_a_central_that_is_not_there(tmp_path: Path) -> None:
    patient = (
        "from sluicegate.quota.node import reporter_thread\nreporter_thread.LEAVE_TIMEOUT = 600.0\n"
    )
    arguments = ("ws://127.0.0.1:9", str(tmp_path / "memory"), "at once")
    with python(patient + EXIT, *arguments, stderr=subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "Connect call failed" in errors
    assert "did not stop within" not in errors
