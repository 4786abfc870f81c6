"""`sluicegate simulate balance`."""

import json
import re

import pytest

from sluicegate.cli.main import main
from sluicegate.sim.balance import comparison

SHORT = ("--clients", "3", "--seconds", "6")
FEW = (*SHORT, "--servers", "4")


def test_each_policy_has_a_line_and_each_number_of_clients_its_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "balance", "--servers", "3", "--slow", "1", "--seconds", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == "given: 3 servers, 1 of them 10 times slower"
    assert lines[1] == (
        "3 servers of 8 requests at once, load 60 %, exponential work of 0.1 s, 3 s, seed 0"
    )
    assert lines[3].split() == ["1", "client", "10", "clients", "100", "clients"]
    assert lines[4].split() == ["p50", "p99", "ratio"] * 3
    assert re.fullmatch(r"round_robin( +[\d.]+ m?s +[\d.]+ m?s +1\.000){3}", lines[5])
    names = [line[:28].strip() for line in lines[5:]]
    assert names == [
        "round_robin",
        "weighted_random",
        "consistent_hash",
        "least_connections",
        "least_active",
        "least_active, loads reported",
        "peak_ewma",
        "peak_ewma, loads reported",
    ]


def test_without_options_all_scenarios_are_run_and_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "balance", "--clients", "1", "--seconds", "12"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("slow: One of 10 servers is 10 times slower\n")
    assert "\n\np99 of least_active and peak_ewma at most 0.3 of round_robin's: met\n" in printed
    assert "\n\nequal: " in printed
    sink = printed[printed.index("\n\nsink: ") :].splitlines()
    assert sink[6].split() == ["failed", "out", "after", "whole"]
    (turns,) = [line for line in sink if line.startswith("round_robin ")]
    failed, percent, *after = turns.split()[1:]
    assert 0.0 < float(failed) < 1.0  # of 10 % without ejection
    assert (percent, after) == ("%", ["0", "s", "-"])


def test_a_goal_that_is_missed_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = comparison.SCENARIOS["slow"]
    monkeypatch.setattr(comparison, "SCENARIOS", {"slow": slow._replace(goal=1e-9)})
    assert main(["simulate", "balance", *SHORT]) == 1
    printed = capsys.readouterr().out
    assert re.search(r": missed by least_active with 3 client\(s\): 0\.\d+; ", printed)
    assert main(["simulate", "balance", *SHORT, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["met"] is False


def test_json_is_one_document_and_the_same_for_the_same_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = []
    for seed in ("5", "5", "6"):
        assert main(["simulate", "balance", *FEW, "--json", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    document = json.loads(texts[0])
    assert document["met"] is True
    (given,) = document["scenarios"]
    assert (given["scenario"], given["seed"], given["goal"]) == ("given", 5, None)
    assert len(given["policies"]) == 8
    for row in given["policies"]:
        assert row["clients"] == 3
        assert 0.0 < row["p50"] < row["p99"] <= row["p999"]
        assert sum(row["shares"]) == pytest.approx(1.0)


def test_markdown_has_a_table_for_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "balance", *FEW, "--load", "0.5", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 servers, all equal (load 50 %):"
    assert lines[2] == "| policy | 3 clients: p50 | p99 | ratio |"
    assert lines[3] == "|---|---:|---:|---:|"
    assert len(lines) == 4 + 8


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["balance", "--html", "x.html"], "--html does not work with balance"),
        (["balance", "--runs", "2"], "--runs does not work with balance"),
        (["balance", "--column", "key"], "--column works with cache"),
        (["balance", "trace.csv"], "only cache takes a TRACE, got 'trace.csv'"),
        (["overload-3x", "--slow-factor", "3"], "--slow-factor works with balance"),
        (["balance", "--clients", "0"], "expected an integer above 0, got '0'"),
        (["balance", "--clients", "10001"], "clients must be at most 10,000, got 10001"),
        (["balance", "--slow", "11"], "slow must be at most servers (10), got 11"),
        (["balance", "--slow-factor", "3"], "--slow-factor needs --slow"),
        (["balance", "--load", "0"], "expected a finite number above 0, got '0'"),
    ],
)
def test_what_is_asked_wrongly_is_exit_code_2(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *argv])
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err
