"""A test that hangs fails alone, and the run goes on: with the settings of this project."""

import subprocess
import sys

from tests.parts import ROOT


def test_tests_that_hang_fail_alone() -> None:
    command = f"{sys.executable} -m pytest tests/hanging.py -n 1 --dist loadfile"
    settings = (
        "-p no:cacheprovider -p no:schemathesis -p no:faker -o timeout=2 -o faulthandler_timeout=4"
    )
    run = subprocess.run(
        [*command.split(), *settings.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = run.stdout + run.stderr
    assert run.returncode == 1, output
    assert "2 failed, 2 passed" in run.stdout, output
    assert "Timeout (>2.0s) from pytest-timeout" in run.stdout, output
    assert "seen so far" in run.stdout, output
    assert "crashed while running 'tests/hanging.py::test_hangs_in_compiled_code'" in output
