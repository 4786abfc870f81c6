"""The file a central goes on from: whole, torn, of another kind, or not to be had."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError, Unavailable
from sluicegate.quota import Central, Ledger
from sluicegate.quota.central.state_file import StateFile
from sluicegate.quota.messages import Line, Report
from tests.harness.central import LIMITS, SLOT, V1Node, running, slot_of

THEN = 1_800_000_000  # a slot


def used_ledger() -> Ledger:
    ledger = Ledger(LIMITS)
    lines = {"front": {"ann": {"requests": Line(500.0, 0, 500, 0.0, 0.0)}}}
    ledger.book(THEN, Report("n", 1, 1, -1, 0, THEN - 1, 0.0, lines))
    ledger.assign(THEN)
    return ledger


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "central.state"
    size = StateFile(path).write(77, used_ledger().snapshot())
    assert size == path.stat().st_size
    return path


def test_what_was_written_is_read(written: Path) -> None:
    ledger = Ledger(LIMITS)
    assert StateFile(written).restore(ledger) == 77
    assert ledger.recorded("front", "ann", "requests") == 500.0
    assert os.listdir(written.parent) == ["central.state"]
    assert written.stat().st_mode & 0o077 == 0


def test_no_file_is_a_fresh_start(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "none").restore(Ledger(LIMITS)) == 0


@pytest.mark.parametrize("length", [0, 1, 8, 19, 20, 21, 100, -1])
def test_a_torn_file_is_set_aside_and_the_books_are_empty(
    written: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[:length])
    ledger = Ledger(LIMITS)
    epoch = StateFile(written).restore(ledger)
    assert epoch == (77 if length == -1 or length >= 20 else 0)
    assert ledger.recorded("front", "ann", "requests") == 0.0
    assert not written.exists()
    (aside,) = written.parent.iterdir()
    assert aside.name.startswith("central.state.torn-")
    assert aside.read_bytes() == whole[:length]
    assert "starting with an empty ledger" in caplog.text


@pytest.mark.parametrize("at", [0, 9, 15, 25, 60, -5])
def test_a_changed_byte_is_found(written: Path, at: int) -> None:
    raw = bytearray(written.read_bytes())
    raw[at] ^= 1
    written.write_bytes(raw)
    ledger = Ledger(LIMITS)
    StateFile(written).restore(ledger)
    assert ledger.recorded("front", "ann", "requests") == 0.0
    assert not written.exists()


def test_a_file_of_other_slots_stops_the_start_and_is_left_alone(written: Path) -> None:
    """It was set aside once: a slip in --slot cost all that was booked."""
    before = written.read_bytes()
    with pytest.raises(ConfigError, match=r"--slot\): the snapshot has slots of 1.0 s, expected 2"):
        StateFile(written).restore(Ledger(LIMITS, slot_seconds=2.0))
    assert written.read_bytes() == before


def test_a_path_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a regular file"):
        StateFile(tmp_path).restore(Ledger(LIMITS))
    with pytest.raises(ConfigError, match="must be a writable folder"):
        StateFile(tmp_path / "no" / "where").restore(Ledger(LIMITS))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(TypeError):
        StateFile(written).write(78, "no bytes")  # type: ignore[arg-type]
    assert written.read_bytes() == before
    assert os.listdir(written.parent) == ["central.state"]


# In a running central


def booked(central: Central) -> float:
    assert central.registry is not None
    return central.registry.state.ledger.recorded("front", "ann", "requests")


def test_a_restart_forgets_nothing_and_leads_in_a_higher_epoch(tmp_path: Path) -> None:
    path = tmp_path / "s"
    epochs = []
    for life in range(3):
        with running(state=path) as central:
            assert booked(central) == 500.0 * life
            with V1Node(central) as node:
                node.sequence = life
                ack = node.report(slot_of(central) - 1, ann=500.0 * (life + 1))
                epochs.append(ack.epoch)
    assert epochs == sorted(set(epochs))


def test_a_clock_that_went_back_does_not_lower_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ahead = int(time.time()) + 9 * 365 * 86_400
    StateFile(path).write(ahead, Ledger(LIMITS, slot_seconds=SLOT).snapshot())
    with running(state=path) as central:
        assert central.registry is not None
        assert central.registry.state.epoch == ahead + 1


@pytest.mark.parametrize("epoch", [2**53 - 1, 2**53, 2**64 - 1, 5_000_000_000])
def test_an_epoch_from_nowhere_does_not_outlive_a_restart(
    tmp_path: Path, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One report of a node could raise it, and no frame can tell one of 2**53."""
    path = tmp_path / "s"
    StateFile(path).write(epoch, Ledger(LIMITS, slot_seconds=SLOT).snapshot())
    with running(state=path) as central, V1Node(central) as node:
        ack = node.report(slot_of(central) - 1)
        assert ack.epoch == pytest.approx(time.time(), abs=60)
    assert f"ignoring epoch {epoch} of the state file" in caplog.text


def test_what_a_killed_writer_has_left_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "s"
    left, held = tmp_path / ".s.abcdefg_.new", tmp_path / ".s.12345678.new"
    others = [tmp_path / name for name in (".s.swp", ".sx.abcdefgh.new", ".s.abcdefgh.new.bak")]
    for path in (left, held, *others):
        path.write_bytes(b"sgst")
    with open(held) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        StateFile(state).restore(Ledger(LIMITS))
    assert sorted(tmp_path.iterdir()) == sorted([held, *others])


def test_a_writer_holds_what_it_writes(tmp_path: Path) -> None:
    """Until it is killed: then the next start finds it, and nobody holds it."""
    script = (
        "import os, signal, sys\n"
        "from sluicegate.quota.central.state_file import StateFile\n"
        "os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)\n"
        "StateFile(sys.argv[1]).write(1, b'books')\n"
    )
    state = tmp_path / "s"
    killed = subprocess.run([sys.executable, "-c", script, str(state)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    assert StateFile(state).restore(Ledger(LIMITS)) == 0
    assert os.listdir(tmp_path) == []


def test_a_torn_file_does_not_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"sgstate1 and no more")
    with running(state=path) as central, V1Node(central) as node:
        assert node.report(slot_of(central) - 1).leads
    assert sorted(each.name.partition("-")[0] for each in tmp_path.iterdir()) == ["s", "s.torn"]


def test_a_state_that_cannot_be_written_at_the_stop_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, say: the stop is clean but for that, and the exit code is not 0."""
    monkeypatch.setattr(
        StateFile, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    central = Central(LIMITS, listen="127.0.0.1:0", state=tmp_path / "s")
    with pytest.raises(Unavailable, match="the state was not written at shutdown"), central:
        pass
    assert "No space left" in caplog.text
    assert central.registry is not None
    text = central.registry.metrics.render(central.registry).decode()
    assert "sluicegate_central_state_write_errors_total 1.0" in text
    assert "sluicegate_central_state_age_seconds " in text


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "pipe"):
        if not path.exists():
            os.mkfifo(path)
        with pytest.raises(ConfigError, match="must be a regular file"):
            StateFile(path).restore(Ledger())
        assert path.exists()
