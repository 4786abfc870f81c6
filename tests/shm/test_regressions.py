"""What went wrong once, each as a story."""

import gc
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sluicegate import ConfigError, Keyed, Limit, ManualClock, SharedKeyed, SharedTable, TableFull
from tests.harness.waits import wait_for

# Two words of a file: of a process slot, what its process was doing; of a chain, its head.
SLOTS_AT, SLOT_BYTES = 8192, 640
HEADS_AT = SLOTS_AT + 512 * SLOT_BYTES


def test_a_removal_that_another_did_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Two processes remove a key at once; one of them is killed before its swap.

    Its process slot says that it was about to, and the chain's head is just what it wanted. It
    must not take the record that the other one has as its free record.
    """
    path = tmp_path / "keyed"
    one = SharedKeyed(path, "5/hour", max_keys=4)
    other = SharedKeyed(path, "5/hour", max_keys=4)
    assert one.allow("a")
    with path.open("r+b") as file:
        memory = file.read(HEADS_AT + 8 * 16)
        (chain,) = (
            number
            for number in range(16)
            if struct.unpack_from("<Q", memory, HEADS_AT + 8 * number)[0]
        )
        before = struct.unpack_from("<Q", memory, HEADS_AT + 8 * chain)[0]
        block = before & ((1 << 28) - 1)
        one.reset("a")
        other.close()
        # As the other one's slot was when it was killed: pending_chain, old_head, new_head,
        # ..., counts of new and old records, and the old one.
        file.seek(SLOTS_AT + SLOT_BYTES)
        file.write(struct.pack("<QQQ", chain + 1, before, (before - block) + (1 << 28)))
        file.seek(SLOTS_AT + SLOT_BYTES + 48)
        file.write(struct.pack("<II", 0, 1))
        file.seek(SLOTS_AT + SLOT_BYTES + 56 + 36)
        file.write(struct.pack("<I", block))
    third = SharedKeyed(path, "5/hour", max_keys=4)
    for turn in range(30):
        for keyed in (one, third):
            keyed.allow(f"{turn % 3}")
            keyed.reset(f"{turn % 3}")
            keyed.allow("x", 0.1)
            keyed.allow("y", 0.1)
    assert one.check("x", 0).remaining == pytest.approx(5 - 6.0 + 1, abs=0.1)


def test_keys_that_others_forget_meanwhile_make_no_new_key_wait(name: str, children: Any) -> None:
    """A key that was dropped a moment after we read the clock is no clock that stepped back."""
    keyed = SharedKeyed(name, "10000/second", max_keys=100_000)

    def ask(who: int) -> None:
        for number in range(200_000):
            assert keyed.allow(f"{who}:{number}")

    for who in range(2):
        children.start(lambda who=who: ask(who))
    for number in range(20_000):
        keyed.override(f"new:{number}", "100/hour")
        assert keyed.check(f"new:{number}", 0).remaining == 100
        keyed.override(f"new:{number}", None)
    children.join()
    assert keyed.overflowed == 0


def test_a_walk_takes_each_key_once_however_often_it_comes_back(name: str, children: Any) -> None:
    table = SharedTable(name, max_keys=1_000)
    stop = SharedTable(f"{name}-stop")

    def write() -> None:
        while not stop.get("now"):
            table.incr("hot")

    try:
        children.start(write)
        wait_for(lambda: len(table))
        walks = [list(table.take()) for _ in range(200)]
        assert max(map(len, walks)) == 1
        stop.incr("now")
        children.join()
    finally:
        SharedTable.unlink(f"{name}-stop")


SLOW_DISK = """
import sys, threading, time
from sluicegate import SharedKeyed
from sluicegate.shm.file import SharedFile

commit = SharedFile.commit
def slowly(*args):
    time.sleep(0.002)
    return commit(*args)
SharedFile.commit = slowly
keyed = SharedKeyed(sys.argv[1], "1/hour", max_keys=50_000)
together = threading.Barrier(40)
def work():
    for number in range(150):
        together.wait()
        keyed.allow(f"{number:0240}")
threads = [threading.Thread(target=work) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(keyed), sum(keyed.allow(f"{number:0240}") for number in range(200)))
"""


def test_many_threads_that_wait_for_memory_do_not_overfill_the_process_slot(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SLOW_DISK, name], capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, run.stdout) == (0, "150 50\n"), run.stderr


CLOSE_UNDER_CALLS = """
import sys, threading, time
from sluicegate import SharedKeyed
from sluicegate.shm.file import SharedFile

commit = SharedFile.commit
def slowly(*args):
    time.sleep(0.002)  # so that the other thread closes it meanwhile
    return commit(*args)
