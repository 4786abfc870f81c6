"""Limits in a TOML file: edited in place, put in place, broken, gone."""

import os
import time
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Entry
from sluicegate.quota.central.limit_sources import NotEditable, open_source
from tests.harness.waits import wait_for

ANN = '[[limit]]\nservice = "front"\nuser = "ann"\nrequests = 5\n'
BOB = ANN.replace("ann", "bob")


def write(path: Path, text: str) -> None:
    """As written a while ago: nothing has to be waited for."""
    path.write_text(text)
    os.utime(path, ns=(0, time.time_ns() - 10**9))


def ticks(other: Path, since: int) -> bool:
    """Whether the clock of the file system, which may be coarse, has gone on since."""
    other.touch()
    return other.stat().st_ctime_ns > since


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "limits.toml", ANN)
    return tmp_path / "limits.toml"


def test_a_file_has_entries_and_complaints(path: Path) -> None:
    write(path, ANN + '[[limit]]\nservice = "front"\nuser = "eve"\nrequests = -1\n')
    entries, complaints = open_source(path).load()
    assert entries == [Entry("front", "ann", rates={"requests": 5.0})]
    (complaint,) = complaints
    assert "'eve'" in complaint
    assert "got -1" in complaint


def test_a_file_may_begin_with_a_mark_of_its_encoding(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    entries, complaints = open_source(path).load()
    assert len(entries) == 1
    assert not complaints


def test_a_change_is_seen_though_its_time_was_set_back(path: Path) -> None:
    source = open_source(path)
    before, times = source.version_token(), path.stat()
    wait_for(lambda: ticks(path.with_suffix(".other"), times.st_ctime_ns))
    path.write_bytes(path.read_bytes().replace(b"5", b"6"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.version_token() != before


def test_the_version_token_changes_when_the_file_is_written_replaced_or_removed(path: Path) -> None:
    source = open_source(str(path))
    tokens = [source.version_token(), source.version_token()]
    assert tokens[0] == tokens[1]
    with path.open("a") as file:
        file.write("# more\n")
    tokens.append(source.version_token())
    write(path.with_suffix(".new"), ANN)
    path.with_suffix(".new").rename(path)
    tokens.append(source.version_token())
    path.unlink()
    tokens.append(source.version_token())
    assert len(set(tokens[1:])) == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[[limit", "not valid TOML"),
        (b"[[limit]]\nuser = '\xff'\n", "must be UTF-8"),
        (b"  \n", "is empty: to have no limits, put a comment in it"),
    ],
)
def test_a_bad_file_says_why(path: Path, text: bytes, reason: str) -> None:
    source = open_source(path)
    assert len(source.load()[0]) == 1
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        source.load()
    assert str(path) in str(caught.value)


def test_a_file_that_is_missing_says_so(tmp_path: Path) -> None:
    source = open_source(tmp_path / "none.toml")
    assert source.version_token() == source.version_token()
    with pytest.raises(ConfigError, match="cannot read .*none.toml: No such file"):
        source.load()


def test_no_limits_are_meant_when_a_comment_is_left(path: Path) -> None:
    source = open_source(path)
    source.load()
    write(path, "# nobody\n")
    assert source.load() == ([], [])


def test_an_empty_file_is_fine_at_the_start(path: Path) -> None:
    write(path, "")
    assert open_source(path).load() == ([], [])


class Editor:
    """Time, in which somebody writes a file as some editors do: it is emptied, and then comes a
    piece whenever one waits for it to rest."""

    def __init__(self, path: Path, *pieces: str) -> None:
        self._path = path
        self._pieces = list(pieces)
        self._text = ""
        self._now = 1_800_000_000.0
        self._write("")

    def time(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        if self._pieces:
            self._write(self._pieces.pop(0))

    def _write(self, piece: str) -> None:
        self._text += piece
        self._path.write_text(self._text)
        os.utime(self._path, (self._now, self._now))


def test_a_file_is_read_again_while_it_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(path)
    source.load()
    monkeypatch.setattr(
        "sluicegate.quota.central.limit_sources.toml_file.time", Editor(path, ANN, BOB)
    )
    entries, _ = source.load()
    assert [entry.user for entry in entries] == ["ann", "bob"]


def test_a_file_that_never_rests_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = Editor(path, *["# more\n"] * 100)
    monkeypatch.setattr("sluicegate.quota.central.limit_sources.toml_file.time", editor)
    with pytest.raises(ConfigError, match="keeps changing"):
        open_source(path).load()


def test_a_file_is_edited_as_a_file(path: Path) -> None:
    source = open_source(path)
    assert not source.is_editable
    entry = Entry("front", "bob", rates={"requests": 1.0})
    for edit in (
        lambda: source.put(entry),
        lambda: source.remove("front", "ann"),
        lambda: source.replace([entry]),
    ):
        with pytest.raises(NotEditable, match="limits source is read-only"):
            edit()
    assert path.read_text() == ANN
    source.close()
