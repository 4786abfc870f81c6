"""The memory that the workers of an nginx share, with real processes of luajit that are killed.

A process that is killed at any instruction has done its last call or has not: no record is ever
half changed or missing in its bucket, no lock stays locked, and no unit of credit passes twice.
"""

import json
import random
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nginx import find_luajit
from tests.harness.waits import PATIENCE

_FOLDER = Path(__file__).parent
_SPENDERS = 3
_USERS = 4
_GRANTED = 40_000
_KILLS = 200
_KILL_SECONDS = 3.0  # seconds after which fewer kills will do
_FURTHER = 300  # users that come into being
_COUNTS = struct.Struct("3d")  # passed, calls of consume that began, and that ended
_COUNTS_BYTES = 4096

# Of the header of the file: see layout.lua.
_MAGIC, _VERSION, _MAX_RECORDS = 0, 8, 12


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [find_luajit(), str(_FOLDER / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return done.stdout


def audit(path: Path, *grant: object) -> Any:
    """What is in the memory, after a grant to users if there is one; it must be whole."""
    return json.loads(run("audit_memory.lua", path, "node", 3600, *grant))


class Spenders:
    """Processes that spend the credit of the same users; a killed one is replaced by another."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self._folder = folder
        self._memory = memory
        self._counts: list[Path] = []
        self._running = [self._start() for _ in range(_SPENDERS)]
        self.kills = 0

    def kill_one(self, place: int) -> None:
        process = self._running[place]
        process.kill()
        assert process.wait(PATIENCE) in (0, -9)
        self.kills += 1
        self._running[place] = self._start()

    def join(self) -> None:
        """Until there is no credit left."""
        for process in self._running:
            assert process.wait(PATIENCE) == 0

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def counts(self, user: int) -> tuple[float, float, float]:
        """Of all processes that ever ran."""
        each = [
            _COUNTS.unpack_from(path.read_bytes(), _COUNTS.size * user) for path in self._counts
        ]
        passed, begun, ended = map(sum, zip(*each, strict=True))
        return passed, begun, ended

    def _start(self) -> "subprocess.Popen[bytes]":
        counts = self._folder / f"counts-{len(self._counts)}"
        counts.write_bytes(bytes(_COUNTS_BYTES))
        self._counts.append(counts)
        script = str(_FOLDER / "spend_credit.lua")
        arguments = [str(self._memory), str(counts), str(_USERS), str(_FURTHER)]
        return subprocess.Popen([find_luajit(), script, *arguments])


def test_killed_processes_leave_whole_records_and_spend_no_unit_twice(tmp_path: Path) -> None:
    chance = random.Random(7)
    memory = tmp_path / "memory"
    names = [f"user-{number + 1}" for number in range(_USERS)]
    audit(memory, _GRANTED, *names)
    spenders = Spenders(tmp_path, memory)
    try:
        end = time.monotonic() + _KILL_SECONDS
        while spenders.kills < _KILLS and time.monotonic() < end:
            time.sleep(chance.uniform(0.001, 0.02))
            spenders.kill_one(chance.randrange(_SPENDERS))
        spenders.join()
        found = audit(memory)
        assert spenders.kills > 50
        for user, name in enumerate(names):
            passed, begun, ended = spenders.counts(user)
            cell = found["users"][name]["requests"]
            seen = f"{name}: passed {passed}, begun {begun}, ended {ended}, {cell}"
            # All of it was spent, and not a unit more; a killed process had one call under way.
            assert passed <= _GRANTED <= passed + spenders.kills, seen
            assert ended <= cell["consumed"] <= begun <= ended + spenders.kills, seen
            assert cell["consumed"] + cell["reserved"] == pytest.approx(_GRANTED, abs=0.01), seen
        # A record is lost if its process is killed right between taking and using it.
        assert found["lost"] <= spenders.kills
        assert abs(found["counted"] - found["found"] - found["lost"]) <= spenders.kills, found
    finally:
        spenders.close()


def test_a_process_killed_at_any_point_of_an_operation_has_done_it_or_not(tmp_path: Path) -> None:
    answers = json.loads(run("crash_points.lua", tmp_path / "memory"))
    problems = {name: one["problem"] for name, one in answers.items() if "problem" in one}
    assert not problems
    # Each takes a lock, writes, and gives the lock back; a grant publishes a window as well.
    assert all(one["points"] >= 6 for one in answers.values()), answers


def test_processes_that_replace_a_memory_at_once_count_in_one_memory(tmp_path: Path) -> None:
    """Else the last of them removed the memory that the first had just made for all."""
    rounds, processes = 40, 4
    counted = run("replace_memory.lua", tmp_path / "memory", rounds, processes).split()
    assert counted == [str(processes)] * rounds


def test_more_users_than_there_are_records_share_some_and_are_all_counted(tmp_path: Path) -> None:
    max_users, users = 100, 2_000
    found = json.loads(run("fill_memory.lua", tmp_path / "memory", max_users, users))
    assert found["consumed"] == users, found
    assert found["own"] == {"records": max_users, "consumed": max_users}
    assert found["shared"]["consumed"] == users - max_users


def test_a_memory_keeps_its_room_when_it_is_opened_for_more_users(tmp_path: Path) -> None:
    """New users share records then: they are not refused, and are counted."""
    run("fill_memory.lua", tmp_path / "memory", 100, 100)
    found = json.loads(run("fill_memory.lua", tmp_path / "memory", 1_000, 2_000))
    assert found["consumed"] == 2_000, found
    assert found["own"]["consumed"] + found["shared"]["consumed"] == 2_100


def test_when_there_is_no_memory_left_users_share_records_and_are_all_counted(
    tmp_path: Path,
) -> None:
    """A file system that is full: what was there for overflow records is not given to others."""
    folder, users = tmp_path / "full", 6_000
    folder.mkdir()
    command = 'mount -t tmpfs -o size=3m none "$1" && exec "$2" "$3" "$1/memory" 20000 "$4"'
    script = _FOLDER / "fill_memory.lua"
    done = subprocess.run(
        [*("unshare", "--map-root-user", "--mount", "sh", "-c", command, "sh"),
         *map(str, (folder, find_luajit(), script, users))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system of our own: {done.stderr}")
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    found = json.loads(done.stdout)
    assert found["consumed"] == users, found
    assert found["own"]["consumed"] + found["shared"]["consumed"] == users, found
    assert 0 < found["own"]["records"] < users


def overwrite(path: Path, at: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(value)


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "another version": lambda path: overwrite(path, _VERSION, b"\xff"),
    "another magic": lambda path: overwrite(path, _MAGIC, b"ELSEWHAT"),
    "another number of records": lambda path: overwrite(path, _MAX_RECORDS, b"\xff\xff\xff\x7f"),
    "random bytes": scramble,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:300_000]),
    "a few bytes": lambda path: path.write_bytes(b"SLUICEGT"),
    "nothing": lambda path: path.write_bytes(b""),
    "too long": lambda path: path.write_bytes(path.read_bytes() + bytes(4096)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_memory_is_replaced(tmp_path: Path, damage: str) -> None:
    memory = tmp_path / "memory"
    audit(memory, 10, "ann")
    assert "ann" in audit(memory)["users"]  # it outlives the process that made it
    DAMAGES[damage](memory)
    assert audit(memory)["users"] == {}
    audit(memory, 10, "ben")
    assert list(audit(memory)["users"]) == ["ben"]


@pytest.mark.parametrize(
    ("node", "slot_seconds", "users"), [("node", 3600, 1), ("another", 3600, 0), ("node", 1, 0)]
)
def test_the_memory_of_another_node_or_of_other_slots_is_replaced(
    tmp_path: Path, node: str, slot_seconds: float, users: int
) -> None:
    memory = tmp_path / "memory"
    audit(memory, 10, "ann")
    assert run("open_memory.lua", memory, node, slot_seconds).strip() == str(users)


def test_what_is_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, reason in {
        tmp_path / "folder": "Is a directory",
        tmp_path / "missing" / "memory": "No such file or directory",
    }.items():
        told = run("open_memory.lua", path, "node", 3600)
        assert told.strip() == f"cannot open {path}: {reason}"


def test_the_fast_path_answers_and_counts_as_the_general_way_does() -> None:
    found = json.loads(run("compare_fast_path.lua", 1, 300))
    assert not found["failed"]
    assert found["fast"] > 2_000, found


def test_a_call_that_failed_keeps_nobody_out_of_the_record_that_it_had_locked(
    tmp_path: Path,
) -> None:
    assert run("failed_call.lua", tmp_path / "memory").split() == ["3"]
