"""`headgate simulate`, its tables and its page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headgate.cli import main
from headgate.sim import systems
from headgate.sim.accuracy import document
from headgate.sim.command import simulate
from headgate.sim.page import page
from headgate.sim.scenario import read
from headgate.sim.table import figure, goal, markdown, plain
from tests.sim.test_audit import Forgetful
from tests.sim.test_scenario import PLAIN

MINE = PLAIN.replace("seconds = 20", "seconds = 25").replace("requests = 10", "requests = 200")
MINE = MINE.replace("rate = 30", "rate = 600") + "[goals]\nover_10 = 0.1\nunrecorded = 0\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


def exit_code(*argv: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *argv])
    return caught.value.code


def test_the_table_has_both_systems_the_goal_and_the_verdict(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(mine)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == "mine: t"
    assert lines[2] == "4 nodes, 2 centrals, 25 s, seed 0"
    assert lines[4].split() == ["fair", "classic", "goal", "met"]
    (over_10,) = [line for line in lines if line.startswith("over 10 s")]
    assert re.fullmatch(r"over 10 s +[+-]\d\.\d\d % +[+-]\d+.* % +<= 10 %  yes", over_10)
    (unrecorded,) = [line for line in lines if line.startswith("unrecorded")]
    assert unrecorded.split() == ["unrecorded", "0", "0", "<=", "0", "yes"]


def test_a_goal_that_is_missed_is_exit_code_1(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(MINE.replace("over_10 = 0.1", "over_10 = 0.1\nlowest_second = 2"))
    assert main(["simulate", str(mine), "--runs", "2"]) == 1
    printed = capsys.readouterr().out
    assert "worst of 2 seeds from 0" in printed
    assert "  no\n" in printed


def test_json_is_one_document_and_the_same_for_the_same_seed(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for seed in ("5", "5", "6"):
        assert main(["simulate", str(mine), "--json", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    told = json.loads(texts[0])
    assert told["met"] is True
    (outcome,) = told["outcomes"]
    assert [(each["system"], each["seed"]) for each in outcome["runs"]] == [
        ("fair", 5),
        ("classic", 5),
    ]
    assert outcome["runs"][0]["measures"]["unrecorded"] == 0.0


def test_a_broken_invariant_is_told_and_is_exit_code_1(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "NodeState", Forgetful)
    assert main(["simulate", str(mine)]) == 1
    assert "BROKEN: node-" in capsys.readouterr().out


def test_the_list_has_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "overload-3x     Three times too much\n" in printed
    assert "doorman-7 " in printed


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "a SCENARIO is needed"),
        (["tango"], "there is no scenario 'tango'"),
        (["no.toml"], "no.toml: the scenario cannot be read"),
        (["overload-3x", "--seed", "x"], "expected a whole number, got 'x'"),
        (["overload-3x", "--runs", "0"], "expected a whole number above 0, got '0'"),
        (["overload-3x", "--seconds", "0"], "expected a finite number above 0, got '0'"),
        (["overload-3x", "--seconds", "3"], "expected more than the warm-up, 10 s"),
        (["overload-3x", "--traffic", "x.txt"], "expected a file that ends in .csv or .jsonl"),
        (["all", "--traffic", "x.csv"], "--traffic goes with one scenario"),
        (["overload-3x", "--json", "--markdown"], "not allowed with argument"),
    ],
)
def test_what_is_asked_wrongly_is_exit_code_2(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*argv) == 2
    assert complaint in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    assert "\n  headgate simulate overload-3x\n" in capsys.readouterr().out


def test_a_log_can_be_replayed(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{1000 + number / 100},alice,requests,1" for number in range(1500)]
    log.write_text("time,user,resource,amount\n" + "\n".join(rows) + "\n")
    assert main(["simulate", str(mine), "--traffic", str(log), "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert outcome["seconds"] == pytest.approx(15.09)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "polyline", "polygon", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def test_the_page_stands_by_itself_and_draws_every_user(mine: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    mine.write_text(
        MINE.replace("[goals]", "[[fault]]\nat = 15\nwhat = 'join'\n[goals]").replace(
            'user = "alice"', 'user = "<alice>"'
        )
    )
    assert main(["simulate", str(mine), "--html", str(path)]) in (0, 1)
    text = path.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    names = [tag for tag, _ in tags.seen]
    assert "script" not in names
    assert "link" not in names
    assert not [attrs for _, attrs in tags.seen if "src" in attrs]
    assert "&lt;alice&gt;" in text
    assert "<alice>" not in text
    (drawing,) = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    tree = ElementTree.fromstring(drawing)
    lines = {each.get("class"): each.get("points", "").split() for each in tree.iter("polyline")}
    assert {"fair", "classic", "limit"} == set(lines)
    assert len(lines["fair"]) == 25
    heights = [float(point.split(",")[1]) for point in lines["fair"]]
    limit = float(lines["limit"][0].split(",")[1])
    assert heights[20] == pytest.approx(limit, abs=15.0)
    assert "join" in "".join(tree.itertext())


def test_a_page_that_cannot_be_written_is_exit_code_1(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(mine), "--html", "/nowhere/page.html"]) == 1
    assert "the page cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("over_1", 0.0312, "+3.12 %"),
        ("over_10", -0.2, "-20 %"),
        ("over_1", 1.97, "+197 %"),
        ("over_1", 1e-9, "+0.00 %"),
        ("under", 0.005, "0.50 %"),
        ("jain", 0.99951, "0.9995"),
        ("converged", 3.0, "3"),
        ("over_60", None, "-"),
    ],
)
def test_figures_as_people_read_them(name: str, value: float | None, text: str) -> None:
    assert figure(name, value) == text


def test_goals_say_their_sense() -> None:
    assert goal("over_1", 0.03) == "<= 3.00 %"
    assert goal("lowest_second", 0.9) == ">= 90 %"


def test_the_table_for_the_docs_has_a_row_for_each_goal() -> None:
    outcomes = simulate([read(MINE, name="mine")])
    assert plain(outcomes[0].results).startswith("mine: t\n")
    lines = markdown({"mine": outcomes[0].results}).splitlines()
    assert lines[0] == "| scenario | figure | fair | classic | goal | met |"
    assert len(lines) == 4
    assert lines[2].startswith("| `mine`: a | over 10 s | ")
    assert lines[2].endswith(" | ≤ 10 % | yes |")
    assert lines[3].startswith("|  | unrecorded | 0 | 0 | ≤ 0 | yes |")
    assert "made by `python -m headgate.sim.accuracy`" in document(outcomes, 1)
    assert page(outcomes).startswith("<!doctype html>")
