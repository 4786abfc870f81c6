"""The fleet of `sluicegate demo`: one real run that a person changes under way, and its ends."""

import asyncio
import contextlib
import fcntl
import io
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sluicegate.cli import demo as demo_command
from sluicegate.cli.main import main
from sluicegate.demo.fleet import Fleet
from sluicegate.demo.nginx import INSTALL, find_nginx
from sluicegate.demo.pauses import PauseLog, PauseMeter
from sluicegate.demo.process import NodeProcesses
from sluicegate.demo.quota_users import NODES, USERS, WORKERS, User
from sluicegate.demo.shared_counts import BIN_SECONDS, BINS, SharedCounts, WorkerStatus
from sluicegate.demo.traffic import SERVICE, Traffic
from sluicegate.demo.verdict import LONG_PAUSE, WARM_UP, Record, Second, evaluate
from sluicegate.demo.worker import MAX_BACKLOG, LoadGenerator, WorkerPlan
from sluicegate.quota import Node
from sluicegate.quota.central.limit_sources.sqlite_file import SqliteFile
from sluicegate.sim.runner import run
from sluicegate.sim.scenario import read
from tests.harness.demo_command import (
    DEMO,
    expected_processes,
    folders_of,
    processes_of,
    running,
)
from tests.harness.servers import default_signals, freeze, thaw
from tests.harness.waits import PATIENCE, Output, wait_for

STEADY, GREEDY, BURSTY, HOPPER, THIN, DUAL = USERS


# One run, as a person sees it


@dataclass
class DemoRun:
    code: int
    report: dict[str, Any]
    frames: list[str]
    pasted: list[str]  # the commands that were taken from the screen

    def user(self, user: User) -> dict[str, Any]:
        return next(each for each in self.report["users"] if each["user"] == user.name)


def frames_in(terminal: str) -> list[str]:
    """The screens that were drawn one after the other, as plain text."""
    drawn = terminal.partition("\x1b[?1049l")[0].split("\x1b[H")
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in drawn if "user" in frame]


@pytest.fixture(scope="module")
def demo_run() -> DemoRun:
    """20 seconds; after 6 of them a command from the screen gives greedy 400 instead of 200."""
    terminal, printed = io.StringIO(), io.StringIO()
    console = Console(
        file=terminal, force_terminal=True, width=80, height=24, _environ={"TERM": "xterm"}
    )
    pasted: list[str] = []

    def paste() -> None:
        wait_for(
            lambda: re.search(r"\b([6-9]|1\d) of 20 s", terminal.getvalue()),
            seconds=2 * PATIENCE,  # to start, and then six seconds
            seen=lambda: frames_in(terminal.getvalue())[-1:],
        )
        screen = frames_in(terminal.getvalue())[-1]
        for command in (r"PATH=[\s\S]* limits set .*", r"kill -9 .*# the other worker.*"):
            found = re.search(command, screen)
            assert found is not None
            pasted.append(found[0])
            subprocess.run(
                found[0], shell=True, check=True, capture_output=True, cwd="/", timeout=PATIENCE
            )

    person = threading.Thread(target=paste, daemon=True)
    person.start()
    with contextlib.redirect_stdout(printed):
        code = demo_command.run_quota(20.0, as_json=True, console=console)
    person.join(PATIENCE)
    return DemoRun(code, json.loads(printed.getvalue()), frames_in(terminal.getvalue()), pasted)


def test_every_user_is_held_to_its_limit(demo_run: DemoRun) -> None:
    users = demo_run.report["users"]
    assert {user["user"]: user["checks"] for user in users if not user["held"]} == {}
    assert demo_run.report["held"]
    assert demo_run.code == 0
    assert [user["user"] for user in users] == [user.name for user in USERS]


def test_the_report_adds_up(demo_run: DemoRun) -> None:
    assert demo_run.report["demo"] == "quota"
    assert demo_run.report["seconds"] == 20
    assert demo_run.report["ended_by"] is None
    assert demo_run.report["central"]["role"] == "active"
    assert [each["role"] for each in demo_run.report["centrals"]] == ["active"]
    assert demo_run.report["leader"] == "central"
    assert demo_run.report["failovers"] == []
    assert demo_run.report["leaderless_seconds"] == 0
    # Other centrals are started at that address.
    assert not demo_run.report["central"]["url"].startswith("http://127.0.0.1:")
    # "reused" for a moment if the central was held up just now; without one it would be "safe".
    assert {node["state"] for node in demo_run.report["nodes"]} <= {"fresh", "reused"}
    last = "python" if find_nginx() is None else "nginx"
    kinds = [node["kind"] for node in demo_run.report["nodes"]]
    assert kinds == ["python"] * (NODES - 1) + [last]
    for user in demo_run.report["users"]:
        assert user["asked"] == user["admitted"] + user["refused"]
        assert user["asked"] == sum(user["per_second"]["asked"])
        assert {len(series) for series in user["per_second"].values()} == {20}


