"""The harness, not the figures: those are for `make bench`, on a quiet machine."""

import json
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.harness import Row, Subject, compare, report


def test_the_slower_subject_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROUND_SECONDS", 0.002)
    times = compare(quick=Subject("pass", {}), slow=Subject("sum(numbers)", {"numbers": [1] * 999}))
    assert 0 < times["quick"].thread < times["slow"].thread
    assert 0 < times["quick"].wall < times["slow"].wall


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
    assert main(["nonsense"]) == 2
    assert "unknown part 'nonsense'; the parts are limits, shared" in capsys.readouterr().err
