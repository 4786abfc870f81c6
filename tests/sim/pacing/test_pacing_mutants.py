"""A steering or a store with one place made wrong, and the scenario that finds out.

Goals that are met prove something only if a fault would show. The unchanged code meets the same
goals in test_pacing_scenarios.py.
"""

from typing import Any

import pytest

from sluicegate.pacing.steering import Seen, Steering
from sluicegate.sim.pacing import load, run
from sluicegate.stores import memory

pytestmark = pytest.mark.no_cover


def missed(name: str) -> set[str]:
    return {one.goal for one in run(load(name)).missed}


def test_a_node_that_takes_all_traffic_for_its_own_leaves_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Steering.plan

    def plan_for_all(self: Steering, seen: Seen, *more: Any) -> float:
        return plan(self, seen._replace(share=1.0), *more)

    monkeypatch.setattr(Steering, "plan", plan_for_all)
    assert {"error", "deviation"} <= missed("pacing-steady")


def test_a_steering_that_ignores_its_lag_does_not_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steering, "_lag", lambda *_: 0.0)
    assert "recovery" in missed("pacing-moved")


@pytest.mark.parametrize(
    ("scenario", "goal"), [("pacing-steady", "over"), ("pacing-target-5", "off_target")]
)
def test_a_store_that_does_not_count_holds_lets_too_much_pass(
    monkeypatch: pytest.MonkeyPatch, scenario: str, goal: str
) -> None:
    def set_hold(record: Any, writer: Any, hold: float) -> None:
        writer.hold = hold

    monkeypatch.setattr(memory._CounterRecord, "_set_hold", set_hold)
    assert goal in missed(scenario)


def test_late_rewards_that_are_not_expected_are_overspent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steering, "_expected", lambda _, seen: seen.rewards)
    assert "over_earned" in missed("pacing-late-rewards")


def test_a_sync_that_is_counted_twice_does_not_match_the_books(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update = memory._CounterRecord.update

    def update_again(record: Any, name: str, number: int, now: float, told: Any) -> Any:
        record.sum += 1.0
        return update(record, name, number, now, told)

    monkeypatch.setattr(memory._CounterRecord, "update", update_again)
    assert "unrecorded" in missed("pacing-target-5")