def test_the_traffic_is_as_documented(demo_run: DemoRun) -> None:
    # One more for each worker, whose calls begin at different moments.
    expected = {"steady": 480, "greedy": 3600, "bursty": 450, "hopper": 3000, "thin": 9}
    expected["dual"] = 1800
    highest = {"steady": 80, "greedy": 600, "bursty": 300, "hopper": 500, "thin": 3, "dual": 300}
    for user in demo_run.report["users"]:
        asked = sum(user["per_second"]["asked"][:6])
        name = user["user"]
        assert asked <= expected[name] + NODES * WORKERS, user
        # A worker that the machine holds up for long makes fewer calls. One that waits for its
        # answer is counted when it has it.
        lost = highest[name] * sum(user["per_second"]["pause"][:7])
        assert asked >= 0.98 * expected[name] - NODES * WORKERS - lost, user


def test_a_command_pasted_from_the_screen_changes_the_limit(demo_run: DemoRun) -> None:
    assert f"limits set {SERVICE} greedy requests=400" in demo_run.pasted[0]
    per_second = demo_run.user(GREEDY)["per_second"]
    assert per_second["limit"][WARM_UP] == 200.0
    assert per_second["limit"][-1] == 400.0
    # More than 200 a second and a burst of one second could ever let through.
    assert sum(per_second["admitted"][-5:]) > 6 * 200, per_second
    assert re.search(r"greedy +400/s", demo_run.frames[-1])


def test_a_worker_that_is_killed_is_replaced_and_another_reports(demo_run: DemoRun) -> None:
    victim = demo_run.pasted[1].split()[2]
    assert any(re.search(rf"kill -9 {victim} +# the other", it) for it in demo_run.frames)
    assert not re.search(rf"\b{victim}\b", demo_run.frames[-1])
    assert [node["restarts"] for node in demo_run.report["nodes"]] == [1, 0, 0]
    assert re.search(r"node-1 \w+ \(1 restarting\)", "".join(demo_run.frames))


def test_the_screen_has_all_of_it_and_what_to_try(demo_run: DemoRun) -> None:
    last = demo_run.frames[-1]
    for user in USERS:
        assert re.search(rf"{user.name} .*\d+/s .*yes", last)
        assert user.about in last
    # In a frame that was drawn while the machine held one of them up it has another state.
    frames = demo_run.frames[-50:]
    assert any(re.search(r"central +leads +process \d+, epoch \d+, slot \d+", it) for it in frames)
    shown = r"node-\d( \(nginx\))? fresh\b"
    assert any(len(re.findall(shown, it)) == NODES for it in frames)
    for command in (r"kill -9 \d+", r"kill -STOP (\d+); sleep 8; kill -CONT \1"):
        assert re.search(command, last)


def test_nothing_is_cut_off_at_80_columns_and_24_lines(demo_run: DemoRun) -> None:
    last = demo_run.frames[-1].splitlines()
    assert len(last) <= 24
    assert max(len(line.rstrip()) for line in last) <= 80
    assert last[0].endswith("Ctrl-C ends it")
    assert last[1].rstrip().endswith("saved up")
    assert re.search(r"kill -9 \d+ +# it is started again$", "\n".join(last).rstrip())
    assert re.search(r"limits set .* --url \$U$", "\n".join(map(str.rstrip, last)), re.MULTILINE)


def test_nothing_is_left_behind(demo_run: DemoRun) -> None:
    assert folders_of(os.getpid()) == []
    assert processes_of(os.getpid()) == []


# How it ends


def test_ctrl_c_in_the_middle_ends_all_of_it_and_prints_the_report() -> None:
    with running("--json") as demo:
        demo.err.wait_for("the central is at http://127.")
        no_nginx = f"no nginx with Lua found: {INSTALL}"
        demo.err.wait_for("node-3 is nginx at http://127." if find_nginx() else no_nginx)
        pid = demo.process.pid
        assert len(processes_of(pid)) == expected_processes(centrals=1)
        demo.process.send_signal(signal.SIGINT)
        report = json.loads(demo.out.text())
        assert demo.process.wait(PATIENCE) == 128 + signal.SIGINT
        assert report["ended_by"] == "SIGINT"
        assert not report["held"]
        assert folders_of(pid) == processes_of(pid) == []


def test_a_signal_during_the_start_ends_what_has_started(tmp_path: Path) -> None:
    # Workers that never get ready: the start goes on until the signal comes.
    hang = 'import sys, time\n"sluicegate.demo.worker" in sys.orig_argv and time.sleep(1000)\n'
    (tmp_path / "sitecustomize.py").write_text(hang)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with running(PYTHONPATH=path) as demo:
        pid = demo.process.pid
        everything = expected_processes(centrals=1)
        wait_for(lambda: len(processes_of(pid)) == everything, seen=demo.err.lines)
        demo.process.send_signal(signal.SIGTERM)
        assert demo.process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert (demo.out.text(), demo.err.text()) == ("", "")
        assert folders_of(pid) == processes_of(pid) == []


