"""What people install: the compiled core, the stubs, and no more."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_compiler_gives_one_clear_sentence(tmp_path: Path) -> None:
    build = run("setup.py", "--quiet", "build_ext", f"--build-lib={tmp_path}", CC="no-such-cc")
    assert build.returncode == 1
    last = build.stderr.splitlines()[-1]
    assert last.startswith("headgate: the C compiler 'no-such-cc' was not found")
    assert "apt-get install gcc" in last


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a user of PyPI gets it: from the source distribution."""
    dist = tmp_path_factory.mktemp("dist")
    # Whether it can be built is the question here; an optimizer would take most of the time.
    compiler = dist / "cc"
    compiler.write_text(
        '#!/bin/sh\nfor one; do shift; [ "$one" = -O3 ] && one=-O0; set -- "$@" "$one"; done\n'
        'exec cc "$@"\n'
    )
    compiler.chmod(0o755)
    build = run("-m", "build", "--no-isolation", f"--outdir={dist}", str(ROOT), CC=str(compiler))
    assert build.returncode == 0, build.stdout + build.stderr
    assert len(list(dist.glob("headgate-*.tar.gz"))) == 1
    (wheel,) = dist.glob("headgate-*.whl")
    return wheel


def test_the_wheel_has_the_compiled_core_and_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "headgate/py.typed" in names
    for module in ("headgate/_ids", "headgate/limits/_keyed", "headgate/limits/_token_bucket"):
        assert f"{module}.pyi" in names
        assert any(name.startswith(f"{module}.cpython") for name in names)
    assert "headgate/limits/redis/lua/decide.lua" in names
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxd"))]
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_the_wheel_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import headgate; print(headgate.__file__, headgate.Keyed('1/s').allow('a'))"
    # -S: nothing of this environment, above all not the package under development.
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == [str(tmp_path / "headgate" / "__init__.py"), "True"]
