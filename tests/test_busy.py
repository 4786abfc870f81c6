"""The load of `make test-busy` is there, and it changes nothing but the time."""

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import busy
from tests.harness.servers import ROOT, freeze, thaw
from tests.harness.waits import PATIENCE, wait_for

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# Ends when it was continued for the third time, and prints for how long it had not run each time.
STOPPED = """
import signal, time

stops = []
ran = time.monotonic()
signal.signal(signal.SIGCONT, lambda *_: stops.append(time.monotonic() - ran))
deadline = ran + 60
while len(stops) < 3 and ran < deadline:
    ran = time.monotonic()
    time.sleep(0.01)
print(*sorted(stops))
"""


def run_busy(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program under the load of `tests.busy`, until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "tests.busy", *options, sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_exit_code_and_the_output_are_those_of_the_command() -> None:
    done = run_busy("import sys; print('out'); sys.exit(7)")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "out\n"


def test_a_command_that_is_killed_has_not_succeeded() -> None:
    done = run_busy("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL % 256, done.stderr


def test_sigint_is_ignored_at_the_start() -> None:
    done = run_busy("import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)")
    assert done.stdout == "True\n", done.stderr


def test_the_command_is_stopped_now_and_then() -> None:
    done = run_busy(STOPPED, "--every", "0.3", "--pause", "0.3", "--seed", "1")
    assert done.returncode == 0, done.stderr
    # If this test runs under such a load itself, that one may have ended a stop too early.
    _, second, _ = map(float, done.stdout.split())
    assert second >= 0.3, done.stdout


def test_every_core_and_the_disk_are_kept_busy(tmp_path: Path) -> None:
    with busy.load(tmp_path) as ours:
        assert len(ours) > len(busy.cores())
        wait_for(lambda: (tmp_path / "written").exists())
        used = {pid: cpu_ticks(pid) for pid in ours}
        wait_for(lambda: sum(cpu_ticks(pid) > used[pid] + 10 for pid in ours) >= len(busy.cores()))


def cpu_ticks(pid: int) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def test_what_a_test_has_stopped_stays_stopped() -> None:
    with subprocess.Popen(SLEEPER) as stopped, subprocess.Popen(SLEEPER) as running:
        try:
            freeze(stopped)
            for seed in range(10):
                busy.pause(random.Random(seed), 0.01, set())
                assert state_of(stopped) == "T"
            wait_for(lambda: state_of(running) == "S", seen=lambda: state_of(running))
        finally:
            stopped.kill()
            running.kill()


def test_what_a_test_stops_during_a_pause_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(busy.MARKERS, str(tmp_path))
    with subprocess.Popen(SLEEPER) as process:
        try:
            monkeypatch.setattr(busy, "find_running", lambda ours: [process.pid])
            monkeypatch.setattr(busy, "stop_all", lambda ours: busy.stop([process.pid]))
            pause = threading.Thread(target=busy.pause, args=(random.Random(1), 0.3, set()))
            pause.start()
            wait_for(lambda: state_of(process) == "T")
            freeze(process)
            pause.join(PATIENCE)
            assert state_of(process) == "T"
            thaw(process)
            wait_for(lambda: state_of(process) == "S", seen=lambda: state_of(process))
        finally:
            process.kill()