@contextlib.contextmanager
def in_a_terminal(
    lines: int = 24, columns: int = 80
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A demo that has a terminal of its own, and the other end of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    take_it = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    demo = subprocess.Popen(
        [sys.executable, "-c", take_it + "os.execv(sys.argv[1], sys.argv[1:])", *DEMO],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm", "LINES": str(lines), "COLUMNS": str(columns)},
        preexec_fn=default_signals,
    )
    os.close(theirs)
    try:
        read_until(ours, b"Try in another terminal")
        yield demo, ours
    finally:
        demo.kill()
        demo.wait(PATIENCE)


def read_until(terminal: int, text: bytes) -> bytes:
    drawn = b""
    end = time.monotonic() + PATIENCE
    while text not in drawn:
        is_readable, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert is_readable, f"no {text!r} within {PATIENCE:g} s; drawn: {drawn[-3000:]!r}"
        drawn += os.read(terminal, 65536)
    return drawn


def test_ctrl_c_at_a_terminal_closes_with_the_table() -> None:
    with in_a_terminal() as (demo, terminal):
        os.write(terminal, b"\x03")
        closing = read_until(terminal, b"docs/demo.md").partition(b"\x1b[?1049l")[2]
        assert b"hopper  100/s" in closing
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", closing.decode())
        assert plain.count("not yet") == len(USERS)
        widest = max(map(len, plain.replace("not yet", "no: under").splitlines()))
        assert widest <= 80
        assert demo.wait(30) == 0
        os.close(terminal)
        assert folders_of(demo.pid) == processes_of(demo.pid) == []


def test_a_large_terminal_shows_the_processes_of_each_node() -> None:
    with in_a_terminal(40, 120) as (demo, terminal):
        assert b"processes" in read_until(terminal, b"(reports)")
        os.write(terminal, b"\x03")
        read_until(terminal, b"docs/demo.md")
        assert demo.wait(30) == 0
        os.close(terminal)


def test_a_closed_terminal_ends_all_of_it() -> None:
    with in_a_terminal() as (demo, terminal):
        os.close(terminal)
        assert demo.wait(30) in (1, 128 + signal.SIGHUP)
        assert folders_of(demo.pid) == processes_of(demo.pid) == []


def test_when_the_demo_is_killed_its_processes_end_too() -> None:
    with running("--json") as demo:
        demo.err.wait_for("the central is at")
        pid = demo.process.pid
        demo.process.kill()
        demo.process.wait(PATIENCE)
        wait_for(lambda: not processes_of(pid), seen=lambda: processes_of(pid))
    for folder in folders_of(pid):
        shutil.rmtree(folder)


def test_a_fleet_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["demo", "--json"]) == 1
    assert "sluicegate demo: central did not start; its log ends with" in capsys.readouterr().err
    assert folders_of(os.getpid()) == []


def test_without_its_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "_NEEDED", ("starlette", "no_such_package"))
    assert main(["demo"]) == 1
    message = capsys.readouterr().err
    assert "(no_such_package): pip install 'sluicegate[server,dashboard]'" in message


def test_a_run_too_short_for_a_verdict_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--seconds", "3"])
    assert "expected 10 or more, the least that can be judged, got 3" in (capsys.readouterr().err)


# The verdict


def seconds_of(
    user: User, admitted: list[int], *, asked: int = 1000, limits: dict[int, float] | None = None
) -> list[Second]:
    """The seconds after the warm-up. `limits`: new limits, by the second they begin in."""
    limit: float | None = user.limit
    seconds = []
    for index, count in enumerate(admitted):
        limit = (limits or {}).get(index, limit)
        seconds.append(Second(WARM_UP + index, limit, user.burst_seconds, asked, count))
    return seconds


def rate_of(user: User, t: float) -> float:
    """The requests per second that a user sends to all nodes."""
    return sum(traffic.rate for traffic in user.traffic if traffic.is_on(t))


def measured(user: User, seconds: list[Second]) -> dict[str, float]:
    return {check.name: round(check.measured, 3) for check in evaluate(user, seconds)}


