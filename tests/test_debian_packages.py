"""What make does about missing packages of Debian, with programs that note how they are run."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.harness.servers import ROOT
from tests.harness.waits import PATIENCE

SCRIPT = ROOT / "tests" / "debian_packages.sh"
INSTALL = (
    "apt-get install -y -qq --no-install-recommends --no-remove -o DPkg::Lock::Timeout=120 "
    "{packages} (runlevel 1)"
)


class Machine:
    """A folder of programs that stand for those of a machine."""

    def __init__(self, folder: Path, *, user: int = 0, installed: str = "", init: str = "") -> None:
        self._folder = folder
        self._log = folder / "log"
        self._log.touch()
        for name in ("grep", "head"):
            self.add(name, f'exec /usr/bin/env PATH=/usr/bin:/bin {name} "$@"')
        self.add("id", f"echo {user}")
        # `dpkg-query --show --showformat=... PACKAGE`
        self.add(
            "dpkg-query", f'case " {installed} " in *" $3 "*) echo installed ;; *) exit 1 ;; esac'
        )
        noted = f'echo "${{0##*/}} $*${{RUNLEVEL:+ (runlevel $RUNLEVEL)}}" >> {self._log}'
        self.add("apt-get", noted)
        self.add("update-rc.d", noted)
        if init:
            self.add("systemctl", f'[ "$1" = is-system-running ] && echo {init} || {noted}')

    def add(self, name: str, line: str) -> None:
        program = self._folder / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()

    def run(self, *packages: str) -> tuple[str, list[str]]:
        """What the script prints, and the programs that it runs."""
        ran = subprocess.run(
            ["/bin/sh", str(SCRIPT), "make test", *packages],
            env={"PATH": str(self._folder)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout, self._log.read_text().splitlines()


def test_nothing_is_done_when_all_packages_are_installed(tmp_path: Path) -> None:
    assert Machine(tmp_path, installed="nginx luajit2").run("nginx", "luajit2") == ("", [])


@pytest.mark.parametrize(("user", "has_apt"), [(1000, True), (0, False)])
def test_without_root_or_apt_get_one_line_says_what_to_install(
    user: int, has_apt: bool, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, user=user, installed="nginx")
    if not has_apt:
        machine.remove("apt-get")
    said = "sluicegate: some of make test is skipped without Debian packages: "
    assert machine.run("nginx", "luajit2", "wrk") == (f"{said}apt-get install luajit2 wrk\n", [])


def test_root_installs_what_is_missing_and_no_more(tmp_path: Path) -> None:
    printed, ran = Machine(tmp_path, installed="nginx", init="running").run("nginx", "luajit2")
    assert printed == "sluicegate: installing luajit2\n"
    assert ran == ["apt-get update -qq (runlevel 1)", INSTALL.format(packages="luajit2")]


@pytest.mark.parametrize("state", ["running", "degraded", "starting"])
def test_under_systemd_a_new_nginx_is_neither_started_nor_enabled(
    state: str, tmp_path: Path
) -> None:
    _, ran = Machine(tmp_path, init=state).run("nginx")
    assert [line.removesuffix(" (runlevel 1)") for line in ran] == [
        "systemctl --runtime mask nginx.service",
        "apt-get update -qq",
        INSTALL.format(packages="nginx").removesuffix(" (runlevel 1)"),
        "systemctl --runtime unmask nginx.service",
        "systemctl disable nginx.service",
    ]


@pytest.mark.parametrize("state", ["", "offline"])
def test_without_systemd_runlevel_1_keeps_a_new_nginx_from_starting(
    state: str, tmp_path: Path
) -> None:
    _, ran = Machine(tmp_path, init=state).run("nginx")
    assert ran == [
        "apt-get update -qq (runlevel 1)",
        INSTALL.format(packages="nginx"),
        "update-rc.d nginx disable (runlevel 1)",
    ]


def test_an_installation_that_fails_is_one_line_and_no_failure(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.add("apt-get", 'echo "Reading lists"; echo "E: Unable to fetch" >&2; exit 100')
    assert machine.run("wrk")[0] == (
        "sluicegate: installing wrk\nsluicegate: could not install wrk: E: Unable to fetch\n"
    )


def test_make_asks_for_packages_that_do_not_conflict() -> None:
    printed = subprocess.run(
        ["make", "--print-data-base", "--dry-run", "help"],
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    for what in ("test", "bench"):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"DEBIAN_{what} := ")]
        assert "nginx" in line.split()
        assert "luajit" not in line.split()
