"""`sluicegate demo dispatch`: real processes over a real Redis, its verdict and its screen."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from sluicegate.cli import demo as demo_command
from sluicegate.cli.main import main
from sluicegate.demo.dispatch import CAPACITY, MIN_SECONDS, DispatchDemo, report
from sluicegate.demo.dispatch_handler import batch_seconds, handle
from sluicegate.demo.dispatch_screen import frame, show, summary
from sluicegate.demo.dispatch_tally import (
    ANSWERED,
    OTHER,
    REFUSED,
    TIMED_OUT,
    Tally,
    checks,
    paused,
)
from sluicegate.demo.quota import StopFlag
from sluicegate.demo.sparkline import BLOCKS, plain
from tests.harness.servers import default_signals, find_redis_server
from tests.harness.waits import PATIENCE, wait_for

COMMAND = [sys.executable, "-m", "sluicegate", "demo", "dispatch"]


@pytest.fixture
def demo() -> Iterator[DispatchDemo]:
    """Not started: what it has recorded is set by the test."""
    find_redis_server()
    demo = DispatchDemo(MIN_SECONDS, StopFlag())
    yield demo
    demo._fleet.close()


def fill(tally: Tally, answered: int, refused: int = 0, timed_out: int = 0) -> None:
    """The same in each second."""
    for number in range(len(tally.seconds)):
        t = number + 0.5
        for _ in range(answered + refused + timed_out):
            tally.ask(t)
        for count in range(answered):
            tally.answer(t, 0.25, 100 + count % 2, 10 * number, 16)
        for _ in range(refused):
            tally.end(t, REFUSED)
        for _ in range(timed_out):
            tally.end(t, TIMED_OUT)


def test_two_workers_answer_under_overload_and_every_call_ends() -> None:
    find_redis_server()
    done = subprocess.run(
        [*COMMAND, "--seconds", str(MIN_SECONDS), "--json"],
        capture_output=True,
        text=True,
        timeout=MIN_SECONDS + 2 * PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["seconds"] == MIN_SECONDS
    assert done.returncode == (0 if found["held"] else 1)
    assert found["events"] == ["2 s: the calls rise from 80/s to 480/s"]
    # However busy the machine is: each call ends once, and no worker is faster than its handler.
    ended = [found[name] for name in (ANSWERED, REFUSED, TIMED_OUT, OTHER)]
    assert sum(ended) == found["asked"]
    assert found["checks"][2] == {"check": "lost", "measured": 0.0, "goal": 0.0, "met": True}
    assert found["answered"] == sum(worker["answered"] for worker in found["workers"])
    assert 0 < found["answered"] <= CAPACITY * (MIN_SECONDS + 2)
    assert found["refused"] + found["timed_out"] > 0
    assert max(found["per_second"]["batch_size"]) <= 16
    assert {len(values) for values in found["per_second"].values()} == {MIN_SECONDS}


def test_sigterm_ends_it_and_leaves_nothing_behind() -> None:
    find_redis_server()
    process = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )

    def folders() -> list[Path]:
        places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
        return [path for place in places for path in place.glob(f"sluicegate-demo-{process.pid}-*")]

    def has_begun() -> bool:
        assert process.poll() is None
        return any((folder / "clients.pauses").exists() for folder in folders())

    with process:
        try:
            wait_for(has_begun, seen=folders)
            process.send_signal(signal.SIGTERM)
            out, error = process.communicate(timeout=2 * PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert error == ""
    assert " calls in " in out
    assert folders() == []


def test_the_handler_takes_longer_for_a_batch_than_its_items_suggest() -> None:
    assert 16 / batch_seconds(16) == CAPACITY / 2
    first, second = handle([1]), handle([1, 2])
    assert [size for _, _, size in first + second] == [1, 2, 2]
    assert {worker for worker, _, _ in first + second} == {os.getpid()}
    assert len({batch for _, batch, _ in first + second}) == 2


@pytest.mark.parametrize(
    ("answered", "timed_out", "missed"),
    [(160, 0, []), (145, 0, []), (143, 0, ["idle"]), (150, 16, []), (150, 20, ["timed out"])],
)
def test_the_verdict_names_what_was_missed(
    demo: DispatchDemo, answered: int, timed_out: int, missed: list[str]
) -> None:
    fill(demo.tally, answered, 300, timed_out)
    demo.recorded = demo.seconds
    assert [check.name for check in demo.checks() if not check.is_met] == missed
    assert report(demo)["held"] == (not missed)
    head, *_ = plain(summary(demo)).splitlines()
    assert f" calls in {demo.seconds} s: " in head
    rows = plain(summary(demo)).splitlines()[3:6]
    assert [row.split()[-1] for row in rows].count("no") == len(missed)


def test_a_call_that_does_not_end_is_lost() -> None:
    tally = Tally(4)
    fill(tally, 160)
    tally.ask(3.9)
    tally.ask(4.1)  # after the last second: it counts for the whole run
    tally.end(4.5, OTHER)
    found = {check.name: check for check in checks(tally, 2, 160.0, [0.0, 0.0], 4)}
    assert found["lost"].measured == 1
    assert not found["lost"].is_met


def test_what_the_machine_holds_up_is_not_idle() -> None:
    tally = Tally(12)
    fill(tally, 120)  # of 160
    *_, busy = (checks(tally, 2, 160.0, held_up, 12) for held_up in ([0.0, 0.0], [0.0, 5.0]))
    assert busy[0].measured == 0.0
    assert checks(tally, 2, 160.0, [0.0, 0.0], 12)[0].measured == pytest.approx(0.25)
    assert paused([(0.0, 1.0), (1.5, 2.5), (9.0, 20.0)], 2.0, 10.0) == pytest.approx(1.5)


def test_too_early_an_end_is_not_held(demo: DispatchDemo) -> None:
    assert demo.checks()[0].measured == 0.0
    assert report(demo)["held"] is False
    assert f" calls in {demo.recorded} s of {demo.seconds}: " in plain(summary(demo))


def test_the_screen_fits_a_terminal_of_80_columns(demo: DispatchDemo) -> None:
    fill(demo.tally, 160, 320)
    demo.recorded = 7
    demo.events.append("2 s: the calls rise from 80/s to 480/s")
    lines = Text.from_markup(frame(demo, 80, BLOCKS)).plain.splitlines()
    assert lines[0].startswith("sluicegate demo dispatch")
    assert lines[0].endswith("7 of 8 s, Ctrl-C ends it")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    values = {line[:12].strip(): line[12:].split() for line in lines if line}
    assert values["asked/s"][0] == "480"
    assert values["answered/s"] == ["160", "▄" * 7]
    assert values["refused/s"] == ["320", "█" * 7]
    assert values["batch size"][0] == "16.0"
    assert values["p99, ms"][0] == "250"


def test_the_terminal_shows_the_frames(demo: DispatchDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=24)
    monkeypatch.setattr(demo, "run", lambda draw: draw())
    show(demo, console, BLOCKS)
    assert "0 of 8 s, Ctrl-C ends it" in output.getvalue()


def test_too_short_a_time_is_refused() -> None:
    assert demo_command._LEAST["dispatch"] == MIN_SECONDS
    done = subprocess.run(
        [*COMMAND, "--seconds", "3"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert "expected 8 or more, the least that can be judged, got 3" in done.stderr


def test_without_redis_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sluicegate.demo.dispatch_fleet.find_redis", lambda: None)
    assert main(["demo", "dispatch", "--json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("sluicegate demo: the demo of dispatch needs a redis-server: install")
    assert error.count("\n") == 1
