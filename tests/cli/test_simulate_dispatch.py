"""`sluicegate simulate dispatch-random`."""

import json

import pytest

from sluicegate.cli.main import main
from sluicegate.sim.dispatch.queue_model import QueueModel


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


def test_options_of_other_simulations_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "dispatch-random", "--html", "x.html"])
    assert caught.value.code == 2
    assert "--html does not work with dispatch-random" in capsys.readouterr().err
