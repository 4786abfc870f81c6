"""`sluicegate central` as a process: what it prints, how it stops, what it comes back with."""

import json
import os
import signal
import socket
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

from sluicegate.cli.main import main
from sluicegate.quota.messages import Ack, Line, Report
from sluicegate.quota.wire import NodeWire
from tests.harness.central import closed_with
from tests.harness.waits import PATIENCE, Output, wait_for

LIMITS = """
[[limit]]
service = "front"
user = "*"
requests = 100
"""
LISTENS = "sluicegate central central listens on http://127.0.0.1:"


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    path = tmp_path / "limits.toml"
    path.write_text(LIMITS)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sluicegate", "central", *map(str, arguments)]


class Process:
    """A central in a process of its own, which listens at `address`."""

    def __init__(self, started: "subprocess.Popen[str]") -> None:
        assert started.stdout is not None
        assert started.stderr is not None
        self._started = started
        self._log = Output(started.stderr)
        line = Output(started.stdout).wait_for("")
        assert line.startswith(LISTENS), line
        self.address = line.rpartition("http://")[2].strip()

    def signal(self, number: int) -> None:
        self._started.send_signal(number)

    def log(self) -> str:
        """What it has logged, once it has stopped cleanly."""
        assert self._started.wait(PATIENCE) == 0, self._log.text()
        return self._log.text()

    def stop(self) -> str:
        self.signal(signal.SIGTERM)
        return self.log()

    def kill(self) -> None:
        self._started.kill()
        self._started.wait(PATIENCE)


@contextmanager
def process(*arguments: object) -> Iterator[Process]:
    """A central that listens; killed in the end if it has not stopped."""
    started = subprocess.Popen(
        command("--listen", "127.0.0.1:0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Process(started)
    finally:
        started.kill()
        started.wait(PATIENCE)


def report(address: str, sequence: int, consumed: float) -> Ack:
    wire = NodeWire()
    line = Line(consumed, 0, int(consumed), 0.0, 0.0)
    with connect(f"ws://{address}", subprotocols=["sluicegate.v1"]) as socket:
        lines = {"front": {"ann": {"requests": line}}}
        told = Report("n", 1, sequence, -1, 0, int(time.time()) - 1, 0.0, lines)
        socket.send(wire.write(told))
        ack = wire.read(socket.recv(timeout=PATIENCE))
    assert isinstance(ack, Ack)
    return ack


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as response:
        return json.load(response)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_tells_its_nodes(limits: Path, number: int) -> None:
    with process("--limits", limits) as central, connect(f"ws://{central.address}") as socket:
        central.signal(number)
        assert closed_with(socket) == (1001, "stopping")
        log = central.log()
        assert "listens on" in log
        assert "stopped" in log
        assert "Traceback" not in log


def test_buckets_survive_a_restart_and_a_kill(tmp_path: Path, limits: Path) -> None:
    state = tmp_path / "central.state"
    options = ("--limits", limits, "--state", state)
    with process(*options) as central:
        first = report(central.address, 1, 500.0)
        central.stop()
    with process(*options) as central:
        assert "500" in json.dumps(get(central.address, "/api/usage?service=front&user=ann"))
        second = report(central.address, 2, 600.0)
        assert second.sequence == 2
        assert second.epoch > first.epoch
        central.kill()  # nothing is written now: the file is still that of the stop before
    with process(*options) as central:
        third = report(central.address, 3, 700.0)
        assert third.epoch >= second.epoch
        central.stop()
    assert sorted(os.listdir(tmp_path)) == ["central.state", "limits.toml"]


def test_a_torn_state_is_set_aside_with_a_line_in_the_log(tmp_path: Path, limits: Path) -> None:
    state = tmp_path / "central.state"
    state.write_bytes(b"torn")
    with process("--limits", limits, "--state", state) as central:
        assert report(central.address, 1, 5.0).leads
        assert "starting with an empty ledger" in central.stop()


def test_limits_are_read_again_when_the_file_changes(limits: Path) -> None:
    with process("--limits", limits) as central:
        limits.write_text(LIMITS.replace("100", "250"))

        def told() -> float:
            rate: float = get(central.address, "/api/limits")["limits"][0]["requests"]
            return rate

        wait_for(lambda: told() == 250.0, seen=told)


HANGS = """
import sys, time
from sluicegate.quota import Central, Entry
from sluicegate.quota.central.limit_sources.function import FunctionLimits

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
    "asleep": "time.sleep(1000)",
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
    (["--limits", "{limits}", "--tls-cert", "x"], "expected both tls_cert and tls_key"),
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
    (["--limits", "{limits}", "--state", "/nowhere/state"], 2, "must be a writable folder"),
    (["--limits", "redis://127.0.0.1:1/0"], 1, "cannot reach"),
    (["--limits", "{slips}"], 1, "would lift all limits: limit 1 (service 'front', user 'ann')"),
    (["--limits", "{limits}", "--listen", "127.0.0.1:{taken}"], 1, "cannot listen on"),
]


def test_a_start_that_fails_says_why(limits: Path) -> None:
    slips = limits.with_name("slips.toml")
    slips.write_text('[[limit]]\nservice = "front"\nuser = "ann"\nrequests = "30"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"limits": limits, "slips": slips, "taken": taken.getsockname()[1]}
        started = [
            subprocess.Popen(
                command(*(each.format(**words) for each in arguments)),
                stderr=subprocess.PIPE,
                text=True,
            )
            for arguments, _, _ in STOPPED
        ]
        try:
            for run, (_, code, text) in zip(started, STOPPED, strict=True):
                _, log = run.communicate(timeout=PATIENCE)
                assert (run.returncode, text in log) == (code, True), log
                assert "Traceback" not in log
        finally:
            for run in started:
                run.kill()
                run.communicate(timeout=PATIENCE)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["central", "--help"])
    assert caught.value.code == 0
    assert "sluicegate central --limits limits.toml" in capsys.readouterr().out
