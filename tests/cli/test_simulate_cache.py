"""`sluicegate simulate cache`: its table, JSON, Markdown and page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sluicegate.cache import POLICIES, replay
from sluicegate.cli.main import main
from sluicegate.sim.cache_traces import zipf

KEYS = [f"user:{number}" for number in zipf(6_000, 400)]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.txt"
    path.write_text("".join(f"{key}\n" for key in KEYS))
    return str(path)


def run(*argv: str) -> int:
    return main(["simulate", "cache", *argv])


def test_the_table_has_a_row_per_policy_and_a_column_per_capacity(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--capacity", "20,10%") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    distinct = len(set(KEYS))
    assert lines[0] == (
        f"{trace}: 6,000 requests, {distinct} distinct keys, so {distinct} compulsory misses "
        f"({100 * distinct / 6_000:.1f} %)"
    )
    assert lines[2].split()[-2:] == ["20", str(round(0.1 * distinct))]
    assert lines[3].split()[-2:] == ["10", "%"]
    results = replay(KEYS, capacities=[20, 0.1])
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:-2]}
    assert list(rows) == [*POLICIES, "optimal"]
    for policy, figures in rows.items():
        ratios = [f"{100 * each.hit_ratio:.1f}" for each in results if each.policy == policy]
        assert [figure.lstrip("*") for figure in figures] == ratios
    assert lines[-1] == "* the best policy at this capacity; optimal knows the future"
    for column in (0, 1):
        marked = [policy for policy, figures in rows.items() if figures[column][0] == "*"]
        online = [policy for policy in rows if policy != "optimal"]
        best = max(float(rows[policy][column].lstrip("*")) for policy in online)
        assert marked
        assert all(float(rows[policy][column].lstrip("*")) == best for policy in marked)
        assert "optimal" not in marked


def test_options_may_stand_before_the_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--policy", "lru,S3-FIFO", "--capacity", "5%"]
    texts = []
    for order in ([trace, *argv], [*argv, trace], [argv[0], argv[1], trace, *argv[2:]]):
        assert run(*order) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert [line.split()[0] for line in texts[0].splitlines()[4:6]] == ["lru", "s3fifo"]
    assert texts[0].endswith("* the best policy at this capacity\n")


def test_one_policy_alone_is_not_called_the_best(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--policy", "lru,optimal") == 0
    assert "*" not in capsys.readouterr().out


def test_json_is_one_document(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, "--json", "--policy", "sieve,optimal", "--capacity", "20,40") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["distinct_keys"]) == (6_000, len(set(KEYS)))
    assert told["compulsory_misses"] == told["distinct_keys"]
    assert told["results"] == [
        {"policy": policy, "capacity": capacity, "hits": hits, "hit_ratio": hits / requests}
        for policy, capacity, requests, hits in replay(KEYS, ["sieve", "optimal"], [20, 40])
    ]


def test_markdown_is_a_table_with_the_best_in_bold(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--markdown", "--policy", "fifo,sieve", "--capacity", "20") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| hit ratio in % | 20 (")
    assert re.fullmatch(r"\| fifo \| \d+\.\d \|", lines[4])
    assert re.fullmatch(r"\| sieve \| \*\*\d+\.\d\*\* \|", lines[5])


def test_a_table_is_read_by_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,key\n" + "".join(f"{at},{key}\n" for at, key in enumerate(KEYS)))
    texts = []
    for column in ("key", "2"):
        assert run(str(path), "--column", column, "--capacity", "20", "--json") == 0
        texts.append(json.loads(capsys.readouterr().out))
    assert texts[0]["requests"] == 6_000
    assert texts[1]["requests"] == 6_001  # by number, the first line is a request, too


class Page(HTMLParser):
    """Checks that what is opened is closed, and that nothing is fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.drawn: list[tuple[str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        assert tag not in ("script", "img", "link")
        assert not {"src", "href"} & given.keys()
        self.drawn.append((tag, given.get("class") or ""))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.drawn.append((tag, dict(attributes).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_a_line_per_policy_for_wide_and_for_narrow_windows(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cache.html"
    assert run(trace, "--html", str(path)) == 0
    assert capsys.readouterr().err == f"wrote {path}\n"
    page = Page(path.read_text())
    lines = [kind for tag, kind in page.drawn if tag == "polyline"]
    assert lines == [*POLICIES, "optimal"] * 2
    assert [kind for tag, kind in page.drawn if tag == "figure"] == ["wide", "narrow"]
    assert ("td", "best") in page.drawn


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "cache expects a TRACE: a file with a key per line"),
        (["no.txt"], "no.txt: cannot read the trace: No such file or directory"),
        (["TRACE", "--capacity", "0"], "expected entries (1000) or a part of the keys"),
        (["TRACE", "--capacity", "100%"], "below 100%), got '100%'"),
        (["TRACE", "--capacity", "10,x"], "got 'x'"),
        (["TRACE", "--policy", "lru,mru"], "unknown policy 'mru': expected one of fifo, lru"),
        (["TRACE", "--column", "key"], "line 1: expected a column 'key', got 'user:"),
        (["TRACE", "--column", "0"], "column must be a name, a number from 1 or None, got 0"),
        (["TRACE", "--seed", "1"], "--seed does not work with cache"),
        (["TRACE", "--runs", "2"], "--runs does not work with cache"),
        (["TRACE", "--seconds", "5"], "--seconds does not work with cache"),
        (["TRACE", "--traffic", "x.csv"], "--traffic does not work with cache"),
        (["TRACE", "--jobs", "2"], "--jobs does not work with cache"),
        (["TRACE", "--save", "x"], "--save does not work with cache"),
        (["TRACE", "--svg", "x"], "--svg does not work with cache"),
        (["TRACE", "--json", "--markdown"], "not allowed with argument"),
        (["TRACE", "another.txt"], "unrecognized arguments: another.txt"),
        (["--polcy", "lru", "TRACE"], "unrecognized arguments: --polcy"),
    ],
)
def test_what_is_asked_wrongly_is_exit_code_2(
    argv: list[str], complaint: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*(trace if word == "TRACE" else word for word in argv))
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["overload-3x", "trace.txt"], "only cache takes a TRACE, got 'trace.txt'"),
        (["pacing-steady", "--policy", "lru"], "--policy works with cache"),
        (["random", "--capacity", "5"], "--capacity works with cache"),
        (["overload-3x", "--column", "key"], "--column works with cache"),
    ],
)
def test_other_scenarios_take_no_trace_and_none_of_its_options(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *argv])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told_before_the_run(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--html", str(tmp_path)) == 1
    assert "cannot write the HTML report" in capsys.readouterr().err
