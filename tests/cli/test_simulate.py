"""`sluicegate simulate`, its tables and its page."""

import itertools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sluicegate.cli.main import main
from sluicegate.sim import accuracy, systems
from sluicegate.sim.accuracy import document
from sluicegate.sim.html_report import page
from sluicegate.sim.scenario import read
from sluicegate.sim.simulate import simulate
from sluicegate.sim.text_report import figure, goal, markdown, plain
from tests.harness.shipped_scenarios import SOAK
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


@pytest.mark.no_cover  # the path of the first test once more
def test_a_goal_that_is_missed_is_exit_code_1(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(MINE.replace("over_10 = 0.1", "over_10 = 0.1\nlowest_second = 2"))
    assert main(["simulate", str(mine), "--runs", "2"]) == 1
    printed = capsys.readouterr().out
    assert "worst of 2 seeds from 0" in printed
    assert "  no\n" in printed


@pytest.mark.no_cover
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
    assert main(["simulate", str(mine), "--seed", "3"]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN: node-" in printed
    assert f"see it again with: sluicegate simulate {mine} --seed 3)" in printed


def test_the_list_has_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "overload-3x     Three times too much\n" in printed
    assert "doorman-7 " in printed


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "expected a SCENARIO"),
        (["tango"], "there is no scenario 'tango'"),
        (["no.toml"], "no.toml: cannot read the scenario"),
        (["overload-3x", "--seed", "x"], "expected an integer, got 'x'"),
        (["overload-3x", "--runs", "0"], "expected an integer above 0, got '0'"),
        (["overload-3x", "--seconds", "0"], "expected a finite number above 0, got '0'"),
        (["overload-3x", "--seconds", "3"], "expected more than the warm-up, 10 s"),
        (["overload-3x", "--traffic", "x.txt"], "expected a file that ends in .csv or .jsonl"),
        (["all", "--traffic", "x.csv"], "--traffic works with one scenario"),
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
    printed = capsys.readouterr().out
    assert "\n  sluicegate simulate overload-3x\n" in printed
    assert "A pacing\nscenario is run with our limiters alone" in printed


def test_a_log_can_be_replayed(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{1000 + number / 100},alice,requests,1" for number in range(1500)]
    log.write_text("time,user,resource,amount\n" + "\n".join(rows) + "\n")
    assert main(["simulate", str(mine), "--traffic", str(log), "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert outcome["seconds"] == pytest.approx(15.09)
    (alice,) = outcome["runs"][0]["users"]
    assert (alice["service"], alice["user"]) == ("front", "alice")
    for asked, passed, refused in (
        each.values() for each in (alice["requests"], *alice["amounts"].values())
    ):
        assert asked == 1500
        assert passed + refused == asked


def test_a_replay_tells_what_the_limit_would_have_done_to_each_user(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(MINE.replace('user = "alice"\nrequests', 'user = "*"\nrequests'))
    log = tmp_path / "log.csv"
    rows = [f"{1000 + number / 100},user-{number % 30},requests,1" for number in range(1500)]
    rows += [f"{1005 + number / 1000},greedy,requests,1" for number in range(9000)]
    log.write_text("time,user,resource,amount\n" + "\n".join(rows) + "\n")
    main(["simulate", str(mine), "--traffic", str(log)])
    printed = capsys.readouterr().out
    table = printed[printed.index("what the limits would have done (fair)") :].splitlines()
    assert table[0].endswith("by lines refused, the first 20 of 31:")
    assert table[1].split() == ["user", "asked", "passed", "refused"]
    name, what, asked, passed, refused, part, _ = table[2].split()
    assert (name, what, asked) == ("front/greedy", "lines", "9000")
    assert int(passed) + int(refused) == 9000
    assert float(part) > 50
    assert table[3].split()[0] == "requests"


@pytest.mark.parametrize(
    ("trouble", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), 1, "cannot write the result: [Errno 28]"),
    ],
)
def test_who_stops_it_or_cannot_hear_it_gets_no_traceback(
    trouble: BaseException,
    code: int,
    told: str,
    mine: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise trouble

    monkeypatch.setattr("sluicegate.sim.simulate.run", stopped)
    assert main(["simulate", str(mine)]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in printed.err
    assert len(printed.err.splitlines()) == bool(told)


def test_a_pipe_that_is_closed_and_a_full_disk_are_told_in_a_line_at_most(mine: Path) -> None:
    command = [sys.executable, "-m", "sluicegate", "simulate", str(mine), "--seconds", "12"]
    full = Path("/dev/full")
    if full.exists():
        with full.open("w") as nowhere:
            done = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert "cannot write the result" in line
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


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


def test_a_page_of_less_than_a_slot_says_so(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    mine.write_text(MINE.replace("seconds = 25", "seconds = 0.5\nwarm_up = 0"))
    assert main(["simulate", str(mine), "--html", str(path)]) in (0, 1)
    assert "less than a slot, nothing is drawn" in path.read_text()
    assert capsys.readouterr().err == f"wrote {path}\n"


def test_many_events_are_drawn_up_to_a_bound_and_names_do_not_overlap(
    mine: Path, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    faults = "".join(
        f"[[fault]]\nat = {5 + number / 10}\nwhat = 'step'\nmachine = 'node-1'\nby = 0.1\n"
        for number in range(50)
    )
    mine.write_text(MINE.replace("[goals]", faults + "[goals]"))
    assert main(["simulate", str(mine), "--html", str(path)]) in (0, 1)
    text = path.read_text()
    assert "and 10 more events, not drawn" in text
    (drawing,) = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    tree = ElementTree.fromstring(drawing)
    assert len([line for line in tree.iter("line") if line.get("class") == "fault"]) == 40
    labels = [each for each in tree.iter("text") if "step" in (each.text or "")]
    assert labels
    rows: dict[str | None, list[float]] = {}
    for label in labels:
        rows.setdefault(label.get("y"), []).append(float(label.get("x", "0")))
    for row in rows.values():
        assert all(after - before > 100 for before, after in itertools.pairwise(row))


def test_a_page_that_cannot_be_written_is_exit_code_1_before_the_run(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.sim.simulate.run", None)
    assert main(["simulate", str(mine), "--html", "/nowhere/page.html"]) == 1
    assert "cannot write the HTML report" in capsys.readouterr().err


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


@pytest.mark.no_cover
def test_the_table_for_the_docs_has_a_row_for_each_goal() -> None:
    outcomes = simulate([read(MINE, name="mine")])
    assert plain(outcomes[0].results).startswith("mine: t\n")
    lines = markdown({"mine": outcomes[0].results}).splitlines()
    assert lines[0] == "| scenario | figure | fair | classic | goal | met |"
    assert len(lines) == 4
    assert lines[2].startswith("| `mine`: a | over 10 s | ")
    assert lines[2].endswith(" | ≤ 10 % | yes |")
    assert lines[3].startswith("|  | unrecorded | 0 | 0 | ≤ 0 | yes |")
    assert "made by `python -m sluicegate.sim.accuracy`" in document(outcomes, 1)
    assert page(outcomes).startswith("<!doctype html>")


@pytest.mark.no_cover
def test_the_example_in_the_docs_meets_its_goal() -> None:
    docs = Path(__file__).parents[2] / "docs" / "simulator.md"
    (example,) = re.findall(r"```toml\n(.*?)```", docs.read_text(encoding="utf-8"), re.DOTALL)
    scenario = read(example)
    # The node dies at 62.5 s, and the only goal is a figure of 10 s.
    (outcome,) = simulate([scenario if SOAK else scenario.lasting(80.0)])
    assert outcome.met


def test_a_random_cluster_is_shown_with_its_facts_and_can_be_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.toml"
    assert main(["simulate", "random", "--seed", "17", "--save", str(saved)]) == 0
    printed, told = capsys.readouterr()
    assert told == f"saved {saved}: run it with: sluicegate simulate {saved} --seed 17\n"
    assert "random: Random cluster 17" in printed
    assert "requests per node and slot" in printed
    assert "shortfall " in printed
    assert main(["simulate", str(saved), "--seed", "17"]) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[5:] == printed[printed.index("random: ") :].splitlines()[5:]


@pytest.mark.no_cover
def test_many_random_clusters_are_summed_up_per_regime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "space.svg"
    assert main(["simulate", "random", "--runs", "4", "--seed", "3", "--svg", str(drawn)]) == 0
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    printed, told = capsys.readouterr()
    assert told == f"wrote {drawn}\n"
    assert printed.startswith("4 random clusters from seed 3, ")
    assert "sluicegate simulate random --seed " in printed
    assert main(["simulate", "random", "--runs", "4", "--seed", "3", "--json", "--jobs", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["met"] is True
    assert [row["seed"] for row in told["runs"]] == [3, 4, 5, 6]
    assert sum(each["clusters"] for each in told["regimes"].values()) == 4


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["random", "--seconds", "9"], "--seconds does not work with random"),
        (["random", "--runs", "2", "--save", "x.toml"], "--save works with one random cluster"),
        (["random", "--runs", "2", "--markdown"], "--markdown works with one random cluster"),
        (["overload-3x", "--jobs", "2"], "--jobs works with random"),
        (["overload-3x", "--save", "x.toml"], "--save works with random"),
        (["overload-3x", "--svg", "x.svg"], "--svg works with random"),
        (["random", "--svg", "x.svg"], "--svg works with many random clusters"),
    ],
)
def test_options_that_do_not_go_with_random_clusters_are_exit_code_2(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*argv) == 2
    assert complaint in capsys.readouterr().err


def test_the_accuracy_page_keeps_what_was_written_below_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "accuracy.md"
    path.write_text("old\n\n## Failover\n\nkept\n")
    monkeypatch.setattr(accuracy, "names", list)
    monkeypatch.setattr(accuracy, "document", lambda outcomes, runs: "new\n")
    assert accuracy.main([str(path)]) == 0
    assert path.read_text() == "new\n\n## Failover\n\nkept\n"


def test_random_faults_are_shown_one_by_one_or_summed_up_per_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "random-faults", "--seed", "9"]) == 0
    assert capsys.readouterr().out.startswith("node crash\n")
    assert main(["simulate", "random-faults", "--runs", "2", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 random clusters with faults from seed 1;")
    assert main(["simulate", "random-faults", "--runs", "2", "--seed", "1", "--json"]) == 0
    assert [run["seed"] for run in json.loads(capsys.readouterr().out)["runs"]] == [1, 2]
    with pytest.raises(SystemExit):
        main(["simulate", "random-faults", "--runs", "2", "--svg", "x.svg"])
