"""A run of a pacing scenario: deterministic, with the traffic, faults and books it was given."""

import math
import random

import pytest

from sluicegate.errors import ConfigError
from sluicegate.sim.pacing import PacingScenario, load, names, read, run
from sluicegate.sim.pacing.html_report import page
from sluicegate.sim.pacing.measures import Series, recovery
from sluicegate.sim.pacing.scores import ScoreLog
from sluicegate.sim.pacing.simulate import simulate
from sluicegate.sim.pacing.text_report import markdown, plain
from sluicegate.sim.pacing.traffic import Arrivals, Change, Shape

SMALL = """
title = "Small"
about = "A small cluster."
nodes = 3
periods = 2
[pacing]
target = 200
period = 20
[traffic]
load = 3
"""


def small(more: str = "") -> PacingScenario:
    return read(SMALL + more)


def offered(shape: Shape, seconds: float, *, is_poisson: bool) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    arrivals = Arrivals(
        shape,
        random.Random(1),
        is_poisson=is_poisson,
        offer=lambda time, node: found.append((time, node)),
        next_time=lambda: math.inf,
    )
    arrivals.use(range(shape.nodes))
    arrivals.run(seconds)
    return found


@pytest.mark.parametrize("is_poisson", [False, True])
@pytest.mark.parametrize("kind", ["even", "skewed", "moving", "bursty", "daily"])
def test_traffic_of_every_shape_comes_at_its_mean_rate(kind: str, is_poisson: bool) -> None:
    shape = Shape(kind, 100.0, 4, 40.0, stay=5.0, busy=2, cycle=(3.0, 1.0))
    found = offered(shape, 40.0, is_poisson=is_poisson)
    assert len(found) == pytest.approx(4000, rel=0.06 if is_poisson else 0.001)
    assert [time for time, _ in found] == sorted(time for time, _ in found)


def test_a_change_of_traffic_holds_from_its_moment_on() -> None:
    changes = (Change(10.0, load=2.0), Change(20.0, nodes=(1,)))
    shape = Shape("even", 10.0, 3, 60.0, changes=changes)
    found = offered(shape, 30.0, is_poisson=False)
    counts = [sum(begin <= time < begin + 10 for time, _ in found) for begin in (0, 10, 20)]
    assert counts == pytest.approx([100, 200, 100], abs=1)
    assert {node for time, node in found if time >= 20.0} == {1}


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(small(), seed=5), run(small(), seed=5)
    assert first.as_dict() == second.as_dict()
    assert first.series == second.series
    assert run(small(), seed=6).series != first.series


def test_what_passes_is_what_is_counted_in_the_store_after_loss_and_restarts() -> None:
    faults = """
[store]
loss = 0.2
[clocks]
skew = 3
[[event]]
at = 7
what = "leave"
node = 1
[[event]]
at = 9
what = "join"
[[event]]
at = 14
what = "crash"
node = 2
[[event]]
at = 25
what = "restart"
node = 2
"""
    for seed in range(5):
        result = run(small(faults), seed=seed)
        assert result.measures.unrecorded == 0.0
        assert sum(result.series.passes) > 300


def test_rewards_come_late_and_of_every_nth_pass() -> None:
    result = run(small("[rewards]\nconversion = 0.25\ndelay = 4\n"))
    rewards, passes = result.series.rewards, result.series.passes
    late = round(4.0 / result.series.width)
    assert not any(rewards[: late - 1])
    assert sum(rewards) == pytest.approx(0.25 * sum(passes[:-late]), abs=2)


def test_a_run_may_begin_late_in_a_period_on_its_line() -> None:
    text = SMALL.replace("periods = 2", "start = 15\nseconds = 10\nreached = 0.75\nwarm_up = 0")
    result = run(read(text))
    assert [period.is_whole for period in result.periods] == [False, False]
    assert result.periods[0].passes == pytest.approx(200, abs=10)
    assert result.series.value[0] == pytest.approx(150, abs=10)


def test_scores_are_compared_with_the_best_choice() -> None:
    log = ScoreLog([1.0, 2.0, 3.0, 4.0], [4.0, 2.0])
    assert log.quality == pytest.approx(6 / 7)
    tied = ScoreLog([5.0] * 10 + [1.0] * 10, [5.0] * 4 + [1.0])
    assert tied.tie_error == pytest.approx(0.1)


def test_recovery_is_the_time_until_the_value_stays_near_the_line() -> None:
    line = [10.0 * (i + 1) for i in range(10)]
    value = [*line[:4], 40.0, 45.0, 60.0, *line[7:]]
    series = Series(1.0, [], [], [], [], value, line, line)
    assert recovery(series, 100.0, [4.0], 2.0) == pytest.approx(1.5)
    assert recovery(series, 100.0, [], 2.0) is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("load = 3", "load = 0", "traffic: load = 0: expected a finite number above 0"),
        ("load = 3", "load = 3\nshape = 'odd'", "shape = 'odd': expected one of"),
        ("target = 200", "target = 200\nodd = 1", "odd = 1: expected no such key"),
        ("nodes = 3", "nodes = 3.5", "nodes = 3.5: expected an integer from 1"),
        ("load = 3", "load = 3\n[goals]\nodd = 1", "odd = 1: expected a goal; there are"),
        ("load = 3", "load = 3\n[[event]]\nat = 1\nwhat = 'leave'\nnode = 9", "node-1 to node-3"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(SMALL.replace(old, new))
    assert says in str(error.value)


def test_every_shipped_scenario_can_be_read_and_has_goals() -> None:
    assert len(names()) >= 12
    assert all(load(name).goals for name in names())


def test_reports_show_figures_goals_and_pictures() -> None:
    outcomes = simulate([small("[goals]\ndelivered = 0.5\nover = 0.0\nerror = 0.0\n")], runs=2)
    assert not outcomes[0].met
    text = plain(outcomes[0])
    assert "worst of 2 seeds from 0" in text
    assert "| ≥ 50.00 % | yes |" in markdown(outcomes)
    html = page(outcomes)
    assert html.count("<svg") == 3
    assert "ideal line" in html
