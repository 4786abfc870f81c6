"""Three real centrals that divide their services, and a real node that is led by all of them."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Central, Node, Throttled
from sluicegate.quota.ledger.limit_entry import Entry
from tests.harness.central import PlainNode, get
from tests.harness.central_group import CentralGroup
from tests.harness.servers import RedisServer
from tests.harness.waits import wait_for

SERVICES = tuple(f"service-{number}" for number in range(6))
LIMITS = [Entry(service, "*", 1.0, {"requests": 50.0}) for service in SERVICES]
SLOT = 0.2
OPTIONS = {"limits": LIMITS, "slot_seconds": SLOT, "lead": "per-service"}


def division(group: CentralGroup) -> dict[str, str]:
    """The leader of each service that has one."""
    found: dict[str, str] = {}
    for central in group.running.values():
        assert central.registry is not None
        for service in SERVICES:
            if central.registry.state.leads_service(service):
                found[service] = central.name
    return found


def wait_until_divided(group: CentralGroup, most: int) -> dict[str, str]:
    """Each service has a leader, and none has more than `most` of them."""

    def divided() -> dict[str, str] | None:
        found = division(group)
        is_done = len(found) == len(SERVICES) and max(Counter(found.values()).values()) <= most
        return found if is_done else None

    return wait_for(divided, seen=lambda: division(group))


@contextmanager
def running_node(group: CentralGroup) -> Iterator[Node]:
    urls = list(group.urls.values())
    shared = str(group.folder / "node")
    with Node(urls, node_id="n", services=SERVICES, slot_seconds=SLOT, shared=shared) as node:
        yield node


def use_all_services(node: Node) -> Counter[str]:
    """Two requests of each service, which may wait; how many have passed."""
    passed: Counter[str] = Counter()
    for service in SERVICES:
        for _ in range(2):
            try:
                node.throttle(service, "u", wait=None)
            except Throttled:
                continue
            node.consume(service, "u", {"requests": 1})
            passed[service] += 1
    return passed


def is_fresh(node: Node) -> bool:
    """Whether the leader of each service has granted credit to its user."""
    use_all_services(node)
    states = node.status().users
    return all(states.get(service, {}).get("fresh") == 1 for service in SERVICES)


def test_services_are_divided_and_move_when_a_central_stops_or_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.quota")
    with CentralGroup(tmp_path, **OPTIONS) as group, running_node(group) as node:
        group.wait_for_leader()
        before = wait_until_divided(group, 2)
        wait_for(lambda: is_fresh(node), seen=node.status)
        leader = group.wait_for_leader()
        assert get(leader, "/api/status")["service_leaders"] == before
        wait_for(
            lambda: (
                {**node.status().leaders}
                == {
                    service: group.urls[central]
                    for service, central in before.items()
                    if central != leader.name
                }
            ),
            seen=node.status,
        )

        borrower = next(name for name in group.running if name != leader.name)
        nodes = get(group.running[borrower], "/api/nodes")["nodes"]
        assert [node["quota_age"] is not None for node in nodes] == [True]
        epoch = node.status().epoch
        group.stop(borrower)
        after = wait_until_divided(group, 3)
        assert borrower not in after.values()
        wait_for(lambda: node.status().epoch > epoch and is_fresh(node), seen=node.status)

        group.start(borrower)
        wait_until_divided(group, 2)
        group.stop(leader.name)
        wait_until_divided(group, 3)
        wait_for(lambda: is_fresh(node), seen=node.status)
        assert node.status().unlimited == ()
    # A central that does not list a service may have lent it: it is not without limits for that.
    messages = [record.getMessage() for record in caplog.records]
    assert [message for message in messages if "no limits" in message] == []
    assert any(message.startswith("no longer leads service-") for message in messages)


def test_a_service_of_classic_nodes_stays_with_the_leader(tmp_path: Path) -> None:
    with CentralGroup(tmp_path, **OPTIONS) as group, running_node(group):
        leader = group.wait_for_leader()
        before = wait_until_divided(group, 2)
        service = next(service for service, name in before.items() if name != leader.name)
        with PlainNode(leader, "classic") as classic:
            classic.report(classic.slot(), {service: {"u": {"requests": 1}}})
            wait_for(lambda: division(group).get(service) == leader.name, seen=lambda: group)
        assert max(Counter(wait_until_divided(group, 2).values()).values()) == 2


def test_with_a_store_the_services_are_divided_too(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with (
        CentralGroup(tmp_path, election=redis_server.url, **OPTIONS) as group,
        running_node(group) as node,
    ):
        group.wait_for_leader()
        wait_until_divided(group, 2)
        wait_for(lambda: is_fresh(node), seen=node.status)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lead": "some"}, "invalid lead: expected all or per-service, got 'some'"),
        ({"lead": "per-service"}, "services can be led by several centrals only"),
        (
            {"lead": "per-service", "election": "redis://127.0.0.1"},
            "expected --peers NAME=URL,NAME=URL,... and --election",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        Central(LIMITS, **options)
