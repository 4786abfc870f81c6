"""Runs cases.json, the conformance table of all end nodes, against `NodeState`.

How to read the table is said in docs/node.md. A node in another language has a runner like this.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sluicegate.quota.messages import Ack, Ask, Hint, Quota, Report, ServiceQuota, Share
from sluicegate.quota.node.core._user_table import Ticket
from sluicegate.quota.node.core.state import NodeState
from sluicegate.quota.stable_hash import hash_fraction

_CASES = json.loads(Path(__file__).with_name("cases.json").read_text())["cases"]


def _quota(told: dict[str, Any]) -> Quota:
    services = {
        service: ServiceQuota(
            {
                user: {resource: Share(*share) for resource, share in shares.items()}
                for user, shares in part["users"].items()
            },
            part["newcomers"],
            {user: Hint(*hint) for user, hint in part.get("hints", {}).items()},
        )
        for service, part in told["services"].items()
    }
    return Quota(**{**told, "services": services})


def _users(ask: Ask) -> dict[str, Any]:
    return {
        service: {
            user: {
                "requests": each.requests,
                "waits": each.waits,
                "resources": {
                    resource: pytest.approx(list(credit), abs=1e-6)
                    for resource, credit in each.resources.items()
                },
            }
            for user, each in users.items()
        }
        for service, users in ask.users.items()
    }


def _message(to: str, message: Report | Ask) -> dict[str, Any]:
    """A message as the table has it: without the node, its boot and the time of sending."""
    if isinstance(message, Ask):
        return {"to": to, "ask": _users(message)}
    lines = {
        service: {
            user: {
                resource: pytest.approx(list(line), abs=1e-6) for resource, line in cells.items()
            }
            for user, cells in users.items()
        }
        for service, users in message.lines.items()
    }
    report = {
        "sequence": message.sequence,
        "epoch": message.epoch,
        "since": message.since,
        "slot": message.slot,
        "lines": lines,
    }
    if message.leaving:
        report["leaving"] = True
    return {"to": to, "report": report}


class _Runner:
    """A node, and the tickets of its requests by the names that the table gives them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._node = NodeState(**options)
        self._tickets: dict[str, Ticket] = {}

    def do(self, step: dict[str, Any]) -> Any:
        node, now = self._node, step["at"]
        whom = step.get("service", ""), step.get("user", "")
        match step["do"]:
            case "throttle":
                return self._throttle(step)
            case "consume":
                ticket = self._tickets[step["ticket"]] if "ticket" in step else None
                return node.consume(now, *whom, step["amounts"], ticket)
            case "offer":
                return node.offer(now, *whom, step["amounts"], step["count"])
            case "receive":
                message = Ack(**step["ack"]) if "ack" in step else _quota(step["quota"])
                return node.receive(now, message.central, message)
            case "outgoing":
                return [_message(to, message) for to, message in node.outgoing(now)]
            case "ask":
                asks = [sent for _, sent in node.outgoing(now) if isinstance(sent, Ask)]
                return _users(asks[0]) if asks else None
            case "leave":
                return [_message(to, message) for to, message in node.leave(now)]
            case "due":
                return pytest.approx(node.due(now), abs=1e-6)
            case "wait_seconds":
                node.status(now)
                return pytest.approx(node.wait_seconds, abs=1e-6)
            case "slot":
                return node.status(now).slot
            case "leader":
                status = node.status(now)
                return {"leader": status.leader, "epoch": status.epoch}
            case "state":
                return node.state(now, *whom)
            case "users":
                return sum(sum(states.values()) for states in node.status(now).users.values())
            case "fraction":
                return pytest.approx(hash_fraction(*step["names"]))
            case other:
                raise AssertionError(f"no such step: {other!r}")

    def _throttle(self, step: dict[str, Any]) -> Any:
        ticket = Ticket() if "ticket" in step else None
        answer = self._node.throttle(
            step["at"],
            step["service"],
            step["user"],
            step.get("cost"),
            can_wait=step.get("can_wait", False),
            is_retry=step.get("is_retry", False),
            ticket=ticket,
        )
        if answer is None:
            if ticket is not None:
                self._tickets[step["ticket"]] = ticket
            return "pass"
        if answer is False:
            return "wait"
        said = {"short": answer.resource}
        if isinstance(step["expect"], dict) and "retry_after" in step["expect"]:
            said["retry_after"] = pytest.approx(answer.retry_after)
        return said


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_the_node_does_what_the_table_says(case: dict[str, Any]) -> None:
    runner = _Runner(case["node"])
    for place, step in enumerate(case["steps"], 1):
        for _ in range(step.get("times", 1)):
            done = runner.do(step)
            assert done == step.get("expect"), f"step {place}: {step}"


def test_every_rule_of_the_page_has_a_case() -> None:
    page = (Path(__file__).parents[4] / "docs" / "node.md").read_text()
    table = page[page.index("| rule | what it is about |") : page.index("Compare floats")]
    rules = set(re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE))))
    assert rules == {rule for case in _CASES for rule in case["rules"]}
    assert len(rules) > 20


def test_the_names_of_cases_are_different() -> None:
    names = [case["name"] for case in _CASES]
    assert sorted(names) == sorted(set(names))


def test_no_cost_is_too_large_to_be_told() -> None:
    """Or one absurd amount would end the connection of the whole host, at each ask anew."""
    case = next(case for case in _CASES if case["name"].startswith("an Ask tells the totals"))
    runner = _Runner(case["node"])
    for step in case["steps"][:2]:
        runner.do(step)
    user = {"service": "front", "user": "ann"}
    for at, amount in ((0.2, 2.0**64), (0.9, 1e300)):
        runner.do({"at": at, "do": "consume", **user, "amounts": {"reads": amount}})
        step = {"at": at, "do": "throttle", **user, "cost": {"reads": amount}, "expect": "pass"}
        assert runner.do(step) != "pass"
        ask = runner.do({"at": at + 0.05, "do": "ask"})
        assert ask is not None
        assert max(ask["front"]["ann"]["resources"]["reads"].expected) <= 1e18
