"""Sluicegate needs none of the frameworks; each integration needs its own."""

import subprocess
import sys

import pytest

FRAMEWORKS = ["starlette", "fastapi", "flask", "django", "httpx", "litestar", "asgiref"]


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


def test_the_package_and_the_middlewares_import_no_framework() -> None:
    code = f"""
import sys
import sluicegate.integrations, sluicegate.integrations.asgi, sluicegate.integrations.wsgi
import sluicegate.integrations.load_report, sluicegate.integrations.retry_budget
print([name for name in {FRAMEWORKS} if name in sys.modules])
"""
    run = python(code)
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("module", "name"),
    [("fastapi", "FastAPI"), ("flask", "Flask"), ("django", "Django"), ("httpx", "httpx")],
)
def test_a_missing_framework_is_named(module: str, name: str) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
import sluicegate.integrations.{module}
"""
    last = python(code).stderr.splitlines()[-1]
    needs = f"sluicegate.integrations.{module} needs {name}: pip install {module}"
    assert last == f"ModuleNotFoundError: {needs}"
