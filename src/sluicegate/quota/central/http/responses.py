"""JSON responses and errors of the HTTP API.

An error is `{"error_code": ..., "error_message": ...}`: the code is one word for programs, the
message says what was wrong and what was expected. An internal error shows no detail; the log does.
"""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

__all__ = ["ApiError", "error_response", "exception_handlers", "json_response"]

_MAX_MESSAGE = 1000
_CODES = {404: "NotFound", 405: "MethodNotAllowed"}


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def json_response(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_response(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as JSON. The message may contain what the client sent, so it is truncated."""
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + "..."
    content = {"error_code": code, "error_message": message}
    body = orjson.dumps(
        {key: text.encode(errors="replace").decode() for key, text in content.items()}
    )
    return Response(body, status, headers, media_type="application/json")


def exception_handlers() -> dict[Any, Callable[[Request, Exception], Response]]:
    """For the Starlette application that has the routes."""
    return {
        ApiError: _on_api_error,
        HTTPException: _on_http_exception,
        ClientDisconnect: _on_disconnect,
        Exception: _on_unexpected_error,
    }


def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error.status, error.code, str(error))


def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "Refused")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(error.status_code, code, message, error.headers)


def _on_disconnect(request: Request, error: Exception) -> Response:
    """Not logged, and nobody receives it."""
    return error_response(400, "BadRequest", "the connection was closed before the end of the body")


def _on_unexpected_error(request: Request, error: Exception) -> Response:
    return error_response(500, "InternalError", "internal error (see the central's log)")
