import csv
import functools
import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.cache import POLICIES, Replay, Trace, TraceReplay, make, read_trace, replay
from sluicegate.errors import ConfigError
from sluicegate.sim.cache_traces import drifting, scan_mixed, zipf

KEYS = st.lists(st.integers(0, 6), min_size=1, max_size=12)
CAPACITIES = st.integers(1, 4)


# Replay


def test_each_policy_has_the_hits_of_a_cache_that_is_asked_for_each_key() -> None:
    keys = [f"user:{number}" for number in zipf(5_000, 300)]
    results = replay(keys, capacities=[10, 100])
    assert [(each.policy, each.capacity) for each in results] == [
        (policy, capacity) for policy in (*POLICIES, "optimal") for capacity in (10, 100)
    ]
    for policy, capacity, requests, hits in results[:-2]:
        cache = make(policy, capacity)
        for number in Trace(keys).numbers:
            cache.setdefault(number, True)
        assert (requests, hits) == (5_000, cache.hits), policy
        assert 0 < hits < 5_000


def test_a_replay_knows_its_ratios() -> None:
    result = Replay("lru", 10, requests=8, hits=6)
    assert (result.hit_ratio, result.miss_ratio) == (0.75, 0.25)


def test_lru_on_a_loop_that_does_not_fit_never_hits_and_optimal_does() -> None:
    loop = ["a", "b", "c"] * 100
    lru, optimal = replay(loop, ["LRU", "optimal"], [2])
    assert lru.hits == 0
    assert optimal.hits == 198  # two stay, and the third is never kept


def most_hits(keys: Sequence[int], capacity: int) -> int:
    """By trying everything that a cache could keep."""

    @functools.cache
    def best(at: int, kept: frozenset[int]) -> int:
        if at == len(keys):
            return 0
        full = kept | {keys[at]}
        choices = [full] if len(full) <= capacity else [full - {key} for key in full]
        return (keys[at] in kept) + max(best(at + 1, choice) for choice in choices)

    return best(0, frozenset())


@given(KEYS, CAPACITIES)
def test_optimal_is_the_best_of_all_that_could_be_kept(keys: list[int], capacity: int) -> None:
    (optimal,) = replay(keys, ["optimal"], [capacity])
    assert optimal.hits == most_hits(keys, capacity)


@pytest.mark.parametrize("trace", [zipf, scan_mixed, drifting])
def test_no_policy_has_more_hits_than_optimal(trace: Callable[..., Sequence[int]]) -> None:
    *results, optimal = replay(trace(20_000, 1_000), capacities=[100])
    assert optimal.policy == "optimal"
    assert max(each.hits for each in results) <= optimal.hits
    assert optimal.hits <= 20_000 - Trace(trace(20_000, 1_000)).distinct


