"""The model server: its queue, what it may do wrong, and the theory that it must agree with."""

import math
import random

import pytest

from sluicegate.balance import RoundRobin
from sluicegate.sim.balance import BalanceScenario, run
from sluicegate.sim.balance.servers import SERVICES, ModelServer, Request, State, draw_work
from sluicegate.sim.world import World


def answers(
    works: list[float], changes: list[tuple[float, State]], *, capacity: int = 2
) -> list[tuple[float, int, bool, int]]:
    """When each request was answered, its number, whether it failed, and the load reported.

    One request comes every second, from second 0 on.
    """
    world = World()
    found: list[tuple[float, int, bool, int]] = []
    requests: list[Request] = []

    def answer(request: Request, failed: bool, load: int) -> None:
        found.append((world.now, requests.index(request), failed, load))

    server = ModelServer(world, capacity, 1.0, answer)
    balancer = RoundRobin(["a"])
    for number, work in enumerate(works):
        requests.append(Request(float(number), work, balancer.use(), 0))
        world.at(float(number), server.receive, requests[-1])
    for time, state in changes:
        world.at(time, server.change, state)
    world.run(1000.0)
    return found


def test_requests_wait_in_order_while_all_places_are_taken() -> None:
    assert answers([10.0, 4.0, 1.0, 1.0], []) == [
        (5.0, 1, False, 3),  # the first and the third run, the fourth waits
        (6.0, 2, False, 2),
        (7.0, 3, False, 1),
        (10.0, 0, False, 0),
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # Requests come at 0, 1, 2 and 3, the change at 1.5, and the server is back at 2.5.
        (State.FAIL_FAST, [(2.0, 2, True, 2), (4.0, 0, False, 2), (5.0, 1, False, 1)]),
        (State.FAIL_SLOW, [(4.0, 0, False, 3), (5.0, 1, False, 2), (8.0, 2, False, 1)]),
        (State.HANG, [(7.0, 3, False, 0)]),
        (State.DEAD, [(1.5, 0, True, 0), (1.5, 1, True, 0), (2.0, 2, True, 0)]),
    ],
)
def test_a_server_goes_wrong_and_comes_back(
    state: State, expected: list[tuple[float, int, bool, int]]
) -> None:
    found = answers([4.0, 4.0, 4.0, 4.0], [(1.5, state), (2.5, State.UP)])
    assert found[: len(expected)] == expected


def test_a_server_that_fails_slowly_does_the_work_first() -> None:
    assert answers([4.0], [(1.0, State.FAIL_SLOW)]) == [(4.0, 0, True, 0)]


@pytest.mark.parametrize("service", SERVICES)
def test_work_has_the_mean_that_was_asked_for(service: str) -> None:
    rng = random.Random(1)
    works = [draw_work(rng, service, 0.2) for _ in range(20_000)]
    assert sum(works) / len(works) == pytest.approx(0.2, rel=0.05)


def test_one_server_is_the_queue_of_the_textbooks() -> None:
    # M/M/1: the time from arrival to answer is exponential, with a mean of work / (1 - load).
    scenario = BalanceScenario(
        servers=1, capacity=1, load=0.5, delay=0.0, seconds=3000.0, warm_up=100.0
    )
    measures = run(scenario, "round_robin", seed=1)
    mean = 0.1 / (1.0 - 0.5)
    assert measures.p50 == pytest.approx(math.log(2) * mean, rel=0.1)
    assert measures.p99 == pytest.approx(math.log(100) * mean, rel=0.15)
