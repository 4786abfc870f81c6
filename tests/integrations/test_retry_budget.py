"""The bucket that retries are paid from."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.integrations.retry_budget import RetryBudget


def takes(budget: RetryBudget, times: int) -> int:
    return sum(budget.take_retry() for _ in range(times))


def test_the_reserve_is_spent_first_then_one_retry_for_five_requests() -> None:
    budget = RetryBudget(0.2, reserve=3)
    assert takes(budget, 10) == 3
    for _ in range(4):
        budget.count_request()
    assert takes(budget, 1) == 0
    budget.count_request()
    assert takes(budget, 2) == 1


def test_a_long_calm_saves_ten_times_the_reserve_and_no_more() -> None:
    budget = RetryBudget(0.5, reserve=2)
    for _ in range(1000):
        budget.count_request()
    assert budget.left == 20.0
    assert takes(budget, 100) == 20


@given(
    st.floats(0.001, 3.0),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20),
)
def test_retries_never_exceed_the_ratio_of_requests_and_the_reserve(
    ratio: float, reserve: int, steps: list[tuple[int, int]]
) -> None:
    budget = RetryBudget(ratio, reserve=reserve)
    requests = retries = 0
    for sent, failed in steps:
        for _ in range(sent):
            budget.count_request()
        requests += sent
        retries += takes(budget, failed)
        assert retries <= reserve + (ratio + 1e-6) * requests
    assert 0.0 <= budget.left <= 10 * reserve


def test_threads_take_no_more_than_there_is() -> None:
    budget = RetryBudget(1.0, reserve=100)
    granted: list[int] = []

    def run() -> None:
        count = 0
        for _ in range(1000):
            budget.count_request()
            count += budget.take_retry()
            count += budget.take_retry()
        granted.append(count)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) + budget.left == 100 + 4000
    assert repr(RetryBudget()) == "RetryBudget(0.2, left=10)"


@pytest.mark.parametrize(
    ("ratio", "reserve", "error", "words"),
    [
        (0, 10, ValueError, "ratio must be a finite number above 0, got 0"),
        (-0.1, 10, ValueError, "ratio must be"),
        (float("nan"), 10, ValueError, "ratio must be"),
        ("0.2", 10, TypeError, "ratio must be a number"),
        (1e-9, 10, ValueError, "ratio must be at least 0.000001"),
        (0.2, 0, ValueError, "reserve must be from 1"),
        (0.2, 1.5, TypeError, "reserve must be an int"),
    ],
)
def test_wrong_arguments_are_refused(
    ratio: float, reserve: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        RetryBudget(ratio, reserve=reserve)
