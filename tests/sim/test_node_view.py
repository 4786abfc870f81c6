"""The auditor's view of a node."""

import pytest

from sluicegate.quota.messages import Credit, Hint, Quota, ServiceQuota, Share
from sluicegate.sim.audited_limits import Cell
from sluicegate.sim.node_view import NodeView

CELL = Cell(("front", "ann", "requests"), is_always_limited=True, rate=1.0, capacity=10.0)


def quota(granted: float) -> Quota:
    service = ServiceQuota(
        {"ann": {"requests": Share(granted, 0.0)}},
        {"requests": 0.0},
        {"ann": Hint(0.0, recall=False, may_float=False)},
    )
    return Quota("central", 1, 1, 0, 0.0, 1, False, 0.05, {"front": service})


@pytest.fixture
def view() -> NodeView:
    CELL.unit = CELL.least = 1.0
    return NodeView(1, 0.0, 1.0)


def grant(view: NodeView, now: float, granted: float) -> None:
    view.hear_quota(now, quota(granted))
    view.hear_share(CELL, granted, 0.0)


def test_a_node_lets_through_what_it_was_granted_and_no_more(view: NodeView) -> None:
    grant(view, 1.0, 2.0)
    assert view.admit(1.1, 1, CELL, 1.0, 2) is None
    view.tell_credit(CELL, Credit(2.0, 0.0, 2.0, 1.0))
    assert "more than its credit of 2" in str(view.admit(1.2, 1, CELL, 1.0, 1))


def test_a_user_that_was_forgotten_before_a_request_waits_begins_at_nothing(view: NodeView) -> None:
    grant(view, 1.0, 1.0)
    assert view.admit(1.1, 1, CELL, 1.0, 1) is None
    view.tell_nothing(200.0, "front", "ann")  # a request waits for the answer
    grant(view, 200.1, 1.0)
    assert view.start(200.2, 200, [CELL]) is None
    view.tell_credit(CELL, Credit(1.0, 0.0, 1.0, 1.0))
    view.end(200, "front", "ann", [(CELL, 1.0)])
    grant(view, 260.0, 2.0)
    assert view.start(260.1, 260, [CELL]) is None
    view.tell_credit(CELL, Credit(2.0, 0.0, 2.0, 1.0))
    assert "more than its credit of 2" in str(view.start(260.2, 260, [CELL]))
