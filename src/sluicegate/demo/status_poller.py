"""`StatusPoller`: polls the status and the limits of a central of the demo over its HTTP API.

It has a thread, because a central that is stopped does not answer, and the screen goes on. The last
answer is one immutable value, so readers take no lock.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from sluicegate.demo.traffic import SERVICE

__all__ = ["CentralStatus", "StatusPoller", "UserLimit"]

_EVERY = 0.5  # seconds
_LIMITS_EVERY = 0.5
_TIMEOUT = 0.7
_NO_RESOURCES = ("service", "user", "burst_seconds")  # of an entry


@dataclass(frozen=True, slots=True)
class UserLimit:
    """The limits of a user, per second of each resource that has one, and its burst."""

    limits: Mapping[str, float]
    burst_seconds: float


@dataclass(frozen=True, slots=True)
class CentralStatus:
    """The last answer. While the central does not answer, the rest is as it was."""

    is_answering: bool = False
    name: str = ""
    role: str = ""
    epoch: int = -1
    slot: int = -1
    limits: Mapping[str, UserLimit] = field(default_factory=dict)

    def limit_of(self, user: str) -> UserLimit:
        return self.limits.get(user) or self.limits.get("*") or UserLimit({}, 0.0)


class StatusPoller:
    """Polls the central at a URL, from `with` to its end.

    `saw_status` is called in the poller's thread with each answer, and with the moments of the
    monotonic clock before it was asked for and after it was received.
    """

    def __init__(
        self,
        url: str,
        *,
        every: float = _EVERY,
        saw_status: Callable[[CentralStatus, float, float], object] = lambda *seen: None,
    ) -> None:
        self.status = CentralStatus()
        self._every = every
        self._saw_status = saw_status
        self._limits_at = 0.0  # monotonic time of the next look at the limits
        self._address = url.removeprefix("http://")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status-poller", daemon=True)

    def _poll(self) -> None:
        while not self._is_over.is_set():
            try:
                self._ask()
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                self.status = replace(self.status, is_answering=False)
            self._is_over.wait(self._every)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT)
        try:
            asked = time.monotonic()
            status = _get(connection, "/api/status")
            answered = time.monotonic()
            limits = self.status.limits
            if asked >= self._limits_at:
                limits = _limits(_get(connection, f"/api/limits?service={SERVICE}"))
                self._limits_at = asked + _LIMITS_EVERY
        finally:
            connection.close()
        self.status = CentralStatus(
            is_answering=True,
            name=status["name"],
            role=status["role"],
            epoch=status["epoch"],
            slot=status["slot"],
            limits=limits,
        )
        self._saw_status(self.status, asked, answered)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()


def _limits(table: Mapping[str, Any]) -> dict[str, UserLimit]:
    return {
        entry["user"]: UserLimit(
            {name: each for name, each in entry.items() if name not in _NO_RESOURCES},
            entry["burst_seconds"],
        )
        for entry in table["limits"]
    }


def _get(connection: http.client.HTTPConnection, path: str) -> dict[str, Any]:
    connection.request("GET", path)
    response = connection.getresponse()
    body = json.loads(response.read())
    if response.status != 200 or not isinstance(body, dict):
        raise ValueError(f"unexpected answer to GET {path}: status {response.status}, expected 200")
    return body
