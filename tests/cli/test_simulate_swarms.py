"""`sluicegate simulate dispatch-random` and `election-random`."""

import json

import pytest

from sluicegate.cli.main import main
from sluicegate.sim.dispatch.queue_model import QueueModel
from sluicegate.sim.election import member
from tests.harness.paxos_mutants import TimerProposer


def test_swarms_are_counted_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "dispatch-random", "--runs", "3", "--seed", "4"]) == 0
    shown = capsys.readouterr().out
    assert "3 random swarms of dispatch from seed 4" in shown
    assert "every call ended once and in time" in shown


def test_one_swarm_shows_what_was_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "dispatch-random", "--seed", "4"]) == 0
    assert "WorkerOptions(lease=" in capsys.readouterr().out


def test_a_violation_is_an_exit_code_and_a_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueModel, "is_lapsed", lambda *_: True)
    assert main(["simulate", "dispatch-random", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["met"] is False
    assert "had begun at" in document["runs"][0]["violations"][0]
    assert document["runs"][0]["counts"]["sent"] > 0


@pytest.mark.parametrize("name", ["dispatch-random", "election-random"])
def test_options_of_other_simulations_are_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", name, "--html", "x.html"])
    assert caught.value.code == 2
    assert f"--html does not work with {name}" in capsys.readouterr().err


def test_elections_are_counted_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "election-random", "--runs", "30", "--seed", "4", "--jobs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "30 random elections from seed 4" in shown
    assert "never two leaders" in shown


def test_one_election_shows_what_was_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "election-random", "--seed", "4"]) == 0
    assert "Timing(lease=" in capsys.readouterr().out


def test_a_second_leader_is_an_exit_code_and_a_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "Proposer", TimerProposer)
    assert main(["simulate", "election-random", "--runs", "50", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["met"] is False
    broken = [one for one in document["runs"] if one["violations"]]
    assert main(["simulate", "election-random", "--seed", str(broken[0]["seed"])]) == 1
    shown = capsys.readouterr().out
    assert f"VIOLATED: sluicegate simulate election-random --seed {broken[0]['seed']}" in shown
    assert broken[0]["violations"][0] in shown
