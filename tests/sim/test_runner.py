import json
import os
import subprocess
import sys
from functools import cache

import pytest

from sluicegate.sim.runner import Result, run
from sluicegate.sim.scenario import Scenario, read

# What a run does is measured by one of the busy scenario. Tests of runs that do no more, and take
# three times as long when they are measured, are marked `no_cover`.
BUSY = """
title = "A bit of everything"
about = "Nodes and leaders die, the network is bad, users hop and pay what they pay."
seconds = 40
warm_up = 5
nodes = 5
centrals = 3
lease_seconds = 1
deposed_seconds = 2
[[limit]]
user = "*"
requests = 100
bytes = 100000
[[traffic]]
user = "alice"
rate = 300
[[traffic]]
user = "bob"
rate = 30
nodes = "hopping"
cost = { requests = 1, bytes = { mean = 3000, tail = 2.5 } }
duration = 0.7
[[traffic]]
user = "carol"
rate = [[0, 50], [20, 150]]
arrival = "even"
[network]
loss = 0.02
double = 0.02
late = 0.02
[clocks]
node-2 = { drift = 0.0002 }
central-2 = { skew = -0.3 }
[[fault]]
at = 8.2
what = "crash"
machine = "leader"
seconds = 6
[[fault]]
at = 12
what = "crash"
machine = "node-1"
seconds = 3
disk = false
[[fault]]
at = 15
what = "crash"
machine = "node-3"
seconds = 3
[[fault]]
at = 17
what = "freeze"
machine = "leader"
seconds = 4
[[fault]]
at = 24
what = "partition"
groups = [["node-4", "node-5"]]
seconds = 4
[[fault]]
at = 26
what = "join"
[[fault]]
at = 28
what = "leave"
machine = "node-2"
[[fault]]
at = 30
what = "step"
machine = "node-4"
by = -4
[[fault]]
at = 32
what = "mishaps"
every = 2
seconds = 5
"""


def scenario(text: str = BUSY) -> Scenario:
    return read(text, name="busy")


def as_text(result: Result) -> str:
    series = [[cell.user, cell.resource, cell.demand, cell.admitted] for cell in result.cells]
    return json.dumps([result.as_dict(), result.events, series])


@cache  # first called by the test below, which is measured
def busy_run(system: str = "fair") -> str:
    return as_text(run(scenario(), system=system, seed=3))


def test_the_run_is_the_same_in_another_process_with_other_hashes() -> None:
    program = "import sys; from tests.sim.test_runner import busy_run; sys.stdout.write(busy_run())"
    texts = set()
    for hashes in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        texts.add(done.stdout.decode())
    assert texts == {busy_run()}


@pytest.mark.no_cover
@pytest.mark.parametrize("system", ["fair", "classic"])
def test_the_same_seed_gives_the_same_run_to_the_byte(system: str) -> None:
    again, other = (as_text(run(scenario(), system=system, seed=seed)) for seed in (3, 4))
    assert busy_run(system) == again
    assert busy_run(system) != other


STEADY = """
title = "Steady"
about = "Three times too much."
seconds = 30
nodes = 4
centrals = 3
[[limit]]
user = "alice"
requests = 400
[[traffic]]
user = "alice"
rate = 1200
[goals]
over_10 = 0.05
under = 0.02
jain = 0.99
unrecorded = 0
"""


@pytest.mark.no_cover
def test_a_run_tells_its_figures_and_the_goals_it_missed() -> None:
    good = run(scenario(STEADY))
    assert good.missed == []
    assert good.met
    strict = run(scenario(STEADY.replace("under = 0.02", "lowest_second = 1.5")))
    assert [each.goal for each in strict.missed] == ["lowest_second"]
    assert not strict.met


def test_everything_that_passed_is_booked_once_all_is_quiet() -> None:
    result = run(scenario(STEADY + "\n[network]\nloss = 0.1\ndouble = 0.1\nlate = 0.1\n"))
    assert result.measures.unrecorded == 0.0
    assert result.measures.lost == 0.0