def test_a_capacity_is_entries_or_a_part_of_the_distinct_keys() -> None:
    keys = list(range(200)) * 2
    sizes = [each.capacity for each in replay(keys, ["lru"], [50, 0.5, 100, 0.001, 7])]
    assert sizes == [1, 7, 50, 100]
    assert [each.capacity for each in replay(keys, ["lru"])] == [1, 2, 10, 20, 40, 100]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"capacities": [0]}, ValueError, "a capacity must be from 1 to 2.53, got 0"),
        ({"capacities": [1.0]}, ValueError, "above 0.0 and below 1.0, got 1.0"),
        ({"capacities": ["10%"]}, TypeError, "a capacity must be an int, got '10%'"),
        ({"capacities": []}, ValueError, "capacities must have at least one"),
        ({"policies": ["mru"]}, ValueError, "unknown policy 'mru': expected one of fifo, lru"),
        ({"policies": "lru"}, TypeError, "policies must be several names, got 'lru'"),
        ({"policies": [3]}, TypeError, "a policy must be a name, got 3"),
        ({"policies": []}, ValueError, "policies must have at least one name"),
        ({"trace": []}, ValueError, "trace must have at least one key, got none"),
        ({"trace": 7}, TypeError, "trace must be a path or an iterable of keys, got 7"),
    ],
)
def test_what_is_asked_wrongly_is_refused(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        replay(**{"trace": ["a"], **options})  # type: ignore[arg-type]


def test_results_are_the_same_whatever_strings_hash_to() -> None:
    program = (
        "from sluicegate.cache import replay; from sluicegate.sim.cache_traces import zipf\n"
        "print(replay([f'k{key}' for key in zipf(5000, 500)], capacities=[20, 0.1]))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_a_trace_can_be_replayed_again() -> None:
    trace = Trace(zipf(2_000, 100))
    assert repr(trace).startswith("Trace(requests=2000, distinct=")
    runs = TraceReplay(trace)
    assert [runs.run("lru", 10), runs.run("optimal", 10)] == replay(trace, ["lru", "optimal"], [10])


@pytest.mark.parametrize("trace", [zipf, scan_mixed])
def test_policies_that_see_frequency_have_more_hits_than_lru_on_skewed_traffic(
    trace: Callable[..., Sequence[int]],
) -> None:
    hits = {each.policy: each.hits for each in replay(trace(60_000, 5_000), capacities=[50])}
    assert min(hits["tinylfu"], hits["s3fifo"], hits["sieve"], hits["arc"]) > 1.1 * hits["lru"]


def test_where_the_popular_keys_change_lfu_keeps_those_of_yesterday() -> None:
    hits = {each.policy: each.hits for each in replay(drifting(60_000, 5_000), capacities=[50])}
    assert hits["lfu"] < 0.5 * hits["lru"] < 0.5 * hits["arc"]


# Files


def write(path: Path, text: str) -> Path:
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    ("name", "text", "options", "keys"),
    [
        ("a.txt", "x\ny\n\nx\n", {}, ["x", "y", "x"]),
        ("a.txt", "\ufeffx\r\n  y z \r\n \r\nlast", {}, ["x", "y z", "last"]),
        ("a.txt", "key\nx\n", {"header": True}, ["x"]),
        ("a.txt.gz", "x\ny\n", {}, ["x", "y"]),
        ("a.csv", "x\ny\n", {}, ["x", "y"]),
        ("a.csv", "x y\nz\n", {}, ["x y", "z"]),
        ("a.csv", "time,key,size\n1,x,5\n\n2,y,6\n", {"column": "key"}, ["x", "y"]),
        ("a.CSV.gz", "time,key\n1,x\n2,y\n", {"column": "key"}, ["x", "y"]),
        ("a.csv", "1,x,5\n2,y\n", {"column": 2}, ["x", "y"]),
        ("a.csv", "time,key\n1,x\n", {"column": 2, "header": True}, ["x"]),
        ("a.csv", "\n\nn,key\n1,x\n", {"column": "key"}, ["x"]),
        ("a.csv", '1,"x,y"\n', {"column": 2}, ["x,y"]),
        ("a.csv", "1;x\n2;y, z\n", {"column": 2}, ["x", "y, z"]),
        ("a.tsv", "1\tx y\n2\tz\n", {"column": 2}, ["x y", "z"]),
        ("a.log", "1  x 5\n 2 y  6\n", {"column": 2}, ["x", "y"]),
        ("a.log", "1|x\n2|y\n", {"column": 2, "delimiter": "|"}, ["x", "y"]),
        ("a.log", "a,b\nc,d\n", {}, ["a,b", "c,d"]),
    ],
)
def test_the_keys_of_a_file(
    name: str, text: str, options: dict[str, object], keys: list[str], tmp_path: Path
) -> None:
    assert list(read_trace(write(tmp_path / name, text), **options)) == keys  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.txt", "", {}, "a.txt: expected at least one key, got none"),
        ("a.txt", "\n \n", {}, "a.txt: expected at least one key, got none"),
        ("a.csv", "", {}, "a.csv: expected at least one key, got none"),
        ("a.csv", "key\n", {"column": "key"}, "a.csv: expected at least one key, got none"),
        ("a.csv", "\na,b\n", {}, r"a.csv, line 2: expected one column, got 2 \(a, b\)"),
        ("a.csv", "a,b\n", {"column": "key"}, "a.csv, line 1: expected a column 'key', got 'a, b'"),
        (
            "a.csv",
            "1,a\n\n2\n",
            {"column": 2},
            "a.csv, line 3: expected a key in column 2, got '2'",
        ),
        (
            "a.csv",
            "1,a\n2,\n",
            {"column": 2},
            "a.csv, line 2: expected a key in column 2, got '2,'",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_which_line(
    name: str, text: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        list(read_trace(write(tmp_path / name, text), **options))  # type: ignore[arg-type]


def test_bytes_that_are_no_text_and_archives_that_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x\ny\n\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"a\.txt, line 3: expected UTF-8, got b'\\xff"):
        list(read_trace(path))
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b"x\n" * 100_000)[:-20])
    with pytest.raises(ConfigError, match=r"a\.txt\.gz, after line \d+: cannot unpack it"):
        list(read_trace(packed))
    packed.write_bytes(b"x\ny\n")
    with pytest.raises(ConfigError, match="after line 0: cannot unpack it: Not a gzipped file"):
        list(read_trace(packed))
    with pytest.raises(ConfigError, match=r"none\.txt: cannot read the trace: No such file"):
        list(read_trace(tmp_path / "none.txt"))
    long = tmp_path / "long.csv"
    long.write_text(f"a\n{'b' * (csv.field_size_limit() + 1)}\n")
    with pytest.raises(ConfigError, match=r"long\.csv, line 2: field larger than field limit"):
        list(read_trace(long))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"column": 0}, ValueError, "a number from 1 or None, got 0"),
        ({"column": ""}, ValueError, "column must be a name"),
        ({"column": True}, TypeError, "got True"),
        ({"delimiter": ", "}, ValueError, "delimiter must be one character or None, got ', '"),
        ({"column": "key", "header": False}, ValueError, "header must not be False"),
    ],
)
def test_wrong_options_are_refused_before_the_file_is_opened(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_trace("no such file", **options)  # type: ignore[arg-type]


def test_a_path_may_be_replayed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", "x\ny\nx\nx\n")
    for source in (path, str(path)):
        assert replay(source, ["fifo"], [2]) == [Replay("fifo", 2, 4, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('key,v\na,1\n"b,1\na,1\n', "unexpected end of data"),
        ("a\n" + "x" * (1 << 20) + "\n", "line 2: expected at most 1,048,576 bytes, got b'xxx"),
    ],
    ids=["a quote that nobody closes", "a line without an end"],
)
def test_what_would_swallow_requests_or_memory_is_an_error(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / ("trace.csv" if "," in text else "trace")
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        list(read_trace(path, column="key" if "," in text else None))