@pytest.mark.parametrize(
    ("user", "admitted", "over", "under"),
    [
        (GREEDY, [200] * 5, 0.0, 0.0),
        (GREEDY, [200, 210, 200], 0.05, -0.017),
        (GREEDY, [200, 150, 250, 200], 0.0, 0.0),  # what was left unused before
        (GREEDY, [200, 150, 200, 260], 0.05, -0.012),
        (GREEDY, [204] * 5, 0.1, -0.02),  # a little in each second is much in the end
        (GREEDY, [210, 190, 210], 0.05, -0.017),
        (GREEDY, [0, 0, 400, 401], 1.005, -0.001),  # but no more than the burst
        (GREEDY, [100] * 4, 0.0, 0.5),
        (BURSTY, [550, 50, 0, 0], 0.0, -2.0),  # 10 s of 50 are saved, and 50 come in
        (BURSTY, [560, 0], 0.2, -4.6),
    ],
)
def test_a_second_is_held_against_a_bucket_of_the_limit(
    user: User, admitted: list[int], over: float, under: float
) -> None:
    found = measured(user, seconds_of(user, admitted))
    assert found == pytest.approx({"over": over, "under": under}, abs=0.001)


@pytest.mark.parametrize(("burst", "under"), [([225, 45], 0.0), ([160, 83], 0.1)])
def test_what_was_left_unused_may_be_taken_later_and_is_missed_if_not(
    burst: list[int], under: float
) -> None:
    quiet = [Second(WARM_UP + number, 45.0, 10.0, 0, 0) for number in range(4)]
    busy = [
        Second(WARM_UP + 4 + number, 45.0, 10.0, asked, admitted)
        for number, (asked, admitted) in enumerate(zip([240, 210], burst, strict=True))
    ]
    # 180 were saved: they and 45 pass in the first second, and 45 in the next.
    assert measured(BURSTY, quiet + busy)["under"] == pytest.approx(under)


@pytest.mark.parametrize("later", [0, 1, 2, 5, 10])
def test_bursts_meet_their_goals_whenever_the_traffic_begins(later: int) -> None:
    """The same traffic in virtual time, `later` seconds after the central is up."""
    moments = [0.1 * step for step in range(1, 240)]
    rates = [(t, rate_of(BURSTY, t + 0.05)) for t in moments]
    points = [[0, 0], *([round(t + later, 1), rate] for t, rate in rates)]
    text = f"""
        title = "bursty"
        about = "as in the demo"
        seconds = {later + 24}
        nodes = {NODES}
        centrals = 1
        limit = [{{ user = "bursty", requests = {BURSTY.limit}, burst_seconds = 10 }}]
        traffic = [{{ user = "bursty", rate = {points}, arrival = "even" }}]
    """
    (cell,) = run(read(text)).cells
    of_second = [slice(10 * (later + second), 10 * (later + second + 1)) for second in range(20)]
    seconds = [
        Second(
            number,
            BURSTY.limit,
            10.0,
            int(sum(cell.demand[tenths])),
            int(sum(cell.admitted[tenths])),
        )
        for number, tenths in enumerate(of_second)
    ]
    assert sum(second.asked for second in seconds) == pytest.approx(3 * 450, rel=0.01)
    checks = evaluate(BURSTY, seconds)
    assert {check.name for check in checks} == {"over", "under"}
    assert all(check.is_met for check in checks), checks


def busy(seconds: list[Second], pauses: dict[int, float]) -> list[Second]:
    """The same seconds, in some of which the machine held up a worker."""
    return [replace(second, pause=pauses.get(index, 0.0)) for index, second in enumerate(seconds)]


def test_what_the_machine_made_late_is_not_missing() -> None:
    # Half a second in which nobody asked, what was not taken then, and as it was before.
    seconds = seconds_of(GREEDY, [200, 200, 110, 90, 240, 160, 200, 200])
    late = busy(seconds, {2: 0.5})
    assert measured(GREEDY, seconds)["under"] == pytest.approx(0.125, abs=0.001)
    assert measured(GREEDY, late) == {"over": 0.0, "under": 0.0}
    # A shorter pause excuses its own length alone, in three of four seconds.
    short = busy(seconds, {2: LONG_PAUSE - 0.01})
    assert measured(GREEDY, short)["under"] == pytest.approx((1546 - 1400) / 1546, abs=0.001)


def test_what_a_short_pause_costs_is_not_missing() -> None:
    seconds = seconds_of(GREEDY, [200, 190, 190, 195, 195, 200, 200])

    def is_met(seconds: list[Second]) -> bool:
        return next(check for check in evaluate(GREEDY, seconds) if check.name == "under").is_met

    assert measured(GREEDY, seconds)["under"] == 0.021
    assert not is_met(seconds)
    # It is felt in the second of the pause and in the three after it, and excuses its length alone.
    assert is_met(busy(seconds, {1: 0.04}))
    assert not is_met(busy(seconds, {5: 0.04}))
    half = seconds_of(GREEDY, [200, 170, 170, 190, 190, 200, 200])
    assert not is_met(busy(half, {1: 0.04}))


