"""The auditor's books of a central."""

from sluicegate.quota.messages import Ask, Credit, Line, Report, UserAsk
from sluicegate.sim.audited_limits import Cell
from sluicegate.sim.central_books import CentralBooks

BEGIN = 1000


def report(sequence: int, slot: int, sent: float) -> Report:
    return Report("a", 1, sequence, 1, sequence - 1, slot, sent, {})


def test_a_report_of_the_slot_before_does_not_undo_what_an_ask_has_returned() -> None:
    """It may be sent later than the ask: it is made when its slot ends."""
    cell = Cell(("front", "ann", "requests"), is_always_limited=True, rate=1.0, capacity=10.0)
    books = CentralBooks(BEGIN)
    line = Line(1.0, 0, 1, 0.0, 0.0, 2.0, 0.0)
    books.hear_report(BEGIN + 1.1, report(1, BEGIN, 1001.1), [(cell, line)])
    for slot in range(BEGIN + 1, BEGIN + 70):  # without a word of the user
        books.hear_report(slot + 1.1, report(slot - BEGIN + 1, slot, slot + 1.1), [])
    credit = Credit(granted=2.0, returned=1.0, used=1.0, cost=1.0)
    user_ask = UserAsk(0, {"requests": credit})
    ask = Ask("a", 1, 1071.05, {"front": {"ann": user_ask}})
    books.hear_ask(BEGIN + 71.05, ask, [([cell], user_ask)])
    assert books.available(cell) == 10.0
    line = line._replace(settled=1.0)
    books.hear_report(BEGIN + 71.1, report(71, BEGIN + 70, 1071.1), [(cell, line)])
    assert books.available(cell) == 10.0
    assert books.grant(BEGIN + 71.2, "a", cell, 12.0) is None
    assert "that are there" in str(books.grant(BEGIN + 71.2, "a", cell, 15.0))
