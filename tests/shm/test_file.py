"""The file behind shared memory: whose it is, what is in it, and what is refused."""

import gc
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluicegate import ConfigError, SharedKeyed, SharedTable
from tests.harness.waits import PATIENCE

BOOT = 2160  # where the header has the boot's name, 40 bytes, before the start and the wall time
COUNTERS = 4096
WHAT_TO_DO = "open it with rebuild=True to replace it, or remove it with unlink"


def test_only_its_owner_may_read_it_whatever_the_umask_is(name: str) -> None:
    umask = os.umask(0)
    try:
        keyed = SharedKeyed(name, "1/second")
    finally:
        os.umask(umask)
    path = Path(keyed.path or "")
    assert path.parent == Path("/dev/shm")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(os.geteuid()) in path.name


def test_a_path_is_as_good_as_a_name(tmp_path: Path) -> None:
    for path in (tmp_path / "one", str(tmp_path / "two")):
        assert SharedKeyed(path, "1/hour").allow("a")
        assert not SharedKeyed(path, "1/hour").allow("a")
        assert SharedKeyed.unlink(path)
        assert not SharedKeyed.unlink(path)
    with pytest.raises(ConfigError, match="cannot create .*: No such file or directory"):
        SharedKeyed(tmp_path / "no" / "where", "1/second")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"limit": "1/day"}, "holds token_bucket 1/hour, expected token_bucket 1/day"),
        ({"algorithm": "fixed_window"}, "holds token_bucket 1/hour, expected fixed_window 1/hour"),
        ({"max_keys": 101}, "has max_keys=100, expected 101"),
    ],
)
def test_another_limit_is_refused_with_a_sentence_or_rebuilt_when_asked(
    name: str, other: dict[str, Any], sentence: str
) -> None:
    SharedKeyed(name, "1/hour", max_keys=100).close()
    arguments: dict[str, Any] = {"limit": "1/hour", "max_keys": 100, **other}
    limit = arguments.pop("limit")
    with pytest.raises(ConfigError, match=f"{sentence}.*: {WHAT_TO_DO}"):
        SharedKeyed(name, limit, **arguments)
    rebuilt = SharedKeyed(name, limit, rebuild=True, **arguments)
    assert rebuilt.allow("a")
    again = SharedKeyed(name, limit, rebuild=True, **arguments)  # it fits: nothing is rebuilt
    assert not again.allow("a")


def test_who_has_it_open_goes_on_with_the_old_one(name: str) -> None:
    old = SharedKeyed(name, "1/hour")
    assert old.allow("a")
    new = SharedKeyed(name, "2/hour", rebuild=True)
    assert new.allow("a")
    assert not old.allow("a")
    assert SharedKeyed.unlink(name)
    assert new.allow("a")
    assert not new.allow("a")


def test_of_many_who_rebuild_at_once_all_get_the_same(name: str, children: Any) -> None:
    SharedKeyed(name, "1/second").close()
    passed = SharedTable(f"{name}-passed")

    def ask() -> None:
        keyed = SharedKeyed(name, "10/hour", rebuild=True)
        for _ in range(10):
            passed.incr("passed", keyed.allow("a"))

    try:
        for _ in range(8):
            children.start(ask)
        children.join()
        assert passed.get("passed") == 10
    finally:
        SharedTable.unlink(f"{name}-passed")
    assert not [file for file in os.listdir("/dev/shm") if f"{name}." in file]


def test_another_clock_or_another_kind_of_table_is_refused(name: str, clock: Any) -> None:
    SharedKeyed(name, "1/second").close()
    with pytest.raises(ConfigError, match="uses a different clock"):
        SharedKeyed(name, "1/second", clock=clock)
    with pytest.raises(ConfigError, match="holds token_bucket 1/second, expected counters"):
        SharedTable(name)


def test_a_torn_file_is_refused_or_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "keyed"
    SharedKeyed(path, "1/day", max_keys=100).close()
    whole = path.read_bytes()
    heads = 8192 + 512 * 640
    overflow_heads = heads + 8 * 256
    arena = overflow_heads + 8 * 1024
    one = SharedKeyed(path, "1/day", max_keys=100)
    for number in range(60):
        one.allow(number)
    one.close()
    used = path.read_bytes()
    first = next(
        place
        for place in range(heads, heads + 8 * 256, 8)
        if struct.unpack_from("<Q", used, place)[0]
    )
    for change, sentence in [
        (b"", "is damaged: the file is too small"),
        (whole[:100], "is damaged: the file is too small"),
        (bytes(8) + whole[8:], "is damaged: its header is empty"),
        (whole[:-64], "is damaged: the checksum or size"),
        (whole[:200] + b"x" + whole[201:], "is damaged: the checksum or size"),
        (whole[:8] + b"\x09" + whole[9:], "has layout version 9, expected 1"),
        (
            used[:overflow_heads] + bytes(80) + used[overflow_heads + 80 :],
            "is damaged at chain 256",
        ),
        (used[:arena] + bytes(8000) + used[arena + 8000 :], "is damaged at chain 256"),
        # Heads that point nowhere or into a record; records that were never written.
        (used[:first] + b"\xff\xff\xff\x0f" + used[first + 4 :], "is damaged at chain"),
        (used[:COUNTERS] + b"\xff" * 512 + used[COUNTERS + 512 :], "its counters are inconsistent"),
        (
            used[:first] + struct.pack("<Q", 1 << 28 | 5000) + used[first + 8 :],
            "is damaged at chain",
        ),
        (used[:arena] + b"\xff" * 192_000 + used[arena + 192_000 :], "is damaged: its records end"),
    ]:
        path.write_bytes(change)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=f"{sentence}.*: {WHAT_TO_DO}"):
            SharedKeyed(path, "1/day", max_keys=100)
        rebuilt = SharedKeyed(path, "1/day", max_keys=100, rebuild=True)
        assert rebuilt.allow(7)
        rebuilt.close()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("Dear Ann,")
    path.chmod(0o600)
    for rebuild in (False, True):
        with pytest.raises(ConfigError, match="is not a shared memory file of sluicegate"):
            SharedKeyed(path, "1/second", rebuild=rebuild)
    with pytest.raises(ConfigError, match="not removed"):
        SharedKeyed.unlink(path)
    assert path.read_text() == "Dear Ann,"


