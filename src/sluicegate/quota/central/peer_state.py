"""Takes the state of a peer over HTTP: what a central that starts knows of the fleet.

All peers are asked at once, within a time limit: a start must not wait for a peer that hangs. The
newest answer is taken, by the newest report that is booked in it. An answer is the epoch and a
snapshot, as in a state file; nothing of it is used before its check sums are compared. Redirects
are not followed: the token is for the configured peers only.
"""

import contextlib
import http.client
import json
import logging
import queue
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sluicegate.errors import ConfigError
from sluicegate.quota.central.state_file import unpack_state
from sluicegate.quota.ledger.snapshot import newest_report

__all__ = ["MAX_STATE_BYTES", "PeerState", "fetch_newest_state"]

_logger = logging.getLogger("sluicegate.quota")

MAX_STATE_BYTES = 512 << 20
_PIECE_BYTES = 1 << 20
_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class PeerState:
    """What a peer knew; `slot` is that of the newest report it has booked."""

    peer: str
    epoch: int
    slot: int
    snapshot: bytes = field(repr=False)


def fetch_newest_state(
    peers: Mapping[str, str],
    token: str | None,
    tls: ssl.SSLContext | None,
    seconds: float = _SECONDS,
) -> PeerState | None:
    """The newest state of all peers that answer in time; None: there is none. Blocks."""
    end = time.monotonic() + seconds
    answers: queue.SimpleQueue[PeerState | str] = queue.SimpleQueue()

    def ask(peer: str, url: str) -> None:
        try:
            answers.put(_fetch(peer, url, token, tls, end))
        except (OSError, http.client.HTTPException, ConfigError, ValueError) as error:
            answers.put(f"{peer}: {error}")

    for peer, url in peers.items():
        threading.Thread(target=ask, args=(peer, url), daemon=True).start()
    states: list[PeerState] = []
    for _ in peers:
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=max(end - time.monotonic(), 0.001))
            if isinstance(answer, PeerState):
                states.append(answer)
            else:
                _logger.info("no state from peer %s", answer)
    return max(states, key=lambda state: state.slot, default=None)


def _fetch(
    peer: str, url: str, token: str | None, tls: ssl.SSLContext | None, end: float
) -> PeerState:
    parts = urlsplit(url)
    assert parts.hostname is not None
    timeout = max(end - time.monotonic(), 0.1)
    connection: http.client.HTTPConnection
    if parts.scheme == "wss":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout, context=tls
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    with contextlib.closing(connection):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/api/state", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            message = _error_message(response.read(500))
            raise ConfigError(f"HTTP status {response.status}: {message}")
        epoch, snapshot = unpack_state(_read(response, end))
        return PeerState(peer, epoch, newest_report(snapshot), snapshot)


def _error_message(body: bytes) -> str:
    """What a peer says instead of its state, on one line: an error of the API, or plain text."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["error_message"])
    return " ".join(text.split())


def _read(response: http.client.HTTPResponse, end: float) -> bytes:
    body = bytearray()
    while piece := response.read(_PIECE_BYTES):
        body += piece
        if len(body) > MAX_STATE_BYTES:
            raise ConfigError(f"the state is too large: expected at most {MAX_STATE_BYTES} bytes")
        if time.monotonic() > end:
            raise ConfigError(f"the state did not arrive in time, got {len(body)} bytes")
    return bytes(body)
