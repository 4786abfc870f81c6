"""Limits changed while a real central runs: a node hears of it, and the API tells of the node."""

import contextlib
import json
import math
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from sluicegate.cli.main import main
from sluicegate.errors import ConfigError
from sluicegate.quota import Central, Entry
from sluicegate.quota.central.limit_sources import open_source
from sluicegate.quota.central.limit_sources.memory import MemoryLimits
from sluicegate.quota.messages import Ack, Ask, Quota, UserAsk
from tests.harness.central import SLOT, V1Node, running, slot_of
from tests.harness.loop_turns import timed_turns
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_for

Change = Callable[[float], None]

QUICK = 0.2  # seconds: slots that a change is in force after


def share_of(message: object) -> float | None:
    """The safe share of ann that a node is told, in any quota. None: nothing is said."""
    if not isinstance(message, Quota) or "front" not in message.services:
        return None
    shares = message.services["front"].users.get("ann")
    if shares is None:
        return None
    return shares["requests"].safe if shares else math.inf


def wait_for_share(central: Central, node: V1Node, least: float, most: float) -> None:
    """Report and ask again and again, until ann's share is as it should be."""
    shares: list[float] = []

    def is_told() -> bool:
        slot = slot_of(central)
        node.send(node.message(slot - 1))
        node.send(Ask(node.node, 1, 1.5, {"front": {"ann": UserAsk(1, {})}}))
        while not isinstance(message := node.read(), Ack):
            if (share := share_of(message)) is not None:
                shares.append(share)
        return bool(shares) and least <= shares[-1] <= most

    wait_for(is_told, seen=lambda: shares)


def toml_file(folder: Path) -> tuple[object, Change]:
    path = folder / "limits.toml"

    def change(rate: float) -> None:
        text = f'[[limit]]\nservice = "front"\nuser = "*"\nburst_seconds = 0\nrequests = {rate}\n'
        path.with_suffix(".new").write_text(text)
        os.replace(path.with_suffix(".new"), path)

    return path, change


def database(folder: Path) -> tuple[object, Change]:
    """Changed by another process, as it looks to the central."""
    path = folder / "limits.db"

    def change(rate: float) -> None:
        other = open_source(path)
        other.put(Entry("front", "*", 0.0, {"requests": rate}))
        other.close()

    return path, change


@pytest.mark.parametrize("make", [toml_file, database])
def test_a_node_hears_of_limits_that_were_changed_in_their_place(
    tmp_path: Path, make: Callable[[Path], tuple[object, Change]]
) -> None:
    limits, change = make(tmp_path)
    change(50.0)
    with running(limits=limits, slot_seconds=QUICK) as central, V1Node(central) as node:
        wait_for_share(central, node, 1.0, 50 * QUICK)
        change(5000.0)
        wait_for_share(central, node, 51 * QUICK, 5000 * QUICK)


def test_a_node_hears_of_limits_that_were_set_by_command(
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.quota.central.limit_sources.redis_hash._TIMEOUT", PATIENCE)
    options = {"limits": redis_server.url, "slot_seconds": QUICK}
    with running(**options) as one, running(**options) as other, V1Node(other) as node:
        for rate, least in ((50.0, 1.0), (5000.0, 51 * QUICK)):
            words = ["front", "*", f"requests={rate}", "--burst-seconds", "0"]
            assert main(["limits", "set", *words, "--url", one.url]) == 0
            wait_for_share(other, node, least, rate * QUICK)
    assert capsys.readouterr().err == ""


def test_the_api_tells_of_a_node_and_its_user() -> None:
    limits = [Entry("front", "*", rates={"requests": 100.0})]
    with running(limits=limits) as central, V1Node(central, "node-7") as node:
        wait_for_share(central, node, 1.0, 100 * SLOT)
        node.report(slot_of(central) - 1, ann=8.0)
        with httpx.Client(base_url=central.url, timeout=PATIENCE) as client:
            (told,) = client.get("/api/nodes").json()["nodes"]
            assert (told["name"], told["kind"], told["live"]) == ("node-7", "sluicegate.v1", True)
            assert told["quota_age"] is not None
            assert recorded(client) == 8.0
            assert client.get("/healthz").text == "ok"
            metrics = client.get("/metrics").text
    assert 'sluicegate_central_frames_total{kind="report"}' in metrics
    assert "sluicegate_central_nodes_live 1.0" in metrics
    assert "sluicegate_central_overshoot_count" in metrics


def recorded(client: httpx.Client) -> float:
    users = client.get("/api/usage", params={"user": "ann"}).json()["users"]
    return float(users[0]["resources"]["requests"]["recorded"]) if users else 0.0


def test_many_limits_at_once_do_not_hold_up_the_nodes() -> None:
    """They were read on the loop: with 30,000 of them nobody was answered for half a second."""
    tables = [{"service": "front", "user": f"user {n}", "requests": n} for n in range(30_000)]
    body = json.dumps({"limits": tables}).encode()
    turns: list[float] = []
    with timed_turns(turns.append), running() as central, V1Node(central) as node:
        node.report(slot_of(central) - 1)
        turns.clear()
        answer = httpx.put(f"{central.url}/api/limits", content=body, timeout=PATIENCE)
        assert answer.status_code == 200
        node.report(slot_of(central) - 1)
        assert central.registry is not None
        assert len(central.registry.limits_sync.entries) == 30_000
        longest = max(turns)
    assert longest < 0.05


class HangsLater(MemoryLimits):
    """Limits of which nobody knows whether they have changed."""

    def __init__(self) -> None:
        super().__init__([Entry("front", "*", rates={"requests": 100.0})])
        self.asked = 0
        self.goes_on = threading.Event()
        self.has_answered = False

    def version_token(self) -> object:
        self.asked += 1
        if self.asked > 1:
            self.goes_on.wait(PATIENCE)
            self.has_answered = True
        return super().version_token()


def test_limits_that_hang_do_not_keep_silent_callers_or_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.quota.central.net.http_protocol._REQUEST_SECONDS", 0.3)
    limits = HangsLater()
    with running(limits=limits) as central:
        wait_for(lambda: limits.asked > 1)
        host, _, port = central.url.removeprefix("http://").partition(":")
        with (
            socket.create_connection((host, int(port)), timeout=PATIENCE) as caller,
            contextlib.suppress(ConnectionResetError),
        ):
            assert caller.recv(1000) == b""
    assert not limits.has_answered
    limits.goes_on.set()


def test_a_central_without_its_limits_does_not_start(tmp_path: Path) -> None:
    central = Central(tmp_path / "none.toml", listen="127.0.0.1:0")
    with pytest.raises(ConfigError, match="cannot read .*none.toml"), central:
        pass
