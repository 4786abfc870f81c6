"""`StatusPoller`: polls the status and the limits of the demo's central over its HTTP API.

It has a thread, because a central that is stopped does not answer, and the screen goes on. The last
answer is one immutable value, so readers take no lock.
"""

import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from sluicegate.demo.traffic import SERVICE

__all__ = ["CentralStatus", "StatusPoller", "UserLimit"]

_EVERY = 0.5  # seconds
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
    """Polls the central at a URL, from `with` to its end."""

    def __init__(self, url: str) -> None:
        self.status = CentralStatus()
        self._address = url.removeprefix("http://")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status-poller", daemon=True)

    def _poll(self) -> None:
        while not self._is_over.is_set():
            try:
                self.status = self._ask()
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                self.status = replace(self.status, is_answering=False)
            self._is_over.wait(_EVERY)

    def _ask(self) -> CentralStatus:
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT)
        try:
            status = _get(connection, "/api/status")
            table = _get(connection, f"/api/limits?service={SERVICE}")
        finally:
            connection.close()
        return CentralStatus(
            is_answering=True,
            name=status["name"],
            role=status["role"],
            epoch=status["epoch"],
            slot=status["slot"],
            limits={
                entry["user"]: UserLimit(
                    {name: each for name, each in entry.items() if name not in _NO_RESOURCES},
                    entry["burst_seconds"],
                )
                for entry in table["limits"]
            },
        )

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


def _get(connection: http.client.HTTPConnection, path: str) -> dict[str, Any]:
    connection.request("GET", path)
    response = connection.getresponse()
    body = json.loads(response.read())
    if response.status != 200 or not isinstance(body, dict):
        raise ValueError(f"unexpected answer to GET {path}: status {response.status}, expected 200")
    return body
