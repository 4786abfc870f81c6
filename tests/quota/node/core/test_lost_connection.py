"""A node whose connection to the leader ends is alone at once, not when it misses the leader."""

import pytest

from sluicegate.quota.messages import Ack, Hint, Quota, ServiceQuota, Share
from sluicegate.quota.node.core.state import NodeState

ONE = {"requests": 1.0}
SAFE = 10.0  # requests per slot while no leader is heard


def quota(now: float, granted: float, *, central: str = "c1", epoch: int = 1) -> Quota:
    services = {
        "front": ServiceQuota(
            {"ann": {"requests": Share(granted, SAFE)}}, {}, {"ann": Hint(0.0, False, False)}
        )
    }
    return Quota(central, epoch, 1, 1000 + int(now), 1000.0 + now, 2, False, 0.05, services)


@pytest.fixture
def node() -> NodeState:
    """It has spent the three requests that its leader, c1, has granted until 0.5."""
    node = NodeState("n1", 1, ("c1", "c2"), now=0.0, wall=1000.0)
    node.outgoing(0.0)
    node.receive(0.5, "c1", quota(0.5, 3.0))
    for _ in range(3):
        assert node.throttle(0.5, "front", "ann", ONE) is None
        node.consume(0.5, "front", "ann", ONE)
    assert node.throttle(0.5, "front", "ann", ONE, can_wait=True) is False
    return node


def passed(node: NodeState, now: float) -> int:
    return node.offer(now, "front", "ann", ONE, 1000)


def test_users_live_on_safe_shares_from_the_moment_the_connection_ends(node: NodeState) -> None:
    before = passed(node, 0.6)
    node.lose_connection(0.6, "c1")
    assert (before, node.state(0.6, "front", "ann")) == (0, "reused")
    assert node.wait_seconds == 0.0
    # A tenth of a slot later, before it would have missed the leader: a tenth of the share, and the
    # part of a request that every node begins with.
    assert passed(node, 0.7) in (1, 2)
    assert passed(node, 1.6) in (9, 10)
    assert node.state(3.7, "front", "ann") == "safe"


def test_a_node_is_alone_since_the_ask_that_the_leader_has_not_answered(node: NodeState) -> None:
    assert [central for central, _ in node.outgoing(0.5)] == ["c1"]
    node.lose_connection(0.7, "c1")
    assert passed(node, 0.7) in (2, 3)


def test_the_connection_to_a_central_that_does_not_lead_may_end(node: NodeState) -> None:
    node.lose_connection(0.6, "c2")
    assert node.state(0.6, "front", "ann") == "fresh"
    assert node.wait_seconds > 0.0


@pytest.mark.parametrize("central", ["c1", "c2"])
def test_the_first_word_of_a_leader_ends_it(node: NodeState, central: str) -> None:
    node.lose_connection(0.6, "c1")
    node.receive(0.65, central, Ack(central, True, 2, 1, 1, 0.6, 1000.65))
    assert node.state(0.65, "front", "ann") == "fresh"
    # The old leader is not missed any more when its connection ends once more.
    node.lose_connection(0.66, "c1")
    assert node.state(0.66, "front", "ann") == ("reused" if central == "c1" else "fresh")


def test_a_connection_that_ends_while_the_node_is_alone_changes_nothing(node: NodeState) -> None:
    node.outgoing(0.5)
    assert node.state(0.8, "front", "ann") == "reused"
    node.lose_connection(2.0, "c1")
    assert node.state(3.55, "front", "ann") == "safe"  # three slots after the ask at 0.5


def test_what_a_newcomer_had_left_is_not_for_the_time_without_a_leader() -> None:
    node = NodeState("n1", 1, ("c1",), now=0.0, wall=1000.0)
    node.outgoing(0.0)
    newcomers = {"front": ServiceQuota({}, {"requests": 30.0})}
    node.receive(0.1, "c1", Quota("c1", 1, 1, 1000, 1000.1, 2, True, 0.05, newcomers))
    assert node.state(0.2, "front", "ann") == "newcomer"
    assert node.offer(0.2, "front", "ann", ONE, 1) == 1
    node.receive(0.3, "c1", quota(0.3, 3.0))
    assert passed(node, 0.3) == 2
    node.lose_connection(0.4, "c1")
    assert passed(node, 0.4) == 0
    assert passed(node, 1.4) in (9, 10)
