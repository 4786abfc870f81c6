"""The files of `deploy/`, as far as they can be checked without a machine to deploy to.

systemd itself reads the units, the schema of Compose the compose file, and our own command line the
commands in both.
"""

import argparse
import importlib
import os
import shlex
import shutil
import string
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_pydantic import ComposeSpecification

from tests.harness.servers import ROOT
from tests.harness.waits import PATIENCE

DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").glob("*.service"))
INSTALLED = "/opt/sluicegate/bin/sluicegate"


def parse(words: list[str]) -> argparse.Namespace:
    """The arguments of a command, as `sluicegate` itself reads them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    importlib.import_module(f"sluicegate.cli.{words[0]}").configure(parser)
    return parser.parse_args(words[1:])


def command_of(unit: str, variables: dict[str, str]) -> list[str]:
    """The words of a unit's ExecStart, after the program."""
    lines = (DEPLOY / "systemd" / unit).read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ExecStart=")]
    program, *words = shlex.split(line.removeprefix("ExecStart="))
    assert program == INSTALLED
    filled: list[str] = []
    for word in words:
        text = string.Template(word.replace("%i", "translate")).substitute(variables)
        # A variable without braces is as many words as it has, for systemd: here often none.
        filled += text.split() if word == "$OPTIONS" else [text]
    return filled


def example_variables() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "central.env").read_text().splitlines()
    pairs = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    of_systemd = {"STATE_DIRECTORY": "/var/lib/x", "CREDENTIALS_DIRECTORY": "/run/credentials/x"}
    return pairs | of_systemd


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        message = "no systemd-analyze: install systemd (Debian: apt-get install systemd)"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    # The program must be there: the one of this environment stands for the installed one.
    text = (DEPLOY / "systemd" / unit).read_text().replace(INSTALLED, sys.executable)
    path = tmp_path / unit.replace("@", "@translate")
    path.write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_of_the_units_are_ours() -> None:
    variables = example_variables()
    central = parse(command_of("sluicegate-central.service", variables))
    assert (central.name, central.election) == ("a", "paxos")
    assert central.peers["a"] == f"ws://{central.listen}"
    variables["OPTIONS"] = "--lease 3"
    assert parse(command_of("sluicegate-central.service", variables)).lease == 3.0
    witness = parse(command_of("sluicegate-witness.service", {**variables, "NAME": "c"}))
    assert witness.name in witness.peers
    options = {"FUNCTION": "app:translate", "REDIS": "redis://10.0.0.5"}
    worker = parse(command_of("sluicegate-worker@.service", options))
    assert (worker.function, worker.queue) == ("app:translate", ["translate"])


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def test_the_compose_file_fits_its_schema() -> None:
    document = compose()
    extensions = {name for name in document if name.startswith("x-")}
    ComposeSpecification.model_validate({k: v for k, v in document.items() if k not in extensions})


def test_the_centrals_of_the_compose_file_differ_in_their_names_alone() -> None:
    services = compose()["services"]
    centrals = {name: parse(one["command"]) for name, one in services.items() if name != "redis"}
    assert len(centrals) == 3
    for name, arguments in centrals.items():
        assert arguments.name == name
        assert arguments.peers == {peer: f"ws://{peer}:7411" for peer in centrals}
        assert f"{name}:/var/lib/sluicegate" in services[name]["volumes"]
        assert arguments.state.startswith("/var/lib/sluicegate/")
    others = [{**vars(one), "name": "", "parser": None} for one in centrals.values()]
    assert others[0] == others[1] == others[2]


def test_the_image_installs_extras_that_there_are() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    extras = text.split("/source[")[1].split("]")[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])
