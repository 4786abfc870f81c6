"""`UserTable`: several processes that count together, are killed, and report in turn."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import ConfigError, ManualClock, Throttled
from sluicegate.quota import Entry, Ledger
from sluicegate.quota.messages import Ack, Ask, Quota, Report, ServiceQuota, Share, UserAsk
from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core.reporter import Reporter
from tests.harness.children import Children
from tests.harness.waits import PATIENCE, Output, wait_for

LONG = 1e10  # seconds: no slot ends before the year 2286, and none while a test runs
IN_A_SLOT = 18_000  # requests


@pytest.fixture
def shared(tmp_path: Path) -> str:
    return str(tmp_path / "memory")


@pytest.fixture
def table(shared: str) -> Iterator[UserTable]:
    made = UserTable("n1", ["front"], shared=shared, clock=ManualClock(1000.0))
    yield made
    made.close()


@contextlib.contextmanager
def _run(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _quota(slot: int, users: Any, newcomers: Any, time: float, **options: Any) -> Quota:
    """An answer to an Ask: users that the node does not know yet are told of, too."""
    services = {"front": ServiceQuota(users, newcomers)}
    return Quota("c1", 1, 1, slot, time, 1, False, 0.05, services)._replace(**options)


def _ack(report: Report, time: float, sequence: int | None = None) -> Ack:
    booked = report.sequence if sequence is None else sequence
    return Ack("c1", True, 1, report.boot, booked, report.sent, time)


# Three processes that begin at the same time, when a line is read.
_TAKE_ALL = r"""
import os, sys
from sluicegate.quota.node.core._user_table import UserTable

def work(number):
    shared, rate, slot_seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    table = UserTable("n1", shared=shared, fallback={"requests": rate}, slot_seconds=slot_seconds)
    os.write(1, f"ready {number}\n".encode())  # in one piece: others write there, too
    os.read(begin, 1)
    passed = 0
    for _ in range(20_000):
        if table.allows("front", "ann", {"requests": 1.0}):
            passed += 1
            table.consume("front", "ann", {"requests": 1.0})
    os.write(1, f"passed {number} {passed}\n".encode())

begin, end = os.pipe()
for number in range(3):
    if os.fork() == 0:
        os.close(end)
        try:
            work(number)
        finally:
            os._exit(0)
sys.stdin.readline()
os.close(end)
for _ in range(3):
    os.wait()
"""


def test_processes_have_one_share_together(shared: str) -> None:
    with _run(_TAKE_ALL, shared, str(IN_A_SLOT / LONG), str(LONG)) as workers:
        output = Output(workers.stdout)
        for number in range(3):
            output.wait_for(f"ready {number}")
        workers.stdin.write("go\n")
        workers.stdin.flush()
        passed = [int(output.wait_for(f"passed {n}").split()[2]) for n in range(3)]
    assert sum(passed) == IN_A_SLOT


# For each path that it reads it forks a worker, which counts and notes there how far it is.
_COUNT = """
import os, sys
from sluicegate.quota.node.core._user_table import UserTable

forker = os.getpid()

def work(path):
    shared, slot_seconds = sys.argv[1], float(sys.argv[2])
    table = UserTable("n1", shared=shared, fallback={"requests": 1.0}, slot_seconds=slot_seconds)
    note = os.open(path, os.O_WRONLY | os.O_CREAT)
    users = [f"user-{number}" for number in range(20)]
    done = 0
    while os.getppid() == forker:
        for user in users:
            table.allows("front", user, {"requests": 1.0})
            table.consume("front", user, {"requests": 1.0})
            done += 1
        os.pwrite(note, b"%20d" % done, 0)

for line in sys.stdin:
    path = line.strip()
    worker = os.fork()
    if worker == 0:
        try:
            work(path)
        finally:
            os._exit(1)
    print("started", path, worker, flush=True)
    os.waitpid(worker, 0)
    print("ended", path, flush=True)
