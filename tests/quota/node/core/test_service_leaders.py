"""A node whose services are led by several centrals."""

from typing import Any

import pytest

from sluicegate.quota.messages import Ack, Ask, Quota, ServiceQuota, Share
from sluicegate.quota.node.core.state import NodeState

ONE = {"requests": 1.0}
CENTRALS = ("c1", "c2", "c3")


def quota(now: float, central: str, *services: str, epoch: int = 1, granted: float = 3.0) -> Quota:
    parts = {
        service: ServiceQuota({"ann": {"requests": Share(granted, 10.0)}}, {})
        for service in services
    }
    return Quota(central, epoch, 1, 1000 + int(now), 1000.0 + now, 2, False, 0.05, parts)


def ack(now: float, central: str, *, epoch: int = 1) -> Ack:
    return Ack(central, True, epoch, 1, 1, now, 1000.0 + now)


@pytest.fixture
def node() -> NodeState:
    """c1 leads, and has lent "back" to c2."""
    node = NodeState("n1", 1, CENTRALS, now=0.0, wall=1000.0)
    node.outgoing(0.0)
    node.receive(0.5, "c2", quota(0.5, "c2", "back"))  # before the leader itself is heard
    node.receive(0.5, "c1", ack(0.5, "c1"))
    node.receive(0.5, "c1", quota(0.5, "c1", "front"))
    return node


def states(node: NodeState, now: float) -> tuple[str, str]:
    return node.state(now, "front", "ann"), node.state(now, "back", "ann")


def spend_all(node: NodeState, now: float) -> None:
    for service in ("front", "back"):
        assert node.offer(now, service, "ann", ONE, 10, can_wait=True) == ~3


def asked(messages: list[tuple[str, Any]]) -> dict[str, list[str]]:
    return {to: list(message.users) for to, message in messages if isinstance(message, Ask)}


def test_the_leader_is_the_one_that_says_so_and_the_others_lead_what_they_list(
    node: NodeState,
) -> None:
    status = node.status(0.5)
    assert (status.leader, status.leaders) == ("c1", {"back": "c2"})


def test_each_leader_is_asked_for_its_own_services(node: NodeState) -> None:
    spend_all(node, 0.6)
    assert asked(node.outgoing(0.6)) == {"c1": ["front"], "c2": ["back"]}


@pytest.mark.parametrize(
    ("lost", "expected"), [("c1", ("reused", "fresh")), ("c2", ("fresh", "reused"))]
)
def test_without_its_leader_a_service_is_alone_and_no_other_is(
    node: NodeState, lost: str, expected: tuple[str, str]
) -> None:
    node.lose_connection(0.6, lost)
    assert states(node, 0.6) == expected
    assert node.wait_seconds > 0.0  # there is still somebody to wait for
    other = "c2" if lost == "c1" else "c1"
    node.lose_connection(0.7, other)
    assert (states(node, 0.7), node.wait_seconds) == (("reused", "reused"), 0.0)


def test_a_leader_that_does_not_answer_is_away_for_its_own_services(node: NodeState) -> None:
    spend_all(node, 0.6)
    node.outgoing(0.6)
    node.receive(0.65, "c1", quota(0.65, "c1", "front", granted=4.0))
    assert states(node, 1.0) == ("fresh", "reused")


def test_a_leader_that_says_nothing_is_away_for_its_own_services(node: NodeState) -> None:
    for now in (1.5, 2.5):
        node.receive(now, "c1", ack(now, "c1"))
    assert states(node, 2.8) == ("fresh", "reused")


def test_in_a_new_epoch_the_leader_has_all_that_nobody_else_lists(node: NodeState) -> None:
    node.receive(0.6, "c1", ack(0.6, "c1", epoch=2))
    node.receive(0.6, "c2", quota(0.6, "c2", "back", epoch=1, granted=50.0))  # it is fenced
    assert (node.status(0.6).leaders, node.offer(0.6, "back", "ann", ONE, 10)) == ({}, 3)
    node.receive(0.7, "c3", quota(0.7, "c3", "back", epoch=2, granted=5.0))
    assert node.status(0.7).leaders == {"back": "c3"}
    assert node.offer(0.7, "back", "ann", ONE, 10) == 2
    node.lose_connection(0.8, "c2")  # it leads nothing any more
    assert states(node, 0.8) == ("fresh", "fresh")


def test_the_slower_of_two_leaders_says_how_often_to_ask(node: NodeState) -> None:
    node.receive(0.6, "c2", quota(0.6, "c2", "back")._replace(interval=0.2))
    spend_all(node, 0.6)
    assert asked(node.outgoing(0.6)) == {"c1": ["front"], "c2": ["back"]}
    node.receive(0.61, "c1", quota(0.61, "c1", "front", granted=4.0))
    assert node.offer(0.61, "front", "ann", ONE, 10, can_wait=True) == ~1
    assert asked(node.outgoing(0.7)) == {}
    assert asked(node.outgoing(0.81)) == {"c1": ["front"]}
