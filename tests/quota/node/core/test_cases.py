"""Runs cases.json, the conformance table of all end nodes, against `NodeState`.

How to read the table is said in docs/node.md. A node in another language has a runner like this.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sluicegate.quota.messages import Ack, Ask, Quota, Report, ServiceQuota, Share
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
        )
        for service, part in told["services"].items()
    }
    return Quota(**{**told, "services": services})


def _message(to: str, message: Report | Ask) -> dict[str, Any]:
    """A message as the table has it: without the node, its boot and the time of sending."""
    if isinstance(message, Ask):
        return {"to": to, "ask": {"slot": message.slot, "users": message.users}}
    lines = {
        service: {
            user: {resource: pytest.approx(list(line)) for resource, line in cells.items()}
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


def _throttle(node: NodeState, step: dict[str, Any]) -> Any:
    refusal = node.throttle(step["at"], step["service"], step["user"], step.get("cost"))
    if refusal is None:
        return "pass"
    said = {"short": refusal.resource}
    if isinstance(step["expect"], dict) and "retry_after" in step["expect"]:
        said["retry_after"] = pytest.approx(refusal.retry_after)
    return said


def _do(node: NodeState, step: dict[str, Any]) -> Any:
    now = step["at"]
    whom = step.get("service", ""), step.get("user", "")
    match step["do"]:
        case "throttle":
            return _throttle(node, step)
        case "consume":
            return node.consume(now, *whom, step["amounts"])
        case "offer":
            return node.offer(now, *whom, step["amounts"], step["count"])
        case "receive":
            message = Ack(**step["ack"]) if "ack" in step else _quota(step["quota"])
            return node.receive(now, message.central, message)
        case "outgoing":
            return [_message(to, message) for to, message in node.outgoing(now)]
        case "leave":
            return [_message(to, message) for to, message in node.leave(now)]
        case "due":
            return pytest.approx(node.due(now), abs=1e-6)
        case "slot":
            return node.status(now).slot
        case "leader":
            status = node.status(now)
            return {"leader": status.leader, "epoch": status.epoch}
        case "state":
            return node.state(now, *whom)
        case "fraction":
            return pytest.approx(hash_fraction(*step["names"]))
        case other:
            raise AssertionError(f"no such step: {other!r}")


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_the_node_does_what_the_table_says(case: dict[str, Any]) -> None:
    node = NodeState(**case["node"])
    for place, step in enumerate(case["steps"], 1):
        for _ in range(step.get("times", 1)):
            done = _do(node, step)
            assert done == step.get("expect"), f"step {place}: {step}"


def test_every_row_and_rule_of_the_page_has_a_case() -> None:
    page = (Path(__file__).parents[4] / "docs" / "node.md").read_text()
    table = page[page.index("| row | state | event") : page.index("The other rows")]
    rows = set(re.findall(r"^\| ([a-z-]+) \|", table, re.MULTILINE)) - {"row"}
    rules = re.search(r"The other rows that the cases name are rules: (.*)\.", page)
    assert rules is not None
    named = rows | set(re.findall(r"`(.*?)`", rules[1]))
    assert named == {move for case in _CASES for move in case["moves"]}
    assert len(rows) == 14