def test_what_a_worker_that_is_back_is_refused_is_not_missing() -> None:
    # Measured: calm seconds in which a sixth of the requests came from a worker started again.
    asked, admitted = [82, 79, 82, 79], [77, 76, 82, 79]

    def under(resumed: list[int], admitted: list[int]) -> float:
        counted = zip(asked, admitted, resumed, strict=True)
        seconds = [
            Second(WARM_UP + index, 100.0, 1.0, wanted, passed, resumed=again)
            for index, (wanted, passed, again) in enumerate(counted)
        ]
        return measured(STEADY, seconds)["under"]

    assert under([0, 0, 0, 0], admitted) == pytest.approx(0.025)
    assert under([13, 13, 0, 0], admitted) == 0.0
    # It excuses its own part alone, and no other second.
    assert under([13, 13, 0, 0], [60, 60, 82, 79]) == pytest.approx(0.051)
    assert under([13, 13, 0, 0], [82, 79, 74, 71]) == pytest.approx(0.05)


def test_what_is_missing_in_calm_seconds_shows_on_a_busy_machine() -> None:
    seconds = seconds_of(GREEDY, [200, 200, 110, 90, 240, 160, 190, 190])
    assert measured(GREEDY, busy(seconds, {2: 0.5}))["under"] == pytest.approx(0.025)


def test_pauses_do_not_excuse_what_is_beyond_the_limit() -> None:
    seconds = busy(seconds_of(GREEDY, [200, 200, 260, 200, 200]), {1: 0.9, 2: 0.9})
    assert measured(GREEDY, seconds)["over"] == pytest.approx(0.3)


def test_too_few_calm_seconds_say_nothing_of_what_is_missing() -> None:
    seconds = seconds_of(GREEDY, [200, 100, 100, 100, 100, 100])
    assert measured(GREEDY, busy(seconds, {1: 0.5})) == {"over": 0.0}
    assert measured(GREEDY, busy([*seconds, *seconds[1:2]], {0: 0.5}))["under"] == 0.5
    # Users whose traffic comes and goes need more of the run.
    hops = seconds_of(HOPPER, [100] * 17)
    assert "under" in measured(HOPPER, busy(hops, {0: LONG_PAUSE}))
    assert "under" not in measured(HOPPER, busy(hops[:-1], {0: LONG_PAUSE}))


def test_a_long_pause_counts_in_seconds_that_were_recorded_before_it_ended() -> None:
    record = Record(USERS)
    for user in USERS:
        for number in range(WARM_UP + 12):
            admitted = 100 if number < WARM_UP + 4 else 20
            record.add(user, Second(number, 100.0, 1.0, 100, admitted))
    assert not record.is_held(STEADY)
    for number in range(WARM_UP + 4, WARM_UP + 12):  # the central was stopped
        record.set_pause(number, 8.0)
    record.set_pause(WARM_UP + 100, 8.0)  # not over yet
    assert record.is_held(STEADY)
    assert record.busy_seconds() == 8


def test_what_is_missing_while_no_central_leads_and_shortly_after_does_not_count() -> None:
    seconds = seconds_of(GREEDY, [200, 200, 110, 90, 240, 160, 200, 200])
    gap = {WARM_UP + 2}
    assert evaluate(GREEDY, seconds, gap)[1].measured == 0.0
    assert evaluate(GREEDY, [*seconds, replace(seconds[-1], admitted=190)], gap)[1].measured > 0.0
    above = seconds_of(GREEDY, [200, 200, 260, 200, 200])
    assert evaluate(GREEDY, above, gap)[0].measured == pytest.approx(0.3)


def test_after_a_failover_what_was_left_of_the_first_burst_may_pass() -> None:
    # Measured: a standby had booked less than the leader had granted in the first two seconds.
    admitted = [349, 205, 198, 198, 199, 215, 199, 198, 202, 202]

    def over(last: int) -> float:
        record = Record(USERS)
        for number, count in enumerate([*admitted, last]):
            record.add(GREEDY, Second(number, 200.0, 1.0, 600, count))
        record.leaderless = {3, 4, 5}
        return record.checks(GREEDY)[0].measured

    assert measured(GREEDY, seconds_of(GREEDY, admitted[5:]))["over"] > 0.05
    # 46 of a full bucket of 200 are left after two seconds, 35 after ten.
    assert over(235) == 0.0
    assert over(255) == pytest.approx(0.1)


def test_the_report_says_how_many_seconds_were_without_a_leader() -> None:
    record = Record(USERS)
    for number in range(WARM_UP + 9):
        record.add(USERS[0], Second(number, 100.0, 1.0, 100, 100))
    assert record.leaderless_seconds() == 0
    record.leaderless = {0, WARM_UP + 1, WARM_UP + 2}
    assert record.leaderless_seconds() == 5


