"""The time without a leader, from the answers of centrals that say they lead."""

import pytest

from sluicegate.demo.failover_log import LONGEST_FAILOVER, FailoverLog

# Name, epoch, asked, answered: of each answer in which a central says that it leads.
Answer = tuple[str, int, float, float]


def log_of(*answers: Answer) -> FailoverLog:
    log = FailoverLog()
    for answer in answers:
        log.saw_leader(*answer)
    return log


@pytest.mark.parametrize(
    ("answers", "failovers"),
    [
        ([], []),
        ([("a", 7, 1.0, 1.1)], []),
        # From before the last question to the old leader, until after the answer of the new one.
        ([("a", 7, 1.0, 1.1), ("a", 7, 2.0, 2.1), ("b", 8, 4.0, 4.5)], [("a", "b", 8, 2.0, 4.5)]),
        # Answers that come late are no failover while the epoch is the same.
        ([("a", 7, 1.0, 1.1), ("a", 7, 9.0, 9.1)], []),
        # A former leader's answer that is read late changes nothing.
        (
            [("a", 7, 1.0, 1.1), ("b", 8, 3.0, 3.1), ("a", 7, 1.1, 3.2), ("b", 8, 3.3, 3.4)],
            [("a", "b", 8, 1.0, 3.1)],
        ),
        # A central that lost its majority, and leads again.
        ([("a", 7, 1.0, 1.1), ("a", 9, 6.0, 6.1)], [("a", "a", 9, 1.0, 6.1)]),
        (
            [("a", 7, 1.0, 1.1), ("b", 8, 3.0, 3.1), ("c", 9, 5.0, 5.1)],
            [("a", "b", 8, 1.0, 3.1), ("b", "c", 9, 3.0, 5.1)],
        ),
    ],
)
def test_a_failover_lasts_from_the_last_answer_of_one_leader_to_the_first_of_the_next(
    answers: list[Answer], failovers: list[tuple[str, str, int, float, float]]
) -> None:
    log = log_of(*answers)
    found = [(each.old, each.new, each.epoch, each.begin, each.end) for each in log.failovers]
    assert found == failovers


def test_seconds_without_a_leader_are_those_that_a_failover_reaches_into() -> None:
    log = log_of(("a", 7, 101.0, 101.1), ("a", 7, 103.9, 104.0), ("b", 8, 106.0, 106.1))
    assert log.leaderless_seconds(begin=100.0, now=106.2) == {3, 4, 5, 6}
    assert log.leaderless_seconds(begin=105.0, now=106.2) == {0, 1}


def test_a_leader_that_is_not_seen_any_more_may_have_gone() -> None:
    log = log_of(("a", 7, 101.9, 102.0))
    assert log.leaderless_seconds(begin=100.0, now=102.2) == set()
    assert log.leaderless_seconds(begin=100.0, now=103.2) == {1, 2, 3}
    log.saw_leader("a", 7, 103.5, 103.6)  # its answer was late
    assert log.leaderless_seconds(begin=100.0, now=103.7) == set()


def test_no_more_is_excused_than_a_failover_may_take() -> None:
    log = log_of(("a", 7, 100.0, 100.1))
    assert log.leaderless_seconds(begin=100.0, now=160.0) == set(range(int(LONGEST_FAILOVER)))
    log.saw_leader("b", 8, 180.0, 180.1)
    assert log.leaderless_seconds(begin=100.0, now=180.2) == set(range(int(LONGEST_FAILOVER)))


def test_without_an_answer_nothing_is_known() -> None:
    assert FailoverLog().leader is None
    assert FailoverLog().leaderless_seconds(begin=0.0, now=100.0) == set()
