"""`Alone`: it leads at once, with an epoch that survives restarts."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.election import Alone
from sluicegate.errors import ConfigError
from tests.harness.waits import PATIENCE


async def epoch_of_a_start(path: Path) -> int:
    async with Alone("a", path=path) as election:
        assert election.is_leader
        assert election.leader == "a"
        return election.epoch


def test_each_start_has_a_higher_epoch_than_the_last(tmp_path: Path) -> None:
    path = tmp_path / "epoch"
    assert [asyncio.run(epoch_of_a_start(path)) for _ in range(3)] == [1, 2, 3]
    assert path.read_text() == "3\n"
    assert sorted(os.listdir(tmp_path)) == ["epoch", "epoch.lock"]


def test_the_epoch_is_on_the_disk_before_it_leads(tmp_path: Path) -> None:
    path = tmp_path / "epoch"
    code = (
        "import asyncio, os\n"
        "from sluicegate.election import Alone\n"
        "async def run():\n"
        f"    async with Alone('a', path={str(path)!r}) as election:\n"
        "        os.write(1, b'%d' % election.epoch); os._exit(0)\n"
        "asyncio.run(run())\n"
    )
    for expected in (b"1", b"2"):  # the first one died without releasing anything
        child = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=PATIENCE
        )
        assert child.stdout == expected


@pytest.mark.parametrize("content", [b"", b"12", b"12\n\n", b"x\n", b"-1\n", b"9" * 16 + b"\n"])
def test_a_corrupt_file_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "epoch"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(epoch_of_a_start(path))
    assert f"corrupt epoch file {path}" in str(caught.value)
    assert f"got {content!r}" in str(caught.value)
    assert f"echo 1000 > {path}" in str(caught.value)
    assert path.read_bytes() == content
    path.write_text("1000\n")
    assert asyncio.run(epoch_of_a_start(path)) == 1001


def test_a_folder_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write epoch file"):
        asyncio.run(epoch_of_a_start(tmp_path / "missing" / "epoch"))


def test_two_cannot_lead_with_one_file(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "epoch"
        async with Alone("a", path=path) as first:
            second = Alone("b", path=path)
            with pytest.raises(ConfigError, match=r"is in use: another central leads with it"):
                await second.start()
            assert not second.is_leader
            with pytest.raises(RuntimeError, match="started already"):
                await first.start()
        async with second:
            assert second.is_leader
            assert second.epoch == first.epoch + 1

    asyncio.run(run())


def test_a_name_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        Alone("", path=tmp_path / "epoch")