def test_what_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "keyed"
    SharedKeyed(path, "1/second").close()
    path.chmod(0o660)
    with pytest.raises(ConfigError, match="with mode 0660; expected user .* and 0600"):
        SharedKeyed(path, "1/second")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot open .*: Too many levels of symbolic links"):
        SharedKeyed(link, "1/second")
    with pytest.raises(ConfigError, match="cannot open .*: Is a directory"):
        SharedKeyed(tmp_path, "1/second")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="is not a regular file"):
        SharedKeyed(tmp_path / "pipe", "1/second")
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 12345, -1)
        with pytest.raises(ConfigError, match="belongs to user 12345"):
            SharedKeyed(path, "1/second")


def test_after_a_restart_of_the_machine_its_time_goes_on_by_the_wall_clock(tmp_path: Path) -> None:
    path = tmp_path / "keyed"
    with SharedKeyed(path, "10/hour", max_keys=100) as keyed:
        assert keyed.allow("a", 10)
    data = bytearray(path.read_bytes())
    start, wall = struct.unpack_from("dd", data, BOOT + 40)
    # An hour and a half ago, on another boot's clock.
    data[BOOT : BOOT + 4] = b"boot"
    struct.pack_into("dd", data, BOOT + 40, start + 1e6, wall - 5400)
    path.write_bytes(data)
    with SharedKeyed(path, "10/hour", max_keys=100) as keyed:
        assert keyed.check("a", 0).remaining == pytest.approx(10, abs=0.1)
        assert keyed.allow("a", 10)
        assert not keyed.allow("a")


FILL = """
import sys
from sluicegate import ConfigError, SharedKeyed, SharedTable, TableFull

folder = sys.argv[1]
keyed = SharedKeyed(f"{folder}/keyed", "1/hour", max_keys=10_000)
passed = [keyed.allow(f"{number:0200}") for number in range(10_000)]
print(100 < len(keyed) < 9_900, keyed.overflowed > 100, keyed.allow(f"{5:0200}"))
SharedKeyed.unlink(f"{folder}/keyed")
keyed.close()
del keyed
table = SharedTable(f"{folder}/table", max_keys=10_000)
try:
    for number in range(10_000):
        table.incr(f"{number:0200}")
except TableFull as error:
    print("no room for" in str(error), table.incr(f"{5:0200}"))
try:
    SharedKeyed(f"{folder}/other", "1/hour", max_keys=1_000_000)
except ConfigError as error:
    print(error)
"""


def test_memory_that_runs_out_is_a_full_table_and_not_a_crash(tmp_path: Path) -> None:
    """In a file system of 2 MB, which needs a namespace where we may mount one."""
    mount = f'mount -t tmpfs -o size=2m none {tmp_path} && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", FILL, str(tmp_path)]
    probe = subprocess.run(
        [*command[:5], "sh", "true"], capture_output=True, text=True, timeout=PATIENCE
    )
    if probe.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {probe.stderr.strip()}")
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == [
        "True True False",
        "True 2.0",
        f"not enough memory for {tmp_path}/other: it needs 17.8 MB; use a smaller max_keys, "
        "or a path elsewhere",
    ], run.stderr


def test_opening_fails_when_all_process_slots_are_taken(name: str) -> None:
    keyed = [SharedKeyed(name, "1/second", max_keys=10) for _ in range(512)]
    with pytest.raises(ConfigError, match="is already open 512 times"):
        SharedKeyed(name, "1/second", max_keys=10)
    keyed.pop().close()
    SharedKeyed(name, "1/second", max_keys=10).close()


def test_one_that_nobody_closed_leaves_no_descriptor(name: str) -> None:
    gc.collect()  # what earlier tests have left goes now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        SharedKeyed(name, "1/second").allow("a")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_child_that_has_changed_its_user_is_told_to_open_it_itself(
    name: str, children: Any
) -> None:
    keyed = SharedKeyed(name, "1/second")

    def change() -> None:
        os.setuid(12345)
        with pytest.raises(ConfigError, match="cannot reopen .*: Permission denied"):
            keyed.allow("a")

    children.start(change)
    children.join()
    assert keyed.allow("a")
