"""`sluicegate limits`: list, set and remove limits of a running central, over its HTTP API.

It needs the standard library alone, so that it works on any machine from which the central can
be reached. It goes there directly: no proxy, and no redirection, which could carry the token
elsewhere. What comes back is printed without control characters.
"""

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode, urlsplit

from sluicegate.errors import ConfigError, Unavailable
from sluicegate.quota.central.tokens import read_tokens
from sluicegate.quota.entries import Entry, table_of

__all__ = ["CentralClient", "parse_rates", "read_admin_token", "table", "warnings"]

_TIMEOUT = 10.0
_MOST_BYTES = 64 << 20
_PAGE = 10_000
_MOST_WARNINGS = 10


class CentralClient:
    """Asks one central. `Unavailable` when it does not answer, `ConfigError` when it refuses."""

    def __init__(self, url: str, *, token: str | None = None, ca: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(f"--url must be like http://127.0.0.1:7411, got {url!r}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigError("the token must be one line of printable ASCII")
        try:
            self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        except OSError as error:
            raise ConfigError(f"--ca {ca}: {error}") from None
        self._url = url
        self._host = parts.hostname
        self._port = port
        self._path = parts.path.rstrip("/")
        self._fields = {"Authorization": f"Bearer {token}"} if token else {}

    def limits(self, service: str | None = None, user: str | None = None) -> dict[str, object]:
        """All of them, however many: the central tells so many at a time."""
        chosen = {"service": service, "user": user}
        asked = {name: value for name, value in chosen.items() if value is not None}
        told: list[object] = []
        while True:
            page = {"limit": str(_PAGE), "offset": str(len(told))}
            answer = self._ask("GET", asked | page)
            some = answer.get("limits")
            if not isinstance(some, list):
                raise Unavailable(f"{self._url} answers, but not as a central does")
            told += some
            if len(some) < _PAGE:
                return answer | {"limits": told}

    def set(self, entry: Entry) -> dict[str, object]:
        return self._ask("PUT", {}, table_of(entry))

    def remove(self, service: str, user: str) -> dict[str, object]:
        return self._ask("DELETE", {"service": service, "user": user})

    def _ask(
        self, method: str, query: Mapping[str, str], body: object | None = None
    ) -> dict[str, object]:
        path = f"{self._path}/api/limits" + (f"?{urlencode(query)}" if query else "")
        payload = None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            connection.request(method, path, payload, self._fields)
            response = connection.getresponse()
            data = response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"no answer from the central at {self._url}: {reason}") from None
        finally:
            connection.close()
        return self._read(response.status, data)

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=_TIMEOUT, context=self._tls
        )

    def _read(self, status: int, data: bytes) -> dict[str, object]:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Unavailable(f"{self._url} answers, but not as a central does: HTTP {status}")
        if status != 200:
            reason = _plain(answer.get("error_message", f"HTTP {status}"))
            raise ConfigError(f"the central at {self._url} refuses: {reason}")
        return answer


def parse_rates(words: Sequence[str]) -> dict[str, float]:
    """`["requests=50", "traffic_up=1e6"]` as rates; ValueError says which word is wrong."""
    rates: dict[str, float] = {}
    for word in words:
        resource, equals, number = word.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            equals = ""
        if not equals or not resource:
            raise ValueError(f"expected RESOURCE=RATE, such as requests=50, got {word!r}")
        if resource in rates:
            raise ValueError(f"expected {resource!r} once, got it twice")
        rates[resource] = rate
    return rates


def read_admin_token(path: str) -> str:
    """The admin token of a central's token file."""
    token = read_tokens(path).admin
    if token is None:
        raise ConfigError(
            f'the token file {path} must have admin = "TOKEN", or one line with the token'
        )
    return token


def table(limits: object) -> str:
    """Flat tables for people: a line for each entry."""
    rows = [["SERVICE", "USER", "BURST", "PER SECOND"]]
    for limit in limits if isinstance(limits, list) else []:
        if not isinstance(limit, dict):
            continue
        rates = " ".join(
            f"{_plain(name)}={_plain(rate)}"
            for name, rate in limit.items()
            if name not in ("service", "user", "burst_seconds")
        )
        burst = f"{_plain(limit.get('burst_seconds'))} s"
        rows.append([_plain(limit.get("service")), _plain(limit.get("user")), burst, rates])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        + "\n"
        for row in rows
    )


def warnings(answer: Mapping[str, object]) -> list[str]:
    """What the central says is wrong with the source of its limits, a line for each."""
    told = []
    if answer.get("error") is not None:
        told.append(f"the source cannot be read, older limits hold: {_plain(answer['error'])}")
    complaints = answer.get("complaints")
    if isinstance(complaints, list):
        told += [_plain(complaint) for complaint in complaints[:_MOST_WARNINGS]]
        if len(complaints) > _MOST_WARNINGS:
            told.append(f"and {len(complaints) - _MOST_WARNINGS} more like these")
    return told


def _plain(value: object) -> str:
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)
