import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import ManualClock
from sluicegate.pacing import Cluster
from sluicegate.pacing._score_window import ScoreWindow
from sluicegate.stores import MemoryStore


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.floats(0.001, 0.999))
def test_the_cut_is_an_order_statistic(scores: list[float], part: float) -> None:
    window = ScoreWindow()
    for score in scores:
        window.note_score(score)
    cut = window.cut(part)
    above = sum(score > cut for score in scores)
    reached = sum(score >= cut for score in scores)
    assert above <= part * len(scores) <= reached


def test_nothing_and_all() -> None:
    window = ScoreWindow()
    assert window.cut(0.5) == -math.inf  # nothing is known
    window.note_score(3.0)
    assert window.cut(0.0) == math.inf
    assert window.cut(1.0) == -math.inf


def test_only_the_last_scores_are_remembered() -> None:
    window = ScoreWindow(8)
    for score in range(100):
        window.note_score(float(score))
    assert len(window) == 8
    assert window.cut(0.5) == 96.0


def test_scores_of_old_syncs_no_longer_count() -> None:
    window = ScoreWindow()
    for sync in range(12):
        for _ in range(300):
            window.note_score(1000.0 if sync == 0 else float(sync))
        window.mark()
    assert window.cut(0.001) == 11.0


@pytest.mark.parametrize("size", [0, 3, 1000])
def test_the_size_is_a_power_of_two(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        ScoreWindow(size)


def test_a_scored_limiter_needs_a_score_and_another_takes_none() -> None:
    cluster = Cluster(MemoryStore(), clock=ManualClock(1e9))
    scored = cluster.limiter("scored", target=10, period=60, scored=True)
    plain = cluster.limiter("plain", target=10, period=60)
    with pytest.raises(ValueError, match="'scored' is scored"):
        scored.take(1.0)
    with pytest.raises(ValueError, match="score must be a number from .* got nan"):
        scored.take(1.0, math.nan)
    with pytest.raises(ValueError, match="'plain' takes no score .* got 0.5"):
        plain.take(1.0, 0.5)
