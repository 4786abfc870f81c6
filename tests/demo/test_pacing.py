"""`sluicegate demo pacing`: real processes over a real Redis, threads, and its screen."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.text import Text

from sluicegate.demo.pacing import BUDGET, PacingDemo, checks, report
from sluicegate.demo.pacing_fleet import _NodeThread
from sluicegate.demo.pacing_node import NodeStatus
from sluicegate.demo.pacing_screen import frame, show, summary
from sluicegate.demo.quota import StopFlag
from sluicegate.demo.sparkline import BLOCKS, plain
from tests.harness.servers import find_redis_server
from tests.harness.waits import PATIENCE, wait_for

SECONDS = 10


@pytest.fixture
def demo() -> Iterator[PacingDemo]:
    """Not started: what it has recorded is set by the test."""
    demo = PacingDemo(SECONDS, StopFlag(), in_memory=True)
    yield demo
    demo._fleet.close()


def test_four_processes_spend_the_budget_over_redis() -> None:
    find_redis_server()
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate", "demo", "pacing", "--seconds", str(SECONDS), "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS + 2 * PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["store"], found["seconds"]) == ("Redis", SECONDS)
    assert done.returncode == (0 if found["held"] else 1)
    assert [event.partition(": ")[2] for event in found["events"]] == [
        "most of the traffic moves to node-1",
        "node-3 is killed",
        "node-3 is started again",
    ]
    # However busy the machine is: it cannot let more pass. What the killed node passed since its
    # last sync is not known to the others.
    target = found["target"]
    assert target == BUDGET * SECONDS
    assert sum(found["per_second"]["passed"]) == found["passed"] <= 1.02 * target
    assert found["passed"] >= 0.5 * target
    assert found["unsynced"] >= 0
    assert all(node["passed"] > 0 for node in found["nodes"])
    assert len(found["per_second"]["line"]) == SECONDS
    assert found["per_second"]["line"][-1] == target


def test_threads_share_a_budget_where_there_is_no_redis() -> None:
    flag = StopFlag()
    with PacingDemo(60, flag, in_memory=True) as demo:
        assert demo.store == "memory"
        begin = demo._fleet.begin

        def is_known() -> bool:
            demo.step(time.monotonic() - begin)
            return len(demo.passed) >= 3

        wait_for(is_known, seen=demo.nodes)
        assert all(node.status is not None and node.status.pid for node in demo.nodes())
        assert all(demo.by_node)
        demo._fleet.nodes[2].kill()
        assert [node.status is None for node in demo.nodes()] == [False, False, True, False]
        assert "dead" in frame(demo, 80, BLOCKS)
        demo._fleet.nodes[2].start()
        assert demo.nodes()[2].status is not None
        folder = demo._fleet.folder
        assert folder.exists()
        assert not report(demo)["held"]  # it was not run to its end
    assert not folder.exists()


def test_the_passes_that_a_killed_node_has_not_synced_are_counted() -> None:
    with PacingDemo(60, StopFlag(), in_memory=True) as demo:
        nodes = [node for node in demo._fleet.nodes if isinstance(node, _NodeThread)]
        victim = nodes[2]
        wait_for(lambda: victim.record.status().synced > 0, seen=victim.record.status)
        assert demo.unsynced is None
        thread = victim._thread
        assert thread is not None
        demo.step(36.0)
        assert demo.events[-1] == "36 s: node-3 is killed"
        thread.join(PATIENCE)  # it tries in vain for some seconds to sync
        demo.step(45.0)
        assert demo.events[-1] == "45 s: node-3 is started again"
        for node in nodes:
            node.stop()
        passed = sum(node.record.passed() for node in nodes)
        counters = victim._shared._clusters["demo"].counters
        (known,) = [one.sum for key, one in counters.items() if key[0] == "budget:pass"]
        assert demo.unsynced is not None
        assert 0 <= passed - known <= demo.unsynced < passed


def test_the_table_keeps_its_figures_when_the_traffic_has_ended() -> None:
    with PacingDemo(4, StopFlag(), in_memory=True) as demo:
        demo.run()
        shown = demo.nodes()
        end = demo._fleet.begin + demo.seconds
        time.sleep(max(end + 2.0 - time.monotonic(), 0.0))  # some syncs without any traffic
        assert demo.nodes() == shown
    statuses = [node.status for node in shown if node.status is not None]
    assert len(statuses) == 4
    assert all(status.pass_rate > 0.0 for status in statuses)
    assert sum(status.share for status in statuses) > 0.5


@pytest.mark.parametrize(
    ("passed", "missed"),
    [
        ([BUDGET] * SECONDS, []),
        ([BUDGET] * 9 + [BUDGET + 40], ["over"]),
        ([BUDGET] * 9 + [BUDGET - 120], ["under"]),
        ([2 * BUDGET, 0] * 5, ["off the line"]),
        ([0] * 5 + [2 * BUDGET] * 5, ["off the line"]),
    ],
)
def test_the_verdict_names_what_was_missed(
    demo: PacingDemo, passed: list[int], missed: list[str]
) -> None:
    demo.passed = passed
    assert [check.name for check in checks(demo) if not check.is_met] == missed
    assert report(demo)["held"] == (not missed)
    text = plain(summary(demo))
    assert [line.split()[-1] for line in text.splitlines()[3:6]].count("no") == len(missed)


def test_the_last_lines_say_why_more_than_the_budget_may_pass(demo: PacingDemo) -> None:
    demo.passed = [BUDGET] * 9 + [BUDGET + 6]
    assert "was killed" not in summary(demo)
    demo.unsynced = 6
    lines = plain(summary(demo)).splitlines()
    assert lines[-2:] == [
        "node-3 was killed: the up to 6 that it passed since its last sync are not known",
        "to the others, so up to 2006 may pass instead of 2000.",
    ]
    assert report(demo)["unsynced"] == 6


def test_the_screen_fits_a_terminal_of_80_columns(demo: PacingDemo) -> None:
    demo.passed = [BUDGET] * 7
    demo.events.append("5 s: most of the traffic moves to node-1")
    lines = Text.from_markup(frame(demo, 80, BLOCKS)).plain.splitlines()
    assert lines[0].startswith("sluicegate demo pacing")
    assert lines[0].endswith("7 of 10 s, Ctrl-C ends it")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[3].split()[-1] == lines[4].split()[-1] == "1400"
    assert "5 s: most of the traffic moves to node-1" in lines


def test_a_lag_of_nothing_has_no_sign(demo: PacingDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = [NodeStatus(1, True, 0.25, 0.25, lag) for lag in (-0.004, -0.006, 0.0, 0.004)]
    monkeypatch.setattr(demo._fleet, "statuses", lambda: statuses)
    lines = frame(demo, 80, BLOCKS).splitlines()
    lags = [line.split()[-2] for line in lines if line.startswith("node-")]
    assert lags == ["0.00", "-0.01", "0.00", "0.00"]


def test_the_terminal_shows_the_frames(demo: PacingDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=24)
    monkeypatch.setattr(demo, "run", lambda draw: draw())
    show(demo, console, BLOCKS)
    assert "0 of 10 s, Ctrl-C ends it" in output.getvalue()


def test_too_short_a_time_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate", "demo", "pacing", "--seconds", "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "expected 10 or more, the least that can be judged, got 3" in done.stderr
