"""Clients that start at the same moment: whether they all run to the same server."""

import random
from dataclasses import replace
from typing import Any

import pytest

from sluicegate.balance import Balancer, RoundRobin
from sluicegate.sim.balance import BalanceScenario, run

IN_STEP = BalanceScenario(clients=100, is_in_step=True, seconds=20.0, warm_up=0.0)
AT_RANDOM = BalanceScenario(clients=100, seconds=5.0, warm_up=0.0)


def from_a_random_place(servers: list[str], *, seed: int, **options: Any) -> Balancer:
    balancer = RoundRobin(servers, seed=seed, **options)
    for _ in range(random.Random(seed).randrange(len(servers))):
        balancer.pick()
    return balancer


def test_clients_in_step_that_begin_at_the_first_server_all_send_to_the_same_one() -> None:
    assert run(IN_STEP, "round_robin").peak == 100


@pytest.mark.parametrize("policy", ["weighted_random", "least_active", "peak_ewma"])
def test_random_choices_spread_clients_that_are_in_step(policy: str) -> None:
    assert run(IN_STEP, policy).peak < 40


def test_turns_from_a_random_place_spread_them_as_well() -> None:
    assert run(IN_STEP, from_a_random_place).peak < 40


def test_one_client_is_spread_best_by_turns() -> None:
    one = replace(AT_RANDOM, clients=1)
    assert run(one, "round_robin").peak < run(one, "weighted_random").peak


def test_many_clients_that_have_just_started_run_to_the_first_servers() -> None:
    first, spread = run(AT_RANDOM, "round_robin"), run(AT_RANDOM, from_a_random_place)
    assert first.peak > 2 * spread.peak
