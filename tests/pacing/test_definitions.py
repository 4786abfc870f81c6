"""Limiters from a file: TOML of our own, and the JSON of go-cluster-limiter."""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluicegate import Cluster, ConfigError, ManualClock
from sluicegate.pacing.definitions import read_json, read_toml
from sluicegate.pacing.limiter_options import LimiterOptions
from sluicegate.stores import MemoryStore

START = 1_000_000_020.0
TWO = """
[[limiter]]
name = "ads"
target = 100
period = 60

[[limiter]]
name = "mail"
target = 5
begin = 2001-09-09T00:00:00+00:00
end = 2001-09-10T00:00:00+00:00
reserve = 600
"""
# As in the example of go-cluster-limiter, with every field that it has.
GO = {
    "Name": "test_score_limiter",
    "RewardTarget": 1000000,
    "BeginTime": "1900-01-01T00:00:00+08:00",
    "EndTime": "3000-01-01T00:00:00+08:00",
    "CompletionTime": "0001-01-01T00:00:00Z",
    "PeriodInterval": 3600000000000,
    "ReserveInterval": 60000000000,
    "BurstInterval": 10000000000,
    "MaxBoostFactor": 3,
    "DiscardPreviousData": True,
    "InitLocalTrafficProportion": 1,
    "InitIdealPassRate": 0,
    "InitRewardRate": 0.25,
    "TakeWithScore": True,
    "ScoreSamplesSortInterval": 10000000000,
    "ScoreSamplesMax": 10000,
}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(MemoryStore(), "shop", clock=ManualClock(START))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "limiters.toml"


def write(file: Path, text: str, age: float = 10.0) -> None:
    """Write a file that has rested for `age` seconds."""
    file.write_text(text)
    at = file.stat().st_mtime - age
    os.utime(file, (at, at))


