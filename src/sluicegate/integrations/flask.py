"""The Flask extension: rules for all requests, limits on single views, exemptions.

    rate_limit = RateLimit(rules=[Rule("100/minute")], headers=True)

    def create_app():
        app = Flask(__name__)
        rate_limit.init_app(app)
        return app

    @app.get("/search")
    @rate_limit.limit("5/minute")
    def search(): ...

    @app.get("/health")
    @rate_limit.exempt
    def health(): ...

A refused request raises `Refused`, werkzeug's TooManyRequests, so `errorhandler(429)`
works; without one, the answer is the usual problem+json. In both cases the header fields
are added to what goes out. The rules of the extension come first, then those of the view;
if a view's refuses, what the first charged is given back. `exempt` takes a view out of
the extension's rules, not out of its own.

The order of decorators matters: `app.route` is the outermost.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

try:
    from flask import Flask, Response, current_app, request
    from werkzeug.exceptions import TooManyRequests
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "sluicegate.integrations.flask needs Flask: pip install flask", name=_missing.name
    ) from _missing

from sluicegate.integrations.http.gate import Gate, OnRefusal, Outcome, Verdict
from sluicegate.integrations.http.request import EnvironRequest
from sluicegate.integrations.http.responses import (
    Body,
    RefusalResponse,
    ResponseBuilder,
    fields_to_add,
    problem,
    problem_members,
)
from sluicegate.integrations.http.rules import Rule, RuleLike, as_rules

__all__ = ["RateLimit", "Refused"]

View = TypeVar("View", bound=Callable[..., Any])


class Refused(TooManyRequests):
    """A request that a rule refused: `outcome` says which and why."""

    def __init__(self, outcome: Outcome, refusal: RefusalResponse) -> None:
        response = Response(refusal.body, refusal.status, refusal.fields)
        super().__init__(str(problem_members(outcome)["detail"]), response)
        self.outcome = outcome


class RateLimit:
    """Rules for a Flask application; one may serve several applications.

    `rules` are asked for every request, those that end in a 404 too. The other arguments
    are those of the middleware.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        rules: Iterable[Rule] = (),
        headers: bool = False,
        x_headers: bool = False,
        shadow_header: bool = False,
        body: Body = problem,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self._on_refusal = on_refusal
        self._responses = ResponseBuilder(
            headers=headers, x_headers=x_headers, shadow_header=shadow_header, body=body
        )
        own = tuple(rules)
        self._gate = self._make_gate(own) if own else None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Put the rules in front of the application's views."""
        app.before_request(self._before)
        app.after_request(self._after)
        app.extensions["sluicegate"] = self

    def limit(self, *rules: RuleLike) -> Callable[[View], View]:
        """Decorate a view with rules of its own: `Rule`s, or just limits like "5/minute"."""
        gate = self._make_gate(as_rules(rules))

        def decorate(view: View) -> View:
            @functools.wraps(view)
            def limited_view(*args: Any, **kwargs: Any) -> Any:
                self._pass(gate)
                return current_app.ensure_sync(view)(*args, **kwargs)

            return limited_view  # type: ignore[return-value]

        return decorate

    def exempt(self, view: View) -> View:
        """Take a view out of the rules of the extension."""
        if not callable(view):
            raise TypeError(f"exempt must decorate a view, got {view!r}")
        view._is_exempt_from_sluicegate = True  # type: ignore[attr-defined]
        return view

    def _make_gate(self, rules: Iterable[Rule]) -> Gate:
        return Gate(rules, in_event_loop=False, on_refusal=self._on_refusal)

    def _before(self) -> None:
        view = current_app.view_functions.get(request.endpoint or "")
        if self._gate is not None and not getattr(view, "_is_exempt_from_sluicegate", False):
            self._pass(self._gate)

    def _pass(self, gate: Gate) -> None:
        asked = EnvironRequest(request.environ, request, request.path)
        verdict = gate.decide(asked)
        _verdicts().append(verdict)
        if verdict.refused is not None:
            refusal = self._responses.refusal(verdict, asked.method)
            raise Refused(verdict.refused, refusal)

    def _after(self, response: Response) -> Response:
        for verdict in _verdicts():
            if verdict.refused is not None or self._responses.adds_headers:
                for name, value in fields_to_add(
                    self._responses.fields(verdict), response.headers.get
                ):
                    response.headers.add(name, value)
        return response


def _verdicts() -> list[Verdict]:
    """Of the request that is under way. (Flask's `g` may live longer, in tests.)"""
    return request.environ.setdefault("sluicegate.verdicts", [])  # type: ignore[no-any-return]