def test_the_report_says_how_many_seconds_were_busy() -> None:
    record = Record(USERS)
    for user in USERS:
        warm_up = [Second(number, user.limit, 1.0, 50, 50) for number in range(WARM_UP)]
        seconds = [*warm_up, *seconds_of(user, [50] * 6)]
        for second in busy(seconds, {0: 0.5, WARM_UP + 1: 0.5}):
            record.add(user, second)
    assert record.busy_seconds() == 4


def test_a_user_of_two_resources_is_held_to_the_scarcer_one() -> None:
    assert DUAL.limit == 100.0
    assert DUAL.requests_within({"requests": 100.0, "tokens": 400.0}) == 50.0
    assert DUAL.requests_within({"tokens": 400.0, "bytes": 1.0}) == 50.0
    assert DUAL.requests_within({"bytes": 1.0}) is None
    assert THIN.requests_within({"requests": 3.0, "tokens": 1.0}) == 3.0


def test_a_thin_user_may_lose_one_of_twenty() -> None:
    asked = [Second(WARM_UP + number, 3.0, 10.0, 2, 2) for number in range(10)]

    def is_met(*refused: int) -> bool:
        seconds = [
            replace(second, admitted=1 if index in refused else 2)
            for index, second in enumerate(asked)
        ]
        return all(check.is_met for check in evaluate(THIN, seconds))

    assert is_met()
    assert is_met(4)
    assert not is_met(4, 6)


def test_a_hopper_that_has_less_than_95_of_100_is_not_held_to_its_limit() -> None:
    def is_met(*admitted: int) -> bool:
        checks = evaluate(HOPPER, seconds_of(HOPPER, list(admitted)))
        return next(check for check in checks if check.name == "under").is_met

    # What it lacks in a second with a hop it may have in the next.
    assert is_met(100, 80, 120, 100, 78, 120, 99, 95)
    assert not is_met(100, 80, 100, 100, 80, 100, 100, 80)


def test_the_warm_up_is_not_evaluated() -> None:
    early = [Second(number, 200.0, 1.0, 600, 600) for number in range(WARM_UP)]
    assert evaluate(GREEDY, early) == []
    assert measured(GREEDY, early + seconds_of(GREEDY, [200]))["over"] == 0.0


def test_seconds_near_a_change_of_the_limit_are_not_evaluated() -> None:
    admitted = [200, 200, 600, 300, 0, 900, 0, 900, 500, 400, 400, 420]
    seconds = seconds_of(GREEDY, admitted, limits={4: 400.0})
    assert measured(GREEDY, seconds[:-1]) == {"over": 0.0, "under": 0.0}
    assert measured(GREEDY, seconds) == {"over": 0.05, "under": -0.017}


def test_what_was_left_unused_just_before_may_be_taken_in_the_first_second_evaluated() -> None:
    # Measured on a busy machine: 48 of 400 were left by shares that were not even yet.
    after = [347, 300, 399, 352, 424, 376, 400]
    seconds = seconds_of(GREEDY, [200, 200, 200, *after], limits={1: 400.0})
    assert measured(GREEDY, seconds)["over"] == 0.0
    after[3] = 400  # none is left then, but for 1 + 100 of the two seconds before it
    after[4] = 400 + 101 + 40
    seconds = seconds_of(GREEDY, [200, 200, 200, *after], limits={1: 400.0})
    assert measured(GREEDY, seconds)["over"] == 0.1


def test_after_another_burst_was_set_the_bucket_may_be_full() -> None:
    before = seconds_of(GREEDY, [200] * 4)
    after = [Second(9 + index, 200.0, 3.0, 900, 200) for index in range(7)]
    assert measured(GREEDY, [*before, *after, Second(16, 200.0, 3.0, 900, 800)])["over"] == 0
    assert measured(GREEDY, [*before, *after, Second(16, 200.0, 3.0, 900, 801)])["over"] > 0


def test_the_recent_seconds_may_begin_with_what_was_left_unused_just_before() -> None:
    record = Record(USERS)
    for number in range(60):
        record.add(HOPPER, Second(number, 100.0, 10.0, 500, 110 if number % 2 else 90))
        checks = record.checks(HOPPER, recent=10)
        assert all(check.is_met for check in checks), (number, checks)
    for number in range(60, 65):
        record.add(HOPPER, Second(number, 100.0, 10.0, 500, 102))
    assert [check.is_met for check in record.checks(HOPPER, recent=10)] == [False, True]


def test_a_user_without_a_limit_is_not_evaluated() -> None:
    assert evaluate(GREEDY, [Second(9, None, 0.0, 600, 600)]) == []


def test_a_limit_of_0_lets_nothing_pass() -> None:
    assert measured(GREEDY, [Second(9, 0.0, 1.0, 600, 0)])["over"] == 0.0
    assert measured(GREEDY, [Second(9, 0.0, 1.0, 600, 1)])["over"] == 1.0


