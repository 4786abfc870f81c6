"""`sluicegate witness` as a process, and the options of an election on the command line."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.cli.main import main
from sluicegate.demo.process import random_loopback
from tests.harness.waits import PATIENCE, Output

PEERS = "a=ws://127.0.0.1:1,b=ws://127.0.0.1:2,w=ws://127.0.0.1:3"


def test_it_prints_its_address_and_stops_on_sigterm(tmp_path: Path) -> None:
    state = tmp_path / "w.state"
    listen = f"{random_loopback()}:7411"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sluicegate", "witness", "--name", "w", "--peers", PEERS),
            *("--listen", listen, "--state", str(state)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        log = Output(process.stderr)
        line = Output(process.stdout).wait_for("listens")
        assert line == f"sluicegate witness w listens on http://{listen}\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.text()
        assert state.with_name("w.state.election").exists()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peers", "a"], "expected NAME=URL"),
        (["--peers", PEERS, "--name", "x"], "expected --name to be one of a, b, w, got 'x'"),
        ([], "needs 2 members or more"),
        (["--peers", PEERS, "--listen", "0.0.0.0:0"], "the token of the peers is missing"),
        (["--peers", PEERS, "--lease", "0"], "expected 0.4 to 60 s, got 0.0"),
        (["--peers", PEERS, "--tls-cert", "x"], "expected both --tls-cert and --tls-key"),
        (["--peers", PEERS, "--peer-ca", "x"], "is for peers with a wss:// URL"),
    ],
)
def test_wrong_usage_of_a_witness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    command = ["witness", "--name", "w", "--state", str(tmp_path / "w.state"), *arguments]
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--peers", PEERS], "3 peers but no election"),
        (["--peers", PEERS, "--election", "paxos"], "expected --name to be one of"),
        (["--peers", PEERS, "--election", "paxos", "--name", "a"], "expected --state FILE"),
        (["--election", "zookeeper"], "expected paxos, etcd://HOST:PORT,... or redis://"),
        (["--lease", "2"], "a lease of 2.0 s but no election"),
    ],
)
def test_wrong_usage_of_a_central_with_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("# none\n")
    with pytest.raises(SystemExit) as stopped:
        main(["central", "--limits", str(limits), *arguments])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err
