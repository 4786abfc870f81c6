"""A test that hangs fails alone, and the run goes on: with the settings of this project."""

import subprocess
import sys

from tests.harness.servers import ROOT


def run_tests_that_hang() -> str:
    """What is printed. Each test that hangs has failed, and those beside it have passed."""
    command = f"{sys.executable} -m pytest tests/hanging.py -n 1 --dist loadfile"
    settings = (
        "-p no:cacheprovider -p no:schemathesis -p no:faker -o timeout=2 -o faulthandler_timeout=4"
    )
    run = subprocess.run(
        [*command.split(), *settings.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    output = run.stdout + run.stderr
    assert run.returncode == 1, output
    assert "2 failed, 2 passed" in run.stdout, output
    assert "crashed while running 'tests/hanging.py::test_hangs_in_compiled_code'" in output
    return output


def test_tests_that_hang_fail_alone() -> None:
    output = ""
    for _ in range(3):
        output = run_tests_that_hang()
        # If the process is stopped when its alarm is due, the kernel gives the signal to another
        # thread than the one that waits, and the test ends with its process.
        if "crashed while running 'tests/hanging.py::test_waits_for_ever'" not in output:
            break
    assert "Timeout (>2.0s) from pytest-timeout" in output
    assert "seen so far" in output, output
