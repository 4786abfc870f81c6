"""`EtcdGateway`: calls of the JSON gateway of an etcd cluster: fail-over, login, bounded replies.

A call goes to the endpoint that answered last, and to the next one when there is no answer within
the time-out, so it takes at most the time-out for each endpoint. An endpoint that answers with an
error of the cluster (no leader, a request that timed out there) has not answered either.

In the JSON of etcd, keys and values are base64, 64-bit integers are strings, and fields with the
value 0 are left out. https://etcd.io/docs/latest/dev-guide/api_grpc_gateway
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import urlsplit

from sluicegate.errors import ConfigError, ProtocolError, SluicegateError, Unavailable, describe

try:
    import httpx
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the election by etcd needs httpx: pip install httpx", name=_missing.name
    ) from None

__all__ = ["EtcdError", "EtcdGateway", "check_endpoints"]

MAX_REPLY_BYTES = 64 * 1024
# Codes of gRPC.
INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED = 3, 4, 5, 7
FAILED_PRECONDITION, UNAVAILABLE, UNAUTHENTICATED = 9, 14, 16
_OF_ANOTHER_ENDPOINT = (DEADLINE_EXCEEDED, UNAVAILABLE)  # worth a try


class EtcdError(Unavailable):
    """etcd answered with an error; `code` is that of gRPC."""

    def __init__(self, endpoint: str, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"etcd at {endpoint}: {message} (code {code})")


def check_endpoints(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """Return the URLs of endpoints without a slash at the end; one may be given as a str."""
    urls = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
    if not urls:
        raise ValueError("endpoints must have at least one URL, got none")
    for url in urls:
        if not isinstance(url, str):
            raise TypeError(f"endpoints must be URLs, got {url!r}")
        parts = urlsplit(url)
        try:
            has_host = bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            has_host = False
        if parts.scheme not in ("http", "https") or not has_host or parts.path not in ("", "/"):
            raise ValueError(f"endpoints must be like http://etcd-1:2379, got {url!r}")
        if parts.username is not None:
            raise ValueError(
                f"endpoints must not contain a login (use user= and password=), got one for "
                f"{parts.hostname!r}"
            )
    return tuple(url.rstrip("/") for url in urls)


class EtcdGateway:
    """The endpoints of one cluster. `timeout`: seconds for one call of one endpoint."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        login: tuple[str, str] | None,
        tls: ssl.SSLContext | None,
        timeout: float,
    ) -> None:
        self._endpoints = endpoints
        self._current = 0  # the endpoint that answered last
        self._login = login
        self._token: str | None = None
        self._timeout = timeout
        if tls is None:
            is_tls = any(url.startswith("https:") for url in endpoints)
            # An empty one is not used, and is quicker to make than the system's.
            tls = (
                ssl.create_default_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        # The transport alone, without a client around it: no proxies of the environment, no
        # redirections, and no line in the log for each request.
        self._transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False)

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply of the first endpoint that answers."""
        reasons: list[SluicegateError] = []
        for _ in self._endpoints:
            endpoint = self._endpoints[self._current]
            try:
                return await self._call_logged_in(endpoint, path, body)
            except EtcdError as error:
                if error.code not in _OF_ANOTHER_ENDPOINT:
                    raise
                reasons.append(error)
            except (Unavailable, ProtocolError, _Untrusted) as error:
                reasons.append(error)
            self.leave_endpoint()
        for reason in reasons:
            if isinstance(reason, ConfigError) or len(reasons) == 1:
                raise reason
        raise Unavailable("no endpoint of etcd answers: " + "; ".join(map(str, reasons)))

    async def watch(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of a watch at the current endpoint, without an end."""
        endpoint = self._endpoints[self._current]
        request = self._request(endpoint, "/v3/watch", body)
        try:
            response = await self._transport.handle_async_request(request)
            async with contextlib.aclosing(response):
                if response.status_code != 200:
                    raise _error(endpoint, response.status_code, await _read(endpoint, response))
                buffer = b""
                async for chunk in response.aiter_raw():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        yield _parse(endpoint, line)
                    if len(buffer) > MAX_REPLY_BYTES:
                        raise _too_large(endpoint)
        except httpx.HTTPError as error:
            raise Unavailable(f"lost the watch of etcd at {endpoint}: {describe(error)}") from None

    def leave_endpoint(self) -> None:
        """Go to the next endpoint."""
        self._current = (self._current + 1) % len(self._endpoints)

    def log_out(self) -> None:
        """Forget the token; the next call asks for another one."""
        self._token = None

    async def close(self) -> None:
        await self._transport.aclose()

    async def _call_logged_in(
        self, endpoint: str, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        if self._token is None and self._login is not None:
            self._token = await self._authenticate(endpoint, *self._login)
        try:
            return await self._post(endpoint, path, body)
        except EtcdError as error:
            if error.code != UNAUTHENTICATED:
                raise
        if self._login is None:
            raise ConfigError(f"etcd at {endpoint} needs a login: give user and password")
        # The token has expired, or authentication was enabled since.
        self._token = await self._authenticate(endpoint, *self._login)
        return await self._post(endpoint, path, body)

    async def _authenticate(self, endpoint: str, user: str, password: str) -> str:
        try:
            reply = await self._post(
                endpoint, "/v3/auth/authenticate", {"name": user, "password": password}
            )
        except EtcdError as error:
            if error.code == FAILED_PRECONDITION:
                return ""  # authentication is not enabled, so none is needed
            if error.code == INVALID_ARGUMENT:
                raise ConfigError(
                    f"etcd at {endpoint} refuses the user {user!r}: {error.message}; check user "
                    f"and password"
                ) from None
            raise
        token = reply.get("token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ProtocolError(f"invalid reply from etcd at {endpoint}: no token to log in with")
        return token

    async def _post(self, endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = self._request(endpoint, path, body)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._transport.handle_async_request(request)
                async with contextlib.aclosing(response):
                    content = await _read(endpoint, response)
        except TimeoutError:
            raise Unavailable(
                f"etcd at {endpoint} did not answer within {self._timeout:g} s"
            ) from None
        except httpx.HTTPError as error:
            raise _reason(endpoint, error) from None
        if response.status_code != 200:
            raise _error(endpoint, response.status_code, content)
        reply = _parse(endpoint, content)
        if "error" in reply:  # of a stream, which had begun well
            raise EtcdError(endpoint, UNAVAILABLE, f"{reply['error']!r:.200}")
        return reply

    def _request(self, endpoint: str, path: str, body: dict[str, Any]) -> httpx.Request:
        headers = {"Authorization": self._token} if self._token else {}
        return httpx.Request("POST", endpoint + path, json=body, headers=headers)


class _Untrusted(ConfigError):
    """The certificate of one endpoint cannot be verified; that of another may be."""


async def _read(endpoint: str, response: httpx.Response) -> bytes:
    content = b""
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAX_REPLY_BYTES:
            raise _too_large(endpoint)
    return content


def _parse(endpoint: str, content: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise ProtocolError(f"invalid reply from etcd at {endpoint}: {content!r:.200}")
    return reply


def _error(endpoint: str, status: int, content: bytes) -> SluicegateError:
    """The error in a reply that is not OK."""
    if status == 404 and not content.startswith(b"{"):
        return ConfigError(
            f"no JSON gateway at {endpoint}: etcd 3.4 or newer is needed, with "
            f"--enable-grpc-gateway (its default)"
        )
    reply = _parse(endpoint, content)
    code, message = reply.get("code"), reply.get("message", reply.get("error"))
    if not isinstance(code, int) or not isinstance(message, str):
        return ProtocolError(f"invalid reply from etcd at {endpoint}: {content!r:.200}")
    if code == PERMISSION_DENIED:
        return ConfigError(
            f"etcd at {endpoint} denies access: {message:.200}; grant the user read and write "
            f"permission on the key of the election"
        )
    if code == INVALID_ARGUMENT and "user name is empty" in message:
        code = UNAUTHENTICATED
    return EtcdError(endpoint, code, message[:200])


def _reason(endpoint: str, error: httpx.HTTPError) -> SluicegateError:
    """Why an endpoint cannot be reached. A certificate is for a person to mend."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _Untrusted(
                f"cannot verify the certificate of etcd at {endpoint}: {cause.verify_message}; "
                f"give tls= a context that trusts its authority"
            )
        cause = cause.__cause__ or cause.__context__
    return Unavailable(f"cannot reach etcd at {endpoint}: {describe(error)}")


def _too_large(endpoint: str) -> ProtocolError:
    return ProtocolError(
        f"invalid reply from etcd at {endpoint}: larger than {MAX_REPLY_BYTES} bytes"
    )
