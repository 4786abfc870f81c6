"""`ReporterLock`: one worker of a host reports, another follows it, and the last one leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota.node.reporter_lock import ReporterLock
from tests.harness.children import Children
from tests.harness.waits import Output, wait_for

HOLD = """
import sys
from sluicegate.quota.node.reporter_lock import ReporterLock
lock = ReporterLock(sys.argv[1])
assert lock.enter() and lock.take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.lock"


def test_one_reports_and_another_follows(path: Path) -> None:
    first, second = ReporterLock(path), ReporterLock(path)
    assert first.enter()
    assert second.enter()
    assert first.take()
    assert not second.take()
    assert second.reporter_pid() == os.getpid()
    first.release()
    assert second.take()
    second.release()


def test_only_the_last_is_last_and_nobody_enters_while_it_leaves(path: Path) -> None:
    first, second, third = (ReporterLock(path) for _ in range(3))
    assert first.enter()
    assert first.take()
    assert second.enter()
    assert not first.take_if_last()
    assert not first.is_held  # so that who closes at the same time can have it
    assert second.take_if_last()
    assert second.is_held
    assert not third.enter()
    second.release()
    first.release()
    assert third.enter()
    third.release()


def test_who_closes_without_having_reported_may_be_the_last(path: Path) -> None:
    lock = ReporterLock(path)
    assert lock.enter()
    assert lock.take_if_last()
    lock.release()


def test_a_killed_process_holds_nothing(path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        Output(process.stdout).wait_for("held")
        lock = ReporterLock(path)
        assert lock.enter()
        assert not lock.take()
        assert lock.reporter_pid() == process.pid
        process.send_signal(signal.SIGKILL)
        wait_for(lock.take)
        lock.release()


def test_a_forked_child_that_drops_its_copy_ends_nothing(path: Path, children: Children) -> None:
    lock, other = ReporterLock(path), ReporterLock(path)
    assert lock.enter()
    assert lock.take()
    assert other.enter()
    children.start(lock.release)
    children.join()
    assert not other.take()
    lock.release()
    other.release()


def test_without_shared_memory_one_is_alone_in_the_world() -> None:
    lock = ReporterLock(None)
    assert lock.reporter_pid() is None
    assert lock.enter()
    assert lock.take()
    assert lock.take_if_last()
    assert lock.reporter_pid() == os.getpid()
    lock.release()


def test_a_file_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open lock file"):
        ReporterLock(tmp_path / "no" / "such.lock").open()
    with pytest.raises(ConfigError, match="cannot open lock file"):
        ReporterLock(tmp_path).open()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot open lock file"):
        ReporterLock(tmp_path / "link").open()
