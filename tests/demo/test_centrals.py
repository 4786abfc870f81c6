"""`sluicegate demo --centrals 3`: a run whose leader is killed, its screen and its report."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluicegate.cli.main import main
from sluicegate.demo import quota, quota_screen
from sluicegate.demo.pauses import PauseLog, PauseMeter
from sluicegate.demo.quota import CentralView, QuotaDemo, StopFlag
from sluicegate.demo.quota_users import USERS
from sluicegate.demo.sparkline import BLOCKS, plain
from sluicegate.demo.verdict import WARM_UP
from tests.harness.demo_command import expected_processes, folders_of, processes_of, running
from tests.harness.waits import PATIENCE, wait_for

CENTRALS = 3
FAILOVER = 3.0  # seconds: a lease of 2, and what two attempts may take
POLLED = 1.0  # how late the old and the new leader may be seen, with the time-out of a question
MOST_SECONDS = 120  # far beyond what a busy machine needs


@dataclass
class KilledRun:
    """What a person saw who killed the leader, and what came of it."""

    frames: list[str] = field(default_factory=list)
    roomy: str = ""
    killed: CentralView | None = None
    killed_at: int = 0  # the frame
    report: dict[str, Any] = field(default_factory=dict)
    closing: str = ""
    late: float = 0.0  # seconds for which the machine held up this process

    def __str__(self) -> str:
        said = {name: self.report.get(name) for name in ("centrals", "leader", "failovers")}
        return f"killed {self.killed}; {said}; {self.frames[-1:]}"


def kill_the_leader(demo: QuotaDemo, run: KilledRun) -> Iterator[Callable[[], object]]:
    """Yields what the person waits for."""
    # The failover reaches into the seconds that are evaluated.
    yield lambda: demo.recorded >= WARM_UP - 2 and demo.leader is not None
    hint = re.search(r"kill -9 (\d+) +# the leader", run.frames[-1])
    assert hint is not None, run.frames[-1]
    run.killed = next(each for each in demo.centrals() if str(each.pid) == hint[1])
    run.killed_at = len(run.frames)
    subprocess.run(hint[0], shell=True, check=True, timeout=PATIENCE)
    yield lambda: demo.failovers and demo.leader is not None

    def is_back() -> bool:
        return any(
            each.name == run.killed.name and each.restarts and each.role == "standby"
            for each in demo.centrals()
        )

    yield is_back


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    pauses = tmp_path_factory.mktemp("demo") / "pauses"
    run, flag = KilledRun(), StopFlag()
    with PauseMeter(pauses), QuotaDemo(flag, CENTRALS) as demo:
        story = kill_the_leader(demo, run)
        waits_for: list[Callable[[], object]] = []

        def look() -> None:
            run.frames.append(plain(quota_screen.frame(demo, None, 80, 24, BLOCKS)))
            if not waits_for or waits_for[-1]():
                try:
                    waits_for.append(next(story))
                except StopIteration:
                    flag.set(signal.SIGINT)

        demo.run(MOST_SECONDS, look)
        run.roomy = plain(quota_screen.frame(demo, None, 80, 60, BLOCKS))
        run.report = json.loads(json.dumps(quota.report(demo, flag.number)))
        run.closing = plain(quota_screen.summary(demo))
    run.late = sum(end - begin for begin, end in PauseLog(pauses).read())
    assert flag.is_set(), str(run)
    return run


def test_another_central_leads_after_the_leader_is_killed(run: KilledRun) -> None:
    first = run.report["failovers"][0]
    assert run.killed is not None
    assert first["from"] == run.killed.name, str(run)
    assert first["to"] != run.killed.name, str(run)
    assert first["epoch"] > run.killed.epoch, str(run)


def test_a_failover_is_measured(run: KilledRun) -> None:
    first = run.report["failovers"][0]
    pauses = run.report["users"][0]["per_second"]["pause"]
    late = run.late + sum(pauses[max(int(first["second"]) - 1, 0) :])
    assert 0.0 < first["seconds"] <= FAILOVER + POLLED + late, str(run)
    assert first["second"] >= WARM_UP - 2, str(run)


def test_the_central_that_was_killed_is_started_again_as_a_standby(run: KilledRun) -> None:
    assert run.killed is not None
    by_name = {each["central"]: each for each in run.report["centrals"]}
    assert len(by_name) == CENTRALS
    assert by_name[run.killed.name]["role"] == "standby", str(run)
    assert by_name[run.killed.name]["restarts"] == 1, str(run)
    assert len({each["url"] for each in by_name.values()}) == CENTRALS


def test_every_user_is_held_to_its_limit_across_the_failover(run: KilledRun) -> None:
    users = run.report["users"]
    assert {user["user"]: user["checks"] for user in users if not user["held"]} == {}, str(run)
    assert run.report["held"]
    assert run.report["leaderless_seconds"] >= 1


def test_the_screen_shows_each_central_and_what_to_try(run: KilledRun) -> None:
    assert run.killed is not None
    before, name, pid = run.frames[run.killed_at - 1], run.killed.name, run.killed.pid
    assert re.search(rf"^{name} active  process {pid}, epoch {run.killed.epoch}$", before, re.M)
    assert len(re.findall(r"^central-\d standby process \d+", before, re.M)) == CENTRALS - 1, before
    assert re.search(rf"kill -9 {pid} +# the leader: another leads$", before, re.M)
    assert re.search(rf"kill -STOP {pid}; sleep 8; kill -CONT {pid} ", before)


def test_the_screen_shows_the_failover(run: KilledRun) -> None:
    assert run.killed is not None
    after = run.frames[run.killed_at :]
    first = run.report["failovers"][0]
    assert any(re.search(rf"^{run.killed.name} down ", frame, re.M) for frame in after), str(run)
    took_over = rf"^{first['to']} active  process \d+, epoch \d+, took over in \d+\.\d s$"
    assert any(re.search(took_over, frame, re.M) for frame in after), str(run)
    assert re.search(r"^failovers \d; the last at \d+\.\d s: central-\d to ", run.roomy, re.M)
    assert "no central leads" not in run.frames[run.killed_at - 1]


def test_nothing_is_cut_off_at_80_columns_and_24_lines(run: KilledRun) -> None:
    for frame in run.frames:
        lines = frame.splitlines()
        assert len(lines) <= 24, frame
        assert max(map(len, lines)) <= 80, frame
    assert max(map(len, run.closing.splitlines())) <= 80, run.closing
    assert max(map(len, run.roomy.splitlines())) <= 80, run.roomy


def test_the_closing_table_has_the_leader_and_the_failovers(run: KilledRun) -> None:
    leader, failovers = run.report["leader"], run.report["failovers"]
    line = f"centrals: {CENTRALS}, leader: {leader}, failovers: {len(failovers)}"
    assert line in run.closing.splitlines()
    first = failovers[0]
    assert re.search(rf"at \d+\.\d s: {first['from']} to {first['to']} in ", run.closing)


def test_nothing_is_left_behind(run: KilledRun) -> None:
    assert folders_of(os.getpid()) == processes_of(os.getpid()) == []


def test_two_centrals_run_with_a_note_and_ctrl_c_ends_all_of_it() -> None:
    with running("--centrals", "2", "--json") as demo:
        demo.err.wait_for("two centrals have no fault tolerance: neither can lead without the")
        line = demo.err.wait_for("the centrals are central-1 at http://127.")
        assert line.count(", active)") == 1, line
        pid = demo.process.pid
        assert len(processes_of(pid)) == expected_processes(centrals=2)
        demo.process.send_signal(signal.SIGINT)
        report = json.loads(demo.out.text())
        assert demo.process.wait(PATIENCE) == 128 + signal.SIGINT
    assert [each["central"] for each in report["centrals"]] == ["central-1", "central-2"]
    assert report["leader"] == report["central"]["name"]
    assert report["failovers"] == []
    assert len(report["users"]) == len(USERS)
    assert folders_of(pid) == processes_of(pid) == []


def test_a_signal_during_the_start_ends_what_has_started() -> None:
    with running("--centrals", "3") as demo:
        pid = demo.process.pid
        wait_for(lambda: len(processes_of(pid)) >= CENTRALS, seen=demo.err.lines)
        demo.process.send_signal(signal.SIGTERM)
        assert demo.process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert (demo.out.text(), demo.err.text()) == ("", "")
    assert folders_of(pid) == processes_of(pid) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--centrals", "0"], "argument --centrals: expected 1, 2 or 3, got 0"),
        (["--centrals", "4"], "argument --centrals: expected 1, 2 or 3, got 4"),
        (["--centrals", "many"], "argument --centrals: expected an integer, got 'many'"),
        (["pacing", "--centrals", "3"], "only the demo quota has centrals, got pacing"),
        (["limits", "--centrals", "1"], "only the demo quota has centrals, got limits"),
    ],
)
def test_other_numbers_of_centrals_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["demo", *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
