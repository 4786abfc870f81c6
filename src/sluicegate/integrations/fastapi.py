"""The FastAPI dependency: a limit on one route, router or application.

    @app.get("/search", dependencies=[Depends(limit("5/minute"))])
    async def search(): ...

    Depends(limit(Rule("5/minute", key=by_user()), headers=True))

It is asked before the route runs, for routes that are `async def` or `def` and for
websockets. A refused request raises `Refused`, an HTTPException with status 429 and the
header fields, which handlers of yours may catch. FastAPI's own handler answers with a
body that has `detail` alone; `answer_refused` is a handler that answers with the whole
problem+json:

    app.add_exception_handler(Refused, answer_refused)

A refused websocket is closed before it is accepted (servers answer 403). Fields on
answers that pass (`headers=True`) reach routes that return data; a route that returns a
Response of its own is not changed, as FastAPI has it: there, use the middleware.
"""

from typing import Any

try:
    from fastapi import HTTPException, Request, Response, WebSocketException
    from fastapi.requests import HTTPConnection
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "sluicegate.integrations.fastapi needs FastAPI: pip install fastapi", name=_missing.name
    ) from _missing

from sluicegate.integrations.http.gate import Gate, OnRefusal, Outcome
from sluicegate.integrations.http.request import ScopeRequest
from sluicegate.integrations.http.responses import (
    TRY_AGAIN_LATER,
    Body,
    RefusalResponse,
    ResponseBuilder,
    problem,
    problem_members,
)
from sluicegate.integrations.http.rules import RuleLike, as_rules

__all__ = ["RESPONSES", "Refused", "answer_refused", "limit"]

# For `responses=` of a route, router or application: how OpenAPI tells of a refusal.
RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {
        "description": "Rate limit exceeded",
        "headers": {
            "Retry-After": {"description": "Seconds", "schema": {"type": "integer"}},
            "RateLimit-Policy": {"schema": {"type": "string"}},
            "RateLimit": {"schema": {"type": "string"}},
        },
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "violated-policies": {"type": "array", "items": {"type": "string"}},
                    },
                }
            }
        },
    }
}


class Refused(HTTPException):
    """A request that a rule refused: `outcome` says which and why, `refusal` is the answer."""

    def __init__(self, outcome: Outcome, refusal: RefusalResponse) -> None:
        headers = {name: value for name, value in refusal.fields if name != "Content-Length"}
        detail = problem_members(outcome)["detail"]
        super().__init__(status_code=refusal.status, detail=detail, headers=headers)
        self.outcome = outcome
        self.refusal = refusal


async def answer_refused(request: Request, refused: Exception) -> Response:
    """A handler for `Refused` that answers as the middleware does."""
    assert isinstance(refused, Refused)
    refusal = refused.refusal
    return Response(refusal.body, refusal.status, dict(refusal.fields))


class Dependency:
    """What `limit` returns, for `Depends`."""

    def __init__(self, gate: Gate, responses: ResponseBuilder) -> None:
        self._gate = gate
        self._responses = responses

    async def __call__(self, connection: HTTPConnection, response: Response) -> None:
        gate = self._gate
        request = ScopeRequest(connection.scope)
        verdict = await gate.decide_async(request) if gate.must_await else gate.decide(request)
        if verdict.refused is None:
            for name, value in self._responses.fields(verdict):
                # Several dependencies of a route have one answer to write to.
                response.headers.append(name, value)
        elif connection.scope["type"] == "websocket":
            raise WebSocketException(TRY_AGAIN_LATER, "rate limited")
        else:
            refusal = self._responses.refusal(verdict, request.method)
            raise Refused(verdict.refused, refusal)

    def __repr__(self) -> str:
        return f"limit({', '.join(map(repr, self._gate.rules))})"


def limit(
    *rules: RuleLike,
    headers: bool = False,
    x_headers: bool = False,
    shadow_header: bool = False,
    body: Body = problem,
    on_refusal: OnRefusal | None = None,
) -> Dependency:
    """A dependency that lets a request pass if all rules agree.

    A rule is a `Rule`, or just its limit: "5/minute". The other arguments are those of the
    middleware.
    """
    gate = Gate(as_rules(rules), in_event_loop=True, on_refusal=on_refusal)
    responses = ResponseBuilder(
        headers=headers, x_headers=x_headers, shadow_header=shadow_header, body=body
    )
    return Dependency(gate, responses)