"""


def test_a_process_that_is_killed_at_any_instruction_loses_its_last_call_at_most(
    shared: str, tmp_path: Path
) -> None:
    chance = random.Random(5)
    counted = 0
    kills = 12
    with _run(_COUNT, shared, str(LONG)) as workers:
        output = Output(workers.stdout)
        for number in range(kills):
            noted = tmp_path / f"done-{number:02}"
            workers.stdin.write(f"{noted}\n")
            workers.stdin.flush()
            worker = int(output.wait_for(f"started {noted}").split()[2])
            wait_for(lambda noted=noted: noted.exists() and noted.stat().st_size)
            time.sleep(chance.uniform(0.0, 0.05))
            os.kill(worker, signal.SIGKILL)
            output.wait_for(f"ended {noted}")
            counted += int(noted.read_bytes())
    table = UserTable("n1", ["front"], shared=shared, fallback={"requests": 1.0}, slot_seconds=LONG)
    [(_, report)] = Reporter(table, ["c1"]).leave(table.now())
    total = sum(lines["requests"].consumed for lines in report.lines["front"].values())
    held = sum(lines["requests"].held for lines in report.lines["front"].values())
    table.close()
    # What was done since the last note is not counted here: up to one round of the users.
    assert counted <= total <= counted + kills * 20
    assert 0 <= held <= kills


def test_a_child_that_was_forked_counts_with_its_parent(shared: str, children: Children) -> None:
    fallback = {"requests": IN_A_SLOT / LONG}
    table = UserTable("n1", ["front"], shared=shared, fallback=fallback, slot_seconds=LONG)
    assert table.allows("front", "ann", {"requests": 1.0})

    def count() -> None:
        assert all(table.allows("front", "ann", {"requests": 1.0}) for _ in range(17_000))

    children.start(count)
    children.join()
    passed = sum(table.allows("front", "ann", {"requests": 1.0}) for _ in range(20_000))
    assert passed == IN_A_SLOT - 17_001
    table.close()


def test_a_new_reporter_tells_everything_again_and_nothing_is_booked_twice(shared: str) -> None:
    clock = ManualClock(1000.0)
    ledger = Ledger([Entry("front", "*", rates={"requests": 100.0}, burst_seconds=1.0)])
    told = 0.0
    sequences = []
    for life in range(4):
        table = UserTable("n1", ["front"], shared=shared, clock=clock)
        reporter = Reporter(table, ["c1"])
        for _ in range(3):
            now = clock.now()
            if table.allows("front", "ann", {"requests": 2.0}):
                table.consume("front", "ann", {"requests": 2.0})
                told += 2.0
            clock.advance(1.0)
            now = clock.now()
            for _, report in reporter.outgoing(now + 0.2):
                if isinstance(report, Report):
                    sequences.append(report.sequence)
                    ledger.book(int(now), report)
                    if life != 2:  # in one life no acknowledgement ever arrives
                        reporter.receive(now + 0.3, "c1", _ack(report, now + 0.3))
        table.close()
    assert told >= 8.0
    assert ledger.recorded("front", "ann", "requests") == told
    assert sequences == sorted(set(sequences))


def test_a_central_that_has_forgotten_a_user_books_only_what_no_leader_knew(shared: str) -> None:
    """What was settled is kept in the memory, for a reporter that comes later."""
    clock = ManualClock(1000.0)
    table = UserTable("n1", ["front"], shared=shared, clock=clock)
    reporter = Reporter(table, ["c1"])
    table.consume("front", "ann", {"requests": 5.0})
    for _ in range(3):
        clock.advance(1.0)
        for _, report in reporter.outgoing(clock.now() + 0.2):
            assert isinstance(report, Report)
            reporter.receive(clock.now() + 0.3, "c1", _ack(report, clock.now() + 0.3))
    table.consume("front", "ann", {"requests": 2.0})
    clock.advance(1.0)
    [(_, report)] = Reporter(table, ["c1"]).outgoing(clock.now() + 0.2)
    assert isinstance(report, Report)
    assert report.since == 0
    line = report.lines["front"]["ann"]["requests"]
    assert (line.consumed, line.settled) == (7.0, 5.0)
    table.close()


def test_what_does_not_fit_into_a_report_is_told_by_the_next(shared: str) -> None:
    """And an acknowledgement does not stand for what was left out."""
    clock = ManualClock(1000.0)
    table = UserTable("n1", ["front"], shared=shared, clock=clock)
    ledger = Ledger([Entry("front", "*", rates={"a": 1e9}, burst_seconds=1.0)])
    reporter = Reporter(table, ["c1"])
    amounts = dict.fromkeys("abcdefg", 1.0)
    for number in range(15_000):
        table.consume("front", f"user-{number}", amounts)
    sizes = []
    for _ in range(5):
        clock.advance(1.0)
        now = clock.now()
        [(_, report)] = reporter.outgoing(now + 0.2)
        assert isinstance(report, Report)
        sizes.append(sum(map(len, report.lines.get("front", {}).values())))
        ledger.book(int(now), report)
        reporter.receive(now + 0.3, "c1", _ack(report, now + 0.3))
    assert sum(sizes) == 15_000 * 7
    assert max(sizes) <= 50_000
    assert sizes[3:] == [0, 0]
    for number in (0, 7_000, 14_999):
        assert ledger.recorded("front", f"user-{number}", "g") == 1.0
    table.close()


def test_windows_go_on_when_nobody_reports(table: UserTable) -> None:
    clock = table.clock
    assert isinstance(clock, ManualClock)
    reporter = Reporter(table, ["c1"])
    shares = {"ann": {"requests": Share(3.0, 1.0)}}
    reporter.receive(1000.0, "c1", _quota(1000, shares, {"requests": 1.0}, 1000.0))
    passed, states = [], []
    for _ in range(9):
        states.append(table.state(clock.now(), "front", "ann"))
        passed.append(sum(table.allows("front", "ann", {"requests": 1.0}) for _ in range(10)))
        for _ in range(passed[-1]):
            table.consume("front", "ann", {"requests": 1.0})
        clock.advance(1.0)
    # What was granted, then nothing; when no window was published for two slots, the safe share.
    assert passed == [3, 0, 0, 1, 1, 1, 1, 1, 1]
    assert states == ["fresh"] * 3 + ["reused"] + ["safe"] * 5
    # A reporter that goes on, and hears the leader, ends it.
    again = Reporter(table, ["c1"])
    again.receive(clock.now(), "c1", _quota(1009, shares, {"requests": 1.0}, clock.now()))
    assert table.state(clock.now(), "front", "ann") == "fresh"


@pytest.mark.parametrize("user", ["a/b", "ä", "~3", "x" * 160, "x" * 500, "ü" * 300, "a\0b"])
def test_any_name_is_one_user(table: UserTable, user: str) -> None:
    table.consume("front", user, {"requests": 2.0})
    table.consume("front", user[:-1] + "?", {"requests": 3.0})
    table.clock.advance(1.0)  # type: ignore[attr-defined]
    [(_, report)] = Reporter(table, ["c1"]).outgoing(table.now())
    assert isinstance(report, Report)
    told = report.lines["front"]
    assert sorted(lines["requests"].consumed for lines in told.values()) == [2.0, 3.0]
    if len(user.encode()) <= 160:
        assert user in told
    assert all(len(name.encode()) <= 160 for name in told)


def test_of_too_many_resources_those_that_fit_are_counted(table: UserTable) -> None:
    shares = {"ann": {"resource-0": Share(5.0, 1.0)}}
    quota = _quota(1000, shares, {"requests": 1.0}, 1000.0)
    Reporter(table, ["c1"]).receive(1000.0, "c1", quota)
    for number in range(7):
        table.consume("front", "ann", {f"resource-{number}": 1.0})
    with pytest.raises(ValueError, match="at most 8 on a node, and user 'ann' .* 'one-more' of"):
        table.consume("front", "ann", {"requests": 1.0, "one-more": 1.0})
    table.consume("front", "bob", {"one-more": 1.0})
    table.clock.advance(1.0)  # type: ignore[attr-defined]
    [(_, report)] = Reporter(table, ["c1"]).outgoing(table.now())
    assert isinstance(report, Report)
    assert len(report.lines["front"]["ann"]) == 8
    assert report.lines["front"]["ann"]["requests"].consumed == 1.0


def test_a_share_that_has_no_place_lets_nothing_pass(table: UserTable) -> None:
    """Never unlimited: he has consumed of eight other resources, and has a limit in a ninth."""
    reporter = Reporter(table, ["c1"])
    reporter.receive(1000.0, "c1", _quota(1000, {}, {"resource-0": 9.0}, 1000.0))
    for number in range(8):
        table.consume("front", "ann", {f"resource-{number}": 1.0})
    shares = {
        "ann": {"ninth": Share(5.0, 1.0)},
        "bob": {f"r{n}": Share(5.0, 1.0) for n in range(8)},
    }
    reporter.receive(1000.1, "c1", _quota(1000, shares, {"ninth": 1.0}, 1000.1))
    assert not table.allows("front", "ann", {"ninth": 1.0})
    for number in range(8):
        passed = sum(table.allows("front", "bob", {f"r{number}": 1.0}) for _ in range(9))
        assert passed == 5


def test_a_quota_of_many_services_is_taken_for_those_that_are_served_here(table: UserTable) -> None:
    reporter = Reporter(table, ["c1"])
    newcomers = {"requests": 2.0}
    services = {f"service-{n}": ServiceQuota({}, newcomers) for n in range(1000)}
    services["front"] = ServiceQuota({"ann": {"requests": Share(3.0, 1.0)}}, newcomers)
    quota = Quota("c1", 1, 1, 1000, 1000.0, 1, False, 0.05, services)
    reporter.receive(1000.0, "c1", quota)
    assert sum(table.allows("front", "ann", {"requests": 1.0}) for _ in range(9)) == 3
    assert sum(table.allows("front", "bob", {"requests": 1.0}) for _ in range(9)) == 2


def test_a_central_that_never_answers_does_not_hold_up_the_others(shared: str) -> None:
    clock = ManualClock(1000.0)
    table = UserTable("n1", ["front"], shared=shared, clock=clock)
    reporter = Reporter(table, ["live", "dead"])
    amounts = dict.fromkeys("abc", 1.0)
    for number in range(17_000):
        table.consume("front", f"user-{number}", amounts)
    told = []
    for _ in range(40):
        clock.advance(1.0)
        now = clock.now()
        for number in range(10):
            table.consume("front", f"user-{number}", amounts)
        reports = dict(reporter.outgoing(now + 0.2))
        live = reports["live"]
        assert isinstance(live, Report)
        told.append(sum(map(len, live.lines.get("front", {}).values())))
        reporter.receive(now + 0.3, "live", _ack(live, now + 0.3)._replace(central="live"))
    assert sum(told) >= 17_000 * 3
    assert told[15:] == [30] * 25
    table.close()


@pytest.mark.parametrize("user", ["~bob", "~", "~5000", "~3"])
def test_a_name_with_a_tilde_is_a_name(table: UserTable, user: str) -> None:
    reporter = Reporter(table, ["c1"])
    reporter.receive(1000.0, "c1", _quota(1000, {user: {}}, {"requests": 1.0}, 1000.0))
    assert all(table.allows("front", user, {"requests": 1.0}) for _ in range(100))


def test_without_memory_nobody_new_passes_and_nothing_is_raised(tmp_path: Path) -> None:
    table = UserTable(
        "n1", shared=str(tmp_path / "memory"), max_users=10, fallback={"requests": 1.0}
    )
    for service in range(64):
        for number in range(40):
            table.allows(f"service-{service}", f"~{number}x", {"requests": 1.0})
    assert len(table) <= 10 + 64 * 256
    table.close()


def test_the_memory_of_another_node_or_slot_is_not_taken_for_ours(shared: str) -> None:
    first = UserTable("n1", shared=shared)
    first.consume("front", "ann", {"requests": 1.0})
    boot = first.header.boot
    with pytest.raises(
        ConfigError, match="belongs to node 'n1' with slots of 1 s, expected node 'n2' with"
    ):
        UserTable("n2", shared=shared)
    with pytest.raises(ConfigError, match="slots of 1 s, expected node 'n1' with slots of 0.5 s"):
        UserTable("n1", shared=shared, slot_seconds=0.5)
    first.close()
    again = UserTable("n1", shared=shared)
    assert (again.header.boot, len(again)) == (boot, 1)
    again.close()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "memory-head").write_bytes(b"my diary")
    (tmp_path / "memory-head").chmod(0o600)
    with pytest.raises(ConfigError, match="is not a shared memory file of sluicegate"):
        UserTable("n1", shared=str(tmp_path / "memory"))
    assert (tmp_path / "memory-head").read_bytes() == b"my diary"


def test_a_closed_table_says_so(table: UserTable, shared: str) -> None:
    table.close()
    with pytest.raises(ValueError, match="is closed"):
        table.allows("front", "ann")
    assert UserTable.unlink(shared)
    assert not UserTable.unlink(shared)


def test_asks_of_all_processes_reach_the_reporter(table: UserTable, shared: str) -> None:
    reporter = Reporter(table, ["c1"])
    reporter.outgoing(1000.0)
    with Path(os.devnull).open() as nothing:
        code = (
            "import sys\nfrom sluicegate import ManualClock\n"
            "from sluicegate.quota.node.core._user_table import UserTable\n"
            'table = UserTable("n1", shared=sys.argv[1], clock=ManualClock(1000.0))\n'
            'for number in range(3): table.allows("front", f"user-{number % 2}")\n'
        )
        command = [sys.executable, "-c", code, shared]
        subprocess.run(command, check=True, stdin=nothing, timeout=PATIENCE)
    assert table.header.has_asks
    [(_, ask)] = reporter.outgoing(1000.1)
    assert isinstance(ask, Ask)
    assert ask.users == {"front": {"user-0": UserAsk(1, {}), "user-1": UserAsk(1, {})}}
    assert not table.header.has_asks


def test_more_asks_than_there_is_room_for_are_made_again_later(table: UserTable) -> None:
    reporter = Reporter(table, ["c1"])
    reporter.outgoing(1000.0)
    for number in range(2000):
        table.allows("front", f"user-{number}")
    [(_, ask)] = reporter.outgoing(1000.1)
    assert len(ask.users["front"]) == 512  # type: ignore[union-attr]


def test_requests_that_die_are_given_back_also_while_others_go_on(table: UserTable) -> None:
    """One request in ten is never settled: what is held must not grow for ever."""
    clock = table.clock
    assert isinstance(clock, ManualClock)
    reporter = Reporter(table, ["c1"])
    held = 0.0
    for slot in range(1000, 1400):
        shares = {"ann": {"requests": Share(100.0 + 10.0 * (slot - 1000), 1.0)}}
        reporter.receive(clock.now(), "c1", _quota(slot, shares, {"requests": 1.0}, clock.now()))
        for number in range(10):
            assert table.allows("front", "ann", {"requests": 1.0})
            if number:
                table.consume("front", "ann", {"requests": 1.0})
        clock.advance(1.0)
        for _, report in reporter.outgoing(clock.now() + 0.2):
            if isinstance(report, Report):
                held = report.lines["front"]["ann"]["requests"].held
    assert 40.0 <= held <= 75.0


def test_a_refusal_says_for_how_long(table: UserTable) -> None:
    table.clock.advance(0.25)  # type: ignore[attr-defined]
    for _ in range(10):
        table.throttle("front", "ann")
    with pytest.raises(Throttled) as caught:
        table.throttle("front", "ann")
    assert (caught.value.resource, caught.value.retry_after) == ("requests", 0.75)


def test_a_request_passes_as_soon_as_its_worth_has_accrued(shared: str) -> None:
    """Of the system's clock: the coarse one, which is behind, refuses nobody."""
    fallback = {"requests": 40.0}  # one in 0.025 s
    table = UserTable("n1", shared=shared, fallback=fallback, slot_seconds=0.1)
    cost = {"requests": 1.0}
    for _ in range(8):
        with pytest.raises(Throttled) as caught:
            while True:
                table.throttle("front", "ann", cost)
                table.consume("front", "ann", cost)
        assert 0.0 <= caught.value.retry_after <= 0.1
        time.sleep(1.0 / 40.0)  # real, as the clock of the system is what is tested
        assert table.allows("front", "ann", cost)
        table.consume("front", "ann", cost)
    table.close()


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({"requests": float("nan")}, "got nan for 'requests'"),
        ({"requests": -1}, "got -1 for 'requests'"),
        ({"requests": 10**400}, "got 1000.* for 'requests'"),
        ({"requests": "many"}, "got 'many' for 'requests'"),
        ({"requests": None}, "got None for 'requests'"),
        ({"": 1.0}, "must not be empty"),
        ({"x" * 201: 1.0}, "at most 200 bytes"),
        ({3: 1.0}, "must be a str, got 3"),
        ("requests", "must be a dict of amounts by resource, got 'requests'"),
        ([], r"must be a dict of amounts by resource, got \[\]"),
        ({f"r{number}": 1.0 for number in range(65)}, "at most 64 resources, got 65"),
    ],
)
def test_amounts_that_make_no_sense_are_refused_and_change_nothing(
    table: UserTable, amounts: Any, message: str
) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError), match=message):
        table.consume("front", "ann", amounts)
    with pytest.raises((ValueError, TypeError, OverflowError), match=message):
        table.allows("front", "ann", amounts)
    assert len(table) == 0


