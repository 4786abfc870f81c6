"""Runs cases.json, the conformance table of all end nodes, on the core of the nginx node.

How to read the table is said in docs/node.md. All cases run in one process of luajit.
"""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nginx import find_luajit

_TABLE = Path(__file__).parents[1] / "quota" / "node" / "core" / "cases.json"
_CASES = json.loads(_TABLE.read_text())["cases"]


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What each case has answered, by its name."""
    script = Path(__file__).with_name("run_cases.lua")
    done = subprocess.run(
        [find_luajit(), script, _TABLE], capture_output=True, text=True, timeout=120, check=True
    )
    return {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}


def _is_close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        # A refusal says `retry_after` always, the table only where it matters.
        keys = set(found) - {"retry_after"} if isinstance(found, dict) else set()
        return keys == set(expected) - {"retry_after"} and all(
            _is_close(found[key], each) for key, each in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(_is_close, found, expected))
        )
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return isinstance(found, int | float) and math.isclose(
            found, expected, rel_tol=1e-6, abs_tol=1e-6
        )
    return bool(found == expected)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_the_nginx_node_does_what_the_table_says(
    case: dict[str, Any], answers: dict[str, Any]
) -> None:
    given = answers[case["name"]]
    found = iter(given["answers"])
    for place, step in enumerate(case["steps"], 1):
        for _ in range(step.get("times", 1)):
            answer = next(found, given.get("problem"))
            assert _is_close(answer, step.get("expect")), f"step {place}: {step}, got {answer}"
