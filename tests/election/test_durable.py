"""`DurableFile`: survives a kill at any instruction, and never begins anew by itself."""

import json
import os
import zlib
from pathlib import Path

import pytest

from sluicegate.election.paxos.durable import DurableFile
from sluicegate.errors import ConfigError, Unavailable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.paxos"


def opened(path: Path, name: str = "a", wall: float = 1000.0) -> DurableFile:
    file = DurableFile(path, name, wall=lambda: wall)
    file.open()
    return file


def close(*files: DurableFile) -> None:
    for file in files:
        file.close()


def test_each_start_has_a_higher_number_and_the_epoch_stays(path: Path) -> None:
    first = opened(path)
    assert (first.restart, first.epoch) == (1001, 1000)
    first.raise_epoch(1007)
    first.close()
    second = opened(path, wall=5.0)  # the wall clock counts for a new file alone
    assert (second.restart, second.epoch) == (1002, 1007)
    second.close()


def test_a_member_that_lost_its_disk_repeats_no_number(path: Path) -> None:
    for wall in (1000.0, 1060.0):
        file = opened(path, wall=wall)
        assert (file.restart, file.epoch) == (wall + 1, wall)
        file.close()
        path.unlink()


def test_an_epoch_never_falls(path: Path) -> None:
    file = opened(path)
    file.raise_epoch(1010)
    file.raise_epoch(1005)
    assert file.epoch == 1010
    assert json.loads(path.read_bytes())["epoch"] == 1010
    file.close()


def test_file_and_folder_are_synced_before_a_number_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        assert file.epoch == 1000
        sync(descriptor)

    def note_replace(old: Path, new: Path) -> None:
        steps.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    file.raise_epoch(1001)
    assert steps == ["file", "rename", "folder"]
    assert file.epoch == 1001
    file.close()


def test_a_kill_between_write_and_rename_leaves_the_old_content(path: Path) -> None:
    close(opened(path))
    (path.parent / f".{path.name}.new").write_bytes(b'{"format": "sluicegate-pa')
    file = opened(path)
    assert (file.restart, file.epoch) == (1002, 1000)
    file.raise_epoch(1003)
    file.close()
    assert json.loads(path.read_bytes())["epoch"] == 1003


def content(**changed: object) -> bytes:
    """A file with these changes, and a checksum that fits them."""
    fields: dict[str, object] = {
        "format": "sluicegate-paxos-1",
        "name": "a",
        "restart": 7,
        "epoch": 9,
    }
    fields |= changed
    return json.dumps(fields | {"crc32": zlib.crc32(json.dumps(fields).encode())}).encode()


def test_the_file_is_readable_and_stays_readable(path: Path) -> None:
    path.write_bytes(content())
    file = opened(path)
    assert (file.restart, file.epoch) == (8, 9)
    file.close()


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "decode"),
        (b"[" * 4000, "expected one flat JSON object"),
        (b"{}", "expected a JSON object with format, name"),
        (b"[1, 2]", "expected a JSON object"),
        (content().replace(b": 9", b": 8"), "expected the checksum"),
        (content().replace(b'"a"', b'"b"'), "expected the checksum"),
        (content(name="b"), "it belongs to 'b', and this member is 'a'"),
        (content(epoch=-1), "expected epoch from 0 to 2\\^53, got -1"),
        (content(epoch=True), "expected epoch"),
        (content(restart="7"), "expected restart from 0 to 2\\^53, got '7'"),
        (content(format="sluicegate-paxos-2"), "expected the format"),
        (content() + b" " * 5000, "expected at most 4096 bytes"),
        (content()[:-10], "delimiter|Expecting"),
    ],
)
def test_a_corrupt_file_stops_the_start_and_is_left_alone(
    path: Path, raw: bytes, complaint: str
) -> None:
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=f"a.paxos is corrupt: .*({complaint})"):
        opened(path)
    assert path.read_bytes() == raw
    path.write_bytes(content())
    close(opened(path))  # the lock was given back


def test_two_processes_cannot_have_one_file(path: Path) -> None:
    first = opened(path)
    with pytest.raises(ConfigError, match="in use by another process"):
        opened(path)
    first.close()
    close(opened(path))


def test_a_folder_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a writable folder"):
        opened(tmp_path / "missing" / "a.paxos")


def test_what_cannot_be_read_stops_the_start(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        opened(path)


def test_a_disk_that_fails_is_unavailable_and_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match="cannot write .*a.paxos: No space left on device"):
            file.raise_epoch(1001)
        assert file.epoch == 1000
    file.raise_epoch(1001)
    file.close()


def test_a_disk_that_fails_at_the_start_stops_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="Input/output error"):
        opened(path)


def test_a_closed_file_takes_nothing(path: Path) -> None:
    file = opened(path)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="is not open"):
        file.raise_epoch(2000)
    with pytest.raises(ValueError, match="was closed"):
        file.open()
