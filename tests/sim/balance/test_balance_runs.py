"""A run of a balance scenario: deterministic, with the requests and faults it was given."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from sluicegate.balance import POLICIES
from sluicegate.sim.balance import BalanceScenario, ServerEvent, run

SMALL = BalanceScenario(
    servers=4, clients=5, seconds=10.0, warm_up=0.0, timeout=1.0, reports_load=True
)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    first = run(SMALL, policy, seed=5)
    assert run(SMALL, policy, seed=5) == first
    assert run(SMALL, policy, seed=6) != first


def test_a_run_is_the_same_in_every_process() -> None:
    scenario = replace(SMALL, events=(ServerEvent(3.0, 0, "die"), ServerEvent(5.0, 0, "return")))
    code = (
        "from math import inf\n"
        "from sluicegate.balance import Health\n"
        "from sluicegate.sim.balance import BalanceScenario, ServerEvent, run\n"
        f"print(run({scenario!r}, 'peak_ewma', seed=3).as_dict())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {f"{run(scenario, 'peak_ewma', seed=3).as_dict()}\n"}


def test_all_policies_have_the_same_requests() -> None:
    by_second = {tuple(map(sum, run(SMALL, policy, seed=2).by_second)) for policy in POLICIES}
    assert len(by_second) == 1


def test_the_load_is_a_part_of_what_all_servers_can_do() -> None:
    # 3 servers and one of a quarter of the speed, each 8 requests of 0.1 s at once: 260 per second.
    scenario = BalanceScenario(servers=4, slow=1, slow_factor=4.0, load=0.5, seconds=100.0)
    assert scenario.rate == pytest.approx(130.0)
    measures = run(scenario, "least_active", seed=1)
    assert measures.requests == pytest.approx(130 * 90, rel=0.05)
    assert measures.goodput == pytest.approx(130, rel=0.05)
    assert sum(measures.shares) == pytest.approx(1.0)


def test_clients_that_are_in_step_send_at_the_same_moments() -> None:
    scenario = replace(SMALL, clients=64, is_in_step=True, load=0.2, timeout=60.0)
    assert scenario.rate == pytest.approx(64.0)
    assert list(map(sum, run(scenario, "weighted_random").by_second)) == [64] * 10


def test_a_client_gives_a_request_up_after_its_timeout() -> None:
    events = tuple(ServerEvent(0.0, server, "hang") for server in range(4))
    measures = run(replace(SMALL, events=events), "round_robin")
    assert measures.failures == 1.0
    assert measures.p99 is None
    assert measures.goodput == 0.0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"servers": 0}, "servers must be from 1 to 2^53, got 0"),
        ({"servers": 1001}, "servers must be at most 1,000, got 1001"),
        ({"clients": 10_001}, "clients must be at most 10,000, got 10001"),
        ({"slow": 11}, r"slow must be at most servers \(10\), got 11"),
        ({"load": -1.0}, "load must be a finite number above 0, got -1.0"),
        ({"service": "pareto"}, "service must be one of exponential, lognormal, constant"),
        ({"warm_up": 60.0}, r"warm_up must be from 0 to below seconds \(60\), got 60.0"),
        ({"delay": -1.0}, "delay must be finite seconds >= 0, got -1.0"),
        ({"timeout": 0.0}, "timeout must be above 0, got 0.0"),
        ({"check_interval": 0.0}, "check_interval must be a finite number above 0, got 0.0"),
        ({"events": (ServerEvent(1.0, 10, "die"),)}, "must be from 0 to 9, got 10"),
        ({"events": (ServerEvent(1.0, 1, "hang"),)}, "timeout must be finite if a server hangs"),
    ],
)
def test_a_wrong_scenario_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("^", r"\^")):
        BalanceScenario(**wrong)


def test_a_wrong_event_is_refused() -> None:
    with pytest.raises(ValueError, match="what must be one of return, .*, got 'explode'"):
        ServerEvent(1.0, 1, "explode")
