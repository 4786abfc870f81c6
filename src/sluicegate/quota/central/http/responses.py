"""How the HTTP API answers: JSON, also when it refuses.

A refusal is `{"error_code": ..., "error_message": ...}`: the code is one word for programs, the
message says for people what was wrong and what was expected. A fault of our own is told as that
and nothing more; the log has the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

__all__ = ["Refused", "answer", "exception_handlers", "refusal"]

_LONGEST_MESSAGE = 1000
_CODES = {404: "NotFound", 405: "MethodNotAllowed"}


class Refused(Exception):
    """The request cannot be answered as it asks."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def answer(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def refusal(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A message may have in it what the client sent, so it is cut."""
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    content = {"error_code": code, "error_message": message}
    body = orjson.dumps(
        {key: text.encode(errors="replace").decode() for key, text in content.items()}
    )
    return Response(body, status, headers, media_type="application/json")


def exception_handlers() -> dict[Any, Callable[[Request, Exception], Response]]:
    """For the Starlette application that has the routes."""
    return {Refused: _refused, HTTPException: _http, ClientDisconnect: _gone, Exception: _failed}


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error.status, error.code, str(error))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "Refused")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return refusal(error.status_code, code, message, error.headers)


def _gone(request: Request, error: Exception) -> Response:
    """No news, and nobody is there to hear it."""
    return refusal(400, "BadRequest", "the connection ended before the body did")


def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, "InternalError", "the central made a mistake; its log has more")
