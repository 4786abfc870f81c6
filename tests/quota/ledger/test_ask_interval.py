"""How often nodes may ask, by their number and by how late the central is."""

import pytest

from sluicegate.quota.ledger.ask_interval import AskInterval
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Report
from tests.harness.spending_nodes import START, entry


@pytest.mark.parametrize(
    ("nodes", "seconds"), [(1, 0.05), (75, 0.05), (300, 0.2), (750, 0.5), (5000, 0.5)]
)
def test_the_interval_grows_with_the_nodes(nodes: int, seconds: float) -> None:
    assert AskInterval().seconds(nodes) == pytest.approx(seconds)


def test_nodes_ask_less_often_while_the_central_is_late() -> None:
    interval = AskInterval()
    interval.note_delay(0.03)  # neither late nor punctual
    assert interval.seconds(300) == pytest.approx(0.2)
    interval.note_delay(0.1)
    assert interval.seconds(300) == pytest.approx(0.25)
    for _ in range(20):
        interval.note_delay(1.0)
    assert interval.seconds(300) == pytest.approx(0.8)
    assert interval.seconds(1000) == 1.0
    for _ in range(10):
        interval.note_delay(0.0)
    assert 0.6 < interval.seconds(300) < 0.7
    for _ in range(90):
        interval.note_delay(0.0)
    assert interval.seconds(300) == pytest.approx(0.2)


@pytest.mark.parametrize("asks_per_second", [3000.0, 1800.0, 1200.0])
def test_a_central_that_is_too_slow_keeps_up_after_a_while(asks_per_second: float) -> None:
    interval = AskInterval()
    backlog, delays = 0.0, []  # asks that wait to be answered; seconds that they take
    for _ in range(600):
        backlog += 0.1 * 1000 / interval.seconds(1000)
        backlog = max(0.0, backlog - 0.1 * asks_per_second)
        delays.append(backlog / asks_per_second)
        interval.note_delay(delays[-1])
    assert max(delays) < 1.0
    assert max(delays[300:]) < 0.1


def test_late_reports_do_not_make_nodes_ask_more_often() -> None:
    ledger = Ledger([entry()])
    for number in range(600):
        ledger.book(START, Report(f"n{number}", 1, 1, 1, 0, START - 1, 0.0, {}))
    assert ledger.interval == pytest.approx(0.4)
    for slot in range(START, START + 5):  # nothing more is heard
        ledger.assign(slot)
    assert ledger.nodes(START + 4) == 1
    assert 0.2 < ledger.interval < 0.4
    for slot in range(START + 5, START + 40):
        ledger.assign(slot)
    assert ledger.interval == 0.05


def test_the_ledger_is_told_how_late_its_central_is() -> None:
    ledger = Ledger([entry()])
    ledger.note_delay(0.2)
    assert ledger.interval == pytest.approx(0.0625)
