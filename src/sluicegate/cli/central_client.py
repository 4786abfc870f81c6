"""`CentralClient`: the HTTP API of a central, for commands.

It needs only the standard library, so that it works on any machine that can reach the central. It
connects directly: no proxy, and no redirects, which could carry the token elsewhere.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from sluicegate.cli.output import printable
from sluicegate.errors import ConfigError, Unavailable, reason_of
from sluicegate.quota.central.net.tokens import read_tokens
from sluicegate.quota.ledger.limit_entry import Entry, to_dict

__all__ = ["CentralClient", "read_admin_token"]

_TIMEOUT = 10.0
_MOST_BYTES = 64 << 20
_PAGE = 10_000


class CentralClient:
    """Calls one central. `Unavailable` if it does not answer, `ConfigError` if it refuses."""

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
        """All entries, fetched page by page."""
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
        return self._ask("PUT", {}, to_dict(entry))

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
            reason = reason_of(error) or type(error).__name__
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
            reason = printable(answer.get("error_message", f"HTTP {status}"))
            if status == 401 and not self._fields:
                reason += " (--token-file, or the environment variable SLUICEGATE_TOKEN)"
            raise ConfigError(f"the central at {self._url} refuses: {reason}")
        return answer


def read_admin_token(path: str) -> str:
    """The admin token of a central's token file."""
    token = read_tokens(path).admin
    if token is None:
        raise ConfigError(
            f'the token file {path} must have admin = "TOKEN", or one line with the token'
        )
    return token
