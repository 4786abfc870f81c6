"""`headgate central` as a process: what it prints, how it stops, what it comes back with."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from headgate.cli import main
from headgate.quota.protocol import Ack, Line, Report
from headgate.quota.wire import NodeWire
from tests.quota.central.parts import closed_with
from tests.waits import PATIENCE, Output

LIMITS = """
[[limit]]
service = "front"
user = "*"
requests = 100
"""
LISTENS = "headgate central central listens on http://127.0.0.1:"


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits.toml"
    path.write_text(LIMITS)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headgate", "central", *map(str, arguments)]


@contextmanager
def process(*arguments: object) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A central that listens, and its address; killed in the end if it has not stopped."""
    started = subprocess.Popen(
        command("--listen", "127.0.0.1:0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        line = started.stdout.readline()
        try:
            assert line.startswith(LISTENS), line
            yield started, line.removeprefix("headgate central central listens on http://").strip()
        finally:
            if started.poll() is None:
                started.kill()


def stop(central: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> str:
    """Stop it; what it has logged."""
    central.send_signal(number)
    _, log = central.communicate(timeout=20)
    assert central.returncode == 0, log
    return log


def report(address: str, sequence: int, consumed: float) -> Ack:
    wire = NodeWire()
    line = Line(consumed, 0, int(consumed), 0.0, 0.0)
    with connect(f"ws://{address}", subprotocols=["headgate.v1"]) as socket:
        lines = {"front": {"ann": {"requests": line}}}
        told = Report("n", 1, sequence, -1, 0, int(time.time()) - 1, 0.0, lines)
        socket.send(wire.write(told))
        ack = wire.read(socket.recv(timeout=10))
    assert isinstance(ack, Ack)
    return ack


def usage(address: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/api/usage?service=front&user=ann") as response:
        return json.load(response)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_tells_its_nodes(limits: Path, number: int) -> None:
    with process("--limits", limits) as (central, address):
        with connect(f"ws://{address}") as socket:
            central.send_signal(number)
            assert closed_with(socket) == (1001, "stopping")
        log = stop(central, number)
        assert "listens on" in log
        assert "has stopped" in log
        assert "Traceback" not in log


def test_buckets_survive_a_restart_and_a_kill(tmp_path: Path, limits: Path) -> None:
    state = tmp_path / "central.state"
    options = ("--limits", limits, "--state", state)
    with process(*options) as (central, address):
        first = report(address, 1, 500.0)
        stop(central)
    with process(*options) as (central, address):
        assert "500" in json.dumps(usage(address))
        second = report(address, 2, 600.0)
        assert second.sequence == 2
        assert second.epoch > first.epoch
        central.kill()  # nothing is written now: the file is still that of the stop before
        central.communicate()
    with process(*options) as (central, address):
        third = report(address, 3, 700.0)
        assert third.epoch >= second.epoch
        stop(central)
    assert sorted(os.listdir(tmp_path)) == ["central.state", "limits.toml"]


def test_a_torn_state_is_set_aside_with_a_line_in_the_log(tmp_path: Path, limits: Path) -> None:
    state = tmp_path / "central.state"
    state.write_bytes(b"torn")
    with process("--limits", limits, "--state", state) as (central, address):
        assert report(address, 1, 5.0).leads
        assert "starting with empty books" in stop(central)


def test_limits_are_read_again_when_the_file_changes(limits: Path) -> None:
    with process("--limits", limits) as (_, address):
        limits.write_text(LIMITS.replace("100", "250"))
        end = time.monotonic() + 10
        while True:
            with urllib.request.urlopen(f"http://{address}/api/limits") as response:
                entries = json.load(response)["limits"]
            if entries[0]["requests"] == 250.0:
                break
            assert time.monotonic() < end
            time.sleep(0.02)


HANGS = """
import sys, time
from headgate.quota import Central, Entry
from headgate.quota.sources.function import FunctionLimits

started = []

def limits():
    if started or {at_start}:
        sys.stderr.write("hangs\\n")
        {hangs}
    return [Entry("front", "*", rates={{"requests": 1.0}})]

print("not flushed")
Central(FunctionLimits(limits, every=0.1), listen="127.0.0.1:0").run(started.append)
"""
WAYS_TO_HANG = {
    "after a write": "print('written', flush=True); time.sleep(1000)",
    "in a write": "while True: print('a pipe that nobody reads is full after 64 KiB')",
}


@pytest.mark.parametrize("hangs", WAYS_TO_HANG.values(), ids=WAYS_TO_HANG)
@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "later"])
def test_a_source_that_hangs_does_not_hold_up_a_stop(at_start: bool, hangs: str) -> None:
    """Nor does Python abort, as it does when it freezes a thread that writes to stdout."""
    script = HANGS.format(at_start=at_start, hangs=hangs)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as central:
        try:
            assert central.stdout is not None
            assert central.stderr is not None
            log = Output(central.stderr)
            log.wait_for("hangs")
            central.terminate()
            assert central.wait(PATIENCE) == 0, log.text()
            assert central.stdout.readline() == "not flushed\n"
        finally:
            central.kill()


WRONG = [
    (["--limits", "{limits}", "--listen", "nowhere"], "expected HOST:PORT"),
    (["--limits", "{limits}", "--listen", "0.0.0.0:0"], "--token-file"),
    (["--limits", "{limits}", "--slot", "0.01"], "slot_seconds must be from 0.1"),
    (["--limits", "{limits}", "--slot", "soon"], "invalid float value"),
    (["--limits", "{limits}", "--tls-cert", "x"], "go together"),
    (["--limits", "{limits}", "--token-file", "{limits}"], "chmod 600"),
    ([], "--limits"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_what_makes_no_sense_is_exit_code_2(
    limits: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["central", *(each.format(limits=limits) for each in arguments)])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


STOPPED = [
    (["--limits", "/nowhere/limits.toml"], 2, "/nowhere/limits.toml"),
    (["--limits", "{limits}", "--state", "/nowhere/state"], 2, "must be a folder"),
    (["--limits", "redis://127.0.0.1:1/0"], 1, "cannot be reached"),
    (["--limits", "{slips}"], 1, "would have a limit: limit 1 (service 'front', user 'ann')"),
    (["--limits", "{limits}", "--listen", "127.0.0.1:{taken}"], 1, "cannot listen on"),
]


def test_a_start_that_fails_says_why(limits: Path) -> None:
    slips = limits.with_name("slips.toml")
    slips.write_text('[[limit]]\nservice = "front"\nuser = "ann"\nrequests = "30"\n')
    with process("--limits", limits) as (_, address):
        taken = address.partition(":")[2]
        for arguments, code, text in STOPPED:
            filled = [each.format(limits=limits, taken=taken, slips=slips) for each in arguments]
            run = subprocess.run(command(*filled), capture_output=True, text=True, timeout=60)
            assert (run.returncode, text in run.stderr) == (code, True), run.stderr
            assert "Traceback" not in run.stderr


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["central", "--help"])
    assert caught.value.code == 0
    assert "headgate central --limits limits.toml" in capsys.readouterr().out
