"""What people install: the compiled core, the stubs, and no more."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.harness.waits import PATIENCE

ROOT = Path(__file__).parent.parent


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


def test_a_missing_compiler_gives_one_clear_sentence(tmp_path: Path) -> None:
    build = run("setup.py", "--quiet", "build_ext", f"--build-lib={tmp_path}", CC="no-such-cc")
    assert build.returncode == 1
    last = build.stderr.splitlines()[-1]
    assert last.startswith("sluicegate: the C compiler 'no-such-cc' was not found")
    assert "apt-get install gcc" in last


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a user of PyPI gets it: from the source distribution.

    The compiled modules of this tree, which the same setup.py has built, are put where it would
    have put them. To compile them once more takes a minute and shows no more: that all sources are
    in the distribution, byte for byte, is looked at.
    """
    dist = tmp_path_factory.mktemp("dist")
    build("--sdist", ROOT, dist)
    (packed,) = dist.glob("sluicegate-*.tar.gz")
    # Not by tarfile: its filters are in Python 3.11.4 and later, and a must in 3.14.
    subprocess.run(["tar", "-xf", packed, "-C", dist], check=True, timeout=PATIENCE)
    unpacked = dist / packed.name.removesuffix(".tar.gz")
    sources = [path for path in (ROOT / "src").rglob("*.p[yx]*") if path.suffix != ".pyc"]
    assert sources
    for source in [*sources, ROOT / "setup.py", ROOT / "pyproject.toml"]:
        assert (unpacked / source.relative_to(ROOT)).read_bytes() == source.read_bytes()
    compiled = unpacked / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for made, where in ((".c", unpacked / "src"), (".so", compiled)):
        for path in (ROOT / "src").rglob(f"*{made}"):
            place = where / path.relative_to(ROOT / "src")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)  # which makes it newer than its source
    build("--wheel", unpacked, dist)
    (wheel,) = dist.glob("sluicegate-*.whl")
    return wheel


def build(kind: str, source: Path, dist: Path) -> None:
    made = run("-m", "build", "--no-isolation", kind, f"--outdir={dist}", str(source))
    assert made.returncode == 0, made.stdout + made.stderr


def test_the_wheel_has_the_compiled_core_and_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "sluicegate/py.typed" in names
    for module in (
        "sluicegate/_ids",
        "sluicegate/limits/_keyed",
        "sluicegate/limits/_token_bucket",
    ):
        assert f"{module}.pyi" in names
        assert any(name.startswith(f"{module}.cpython") for name in names)
    assert "sluicegate/limits/redis/lua/decide.lua" in names
    for path in (ROOT / "lua" / "throttle").glob("*.lua"):
        assert f"sluicegate/lua/throttle/{path.name}" in names
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxd"))]
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_the_wheel_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import sluicegate; print(sluicegate.__file__, sluicegate.Keyed('1/s').allow('a'))"
    answer = run_alone(tmp_path, "-c", code)
    assert answer.split() == [str(tmp_path / "sluicegate" / "__init__.py"), "True"]


def test_the_wheel_knows_where_its_lua_files_are(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    words = ("--central", "10.0.0.1", "--user-from", "address")
    conf = run_alone(tmp_path, "-m", "sluicegate", "nginx-conf", *words)
    assert f'lua_package_path "{tmp_path}/sluicegate/lua/?.lua;;";' in conf


def run_alone(folder: Path, *command: str) -> str:
    """What Python prints with the package in `folder`, and nothing of this environment (-S)."""
    ran = subprocess.run(
        [sys.executable, "-S", *command],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return ran.stdout
