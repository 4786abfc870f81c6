"""A witness and those that are no peers: they cannot take its vote, nor fill its log."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from sluicegate.quota.central.net.connection import PEER
from sluicegate.quota.central.witness import Witness
from tests.harness.waits import PATIENCE, wait_until

PEERS = {name: f"ws://127.0.0.1:{port}" for port, name in enumerate("abw", 1)}


def test_silent_connections_do_not_keep_peers_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            witness = Witness("w", PEERS, "127.0.0.1:0", tmp_path / "w.state")
            await stack.enter_async_context(witness)
            address = urlsplit(witness.url)
            readers = []
            for _ in range(120):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                stack.callback(writer.close)
                readers.append(reader)
            for reader in readers[:20]:  # the longest silent are closed
                with pytest.raises((ConnectionError, EOFError)):
                    await asyncio.wait_for(reader.readexactly(1), PATIENCE)
            url, headers = f"ws://{address.netloc}/", {"Sluicegate-Peer": "a"}
            peer = await connect(url, subprotocols=[PEER], additional_headers=headers)
            await stack.enter_async_context(peer)
            await wait_until(lambda: "a" in witness._transport._accepted)
            assert len(witness._silent) <= 50

    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))


def test_what_is_no_handshake_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Witness("w", PEERS, "127.0.0.1:0", tmp_path / "w.state") as witness:
            address = urlsplit(witness.url)
            for garbage in (b"\x00\xff\r\n\r\n", b"GET /api/state HTTP/1.1\r\n\r\n"):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(garbage)
                await asyncio.wait_for(reader.read(), PATIENCE)
                writer.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))
    assert "Traceback" not in caplog.text
    assert "handshake failed" not in caplog.text
    assert "connection rejected" not in caplog.text
