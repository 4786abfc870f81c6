import io
import json
from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise, takewhile

import pytest
from rich.console import Console
from rich.text import Text

from sluicegate import ManualClock
from sluicegate.demo.limits import LimitsDemo, gates, report, traffic
from sluicegate.demo.limits_screen import ASCII, BLOCKS, frame, show, summary

SECONDS = 30.0
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def passes() -> dict[str, list[float]]:
    """When the calls of 30 seconds passed each limiter."""
    clock = ManualClock()
    all_gates = gates(clock)
    times: dict[str, list[float]] = defaultdict(list)
    for call in takewhile(lambda call: call.at <= SECONDS, traffic()):
        clock.advance(call.at - clock.now())
        for gate in all_gates:
            if gate.user in (None, call.user) and (wait := gate.ask()) is not None:
                times[f"{gate.name}, {gate.setting}"].append(call.at + wait)
    return times


@pytest.fixture
def demo() -> LimitsDemo:
    demo = LimitsDemo()
    demo.run(SECONDS)
    return demo


def most_within(seconds: float, times: list[float]) -> int:
    """The most in any half-open span of that length; one that starts with a call is enough."""
    return max(
        bisect_left(times, at + seconds - ROUNDING) - first for first, at in enumerate(times)
    )


def count_between(start: float, end: float, times: list[float]) -> int:
    return sum(start <= at < end for at in times)


def test_the_traffic_is_20_per_second_and_200_for_one_second_in_six() -> None:
    times = [call.at for call in takewhile(lambda call: call.at < 12, traffic())]
    assert times == sorted(times)
    half_seconds = [count_between(i / 2, i / 2 + 0.5, times) for i in range(24)]
    assert half_seconds == 2 * [10, 10, 10, 100, 100, 10, 10, 10, 10, 10, 10, 10]


@pytest.mark.parametrize("span", [0.1, 0.25, 1.0, 2.0, 6.0])
@pytest.mark.parametrize(
    "name", ["TokenBucket, burst 50", "RateLimiter, stores 50", "Keyed: ann, burst 50"]
)
def test_a_bucket_passes_at_most_the_rate_and_a_burst(
    passes: dict[str, list[float]], name: str, span: float
) -> None:
    # A RateLimiter lets the next call pay, so one more may go with the stored ones.
    ahead = 1 if name.startswith("RateLimiter") else 0
    assert most_within(span, passes[name]) <= 100 * span + 50 + ahead


def test_a_token_bucket_passes_the_burst_at_once_and_then_the_rate(
    passes: dict[str, list[float]],
) -> None:
    times = passes["TokenBucket, burst 50"]
    assert count_between(1.5, 2.0, times) == pytest.approx(100, abs=1)
    assert count_between(2.0, 2.5, times) == pytest.approx(50, abs=1)


def test_a_warming_limiter_starts_a_burst_slowly_and_gets_up_to_the_rate(
    passes: dict[str, list[float]],
) -> None:
    times = passes["RateLimiter, warms up"]
    first, second, third, fourth = (count_between(s, s + 0.5, times) for s in (1.5, 2, 2.5, 3))
    assert first < second < third < fourth == 50
    assert most_within(1.0, times) <= 100


def test_a_leaky_bucket_keeps_its_beat(passes: dict[str, list[float]]) -> None:
    times = passes["LeakyBucket, queue 50"]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0.01 - ROUNDING
    busy = [later - earlier for earlier, later in pairwise(times) if 1.6 < earlier < 2.9]
    assert busy == pytest.approx([0.01] * len(busy))


def test_a_fixed_window_keeps_to_its_windows_but_not_to_every_second(
    passes: dict[str, list[float]],
) -> None:
    times = passes["FixedWindow, per 1 s"]
    assert max(count_between(second, second + 1, times) for second in range(30)) == 100
    assert most_within(1.0, times) > 180


def test_a_sliding_window_never_passes_more_than_the_limit_in_any_second(
    passes: dict[str, list[float]],
) -> None:
    assert most_within(1.0, passes["SlidingWindow, per 1 s"]) == 100


def test_a_sliding_counter_stays_between_the_two_windows(passes: dict[str, list[float]]) -> None:
    sliding, counter, fixed = (
        most_within(1.0, passes[f"{name}, per 1 s"])
        for name in ("SlidingWindow", "SlidingCounter", "FixedWindow")
    )
    assert sliding < counter < fixed


def test_a_concurrency_limit_never_has_more_than_its_calls_in_progress(
    passes: dict[str, list[float]],
) -> None:
    assert most_within(0.05, passes["ConcurrencyLimit, 5 at once"]) == 5


def test_the_bursts_of_one_user_cost_the_other_nothing(demo: LimitsDemo) -> None:
    ann, bob = demo.rows[-2:]
    assert (ann.gate.user, bob.gate.user) == ("ann", "bob")
    assert ann.refused > 0
    assert (bob.asked, bob.passed, bob.refused) == (600, 600, 0)
    assert ann.asked + bob.asked == demo.unlimited.asked


def test_every_call_passed_or_was_refused_or_waits_after_every_step() -> None:
    demo = LimitsDemo()
    waited = False
    while demo.now < 12:
        demo.step()
        for row in demo.rows:
            assert row.asked == row.passed + row.refused + row.waiting
            waited |= row.waiting > 0
    assert waited


