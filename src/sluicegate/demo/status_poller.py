"""`CentralWatch`: what the central says of itself and of its limits, asked all the time.

In a thread, because a central that is stopped does not answer, and the screen goes on. What it
has last heard is one immutable value, so nobody waits for anybody.
"""

import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from sluicegate.demo.quota_users import RESOURCE, SERVICE

__all__ = ["CentralStatus", "CentralWatch", "Terms"]

_EVERY = 0.5  # seconds
_TIMEOUT = 0.7


@dataclass(frozen=True, slots=True)
class Terms:
    """The limit of a user: units per second (None: there is none), and what may be saved."""

    limit: float | None
    burst_seconds: float


@dataclass(frozen=True, slots=True)
class CentralStatus:
    """What was heard last. While it does not answer, the rest is as it was."""

    answers: bool = False
    name: str = ""
    role: str = ""
    epoch: int = -1
    slot: int = -1
    terms: Mapping[str, Terms] = field(default_factory=dict)

    def terms_of(self, user: str) -> Terms:
        return self.terms.get(user) or self.terms.get("*") or Terms(None, 0.0)


class CentralWatch:
    """Asks the central at a URL, from `with` to its end."""

    def __init__(self, url: str) -> None:
        self.status = CentralStatus()
        self._address = url.removeprefix("http://")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="central-watch", daemon=True)

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                self.status = self._ask()
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                self.status = replace(self.status, answers=False)
            self._is_over.wait(_EVERY)

    def _ask(self) -> CentralStatus:
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT)
        try:
            status = _get(connection, "/api/status")
            limits = _get(connection, f"/api/limits?service={SERVICE}")
        finally:
            connection.close()
        return CentralStatus(
            answers=True,
            name=status["name"],
            role=status["role"],
            epoch=status["epoch"],
            slot=status["slot"],
            terms={
                entry["user"]: Terms(entry.get(RESOURCE), entry["burst_seconds"])
                for entry in limits["limits"]
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
        raise ValueError(f"{path} answers {response.status}")
    return body
