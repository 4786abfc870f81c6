"""Django: a middleware with rules from the settings, and a decorator for views.

    MIDDLEWARE = [..., "sluicegate.integrations.django.RateLimitMiddleware"]
    SLUICEGATE = {"rules": [Rule("100/minute", path="/api/*")], "headers": True}

    @limit("5/minute")
    def search(request): ...

    @method_decorator(limit(Rule("5/minute", key=by_user())), name="dispatch")
    class Search(View): ...

SLUICEGATE takes the arguments of the other middlewares: rules, headers, x_headers,
shadow_header, body, on_refusal. The middleware is sync under WSGI and async under ASGI;
the decorator is what its view is. If a view's rule refuses, what the middleware's rules
charged is given back. `request.native` is Django's request.

`by_user` reads `request.user`, so the middleware stands behind Django's
AuthenticationMiddleware. Under ASGI that would be a query inside the event loop, which
Django forbids: use `limit` on a view that is not async there, or a key that needs none.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django import conf  # type: ignore[import-untyped]
    from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]
    from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "sluicegate.integrations.django needs Django: pip install django", name=_missing.name
    ) from _missing

from sluicegate.integrations.http.gate import Gate, OnRefusal, Verdict
from sluicegate.integrations.http.request import EnvironRequest
from sluicegate.integrations.http.responses import Body, ResponseBuilder, fields_to_add, problem
from sluicegate.integrations.http.rules import RuleLike, as_rules

__all__ = ["RateLimitMiddleware", "limit"]

View = TypeVar("View", bound=Callable[..., Any])
OPTIONS = ("rules", "headers", "x_headers", "shadow_header", "body", "on_refusal")


class RateLimitMiddleware:
    """Asks the rules of `settings.SLUICEGATE` for every request."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        options = dict(getattr(conf.settings, "SLUICEGATE", {}))
        unknown = [name for name in options if name not in OPTIONS]
        if unknown or "rules" not in options:
            wrong = f"got {unknown[0]!r}" if unknown else "'rules' is missing"
            raise ImproperlyConfigured(
                f"invalid setting SLUICEGATE: expected {', '.join(OPTIONS)}; {wrong}"
            )
        rules, on_refusal = options.pop("rules"), options.pop("on_refusal", None)
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        self._responses = ResponseBuilder(**options)
        self._gate = Gate(rules, in_event_loop=self._is_async, on_refusal=on_refusal)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        call = _call_async if self._is_async else _call
        return call(self._gate, self._responses, request, self._get_response, (request,), {})


def limit(
    *rules: RuleLike,
    headers: bool = False,
    x_headers: bool = False,
    shadow_header: bool = False,
    body: Body = problem,
    on_refusal: OnRefusal | None = None,
) -> Callable[[View], View]:
    """Decorate a view, sync or async, with rules: `Rule`s, or just limits like "5/minute".

    For classes, through Django's `method_decorator`.
    """
    own = as_rules(rules)
    responses = ResponseBuilder(
        headers=headers, x_headers=x_headers, shadow_header=shadow_header, body=body
    )
    # `method_decorator` decorates anew for each call, so the gate is made outside of it.
    gate_for = functools.cache(
        lambda in_event_loop: Gate(own, in_event_loop=in_event_loop, on_refusal=on_refusal)
    )

    def decorate(view: View) -> View:
        if _is_async(view):
            gate = gate_for(True)

            async def limited_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                return await _call_async(gate, responses, request, view, (request, *args), kwargs)

            return functools.wraps(view)(limited_view)  # type: ignore[return-value]

        gate = gate_for(False)

        def limited_sync_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return _call(gate, responses, request, view, (request, *args), kwargs)

        return functools.wraps(view)(limited_sync_view)  # type: ignore[return-value]

    return decorate


def _is_async(view: Callable[..., Any]) -> bool:
    """Also for the `dispatch` of a class whose handlers are async, which is not so itself."""
    owner = getattr(getattr(view, "func", view), "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(owner, "view_is_async", False))


def _call(
    gate: Gate,
    responses: ResponseBuilder,
    request: HttpRequest,
    view: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    asked = EnvironRequest(request.META, request, request.path_info)
    verdict = gate.decide(asked)
    if verdict.refused is None:
        return _with_fields(responses, verdict, view(*args, **kwargs))
    return _refusal(responses, verdict, asked.method)


async def _call_async(
    gate: Gate,
    responses: ResponseBuilder,
    request: HttpRequest,
    view: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    asked = EnvironRequest(request.META, request, request.path_info)
    verdict = await gate.decide_async(asked)
    if verdict.refused is None:
        return _with_fields(responses, verdict, await view(*args, **kwargs))
    return _refusal(responses, verdict, asked.method)


def _with_fields(
    responses: ResponseBuilder, verdict: Verdict, response: HttpResponse
) -> HttpResponse:
    if responses.adds_headers:
        for name, value in fields_to_add(responses.fields(verdict), response.headers.get):
            there = response.headers.get(name)  # Django keeps one line of a name
            response.headers[name] = value if there is None else f"{there}, {value}"
    return response


def _refusal(responses: ResponseBuilder, verdict: Verdict, method: str) -> HttpResponse:
    refusal = responses.refusal(verdict, method)
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.fields))