def test_an_empty_record_has_no_verdict() -> None:
    record = Record(USERS)
    assert record.last(GREEDY) is None
    assert not record.is_held(GREEDY)


# Its parts


def test_counts_are_read_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    with SharedCounts(path, 4) as worker, SharedCounts(path, 4) as demo:
        nothing, ring = [(0, 0)] * 4, BINS * BIN_SECONDS
        assert demo.status().pid == 0
        status = WorkerStatus(7, is_reporting=True, state="reused", epoch=3, slot=9)
        worker.publish(status)
        assert demo.status() == status
        worker.count(5.01, 1, is_admitted=True)
        worker.count(5.04, 1, is_admitted=False)
        worker.count(5.06, 1, is_admitted=False)
        assert list(demo.bins(99, 103)) == [
            nothing,
            [(0, 0), (1, 1), (0, 0), (0, 0)],
            [(0, 0), (0, 1), (0, 0), (0, 0)],
            nothing,
        ]
        worker.count(5.01 + ring, 0, is_admitted=True)
        assert list(demo.bins(100, 101)) == [nothing]
        assert list(demo.bins(100 + BINS, 101 + BINS)) == [[(1, 0), (0, 0), (0, 0), (0, 0)]]
    with SharedCounts(path, 4) as restarted:
        assert list(restarted.bins(101, 102)) == [[(0, 0), (0, 1), (0, 0), (0, 0)]]


def stop_for_a_while(process: subprocess.Popen[str], log: Path) -> None:
    """Stop a process for 0.3 s, and wait until it has logged that."""
    pauses: list[tuple[float, float]] = []
    freeze(process)
    stopped = time.monotonic()
    time.sleep(0.3)  # for as long as it is to be stopped
    continued = time.monotonic()
    thaw(process)

    def is_logged() -> bool:
        pauses.extend(PauseLog(log).read())
        return any(begin <= stopped + 0.1 and end >= continued for begin, end in pauses)

    wait_for(is_logged, seen=lambda: (stopped, continued, pauses))


def test_a_process_that_was_stopped_knows_for_how_long(tmp_path: Path) -> None:
    log = tmp_path / "pauses"
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from sluicegate.demo.pauses import PauseMeter\n"
        "with PauseMeter(Path(sys.argv[1])):\n"
        "    print('ready', flush=True)\n    time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(log)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            Output(process.stdout).wait_for("ready")
            stop_for_a_while(process, log)
        finally:
            process.kill()


