"""The WSGI middleware: Flask, Django, Pyramid, and every other WSGI application.

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, rules=[Rule("100/minute")])

- A request that passes is handed on as it is, with the server's own `start_response`, and
  what the application returns is returned untouched: its iteration, `close()` and file
  wrapper stay the server's business. Only if answers that pass carry fields is
  `start_response` wrapped, with its `exc_info` and its `write`.
- WSGI servers run many threads; a rule and its limiter are safe in all of them.
"""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Any

from sluicegate.integrations.http.gate import Gate, OnRefusal, Verdict
from sluicegate.integrations.http.request import EnvironRequest
from sluicegate.integrations.http.responses import (
    Body,
    Field,
    ResponseBuilder,
    fields_to_add,
    problem,
)
from sluicegate.integrations.http.rules import Rule

__all__ = ["App", "Environ", "ExcInfo", "RateLimitMiddleware", "StartResponse", "Write"]

Environ = dict[str, Any]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimitMiddleware:
    """Puts rules in front of a WSGI application.

    `headers`: answers that pass carry `RateLimit-Policy` and `RateLimit`, too. `x_headers`,
    `shadow_header`: see `responses.py`. `body(outcome)` makes the content type and the body
    of a refusal; `on_refusal(request, outcome)` is called for each, also for those in shadow.
    """

    def __init__(
        self,
        app: App,
        rules: Iterable[Rule],
        *,
        headers: bool = False,
        x_headers: bool = False,
        shadow_header: bool = False,
        body: Body = problem,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self._app = app
        self._gate = Gate(rules, in_event_loop=False, on_refusal=on_refusal)
        self._responses = ResponseBuilder(
            headers=headers, x_headers=x_headers, shadow_header=shadow_header, body=body
        )

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = EnvironRequest(environ)
        verdict = self._gate.decide(request)
        if verdict.refused is not None:
            refusal = self._responses.refusal(verdict, request.method)
            status = HTTPStatus(refusal.status)
            start_response(f"{status.value} {status.phrase}", refusal.fields)
            return [refusal.body]
        if self._responses.adds_headers:
            start_response = _with_fields(self._responses, verdict, start_response)
        return self._app(environ, start_response)

    def __repr__(self) -> str:
        return f"RateLimitMiddleware({self._app!r}, rules={list(self._gate.rules)})"


def _with_fields(
    responses: ResponseBuilder, verdict: Verdict, start_response: StartResponse
) -> StartResponse:
    def start_with_fields(status: str, headers: list[Field], *exc_info: ExcInfo) -> Write:
        # Now, and not before: a limit further in may have refused, and all is given back.
        fields = responses.fields(verdict)

        def present(name: str) -> str | None:
            lines = [value for field, value in headers if field.lower() == name]
            return ", ".join(lines) if lines else None

        return start_response(status, headers + fields_to_add(fields, present), *exc_info)

    return start_with_fields
