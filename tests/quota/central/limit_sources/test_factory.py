"""What may be handed to a central as its limits; functions and lists."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Entry
from sluicegate.quota.central.limit_sources import LimitsSource, NotEditable, open_source
from sluicegate.quota.central.limit_sources.function import FunctionLimits

ANN = Entry("front", "ann", rates={"requests": 5.0})
BOB = Entry("front", "bob", rates={"requests": 1.0})


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("limits.yaml", "expected FILE.toml, FILE.db.* got 'limits.yaml'"),
        (Path("limits"), "expected FILE.toml.* got 'limits'"),
        ("", "expected FILE.toml.* got ''"),
        (5, "a function or a list of Entry, got 5"),
        ([{"service": "front"}], "limit 1 .*user is missing, expected a name$"),
        ([ANN, ANN], "limit 2 .*got a second one after limit 1$"),
    ],
)
def test_what_is_no_source_is_refused_with_what_was_expected(spec: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_source(spec)  # type: ignore[arg-type]


def test_a_coroutine_function_is_refused() -> None:
    async def limits() -> list[Entry]:
        return []

    with pytest.raises(ConfigError, match="expected a plain function"):
        open_source(limits)  # type: ignore[arg-type]


def test_a_source_is_its_own_source() -> None:
    source = open_source([ANN])
    assert isinstance(source, LimitsSource)
    assert open_source(source) is source


def test_a_list_can_be_edited() -> None:
    source = open_source([ANN, {"service": "front", "user": "bob", "requests": 1}])
    assert source.is_editable
    assert source.load() == ([ANN, BOB], [])
    tokens = [source.version_token()]
    assert source.remove("front", "ann")
    assert not source.remove("front", "ann")
    tokens.append(source.version_token())
    source.put(ANN)
    tokens.append(source.version_token())
    assert source.load() == ([BOB, ANN], [])
    source.replace([ANN])
    tokens.append(source.version_token())
    assert source.load() == ([ANN], [])
    assert len(set(tokens)) == 4
    source.close()


def test_a_function_gives_entries_or_tables_and_a_bad_one_is_skipped() -> None:
    def limits() -> Iterator[object]:
        yield ANN
        yield {"service": "front", "user": "bob", "requests": 1}
        yield {"service": "front", "user": "eve"}
        yield 7

    source = open_source(limits)  # type: ignore[arg-type]
    entries, complaints = source.load()
    assert entries == [ANN, BOB]
    assert len(complaints) == 2
    assert "limits" in source.name
    assert not source.is_editable
    for edit in (
        lambda: source.put(ANN),
        lambda: source.remove("a", "b"),
        lambda: source.replace([]),
    ):
        with pytest.raises(NotEditable, match="change the limits where it reads them"):
            edit()
    source.close()


@pytest.mark.parametrize("result", [None, 7])
def test_a_function_that_gives_no_limits_says_so(result: object) -> None:
    with pytest.raises(ConfigError, match="failed: TypeError"):
        open_source(lambda: result).load()  # type: ignore[arg-type, return-value]


def test_a_function_that_raises_says_so() -> None:
    def limits() -> Iterator[Entry]:
        yield ANN
        raise LookupError("no such table")

    with pytest.raises(ConfigError, match=r"limits failed: LookupError\('no such table'\)"):
        open_source(limits).load()


def test_a_function_is_asked_again_after_its_time() -> None:
    now = itertools.count()  # each look at the clock is a second later
    source = FunctionLimits(lambda: [ANN], every=5.0, clock=lambda: float(next(now)))
    assert len({source.version_token() for _ in range(10)}) == 2