def test_limiters_are_made_from_toml(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    assert cluster.load(file) == ()
    assert {name: one.target for name, one in cluster.limiters.items()} == {"ads": 100, "mail": 5}


def test_the_options_of_go_cluster_limiter_are_ours() -> None:
    entries, problems = read_json(json.dumps([GO]))
    assert problems == []
    expected = LimiterOptions(
        target=1_000_000,
        period=3600,
        scored=True,
        reserve=60,
        burst_interval=10,
        boost=3,
        reward_rate=0.25,
    )
    assert entries == [("test_score_limiter", expected)]


def test_zero_is_not_set_in_go() -> None:
    zeros = {"BurstInterval": 0, "MaxBoostFactor": 0, "InitRewardRate": 0, "ReserveInterval": 0}
    (entry,), _ = read_json(json.dumps([GO | zeros | {"TakeWithScore": False}]))
    assert entry[1] == LimiterOptions(target=1_000_000, period=3600)


def test_a_limiter_of_go_that_happens_once_has_begin_end_and_completion() -> None:
    once = {
        "Name": "day",
        "RewardTarget": 10,
        "BeginTime": "2026-01-01T00:00:00Z",
        "EndTime": "2026-01-02T00:00:00.123456789Z",
        "CompletionTime": "2026-01-01T23:00:00Z",
    }
    (entry,), _ = read_json(json.dumps([once]))
    options = entry[1]
    assert isinstance(options, LimiterOptions)
    assert options.begin == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert options.reserve == pytest.approx(3600, abs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RewardTarget": 0}, "target must be from 1e-06 to .*, got 0"),
        ({"RewardTarget": "many"}, "RewardTarget must be a number, got 'many'"),
        ({"PeriodInterval": -1}, "PeriodInterval must be nanoseconds >= 0, got -1"),
        ({"PeriodInterval": 0, "EndTime": "soon"}, "EndTime must be a time .* got 'soon'"),
        ({"EndTime": "2026-01-01T00:00:00"}, "EndTime must be a time as in RFC 3339"),
        ({"Speed": 1}, "unknown key Speed = 1"),
        ({"TakeWithScore": 1}, "scored must be True or False, got 1"),
    ],
)
def test_a_bad_entry_of_json_says_what_is_wrong(change: dict[str, Any], message: str) -> None:
    entries, problems = read_json(json.dumps([GO | change, GO | {"Name": "good"}]))
    (bad, good) = entries
    assert problems == []
    assert isinstance(bad[1], str)
    assert isinstance(good[1], LimiterOptions)
    with pytest.raises(ValueError, match=message):
        raise ValueError(bad[1])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('name = "x"', "target is missing"),
        ('name = "x"\ntarget = 1', "a limiter needs period, or begin and end"),
        ('name = "x"\ntarget = -1\nperiod = 60', "target must be .* got -1"),
        ('name = "x"\ntarget = 1\nperiod = 60\nspeed = 2', "unknown key speed = 2"),
        ('name = "x"\ntarget = 1\nperiod = 60\ncurve = [1, 2]', "curve must be 24 weights"),
        (
            'name = "x"\ntarget = 1\nbegin = 2026-01-01T00:00:00\nend = 2026-01-02T00:00:00Z',
            "begin must be a date-time with an offset.* got 2026-01-01 00:00:00",
        ),
        ('name = "x"\ntarget = 1\nbegin = 5\nend = 6', "begin must be a date-time .* got 5"),
    ],
)
def test_a_bad_entry_is_named_and_the_rest_hold(
    cluster: Cluster, file: Path, entry: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, TWO + "[[limiter]]\n" + entry)
    (problem,) = cluster.load(file)
    assert problem.startswith(f"{file}: limiter 'x': ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(problem)
    assert problem in caplog.text
    assert cluster.limiters.keys() == {"ads", "mail"}
    assert cluster.status().problems == (problem,)


def test_names_that_clash_are_reported(cluster: Cluster, file: Path) -> None:
    mine = cluster.limiter("mail", target=7, period=60)
    double = '[[limiter]]\nname = "ads"\ntarget = 1\nperiod = 60\n'
    write(file, TWO + double + "[[limiter]]\ntarget = 1\nperiod = 60")
    problems = cluster.load(file)
    assert [problem.removeprefix(f"{file}: ") for problem in problems] == [
        "entry 4: name is missing",
        "limiter 'mail': the program, or another file, has defined this name",
        "limiter 'ads': the name occurs twice; the first one is used",
    ]
    assert cluster.limiters["mail"] is mine
    assert (mine.target, cluster.limiters["ads"].target) == (7.0, 100.0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "[[limiter", "not valid TOML"),
        ("a.toml", "[other]\nx = 1", "expected \\[\\[limiter\\]\\] entries only, got other"),
        ("a.toml", "limiter = 3", "got limiter = 3"),
        ("a.json", "[", "not valid JSON"),
        ("a.json", '{"Name": "x"}', "expected a list of objects"),
        ("a.toml", "\udcff", "must be UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_raises_at_the_first_load(
    cluster: Cluster, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        cluster.load(tmp_path / name)
    with pytest.raises(ConfigError, match=r"cannot read .*missing.toml: No such file"):
        cluster.load(tmp_path / "missing.toml")
    cluster.sync()  # it is not looked at again
    assert cluster.status().problems == ()


def test_a_changed_file_is_read_again_with_a_sync(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    ads, mail = cluster.limiters["ads"], cluster.limiters["mail"]
    ads.acquire()
    write(file, TWO.replace("target = 100", "target = 200").replace("reserve = 600", ""), age=9)
    cluster.sync()
    assert cluster.limiters == {"ads": ads, "mail": mail}  # the same objects
    assert ads.target == 200.0
    assert ads.requests.local() == 1.0


def test_a_changed_period_changes_the_limiter_in_its_place(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    ads = cluster.limiters["ads"]
    ads.acquire()
    cluster.sync()
    write(file, TWO.replace("period = 60", "period = 3600"), age=9)
    cluster.sync()
    assert cluster.limiters["ads"] is ads
    begin, end = ads.passes.span
    assert end - begin == 3600
    assert ads.requests.local() == 0.0
    write(file, TWO, age=8)  # and back: what was counted in this minute is there again
    cluster.sync()
    assert ads.requests.local() == 1.0


def test_a_limiter_may_become_scored_and_back(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    ads = cluster.limiters["ads"]
    ads.take()
    write(file, TWO.replace("period = 60", "period = 60\nscored = true"), age=9)
    cluster.sync()
    ads.take(score=0.5)
    with pytest.raises(ValueError, match="take and acquire need score="):
        ads.take()
    write(file, TWO, age=8)
    cluster.sync()
    ads.take()
    assert cluster.limiters["ads"] is ads
    assert ads.requests.local() == 3.0


def test_an_entry_that_vanished_is_removed(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    mail = cluster.limiters["mail"]
    write(file, TWO.partition('[[limiter]]\nname = "mail"')[0], age=9)
    cluster.sync()
    assert cluster.limiters.keys() == {"ads"}
    assert not mail.take()


def test_an_entry_that_turned_bad_keeps_its_last_good_version(
    cluster: Cluster, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, TWO)
    cluster.load(file)
    ads = cluster.limiters["ads"]
    write(file, TWO.replace("target = 100", 'target = "lots"'), age=9)
    cluster.sync()
    cluster.sync()
    assert cluster.limiters["ads"] is ads
    assert ads.target == 100.0
    (problem,) = cluster.status().problems
    assert "limiter 'ads': target must be a number, got 'lots'; the last good" in problem
    assert caplog.messages.count(problem) == 1


def test_a_nameless_entry_removes_nothing(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    write(file, TWO.replace('name = "mail"', 'nome = "mail"'), age=9)
    cluster.sync()
    assert cluster.limiters.keys() == {"ads", "mail"}


def test_a_broken_or_missing_file_changes_nothing(
    cluster: Cluster, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, TWO)
    cluster.load(file)
    write(file, "[[lim", age=9)
    cluster.sync()
    assert "not valid TOML" in cluster.status().problems[0]
    file.unlink()
    cluster.sync()
    cluster.sync()
    assert "No such file" in cluster.status().problems[0]
    assert len(caplog.messages) == 2
    assert cluster.limiters.keys() == {"ads", "mail"}
    write(file, TWO, age=8)
    cluster.sync()
    assert cluster.status().problems == ()


def test_a_file_that_was_just_written_is_read_once_it_rests(
    cluster: Cluster, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, TWO)
    cluster.load(file)
    write(file, "[[limiter]]\nname =", age=0.0)
    monkeypatch.setattr("time.time", lambda: file.stat().st_mtime + 0.01)
    cluster.sync()
    assert cluster.status().problems == ()
    monkeypatch.setattr("time.time", lambda: file.stat().st_mtime + 0.1)
    cluster.sync()
    assert len(cluster.status().problems) == 1


def test_an_unchanged_file_is_not_read(
    cluster: Cluster, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, TWO)
    cluster.load(file)
    monkeypatch.setattr(Path, "open", None)
    cluster.sync()
    assert cluster.status().problems == ()


def test_an_empty_file_has_no_limiters() -> None:
    assert read_toml("") == ([], [])
    assert read_json("[]") == ([], [])


def test_an_entry_that_comes_back_revives_its_limiter(tmp_path: Path) -> None:
    file = tmp_path / "limiters.toml"
    one, two = (f'[[limiter]]\nname = "{name}"\ntarget = 6000\nperiod = 60\n' for name in "ab")
    file.write_text(one + two)
    clock = ManualClock(1_000_000_020.0)
    cluster = Cluster(MemoryStore(), clock=clock)
    cluster.load(file)
    limiter = cluster.limiters["a"]
    file.write_text(two)
    cluster.load(file)
    clock.advance(1.0)
    assert not limiter.acquire()
    file.write_text(one + two)
    cluster.load(file)
    clock.advance(1.0)
    assert limiter.acquire()
    assert cluster.limiters["a"] is limiter


def test_a_file_that_is_empty_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "limiters.toml"
    file.write_text('[[limiter]]\nname = "a"\ntarget = 6000\nperiod = 60\n')
    clock = ManualClock(1_000_000_020.0)
    cluster = Cluster(MemoryStore(), clock=clock)
    cluster.load(file)
    file.write_text("")
    assert cluster.load(file) == (f"{file} is empty: the last definitions are used",)
    clock.advance(1.0)
    assert cluster.limiters["a"].acquire()


def test_a_name_that_the_program_removed_is_made_again(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    ads = cluster.limiters["ads"]
    cluster.remove("ads")
    assert cluster.load(file) == ()
    assert cluster.limiters["ads"] is ads
    cluster.remove("ads")
    write(file, TWO.partition('[[limiter]]\nname = "mail"')[2], age=9)  # the entry is gone as well
    cluster.load(file)
    assert "ads" not in cluster.limiters


def test_a_name_that_the_program_removed_and_took_is_its_own(cluster: Cluster, file: Path) -> None:
    write(file, TWO)
    cluster.load(file)
    cluster.remove("ads")
    mine = cluster.limiter("ads", target=7, period=60)
    (problem,) = cluster.load(file)
    assert "the program, or another file, has defined this name" in problem
    assert (cluster.limiters["ads"], mine.target) == (mine, 7.0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("target = true\nperiod = 60", "target must be a number, got True"),
        ("target = 1\nperiod = true", "period must be a number, got True"),
        (f"target = 1{'0' * 400}\nperiod = 60", "target must be a finite number, got 1000"),
        ("target = 1\nperiod = 60\ntimezone = 5", "timezone must be a name .* got 5"),
        (f"target = 0x{'f' * 5000}\nperiod = 60", "digits"),
    ],
)
def test_an_odd_value_is_a_bad_entry(
    cluster: Cluster, file: Path, entry: str, message: str
) -> None:
    write(file, TWO + '[[limiter]]\nname = "x"\n' + entry)
    (problem,) = cluster.load(file)
    with pytest.raises(ValueError, match=message):
        raise ValueError(problem)
    assert cluster.limiters.keys() == {"ads", "mail"}


def test_an_odd_number_in_json_is_a_bad_entry() -> None:
    entries, _ = read_json(json.dumps([GO | {"PeriodInterval": 10**400}]))
    assert isinstance(entries[0][1], str)


@pytest.mark.parametrize("error", [OverflowError("too large"), TypeError("odd")])
def test_an_entry_that_cannot_be_made_is_a_bad_entry(
    cluster: Cluster, file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    make = cluster._registry._make_limiter

    def fail(key: Any, options: LimiterOptions) -> Any:
        if key[0] == "ads":
            raise error
        return make(key, options)

    monkeypatch.setattr(cluster._registry, "_make_limiter", fail)
    write(file, TWO)
    assert cluster.load(file) == (f"{file}: limiter 'ads': {error}",)
    assert cluster.limiters.keys() == {"mail"}
    monkeypatch.undo()
    assert cluster.load(file) == ()


def test_a_first_load_that_fails_leaves_nothing(
    cluster: Cluster, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = cluster._registry._make_limiter

    def fail(key: Any, options: LimiterOptions) -> Any:
        if key[0] == "mail":
            raise MemoryError
        return make(key, options)

    monkeypatch.setattr(cluster._registry, "_make_limiter", fail)
    write(file, TWO)
    with pytest.raises(MemoryError):
        cluster.load(file)
    assert cluster.limiters == {}
    monkeypatch.undo()
    assert cluster.load(file) == ()
    assert cluster.limiters.keys() == {"ads", "mail"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "x = " + "[" * 20_000),
        ("a.toml", f"x = 1{'0' * 5000}"),
        ("a.toml", f"limiter = 0x{'f' * 5000}"),
        ("a.json", "[" * 200_000),
    ],
)
def test_a_file_too_deep_or_with_too_large_numbers_is_a_config_error(
    cluster: Cluster, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        cluster.load(tmp_path / name)


@pytest.mark.parametrize("path", [5, None, b"limiters.toml"])
def test_a_path_that_is_none_is_refused(cluster: Cluster, path: Any) -> None:
    with pytest.raises(TypeError, match=f"path must be a str or a path, got {path!r}"):
        cluster.load(path)


def test_a_changed_target_is_logged(
    cluster: Cluster, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file.write_text('[[limiter]]\nname = "ads"\ntarget = 600\nperiod = 60\n')
    cluster.load(file)
    file.write_text('[[limiter]]\nname = "ads"\ntarget = 9000\nperiod = 60\n')
    cluster.load(file)
    assert "limiter 'ads' has changed: target 9000" in caplog.text


def test_a_pipe_in_place_of_the_file_stops_nothing(cluster: Cluster, file: Path) -> None:
    file.write_text('[[limiter]]\nname = "ads"\ntarget = 600\nperiod = 60\n')
    cluster.load(file)
    file.unlink()
    os.mkfifo(file)
    cluster.load(file)
    assert "it must be a file, got a pipe" in cluster.status().problems[0]
    assert cluster.limiters["ads"].target == 600
