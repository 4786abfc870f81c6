"""`sluicegate simulate` with pacing scenarios and random pacing clusters."""

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sluicegate.cli.main import main
from sluicegate.sim.pacing.random_clusters import REGIMES, Bounds

SCENARIO = """
title = "Mine"
about = "A small cluster."
nodes = 2
periods = 2
[pacing]
target = 100
period = 10
sync_interval = 1
[traffic]
load = 3
[goals]
delivered = 0.5
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO)
    return path


def test_a_file_with_a_pacing_table_is_a_pacing_scenario(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert "2 nodes, target 100 per 10 s, sync every 1 s, 20 s, seed 0" in printed
    assert "delivered" in printed


def test_a_missed_goal_is_exit_code_1(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine.write_text(SCENARIO.replace("delivered = 0.5", "error = 0"))
    assert main(["simulate", str(mine), "--runs", "2"]) == 1
    assert "worst of 2 seeds from 0" in capsys.readouterr().out


def test_the_document_for_programs_is_the_same_with_the_same_seed(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(mine), "--json", "--seed", "4"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["simulate", str(mine), "--json", "--seed", "4"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert first["met"] is True
    assert first["outcomes"][0]["runs"][0]["seed"] == 4


def test_the_page_has_the_pictures_of_the_run(mine: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["simulate", str(mine), "--html", str(page)]) == 0
    assert page.read_text().count("<svg") == 3


def test_a_run_can_be_drawn_as_a_picture(mine: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    assert main(["simulate", str(mine), "--svg", str(path)]) == 0
    root = ElementTree.parse(path).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == 3


def test_the_files_that_were_written_are_named_on_stderr(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, drawn = tmp_path / "page.html", tmp_path / "run.svg"
    assert main(["simulate", str(mine), "--json", "--html", str(page), "--svg", str(drawn)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["met"] is True
    assert printed.err == f"wrote {page}\nwrote {drawn}\n"


def test_the_list_has_the_pacing_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    assert "pacing-steady           Pacing: steady traffic\n" in capsys.readouterr().out


def test_a_random_cluster_can_be_shown_saved_and_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.toml"
    assert main(["simulate", "pacing-random", "--seed", "12", "--save", str(saved)]) == 0
    printed = capsys.readouterr()
    assert "per node and sync" in printed.out
    command = f"sluicegate simulate {saved} --seed 12"
    assert printed.err == f"saved {saved}: run it with: {command}\n"
    assert main(command.split()[1:]) == 0
    again = capsys.readouterr().out
    (figures,) = [line for line in printed.out.splitlines() if line.startswith("largest error")]
    assert figures in again


def test_the_document_for_programs_is_alone_on_stdout_when_a_cluster_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "my cluster"
    words = ["pacing-random", "--seed", "12", "--json", "--save", str(saved)]
    assert main(["simulate", *words]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["met"] is True
    assert printed.err == (
        f"saved {saved}: rename it and run it with: sluicegate simulate '{saved}.toml' --seed 12\n"
    )


def test_a_random_cluster_is_judged_by_the_bounds_of_its_regime(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["simulate", "pacing-random", "--seed", "12"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: row[-4:] for row in rows if row and row[-1] in ("yes", "no")}
    assert found == {
        "short": ["<=", "6.00", "%", "yes"],
        "over": ["<=", "0.00", "%", "yes"],
        "gap": ["<=", "5.00", "%", "yes"],
        "unrecorded": ["0", "<=", "0", "yes"],
    }
    strict = dataclasses.replace(REGIMES["even"], short=Bounds(0.0, 0.0, 0.0001))
    monkeypatch.setitem(REGIMES, "even", strict)
    assert main(["simulate", "pacing-random", "--seed", "12"]) == 1
    assert "<= 0.01 %  no\n" in capsys.readouterr().out
    assert main(["simulate", "pacing-random", "--seed", "12", "--json"]) == 1
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert [missed["goal"] for missed in outcome["missed"]] == ["short"]
    assert [one["met"] for one in outcome["bounds"]] == [False, True, True, True]


@pytest.mark.no_cover
def test_many_random_clusters_have_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    main(["simulate", "pacing-random", "--runs", "3", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [row["facts"]["seed"] for row in document["runs"]] == [0, 1, 2]
    main(["simulate", "pacing-random", "--runs", "3"])
    assert "3 random pacing clusters from seed 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pacing-nothing"], "there is no pacing scenario 'pacing-nothing'"),
        (["pacing-steady", "--traffic", "x.csv"], "--traffic does not work with pacing"),
        (["pacing-steady", "--runs", "2", "--svg", "x"], "--svg draws one run of one pacing"),
        (["pacing-steady", "--jobs", "2"], "--jobs works with random and pacing-random"),
        (["pacing-steady", "--seconds", "5"], "expected more than the warm-up, 60 s"),
        (["pacing-random", "--seconds", "5"], "--seconds does not work with pacing-random"),
        (["pacing-random", "--runs", "2", "--html", "x"], "--html works with one random cluster"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *words])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
