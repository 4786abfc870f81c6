"""A node and the real central: tokens, TLS, two services' worth of messages over real sockets."""

import contextlib
import logging
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from sluicegate import Central, Node
from sluicegate.demo.process import random_loopback
from sluicegate.quota import Entry
from tests.harness.waits import PATIENCE, wait_for

NODE, ADMIN = "node-token-1", "admin-token-1"
LIMITS = [Entry("front", "ann", rates={"requests": 50.0})]
ONE = {"requests": 1.0}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "central.crt", folder / "central.key"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return cert, key


def test_a_node_with_its_token_gets_its_shares_over_tls(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    with (
        Central(
            LIMITS,
            listen="127.0.0.1:0",
            node_token=NODE,
            admin_token=ADMIN,
            tls_cert=str(cert),
            tls_key=str(key),
        ) as central,
        Node(
            central.url,
            node_id="web",
            services=["front"],
            token=NODE,
            ca_file=cert,
            shared=str(tmp_path / "memory"),
        ) as node,
    ):
        assert node.centrals[0].startswith("wss://127.0.0.1:")
        node.consume("front", "ann", {"requests": 1.0})
        wait_for(lambda: node.allows("front", "ann") and "fresh" in node.status().users["front"])


def test_a_certificate_that_is_not_trusted_is_an_error_that_says_so(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    tls = {"tls_cert": str(cert), "tls_key": str(key)}
    with (
        Central(LIMITS, listen="127.0.0.1:0", **tls) as central,  # type: ignore[arg-type]
        Node(
            central.url, node_id="web", services=["front"], shared=str(tmp_path / "memory")
        ) as node,
    ):
        wait_for(lambda: node.status().centrals and node.status().centrals[0].last_error)
        assert "CERTIFICATE_VERIFY_FAILED" in str(node.status().centrals[0].last_error)


@pytest.mark.parametrize("token", [None, "wrong-token"])
def test_a_node_without_the_token_is_denied_and_says_so(token: str | None, tmp_path: Path) -> None:
    with (
        Central(LIMITS, listen="127.0.0.1:0", node_token=NODE, admin_token=ADMIN) as central,
        Node(
            central.url,
            node_id="web",
            services=["front"],
            token=token,
            shared=str(tmp_path / "memory"),
        ) as node,
    ):
        wait_for(lambda: node.status().centrals and node.status().centrals[0].last_error)
        assert "denied" in str(node.status().centrals[0].last_error)
        assert node.allows("front", "ann")  # the fallback holds


def test_a_thin_user_passes_on_every_node_that_waits_for_the_leaders_answer(
    tmp_path: Path,
) -> None:
    """Half of 3 requests per second, on one node after the other."""
    rate, burst = 3.0, 10.0
    thin = Entry("front", "ann", rates={"requests": rate}, burst_seconds=burst)
    with contextlib.ExitStack() as stack:
        central = stack.enter_context(Central([thin], listen="127.0.0.1:0"))
        nodes = [
            stack.enter_context(
                Node(
                    central.url,
                    node_id=f"web-{i}",
                    services=["front"],
                    shared=str(tmp_path / f"{i}"),
                )
            )
            for i in range(3)
        ]
        for node in nodes:
            wait_for(lambda node=node: node._user_table.header.wait_seconds > 0.0)
        passed, began = 0, time.monotonic()

        def passes(node: Node) -> bool:
            nonlocal passed
            if not node.allows("front", "ann", ONE, wait=None):
                return False  # the machine was busy, and the answer late
            passed += 1
            node.consume("front", "ann", ONE)
            return True

        for turn in range(4 * len(nodes)):
            node = nodes[turn % len(nodes)]
            wait_for(lambda node=node: passes(node), seen=lambda node=node: node.status())
        for node in nodes:
            wait_for(lambda node=node: node.status().users == {"front": {"fresh": 1}})
        assert passed == 12 <= rate * (burst + time.monotonic() - began)


def test_a_node_with_another_slot_length_is_refused_with_the_reason(tmp_path: Path) -> None:
    with (
        Central(LIMITS, listen="127.0.0.1:0", slot_seconds=0.5) as central,
        Node(
            central.url, node_id="web", services=["front"], shared=str(tmp_path / "memory")
        ) as node,
    ):
        wait_for(lambda: node.status().centrals and node.status().centrals[0].last_error)
        assert "slot" in str(node.status().centrals[0].last_error)


def test_a_service_that_the_central_does_not_know_is_told_once_and_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.quota.node")

    def told() -> list[tuple[str, str]]:
        return [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if "limits for service" in record.getMessage()
        ]

    warning = (
        "WARNING",
        "central has no limits for service 'frnt': its users are not limited",
    )
    relief = "INFO", "central now has limits for service 'frnt'"
    with (
        Central(LIMITS, listen="127.0.0.1:0", slot_seconds=0.1) as central,
        Node(
            central.url,
            node_id="web",
            services=["front", "frnt"],
            slot_seconds=0.1,
            shared=str(tmp_path / "memory"),
        ) as node,
    ):
        wait_for(lambda: told() == [warning])
        slot = node.status().slot
        assert slot is not None
        wait_for(lambda: (node.status().slot or 0) > slot + 3)
        assert told() == [warning]
        assert node.status().unlimited == ("frnt",)
        assert 'sluicegate_node_service_unlimited{node="web",service="frnt"} 1' in node.metrics()
        limits = f"{central.url}/api/limits"
        entry = {"service": "frnt", "user": "*", "requests": 5}
        httpx.put(limits, json=entry, timeout=PATIENCE).raise_for_status()
        wait_for(lambda: told() == [warning, relief])
        assert node.status().unlimited == ()
        place = {"service": "frnt", "user": "*"}
        httpx.delete(limits, params=place, timeout=PATIENCE).raise_for_status()
        wait_for(lambda: told() == [warning, relief, warning])


def test_a_leader_that_is_away_is_told_and_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.quota.node")

    def told() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if message.startswith("leader ")]

    options = {"name": "a", "listen": f"{random_loopback()}:7411", "state": tmp_path / "state"}
    with contextlib.ExitStack() as running:
        with Central(LIMITS, **options) as central:
            node = running.enter_context(
                Node(
                    central.url,
                    node_id="web",
                    services=["front"],
                    shared=str(tmp_path / "memory"),
                )
            )
            wait_for(lambda: node.status().leader is not None)
            url = central.ws_url
        wait_for(told)
        assert told() == [f"leader {url}/ is not heard: users of front live on their safe shares"]
        running.enter_context(Central(LIMITS, **options))
        wait_for(lambda: len(told()) == 2)
        assert told()[1].startswith(f"leader {url}/ is heard, epoch ")


@pytest.mark.parametrize(("rate", "burst_seconds"), [(0.001, 20_000.0), (20.0, 1.0)])
def test_a_restart_of_the_only_worker_books_each_request_once_and_spends_no_old_credit(
    rate: float, burst_seconds: float, tmp_path: Path
) -> None:
    """A central forgets a node that leaves, and takes its credit back."""
    limit = Entry("front", "ann", rates={"requests": rate}, burst_seconds=burst_seconds)
    begin = time.monotonic()
    with Central([limit], listen="127.0.0.1:0") as central:
        assert central.registry is not None
        ledger = central.registry.state.ledger
        passed = 0
        for _ in range(4):
            with Node(
                central.url, node_id="web", services=["front"], shared=str(tmp_path / "memory")
            ) as node:
                wait_for(
                    lambda node=node: any(each.is_connected for each in node.status().centrals)
                )
                for _ in range(30):
                    if node.allows("front", "ann", ONE):
                        node.consume("front", "ann", ONE)
                        passed += 1
        wait_for(lambda: ledger.recorded("front", "ann", "requests") >= passed)
        assert ledger.recorded("front", "ann", "requests") == passed
        # A bucket begins with the refill of a slot, and the node with the fallback of one.
        assert 1 <= passed <= rate * (time.monotonic() - begin + 1.0) + 10.0 + 1.0
