from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.sim.replay import read_traffic
from sluicegate.sim.runner import run
from sluicegate.sim.scenario import Scenario, read

SCENARIO = """
title = "t"
about = "a"
seconds = 30
nodes = 3
centrals = 1
[[limit]]
user = "*"
requests = 5
burst_seconds = 1
"""


@pytest.fixture
def scenario() -> Scenario:
    return read(SCENARIO)


def written(tmp_path: Path, text: str, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_lines_are_put_into_steps_from_the_earliest_on(tmp_path: Path, scenario: Scenario) -> None:
    path = written(
        tmp_path,
        "time,user,resource,amount,node\n"
        "1000.31,bob,requests,1,node-2\n"
        "1000.05,alice,requests,1,\n"
        "1000.35,bob,requests,1,node-2\n"
        "1002.00,alice,bytes,500,nobody\n",
    )
    replay = read_traffic(path, scenario)
    assert len(replay) == 4
    assert replay.seconds == pytest.approx(2.05)
    (alice,) = replay.of_step(0)
    assert (alice[0].user, alice[0].node, alice[0].service, alice[1]) == ("alice", "", "front", 1)
    bobs = [(request.user, request.node, count) for request, count in replay.of_step(2)]
    assert bobs == [("bob", "node-2", 1)] or bobs == [("bob", "node-2", 2)]
    assert not list(replay.of_step(1))


def test_json_lines_say_the_same(tmp_path: Path, scenario: Scenario) -> None:
    lines = '{"time": 3, "user": "a", "resource": "r", "amount": 2, "service": "back"}\n\n'
    replay = read_traffic(written(tmp_path, lines, "log.jsonl"), scenario)
    ((request, count),) = replay.of_step(0)
    assert (request.service, request.amount, count) == ("back", 2.0, 1)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("log.txt", "", "expected a file that ends in .csv or .jsonl"),
        ("log.csv", "time,user\n", "line 1: expected a header line with time, user, resource"),
        ("log.csv", "time,user,resource,amount\n", "expected at least one request, got none"),
        ("log.csv", "time,user,resource,amount\nx,a,r,1\n", "line 2: time = 'x': expected a"),
        ("log.csv", "time,user,resource,amount\n1,,r,1\n", "line 2: user = '': expected a string"),
        ("log.csv", "time,user,resource,amount\n1,a,r,-1\n", "amount = -1.0: expected from 0 to"),
        ("log.csv", "time,user,resource,amount,x\n1,a,r,1,2\n", "'x' is unknown"),
        ("log.csv", "time,user,resource,amount\n1,a,r,1,9\n", "line 2: expected no more fields"),
        (
            "log.csv",
            "time,user,resource,amount\n1,a,r,1\n9e9,a,r,1\n",
            "expected at most 1,000,000 slots from the first line to the last",
        ),
        ("log.csv", "time,user,resource,amount\n1,a,r,1e300\n", "amount = 1e+300: expected from"),
        (
            "log.jsonl",
            '{"time": 1, "user": "a", "resource": "r", "amount": 1, "service": 5}',
            "line 1: service = 5: expected a string",
        ),
        (
            "log.jsonl",
            '{"time": 1, "user": "a", "resource": "r", "amount": 1, "node": ["x"]}',
            "line 1: node = ['x']: expected a string",
        ),
        ("log.jsonl", '{"time": true, "amount": 1}', "line 1: time = True: expected a finite"),
        ("log.jsonl", "{", "line 1: invalid JSON"),
        ("log.jsonl", "3", "line 1: expected an object, got 3"),
        ("log.jsonl", '{"time": 1, "amount": 1}', "user = None: expected a string"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(
    name: str, text: str, complaint: str, tmp_path: Path, scenario: Scenario
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_traffic(written(tmp_path, text, name), scenario)
    assert complaint in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path, scenario: Scenario) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_traffic(tmp_path / "no.csv", scenario)


def test_a_log_is_held_to_the_limit_as_live_traffic_would_be(
    tmp_path: Path, scenario: Scenario
) -> None:
    rows = [f"{second + 0.5},{user},requests,1" for second in range(30) for user in "ab"]
    rows += [f"{second + tenth / 10},c,requests,1" for second in range(30) for tenth in range(10)]
    replay = read_traffic(
        written(tmp_path, "time,user,resource,amount\n" + "\n".join(rows)), scenario
    )
    result = run(replay.scenario(scenario), replay=replay)
    passed = {cell.user: sum(cell.admitted) for cell in result.cells}
    asked = {cell.user: sum(cell.demand) for cell in result.cells}
    assert asked == {"a": 30.0, "b": 30.0, "c": 300.0}
    assert passed["a"] >= 25.0
    assert passed["b"] >= 25.0
    assert 135 <= passed["c"] <= 165


def test_lines_without_a_node_go_to_the_nodes_in_turn_whatever_the_format(
    tmp_path: Path, scenario: Scenario
) -> None:
    times = [second + tenth / 10 for second in range(20) for tenth in range(3)]
    rows = [f"{time},a,requests,1" for time in times]
    log = written(tmp_path, "time,user,resource,amount\n" + "\n".join(rows))
    lines = [
        f'{{"time": {time}, "user": "a", "resource": "requests", "amount": 1}}' for time in times
    ]
    other = written(tmp_path, "\n".join(lines), "log.jsonl")
    results = []
    for path in (log, other):
        replay = read_traffic(path, scenario)
        results.append(run(replay.scenario(scenario), replay=replay))
    assert results[0].cells == results[1].cells
    assert sum(results[0].cells[0].demand) == 60.0
    (used,) = results[0].users
    assert (used.requests, used.amounts["requests"][0]) == (60, 60.0)


def test_a_mark_at_the_beginning_of_a_log_is_no_part_of_it(
    tmp_path: Path, scenario: Scenario
) -> None:
    log = written(tmp_path, "\ufefftime,user,resource,amount\n1,a,requests,1\n")
    assert len(read_traffic(log, scenario)) == 1
