"""The harness, not the figures: those are for `make bench`, on a quiet machine."""

import json
from pathlib import Path

import pytest

from benchmarks import asking, harness, quota, thousand_nodes
from benchmarks.__main__ import main
from benchmarks.classic import ClassicBook
from benchmarks.harness import Row, Subject, compare, report


def test_the_slower_subject_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROUND_SECONDS", 0.002)
    # So much slower that it shows in a single call, for a pause shortens the rounds to one.
    slow = Subject("sum(numbers)", {"numbers": [1] * 99_999})
    times = compare(quick=Subject("pass", {}), slow=slow)
    # Over 10,000 times as long, or 1,000 times if a pause has shortened the rounds to one call.
    assert 0 < 100 * times["quick"].thread < times["slow"].thread
    assert 0 < 100 * times["quick"].wall < times["slow"].wall


def test_results_are_written_down_and_missed_goals_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "benchmarks.md"
    docs.write_text("before\n<!-- x: made by `make bench` -->\nold\n<!-- end of x -->\nafter\n")
    monkeypatch.setattr(harness, "DOCS", docs)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    rows = [Row("a", "1 ns", "2 ns", 0.5, "0.50 x", "<= 0.4 x", False)]
    text = report("x", rows, "Notes.")
    assert "0.50 x  <= 0.4 x  NO" in text
    assert json.loads((tmp_path / "results" / "x.json").read_text())["rows"][0]["met"] is False
    written = docs.read_text()
    assert written.startswith("before\n")
    assert written.endswith("<!-- end of x -->\nafter\n")
    assert "| a | 1 ns | 2 ns | 0.50 x | <= 0.4 x | NO |" in written
    assert "old" not in written


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits,nonsense"]) == 2
    assert "unknown part 'nonsense'; the parts are limits, shared" in capsys.readouterr().err


def test_the_measured_book_is_overloaded_and_gives_out_its_limits() -> None:
    subject = quota.Overloaded(400)
    for _ in range(30):
        subject.report()
        subject.assign()
    assert subject.ledger.cells == 400
    shares = [
        subject.ledger.quota(subject.slot + 2, node)["user:1"]["requests"] for node in quota.NODES
    ]
    # All of them have told of one request's credit beyond what they consumed.
    assert [share.granted for share in shares[:5]] == [
        30.0 * demand.consumed + 1.0 for demand in quota.DEMANDS
    ]
    given = [share.safe for share in shares]
    assert sum(given) == pytest.approx(quota.RATE, rel=0.01)
    # The modest get what they want; the others are cut to one level.
    assert given[0::5] == pytest.approx([4] * 10, abs=1)
    assert given[1::5] == pytest.approx([10] * 10, abs=1)
    assert given[2::5] == pytest.approx([20] * 10, abs=1)
    assert given[3::5] + given[4::5] == pytest.approx([33] * 20, abs=2)


def test_the_classic_book_gives_the_whole_bucket_by_consumption_and_rejection() -> None:
    book = ClassicBook(rate=100, capacity=1000)
    book.record("a", 1, {"alice": {"reads": 30.0}}, {"alice": {"reads": 0.0}})
    book.record("b", 1, {"alice": {"reads": 10.0}}, {"alice": {"reads": 5.0}})
    book.assign(2)
    # 100 - 40 + 100 are left: 0.6 of them go as 30 to 10, and 0.4 to the one that rejected.
    assert book.quota == {3: {"a": {"alice": {"reads": 72.0}}, "b": {"alice": {"reads": 88.0}}}}


def test_the_classic_measurement_is_overloaded_too() -> None:
    subject = quota.ClassicOverloaded(200)
    for _ in range(6):
        subject.report()
        subject.assign()
    given = subject.book.quota[subject.slot + 2]
    assert set(given) == set(quota.NODES)
    assert sum(users["user:0"]["requests"] for users in given.values()) > 0.9 * quota.RATE


@pytest.mark.no_cover
def test_every_row_of_the_quota_part_is_measured() -> None:
    rows = [
        *quota.assignment(400, 200),
        *quota.booking(400),
        *quota.memory(20_000),
        *quota.simulator(seconds=15),
    ]
    assert [row.what.split(",")[0] for row in rows] == [
        "assignment alone",
        "booking reports",
        "memory per live cell",
        "memory per live cell",
        "simulator",
    ]
    assert all(float(row.ours.split()[0].split("/")[0].replace(",", "")) > 0 for row in rows)


def test_a_size_that_does_not_fit_into_memory_is_left_out_and_said_so() -> None:
    sizes = (200, 400, 10**9)
    *measured, left_out = quota.growth(sizes, free=10**6)
    assert [row.what for row in measured] == ["assignment, 200 cells", "assignment, 400 cells"]
    assert [row.ratio is not None for row in measured] == [True, True]
    assert (left_out.ours, left_out.met) == ("left out: needs 150.0 GB free", None)


def test_cells_come_by_whole_users() -> None:
    with pytest.raises(ValueError, match="multiple of 200, got 250"):
        quota.Overloaded(250)


@pytest.mark.parametrize("load", [0.75, 3.0])
def test_asks_are_granted_and_answered_in_the_measurement(load: float) -> None:
    costs = asking.measure(nodes=12, users=6, load=load, seconds=4)
    assert min(costs) > 0.0


@pytest.mark.no_cover
def test_a_thousand_nodes_are_a_few_here(tmp_path: Path) -> None:
    """Whatever the times are: all reports are acknowledged, and asks are granted."""
    answers = thousand_nodes.measure(str(tmp_path), nodes=5, users=10, slots=6)
    assert len(answers.acks) == answers.reports == 15
    assert answers.answers
    assert answers.frames >= 2.0
    assert 1.0 <= answers.rows <= 10.0
    assert answers.passed > 0.0
