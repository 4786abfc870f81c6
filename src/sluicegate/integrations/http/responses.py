"""Header fields, and the body of a refusal. Pure functions.

Of a refused request: 429, `Retry-After` (whole seconds, rounded up, at least 1),
`RateLimit-Policy` and `RateLimit` of the rule that refused, and a body of problem+json
(RFC 9457) of the type "quota-exceeded" that the draft of these fields defines. The body
can be replaced by a function. Of a request that passed, the fields of all its rules, if
`headers` asks for them.

- `x_headers` adds X-RateLimit-Limit, -Remaining and -Reset for older clients: of the
  rule that refused or has the least left. Reset is in seconds from now, the same number
  as `t`, not a time of day: it needs no agreement about clocks.
- `shadow_header` adds X-RateLimit-Shadow: the names of the rules in shadow that would
  have refused. Otherwise clients do not see these rules.
- What the application has set stands. `RateLimit` and `RateLimit-Policy` are lists: ours
  are added as a line of their own, but for policies that the application's line names
  already. Of the other fields ours is left out.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluicegate.integrations.http.gate import Outcome, Verdict

__all__ = [
    "Body",
    "Field",
    "RefusalResponse",
    "ResponseBuilder",
    "fields_to_add",
    "problem",
    "problem_members",
]

Field = tuple[str, str]
Body = Callable[[Outcome], tuple[str, bytes]]

PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"
TITLE = "Request cannot be satisfied as assigned quota has been exceeded"
LISTS = ("ratelimit-policy", "ratelimit")
TRY_AGAIN_LATER = 1013  # of the registry of websocket close codes

_NAME = re.compile(r'"(?:[^"\\]|\\.)*"')
_ITEMS = re.compile(rf'(?:{_NAME.pattern}|[^,"])+')


@dataclass(frozen=True, slots=True)
class RefusalResponse:
    """A whole answer: 429, its fields (with Content-Type and -Length) and its body."""

    fields: list[Field]
    body: bytes
    status: int = 429


def problem(outcome: Outcome) -> tuple[str, bytes]:
    """The body of a refusal: its content type, and itself."""
    return "application/problem+json", json.dumps(problem_members(outcome)).encode()


def problem_members(outcome: Outcome) -> dict[str, object]:
    """The members of the problem, for who writes them in another way."""
    name = outcome.policy.item_name(outcome.decision.limit)
    violated = json.loads(name)  # a structured string is written as JSON writes it
    if outcome.can_pass:
        seconds = outcome.policy.seconds(outcome.decision)
        detail = f"over the limit {violated}; try again in {seconds} s"
    else:
        detail = f"this request costs more than the limit {violated} ever lets through at once"
    return {
        "type": PROBLEM,
        "title": TITLE,
        "status": 429,
        "detail": detail,
        "violated-policies": [violated],
    }


class ResponseBuilder:
    """Makes the header fields of responses, and whole responses for refused requests."""

    def __init__(
        self,
        *,
        headers: bool = False,
        x_headers: bool = False,
        shadow_header: bool = False,
        body: Body = problem,
    ) -> None:
        if not callable(body):
            raise TypeError(f"body must be a function of the outcome, got {body!r}")
        self.adds_headers = headers or x_headers or shadow_header
        self._headers = headers
        self._x_headers = x_headers
        self._shadow_header = shadow_header
        self._body = body

    def refusal(self, verdict: Verdict, method: str) -> RefusalResponse:
        """The answer to a request that was refused. HEAD has no body, but its length."""
        assert verdict.refused is not None
        kind, body = self._body(verdict.refused)
        fields = [
            *self.fields(verdict),
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
        ]
        return RefusalResponse(fields, b"" if method == "HEAD" else body)

    def fields(self, verdict: Verdict) -> list[Field]:
        """The fields that the verdict asks for, whether it refused or not."""
        refused = verdict.refused
        if refused is not None:
            fields = _list_fields([refused])
            if refused.can_pass:
                seconds = refused.policy.seconds(refused.decision)
                fields.insert(0, ("Retry-After", str(seconds)))
            if self._x_headers:
                fields += _x_fields(refused)
        else:
            told = [outcome for outcome in verdict.passed if not outcome.rule.shadow]
            fields = _list_fields(told) if self._headers and told else []
            if self._x_headers and told:
                fields += _x_fields(min(told, key=lambda outcome: outcome.decision.remaining))
        if self._shadow_header and verdict.shadowed:
            names = ", ".join(outcome.rule.name for outcome in verdict.shadowed)
            fields.append(("X-RateLimit-Shadow", names))
        return fields


def fields_to_add(fields: Iterable[Field], present: Callable[[str], str | None]) -> list[Field]:
    """The fields to add to a response that has `present(lower-case name)` already."""
    added = []
    for name, value in fields:
        there = present(name.lower())
        if there is None:
            added.append((name, value))
        elif name.lower() in LISTS:
            items = [item.strip() for item in _ITEMS.findall(value)]
            fresh = [item for item in items if _NAME.findall(item)[0] not in there]
            if fresh:
                added.append((name, ", ".join(fresh)))
    return added


def _list_fields(outcomes: list[Outcome]) -> list[Field]:
    policies, states = [], []
    for outcome in outcomes:
        policy, decision = outcome.policy, outcome.decision
        policies.append(policy.policy_text(decision))
        states.append(policy.state(decision, outcome.can_pass))
    return [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(states))]


def _x_fields(outcome: Outcome) -> list[Field]:
    decision = outcome.decision
    amount = 0.0 if decision.limit is None else decision.limit.amount
    return [
        ("X-RateLimit-Limit", str(int(amount))),
        ("X-RateLimit-Remaining", str(int(decision.remaining))),
        ("X-RateLimit-Reset", str(outcome.policy.seconds(decision))),
    ]
