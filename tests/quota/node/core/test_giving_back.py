"""What an idle user keeps of its credit: whole requests, for a part of one is of no use to it."""

import pytest

from sluicegate.quota.messages import Ask, Hint, Quota, ServiceQuota, Share
from sluicegate.quota.node.core.state import NodeState


def returned(shares: dict[str, Share], costs: dict[str, float]) -> dict[str, float]:
    """What a node has given back 0.15 s after the only request of a user."""
    node = NodeState("n1", 1, ("c1",), now=0.0, wall=1000.0)
    node.outgoing(0.0)
    services = {"front": ServiceQuota({"ann": shares}, {}, {"ann": Hint(0.0, False, False)})}
    node.receive(0.1, "c1", Quota("c1", 1, 1, 1000, 1000.1, 2, False, 0.05, services))
    assert node.offer(0.1, "front", "ann", costs, 1) == 1
    sent = [message for _, message in node.outgoing(0.25) if isinstance(message, Ask)]
    assert len(sent) == 1
    return {name: it.returned for name, it in sent[0].users["front"]["ann"].resources.items()}


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (1.0, 1.0),  # two fifths of a slot's share are less than a request
        (3.7, 1.0),
        (3.8, 2.0),
        (9.9, 4.0),  # 3.96 would be of no more use than three
        (10.0, 4.0),
        (11.2, 4.0),
        (11.3, 5.0),
    ],
)
def test_a_user_without_requests_keeps_two_fifths_of_its_share_in_whole_requests(
    share: float, kept: float
) -> None:
    found = returned({"requests": Share(21.0, share)}, {"requests": 1.0})
    assert found == {"requests": pytest.approx(20.0 - kept)}


def test_each_resource_is_kept_in_requests_at_their_cost() -> None:
    shares = {"requests": Share(21.0, 9.9), "tokens": Share(168.0, 79.0)}
    found = returned(shares, {"requests": 1.0, "tokens": 8.0})
    assert found == {"requests": pytest.approx(16.0), "tokens": pytest.approx(128.0)}


def test_no_more_is_given_back_than_was_granted_whatever_rounding_says() -> None:
    """0.5488017311256174 + (1.7300740157905092 - 0.5488017311256174) is more than the latter."""
    node = NodeState("n1", 1, ("c1",), now=0.0, wall=1000.0)
    node.outgoing(0.0)
    for at, granted in ((0.1, 0.5488017311256174), (0.3, 1.7300740157905092)):
        users = {"ann": {"requests": Share(granted, 1.0)}}
        services = {"front": ServiceQuota(users, {}, {"ann": Hint(0.0, True, False)})}
        node.receive(at, "c1", Quota("c1", 1, 1, 1000, 1000.0 + at, 2, False, 0.05, services))
        (ask,) = [sent for _, sent in node.outgoing(at + 0.1) if isinstance(sent, Ask)]
        assert ask.users["front"]["ann"].resources["requests"].returned == granted