def test_what_passed_before_a_long_silence_stays_booked() -> None:
    """Nodes forget users without requests, and centrals full buckets: both count anew then."""
    text = STEADY.replace("seconds = 30", "seconds = 300").replace("nodes = 4", "nodes = 2")
    text = text.replace("rate = 1200", "rate = 100\ncycle = [10, 130]")
    result = run(scenario(text.replace("jain = 0.99\n", "").replace("over_10 = 0.05\n", "")))
    assert result.measures.unrecorded == 0.0


@pytest.mark.no_cover
def test_what_a_crash_without_a_disk_loses_is_known() -> None:
    crash = "\n[[fault]]\nat = 15.5\nwhat = 'crash'\nmachine = 'node-1'\nseconds = 2\ndisk = {}\n"
    without = run(scenario(STEADY + crash.format("false")))
    assert without.measures.lost > 0
    assert without.measures.unrecorded == 0.0
    with_disk = run(scenario(STEADY + crash.format("true")))
    assert with_disk.measures.lost == 0.0
    assert with_disk.measures.unrecorded == 0.0


def test_a_new_leader_is_heard_soon_after_its_election() -> None:
    crash = "\n[[fault]]\nat = 15.3\nwhat = 'crash'\nmachine = 'leader'\n"
    result = run(scenario(STEADY + crash))
    assert result.measures.fresh is not None
    assert result.measures.fresh <= 1.5
    assert result.events == [(15.3, "crash leader")]


def test_limits_that_change_hold_from_then_on() -> None:
    change = "\n[[fault]]\nat = 15\nwhat = 'limits'\nlimit = [{ user = 'alice', requests = 200 }]\n"
    (cell,) = run(scenario(STEADY + change)).cells
    assert cell.allowed[149] == pytest.approx(40.0)
    assert cell.allowed[150] == pytest.approx(20.0)
    assert sum(cell.admitted[200:300]) == pytest.approx(2000, rel=0.1)


@pytest.mark.no_cover
def test_requests_that_run_for_a_while_are_held_back_by_what_they_are_expected_to_cost() -> None:
    text = STEADY.replace("rate = 1200", "rate = 1200\nduration = 2.5")
    result = run(scenario(text))
    assert result.measures.over_10 <= 0.1  # type: ignore[operator]
    assert result.measures.unrecorded == 0.0


def test_requests_are_offered_in_fiftieths_of_a_slot() -> None:
    """One in each of them: in larger packets a bucket of one request would let less through."""
    text = """
title = "t"
about = "a"
seconds = 30
nodes = 1
centrals = 1
limit = [{ user = "ann", requests = 50, burst_seconds = 0.02 }]
traffic = [{ user = "ann", rate = 50, arrival = "even" }]
"""
    assert run(read(text)).measures.shortfall == pytest.approx(0.0, abs=0.01)


def test_a_request_may_wait_for_an_answer_unless_the_scenario_says_no() -> None:
    """A user that comes to a node has to ask for credit there."""
    text = """
title = "t"
about = "a"
seconds = 40
nodes = 20
centrals = 1
exact_arrivals = true
wait = {wait}
limit = [{{ user = "ann", requests = 100, burst_seconds = 5 }}]
traffic = [{{ user = "ann", rate = 80, nodes = "hopping", stay = [0.3, 0.6] }}]
"""
    waits, refused = (run(read(text.format(wait=wait))).measures for wait in ("true", "false"))
    assert waits.shortfall is not None
    assert refused.shortfall is not None
    assert waits.shortfall <= 0.03
    assert refused.shortfall >= waits.shortfall + 0.01


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(ValueError, match="system must be one of fair, classic, got 'luck'"):
        run(scenario(STEADY), system="luck")


@pytest.mark.no_cover
def test_progress_is_told() -> None:
    told: list[float] = []
    run(scenario(STEADY), progress=told.append)
    assert told == sorted(told)
    assert told[0] < 1.0
    assert told[-1] > 15.0