def test_the_central_logs_that_it_was_stopped(tmp_path: Path) -> None:
    log, limits = tmp_path / "pauses", tmp_path / "limits.db"
    SqliteFile(limits).close()
    command = [sys.executable, "-m", "sluicegate.demo.metered", str(log), "central"]
    command += ["--limits", str(limits)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            Output(process.stdout).wait_for(" on http://")
            stop_for_a_while(process, log)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def test_a_log_of_pauses_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pauses"
    log = PauseLog(path)
    assert log.read() == []
    path.write_text("1.5 2.0\n3.0 3.25\n4.0 ")
    assert log.read() == [(1.5, 2.0), (3.0, 3.25)]
    assert log.read() == []
    path.write_text("1.5 2.0\n3.0 3.25\n4.0 4.5\n")
    assert log.read() == [(4.0, 4.5)]


def test_pauses_count_in_all_seconds_that_they_reach_into() -> None:
    fleet = Fleet(lambda: False)
    try:
        fleet.begin = 100.0
        assert fleet.longest_pause(0) == 0.0
        log = fleet.folder / "central.pauses"
        log.write_text("99.5 99.75\n101.5 103.0\n102.25 102.5\n")
        assert fleet.read_pauses() == {1, 2}
        assert fleet.read_pauses() == set()
        assert [fleet.longest_pause(second) for second in range(5)] == [0.0, 1.5, 1.5, 0.0, 0.0]
        with log.open("a") as file:
            file.write("97.0 100.5\n104.75 106.25\n")
        assert fleet.read_pauses() == {0, 4, 5, 6}
        assert [fleet.longest_pause(second) for second in range(8)] == [
            *(3.5, 1.5, 1.5, 0.0),
            *(1.5, 1.5, 1.5, 0.0),
        ]
    finally:
        fleet.close()


def test_requests_of_a_worker_that_was_away_are_known_for_three_seconds(tmp_path: Path) -> None:
    fleet = Fleet(lambda: False)
    try:
        parts = [Traffic(user.name, 1.0) for user in USERS]
        fleet.nodes = [
            NodeProcesses(tmp_path, "web", [], parts, workers=WORKERS, place=0, of=1),
        ]
        sent = {0: range(9), 1: [0, 1, 2, 4, 5, 6, 7, 8]}
        for worker, seconds in sent.items():
            for second in seconds:
                fleet.nodes[0].workers[worker].counts.count(second + 0.5, 1, is_admitted=False)
        assert [fleet.resumed(second)[1] for second in range(9)] == [0, 0, 0, 0, 1, 1, 1, 0, 0]
    finally:
        fleet.close()


def test_a_process_that_is_slow_by_itself_was_not_paused(tmp_path: Path) -> None:
    begin, worked = time.monotonic(), time.process_time()
    with PauseMeter(tmp_path / "pauses"):
        time.sleep(0.05)  # the meter runs
        while time.process_time() - worked < 0.5:
            sum(range(10_000_000))  # and cannot run meanwhile
        time.sleep(0.05)  # it logs what it saw
    idle = time.monotonic() - begin - (time.process_time() - worked)
    pauses = PauseLog(tmp_path / "pauses").read()
    assert sum(end - begin for begin, end in pauses) <= idle, pauses


def test_requests_are_sent_by_the_clock_and_a_long_pause_is_not_made_up_for(
    tmp_path: Path,
) -> None:
    begin = time.monotonic()
    node = Node("ws://127.0.0.1:1", node_id="n", services=[SERVICE], shared=str(tmp_path / "n"))
    plan = WorkerPlan(tmp_path, "n", 0, ["ws://127.0.0.1:1"], [Traffic("ann", 100.0)], phase=0.5)
    with plan.open_counts() as counts:
        generator = LoadGenerator(node, counts, plan, begin + 1.0)

        def asked() -> int:
            return sum(sum(users[0]) for users in counts.bins(0, BINS))

        generator.send(-0.5)
        assert asked() == 0
        for tick in range(100):
            generator.send(0.01 * (tick + 1))
        assert asked() == 100
        generator.send(1000.0)
        assert asked() == 101 + MAX_BACKLOG * 100
    node.close()


def test_requests_that_wait_are_counted_when_they_are_answered(tmp_path: Path) -> None:
    node = Node("ws://127.0.0.1:1", node_id="n", services=[SERVICE], shared=str(tmp_path / "n"))
    waiting = Traffic("ann", 100.0, costs={"requests": 1.0, "tokens": 8.0}, waits=True)
    plan = WorkerPlan(tmp_path, "n", 0, ["ws://127.0.0.1:1"], [waiting], phase=0.5)

    async def story() -> tuple[int, int]:
        with plan.open_counts() as counts:
            generator = LoadGenerator(node, counts, plan, time.monotonic() + 1.0)
            generator.send(0.25)
            assert not any(any(users[0]) for users in counts.bins(0, BINS))
            await generator.finish()
            bins = [users[0] for users in counts.bins(0, BINS)]
            return sum(admitted for admitted, _ in bins), sum(refused for _, refused in bins)

    admitted, refused = asyncio.run(story())
    # No central is heard: 10 requests a second and user, and one more at first.
    assert 10 <= admitted <= 12
    assert admitted + refused == 25
    node.close()


def test_traffic_is_repeated_every_period() -> None:
    once = Traffic("ann", 1.0, ((1.0, 2.0), (4.0, 5.0)))
    again = replace(once, period=6.0)
    moments = [0.5, 1.0, 1.5, 2.0, 4.5, 7.5, 10.5, 11.5]
    assert [once.is_on(t) for t in moments] == [t in (1.0, 1.5, 4.5) for t in moments]
    assert [again.is_on(t) for t in moments] == [t in (1.0, 1.5, 4.5, 7.5, 10.5) for t in moments]


def test_a_plan_is_the_same_after_it_was_encoded(tmp_path: Path) -> None:
    traffic = [
        replace(HOPPER.traffic[0], spans=[[0.0, 1.3]]),
        Traffic("ann", 1.0, [[0.0, math.inf]]),
    ]
    plan = WorkerPlan(tmp_path, "web-1", 1, ["http://127.0.0.1:1"], traffic, phase=0.25)
    assert WorkerPlan.decode(plan.encode()) == plan


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.name)
def test_the_mean_of_what_a_user_asks_for_is_what_the_screen_says(user: User) -> None:
    moments = [0.05 * step for step in range(int(17.4 * 6 / 0.05))]
    total = sum(rate_of(user, t) for t in moments) / len(moments)
    expected = {"steady": 80.0, "greedy": 600.0, "bursty": 75.0, "hopper": 500.0, "thin": 1.5}
    expected["dual"] = 300.0
    assert total == pytest.approx(expected[user.name], rel=0.05)


def test_the_hopper_is_at_one_node_for_one_to_three_seconds() -> None:
    places = [
        next(node for node in range(NODES) if HOPPER.traffic[node].is_on(0.1 * step))
        for step in range(348)
    ]
    stays = [len(list(stay)) / 10 for _, stay in groupby(places)]
    assert set(places) == set(range(NODES))
    assert min(stays) >= 0.9
    assert max(stays) <= 3.1
