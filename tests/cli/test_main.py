import contextlib
import importlib.metadata
import io
import json
import locale
import subprocess
import sys

import pytest

from sluicegate import ManualClock
from sluicegate.cli.main import main


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(locale, "getencoding", lambda: "utf-8")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


def main_in(terminal: Terminal, *argv: str, clock: ManualClock) -> int:
    with contextlib.redirect_stdout(terminal):
        return main(list(argv), clock=clock)


def exit_code(*argv: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(list(argv))
    return caught.value.code


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"sluicegate {importlib.metadata.version('sluicegate')}\n"


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"]])
def test_help_has_an_example(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*argv) == 0
    usage = capsys.readouterr().out
    assert "example" in usage
    assert "\n  sluicegate demo\n" in usage


@pytest.mark.parametrize("argv", [[], ["dance"], ["demo", "tango"], ["demo", "--loud"]])
def test_wrong_usage_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*argv) == 2
    assert "usage: sluicegate" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_demo_lasts_a_finite_time_above_0(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("demo", "--seconds", wrong) == 2
    assert f"expected a finite number above 0, got {wrong!r}" in capsys.readouterr().err


def test_without_a_terminal_the_demo_does_not_wait_and_prints_plain_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: ManualClock
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["demo", "limits"], clock=clock) == 0
    assert clock.now() == 0.0
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert printed.replace("\n", " ").isprintable()
    assert printed.startswith("limiter ")
    assert "TokenBucket      100/s, burst 50    1500    1245" in printed


def test_a_dumb_terminal_gets_the_plain_text_at_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert main_in(terminal, "demo", "limits", clock=clock) == 0
    assert clock.now() == 0.0
    assert "\x1b" not in terminal.getvalue()


def test_json_is_one_object_with_a_row_for_each_limiter(
    capsys: pytest.CaptureFixture[str], clock: ManualClock
) -> None:
    assert main(["demo", "limits", "--seconds", "7.5", "--json"], clock=clock) == 0
    assert clock.now() == 0.0
    printed = json.loads(capsys.readouterr().out)
    assert printed["seconds"] == 7.5
    assert len(printed["rows"]) == 10
    assert {row["limit_per_second"] for row in printed["rows"]} == {100}


def test_in_a_terminal_the_demo_draws_for_its_seconds_and_closes_with_the_summary(
    terminal: Terminal, clock: ManualClock
) -> None:
    assert main_in(terminal, "demo", "limits", "--seconds", "3", clock=clock) == 0
    assert clock.now() == pytest.approx(3.0)
    drawing, closing = terminal.getvalue().split("\x1b[?1049l")
    assert "▄" in drawing
    assert "most in 1 s" in closing
    assert closing.endswith("docs/limits.md\n")


@pytest.mark.parametrize("ascii_only", ["stdout", "locale"])
def test_a_terminal_that_cannot_show_blocks_gets_none(
    ascii_only: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    if ascii_only == "stdout":
        monkeypatch.setattr(Terminal, "encoding", "ascii")
    else:
        monkeypatch.setattr(locale, "getencoding", lambda: "ANSI_X3.4-1968")
    assert main_in(terminal, "demo", "limits", "--seconds", "3", clock=clock) == 0
    assert terminal.getvalue().isascii()


def test_ctrl_c_ends_the_demo_with_its_summary_and_exit_code_0(terminal: Terminal) -> None:
    class Interrupted(ManualClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    assert main_in(terminal, "demo", "limits", clock=Interrupted()) == 0
    assert terminal.getvalue().endswith("docs/limits.md\n")


@pytest.mark.parametrize("what", ["quota", "limits"])
def test_without_rich_a_terminal_is_told_what_to_install(
    what: str,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main_in(terminal, "demo", what, clock=ManualClock()) == 1
    assert terminal.getvalue() == ""
    assert capsys.readouterr().err == "sluicegate demo needs rich to draw: pip install rich\n"


@pytest.mark.parametrize(("option", "start"), [("--json", b"{"), ("--seconds=9", b"limiter ")])
def test_without_a_terminal_rich_is_not_needed(option: str, start: bytes) -> None:
    script = (
        "import runpy, sys; sys.modules['rich'] = None; "
        f"sys.argv = ['sluicegate', 'demo', 'limits', '{option}']; "
        "runpy.run_module('sluicegate', run_name='__main__')"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=120
    )
    assert run.stdout.startswith(start)


@pytest.mark.parametrize(
    ("command", "imports"),
    [
        ("demo", {"demo", "limits", "pacing", "quota", "redis_client", "stores"}),
        ("limits", {"quota"}),
        ("simulate", set()),
        ("central", {"quota", "redis_client"}),
        ("node", set()),
        ("nginx-conf", {"quota"}),
        ("worker", set()),
        ("queue", set()),
    ],
)
def test_a_command_imports_only_what_it_needs(command: str, imports: set[str]) -> None:
    code = f"""
import contextlib, sys
from sluicegate.cli.main import main
with contextlib.suppress(SystemExit):
    main([{command!r}, "--help"])
print(*sorted({{name.split(".")[1] for name in sys.modules if name.startswith("sluicegate.")}}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    known_to_all = {
        "cli",
        "clock",
        "errors",
        "_key_normalize",
        "_lazy",
        "_prometheus",
        "_validate",
        "shm",
    }
    assert set(run.stdout.splitlines()[-1].split()) <= imports | known_to_all


@pytest.mark.parametrize(
    ("name", "part"), [("Keyed", "quota"), ("Node", "quota.central"), ("Node", "quota.ledger")]
)
def test_a_public_name_imports_only_its_part(name: str, part: str) -> None:
    code = f"import sys; from sluicegate import {name}; print('sluicegate.{part}' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