def test_the_tallies_are_those_of_the_limiters(
    demo: LimitsDemo, passes: dict[str, list[float]]
) -> None:
    for row in demo.rows:
        times = passes[f"{row.gate.name}, {row.gate.setting}"]
        assert row.passed + row.waiting == len(times)
        assert row.most == most_within(1.0, times)


def test_the_length_of_the_steps_makes_no_difference() -> None:
    in_steps, at_once = LimitsDemo(), LimitsDemo()
    in_steps.run(7.6)
    at_once.step(7.6)
    assert report(in_steps)["rows"] == report(at_once)["rows"]


def test_the_report_is_data_and_the_summary_says_the_same_and_what_to_read_next(
    demo: LimitsDemo,
) -> None:
    data = json.loads(json.dumps(report(demo)))
    assert data["demo"] == "limits"
    assert data["seconds"] == SECONDS
    text = Text.from_markup(summary(demo)).plain
    assert text.isascii()
    assert text.splitlines()[-1].endswith("docs/limits.md")
    for row, line in zip(data["rows"], text.splitlines()[2:], strict=False):
        numbers = [row[key] for key in ("asked", "passed", "refused", "waiting")]
        assert line.startswith(row["limiter"])
        assert list(map(int, line.split()[-5:])) == [*numbers, row["most_in_one_second"]]


def lines_of(demo: LimitsDemo, width: int = 80, height: int = 24, bars: str = BLOCKS) -> list[str]:
    return Text.from_markup(frame(demo, SECONDS, width, height, bars)).plain.splitlines()


def test_the_screen_fits_into_80_columns_and_24_lines() -> None:
    demo = LimitsDemo()
    demo.run(2.5)
    lines = lines_of(demo)
    assert len(lines) <= 24
    assert max(map(len, lines)) == 80
    bucket = next(line for line in lines if line.startswith("TokenBucket"))
    assert bucket.split() == ["TokenBucket", "burst", "50", "▁▁▁▁▁▁██▄▄", "200", "149", "51"]
    leaky = next(line for line in lines if line.startswith("LeakyBucket"))
    assert leaky.split() == ["LeakyBucket", "queue", "50", "▁▁▁▁▁▁▄▄▄▄", "200", "100", "50", "50"]


def test_the_screen_begins_empty_and_is_cut_where_there_is_no_room() -> None:
    assert "no limit" in lines_of(LimitsDemo(), width=20)[6]


def test_a_tall_terminal_has_room_to_explain_each_limiter(demo: LimitsDemo) -> None:
    lines = lines_of(demo, height=33)
    assert len(lines) <= 33
    assert max(map(len, lines)) == 80
    for row in demo.rows:
        assert f"  {row.gate.note}" in lines


def test_a_terminal_without_blocks_gets_plain_characters(demo: LimitsDemo) -> None:
    assert all(line.isascii() for line in lines_of(demo, bars=ASCII))


def test_what_passes_above_the_limit_is_yellow() -> None:
    demo = LimitsDemo()
    demo.run(2.5)
    fixed, sliding = (
        next(line for line in frame(demo, SECONDS, 80, 24, BLOCKS).splitlines() if name in line)
        for name in ("FixedWindow", "SlidingWindow")
    )
    assert "[yellow]█▆██[/]" in fixed
    assert "[yellow]    190[/]" in fixed
    assert "    100 " in sliding
    assert "[yellow]    100[/]" not in sliding


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("TERM", "xterm")
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=24)


def written_to(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_drawing_keeps_step_with_the_clock_and_gives_the_screen_back(
    clock: ManualClock, console: Console
) -> None:
    demo = LimitsDemo()
    show(demo, 3.1, console, clock, BLOCKS)
    assert clock.now() == pytest.approx(3.1)
    assert demo.now == pytest.approx(3.1)
    written = written_to(console)
    assert written.count("sluicegate demo limits") == 13
    assert "2 of 3.1 s" in written
    assert "\x1b[?1049h" in written
    assert written.rindex("\x1b[?1049l") > written.rindex("sluicegate demo limits")


def test_a_drawing_that_falls_behind_catches_up_without_sleeping(console: Console) -> None:
    class SlowTerminal(ManualClock):
        naps: list[float]

        def sleep(self, seconds: float) -> None:
            self.naps.append(seconds)
            self.advance(seconds + 1.0)

    clock = SlowTerminal()
    clock.naps = []
    show(LimitsDemo(), 1.0, console, clock, BLOCKS)
    assert clock.naps == [0.25, 0.0, 0.0, 0.0]


def test_ctrl_c_ends_the_drawing_and_gives_the_screen_back(console: Console) -> None:
    class Interrupted(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now() >= 2.0:
                raise KeyboardInterrupt

    demo = LimitsDemo()
    show(demo, SECONDS, console, Interrupted(), BLOCKS)
    assert demo.now == 1.75
    assert "\x1b[?1049l" in written_to(console)


def test_ctrl_c_ends_a_run_without_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = LimitsDemo()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "step", interrupt)
    demo.run(SECONDS)
    assert demo.now == 0.0