def test_a_memory_that_was_outlived_by_another_is_booked_again_when_that_has_gone(
    tmp_path: Path,
) -> None:
    """One node_id with two memories: until then nothing of the older one is booked."""
    clock = ManualClock(1000.0)
    ledger = Ledger([Entry("front", "*", rates={"requests": 100.0}, burst_seconds=1.0)])

    def tell(reporter: Reporter) -> bool:
        for _, report in reporter.outgoing(clock.now() + 0.2):
            if isinstance(report, Report):
                if ledger.is_outlived(report.node, report.boot):
                    return False
                ledger.book(int(clock.now()), report)
                reporter.receive(clock.now() + 0.3, "c1", _ack(report, clock.now() + 0.3))
        return True

    older = UserTable("n1", ["front"], shared=str(tmp_path / "older"), clock=clock)
    reporter = Reporter(older, ["c1"])
    older.consume("front", "ann", {"requests": 5.0})
    for _ in range(3):
        clock.advance(1.0)
        assert tell(reporter)
    newer = UserTable("n1", ["front"], shared=str(tmp_path / "newer"), clock=clock)
    newer.consume("front", "ann", {"requests": 7.0})
    clock.advance(1.0)
    assert tell(Reporter(newer, ["c1"]))
    newer.close()
    older.consume("front", "ann", {"requests": 4.0})
    denied = 0
    clock.advance(1.0)
    while not tell(reporter):
        ledger.assign(int(clock.now()) + 1)
        denied += 1
        clock.advance(1.0)
    assert 299 <= denied <= 302
    assert ledger.recorded("front", "ann", "requests") == 5.0 + 7.0 + 4.0
    older.close()
