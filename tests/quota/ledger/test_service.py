"""Services that other packages bring along, found by their entry points."""

import sys
from pathlib import Path

import pytest

from sluicegate.errors import ConfigError
from sluicegate.quota import Entry, Ledger, installed_services
from sluicegate.quota.messages import Report, Share

PLUGIN = """
from sluicegate.quota.messages import Share

class Seven:
    def __init__(self, name, service_ledger):
        self.name = name

    def consume(self, slot, usage):
        pass

    def assign(self, slot):
        pass

    def quota(self, slot, node_id):
        return {"everyone": {self.name: Share(7.0, 1.0)}}
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """A package as pip would leave it: a module, and a dist-info that names an entry point."""
    (directory / "seven_plugin.py").write_text(PLUGIN)
    info = directory / "seven-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seven\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sluicegate.quota.services]\nfront = {target}\n")
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "seven_plugin", raising=False)


def test_an_installed_service_takes_the_place_of_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "seven_plugin:Seven")
    services = installed_services()
    assert list(services) == ["front"]
    entries = [Entry(name, "*", rates={"requests": 5.0}) for name in ("front", "back")]
    ledger = Ledger(entries, services=services)
    ledger.book(1000, Report("n", 1, 1, 1, 0, 999, 0.0, {}))
    ledger.assign(1000)
    quota = ledger.quota(1000, "n")
    assert quota["front"].users == {"everyone": {"front": Share(7.0, 1.0)}}
    assert quota["back"].users == {}


def test_a_service_that_cannot_be_loaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "seven_plugin:Eight")
    with pytest.raises(
        ConfigError, match="service 'front' of the entry point 'seven_plugin:Eight'"
    ):
        installed_services()