SharedFile.commit = slowly
sys.setswitchinterval(1e-6)
watcher = SharedKeyed(sys.argv[1], "10/second", max_keys=50_000)
endings = set()
for turn in range(150):
    keyed = SharedKeyed(sys.argv[1], "10/second", max_keys=50_000)
    calls = 0
    def work():
        global calls
        try:
            while True:
                calls += 1
                keyed.override(f"k{calls % 50}", f"{calls % 7 + 1}/second; 7/minute")
                keyed.allow(f"{turn}:{calls:0100}")
        except Exception as error:
            endings.add(str(error))
    thread = threading.Thread(target=work)
    thread.start()
    while calls < turn:  # the 50 limits of their own are set in some turns, however late
        time.sleep(0.0001)
    keyed.close()
    thread.join()
print(50 <= len(watcher) <= 50_000, watcher.overflowed, *endings)
"""


def test_one_thread_may_close_it_while_another_is_in_a_call(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CLOSE_UNDER_CALLS, name], capture_output=True, text=True, timeout=100
    )
    expected = "True 0 the shared memory is closed\n"
    assert (run.returncode, run.stdout) == (0, expected), run.stderr


def test_a_daemon_that_closes_all_descriptors_does_not_lock_the_wrong_file(
    name: str, tmp_path: Path, children: Any
) -> None:
    keyed = SharedKeyed(name, Limit(1, per=1e9, burst=100_000), max_keys=100)

    def become_a_daemon(number: int) -> None:
        os.closerange(3, 256)
        logs = [os.open(tmp_path / f"{number}-{log}", os.O_RDWR | os.O_CREAT) for log in range(6)]
        for _ in range(3_000):
            keyed.allow("a")
        for log in logs:
            os.write(log, b"still mine")

    for number in range(3):
        children.start(lambda number=number: become_a_daemon(number))
    children.join()
    assert keyed.check("a", 0).remaining == pytest.approx(91_000, abs=0.01)
    assert {log.read_text() for log in tmp_path.iterdir()} == {"still mine"}


def test_keys_that_grow_longer_with_time_find_their_room(name: str, clock: ManualClock) -> None:
    keyed = SharedKeyed(name, "1/minute", max_keys=5_000, clock=clock)
    for size in (20, 90, 200, 255, 20, 255):
        clock.advance(1_000)
        for number in range(5_000):
            assert keyed.allow(f"{number:0{size}}")
        assert (len(keyed), keyed.overflowed) == (5_000, 0)
    with SharedKeyed(name, "1/minute", max_keys=5_000, clock=clock) as other:
        assert not other.allow(f"{5:0255}")


def test_who_opens_it_does_not_wait_for_ever_for_one_who_was_stopped(
    name: str, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = SharedKeyed(name, "1/second", max_keys=10)
    file = Path(keyed.path or "")
    keyed.close()
    alone = children.start(lambda: _hold_alone(file))
    wait_for((file.parent / f"{file.name}.held").exists)
    (file.parent / f"{file.name}.held").unlink()
    monkeypatch.setattr("sluicegate.shm.file._WAIT_SECONDS", 0.05)
    with pytest.raises(ConfigError, match="timed out after 0.05 s waiting for another process"):
        SharedKeyed(name, "1/second", max_keys=10)
    children.kill(alone)
    # It died over its look, so the next one looks again.
    assert SharedKeyed(name, "1/second", max_keys=10).allow("a")


def _hold_alone(path: Path) -> None:
    from sluicegate.shm.file import SharedFile

    file = SharedFile.open(path, 0, 0, lambda descriptor: None)
    assert file.lock_exclusive()
    os.pwrite(file.descriptor, struct.pack("<Q", 1), 2160 + 56)  # as one who looks through it
    (path.parent / f"{path.name}.held").touch()
    signal.pause()


def test_a_signal_handler_may_ask_during_a_childs_first_call(name: str, children: Any) -> None:
    keyed = SharedKeyed(name, Limit(1, per=1e9, burst=100_000), max_keys=100)

    def ask(delay: float) -> None:
        signal.signal(signal.SIGALRM, lambda *_: keyed.allow("handler"))
        signal.setitimer(signal.ITIMER_REAL, delay)
        for _ in range(50):
            keyed.allow("child")

    for turn in range(200):
        children.start(lambda turn=turn: ask(1e-6 * (1 + turn % 60)))
        if turn % 10 == 9:
            children.join()
    assert keyed.check("child", 0).remaining == pytest.approx(90_000, abs=0.01)


def test_after_a_restart_with_the_wall_clock_behind_new_keys_still_pass(tmp_path: Path) -> None:
    path = tmp_path / "keyed"
    with SharedKeyed(path, "1000/second", max_keys=10) as keyed:
        for number in range(2_000):
            keyed.allow(number % 30)
            if number % 500 == 0:
                time.sleep(0.05)  # real time: the clock that is stepped is the system's
    with path.open("r+b") as file:
        file.seek(2160)
        file.write(b"boot")
        file.seek(2160 + 48)
        (wall,) = struct.unpack("d", file.read(8))
        file.seek(2160 + 48)
        file.write(struct.pack("d", wall + 3600))
    with SharedKeyed(path, "1000/second", max_keys=10) as keyed:
        assert keyed.allow("brand new")


def test_workers_that_outlive_their_launcher_leave_it_its_slot(name: str, children: Any) -> None:
    """Open, fork, close, again and again: what a child inherits must not hold on to a slot."""
    calls = SharedTable(f"{name}-calls", max_keys=10)

    def work(keyed: SharedKeyed) -> None:
        keyed.allow("a")
        calls.incr("calls")
        signal.pause()

    try:
        for _ in range(20):
            keyed = SharedKeyed(name, "1000/second", max_keys=10)
            children.start(lambda keyed=keyed: work(keyed))
            keyed.close()
        # All have made their call, on process slots of their own.
        wait_for(lambda: calls.get("calls") == 20, seen=lambda: calls.get("calls"))
        held = locks_on(f"/dev/shm/sluicegate-{os.geteuid()}-{name}")
        assert 0 < len([lock for lock in held if "WRITE" in lock]) <= 20
    finally:
        SharedTable.unlink(f"{name}-calls")


def test_one_object_is_made_once(name: str) -> None:
    keyed, table = SharedKeyed(name, "1/second"), SharedTable(f"{name}-table")
    try:
        with pytest.raises(TypeError, match="is already initialized"):
            keyed.__init__(name, "2/second")  # type: ignore[misc]
        with pytest.raises(TypeError, match="is already initialized"):
            table.__init__(name)  # type: ignore[misc]
        assert keyed.allow("a")
        assert table.incr("a") == 1
    finally:
        SharedTable.unlink(f"{name}-table")


def test_a_full_table_is_not_full_for_a_key_that_another_has_added(
    name: str, children: Any
) -> None:
    table = SharedTable(name, max_keys=1)

    def increment() -> bool:
        """False: another process has taken the last place, and the key is not there yet."""
        is_there = table.get("only") > 0
        try:
            table.incr("only")
        except TableFull:
            if is_there:
                raise
            return False
        return True

    def write() -> None:
        for _ in range(20_000):
            wait_for(increment)

    for _ in range(3):
        children.start(write)
    children.join()
    assert table.get("only") == 60_000
    with pytest.raises(TableFull):
        table.incr("another")


def test_one_who_is_killed_over_making_it_leaves_nothing(name: str, children: Any) -> None:
    for turn in range(30):
        child = children.start(lambda: SharedKeyed(name, "1/second", max_keys=200_000))
        time.sleep(0.0002 * turn)  # real time: a kill must come in the middle of it
        if child in children.running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            children.running.remove(child)
        SharedKeyed.unlink(name)
    assert not [file for file in os.listdir("/dev/shm") if name in file]


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_counter"])
def test_two_limits_over_the_same_time_keep_their_own_use(
    algorithm: str, name: str, clock: ManualClock
) -> None:
    limits = "10/hour; 2/hour"
    for keyed in (
        Keyed(limits, algorithm=algorithm, clock=clock),
        SharedKeyed(name, limits, algorithm=algorithm, clock=clock),
    ):
        keyed.override("a", "100/minute")
        for _ in range(6):
            assert keyed.allow("a")
        keyed.override("a", None)
        denied = keyed.check("a")
        assert (denied.allowed, denied.limit) == (False, Limit(2, 3600))
        keyed.override("b", None)
        assert keyed.allow("b", 2)
        keyed.override("b", "10/hour; 3/hour")
        assert keyed.check("b", 0).remaining == 1  # three less the two, not less ten


def test_errors_show_enough_of_a_key_and_not_all_of_it(name: str) -> None:
    keyed, table = SharedKeyed(name, "1/second"), SharedTable(f"{name}-table")
    try:
        with pytest.raises(ValueError, match=r"got 5000: 'xxxxx.*'\.\.\.$") as error:
            keyed.allow("x" * 5_000)
        assert len(str(error.value)) < 120
        with pytest.raises(ValueError, match="255 bytes, got 2078: a key of type int"):
            keyed.allow(10**5_000)
        table.incr("a", 1e308)
        with pytest.raises(OverflowError, match="would make counter 'a' inf"):
            table.incr("a", 1e308)
        assert table.get("a") == 1e308
    finally:
        SharedTable.unlink(f"{name}-table")


def test_nothing_is_left_open_by_those_that_were_not_closed(name: str) -> None:
    for _ in range(30):
        SharedKeyed(name, "1/second", max_keys=10).allow("a")
    gc.collect()
    assert locks_on(f"/dev/shm/sluicegate-{os.geteuid()}-{name}") == set()


def locks_on(path: str) -> set[str]:
    """Each once: a line that is read while other processes lock files may come twice."""
    found = os.stat(path)
    place = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return {line.partition(":")[2] for line in lines if place in line}
