"""Limits in SQLite: made when missing, shared by centrals, edited by hand, replaced, gone."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Entry
from sluicegate.quota.central.limit_sources import LimitsSource, open_source
from tests.harness.waits import PATIENCE

ANN = Entry("front", "ann", 10.0, {"requests": 5.0, "traffic_up": 1e6})
BOB = Entry("front", "bob", 2.5, {"requests": 1.0})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.fixture
def source(path: Path) -> Iterator[LimitsSource]:
    with closing(open_source(path)) as source:
        yield source


def test_a_database_is_made_when_it_is_missing(source: LimitsSource, path: Path) -> None:
    assert source.is_editable
    assert source.name == str(path)
    assert source.load() == ([], [])
    assert path.exists()


def test_entries_are_put_replaced_and_removed(source: LimitsSource) -> None:
    source.put(BOB)
    source.put(ANN)
    assert source.load() == ([ANN, BOB], [])
    louder = Entry("front", "ann", rates={"requests": 50.0})
    source.put(louder)
    assert source.load()[0] == [louder, BOB]
    assert source.remove("front", "ann")
    assert not source.remove("front", "ann")
    source.replace([ANN])
    assert source.load()[0] == [ANN]


def test_what_is_written_outlives_the_process(source: LimitsSource, path: Path) -> None:
    source.put(ANN)
    source.close()
    with closing(open_source(path)) as other:
        assert other.load()[0] == [ANN]


def test_another_central_sees_each_change(source: LimitsSource, path: Path) -> None:
    with closing(open_source(path)) as other:
        tokens = [other.version_token(), other.version_token()]
        source.put(ANN)
        tokens.append(other.version_token())
        other.put(BOB)
        tokens.append(other.version_token())
        source.remove("front", "ann")
        tokens.append(other.version_token())
        assert tokens[0] == tokens[1]
        assert len(set(tokens)) == 4
        assert other.load()[0] == source.load()[0] == [BOB]


def test_a_replacement_that_fails_changes_nothing(source: LimitsSource, path: Path) -> None:
    source.put(ANN)
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute(
            "CREATE TRIGGER no_eve BEFORE INSERT ON limits WHEN NEW.user = 'eve' "
            "BEGIN SELECT RAISE(ABORT, 'not her'); END"
        )
    with pytest.raises(ConfigError, match="not her"):
        source.replace([BOB, Entry("front", "eve", rates={"requests": 1.0})])
    assert source.load()[0] == [ANN]


def test_a_bad_row_is_told_and_skipped(source: LimitsSource, path: Path) -> None:
    source.put(ANN)
    rows = [
        ("front", "a", 10, "nonsense"),
        ("front", "b", 10, "[1]"),
        ("front", "c", 10, '{"requests": -1}'),
        ("front", "d", "long", '{"requests": 1}'),
        ("front", "e", 10, b"\xff"),
    ]
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.executemany("INSERT INTO limits VALUES (?, ?, ?, ?)", rows)
    entries, complaints = source.load()
    assert entries == [ANN]
    assert len(complaints) == 5
    for user, complaint in zip("abecd", complaints, strict=True):
        assert f"user '{user}'" in complaint
        assert complaint.endswith("skipped")


def test_a_database_put_in_its_place_is_opened_anew(
    source: LimitsSource, path: Path, tmp_path: Path
) -> None:
    source.put(ANN)
    before = source.version_token()
    with closing(open_source(tmp_path / "new.db")) as new:
        new.put(BOB)
    (tmp_path / "new.db").rename(path)
    assert source.version_token() != before
    assert source.load()[0] == [BOB]


@pytest.mark.parametrize("what", ["gone", "no database", "no limits in it"])
def test_a_database_that_is_lost_lifts_no_limits(
    source: LimitsSource, path: Path, tmp_path: Path, what: str
) -> None:
    source.put(ANN)
    if what == "gone":
        path.unlink()
    elif what == "no database":
        (tmp_path / "new").write_bytes(b"something else " * 100)
        (tmp_path / "new").rename(path)
    else:
        with closing(sqlite3.connect(tmp_path / "new")) as other, other:
            other.execute("CREATE TABLE friends (name)")
        (tmp_path / "new").rename(path)
    with pytest.raises(ConfigError, match="cannot use .*limits.db: "):
        source.load()


def test_threads_take_turns(source: LimitsSource) -> None:
    def put(user: str) -> None:
        source.put(Entry("front", user, rates={"requests": 1.0}))
        source.version_token()

    threads = [threading.Thread(target=put, args=(f"user-{i}",)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(source.load()[0]) == 16
