"""JSON frames: messages as JSON text with full names, for nodes without a binary codec.

    {"report": {...}}   {"ask": {...}}   {"ack": {...}}   {"quota": {...}}

The keys are the fields of `messages`; a line is [consumed, rejected, requests, settled, held,
granted, returned], a credit [granted, returned, used, cost], a share [granted, safe], a hint
[wait, recall, may_float]. Keys that are not known here are ignored, so that the format can
grow. Everything that is read is checked: a frame is valid as a whole, or a ProtocolError says what
is not.
"""

import json
from collections.abc import Mapping
from typing import Any

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Ack, Ask, Hint, Quota, Report, ServiceQuota, Share
from sluicegate.quota.packed._report_lines import PackedLines
from sluicegate.quota.packed._shares import PackedShares
from sluicegate.quota.wire._json_frames import (
    JsonLineReader,
    find_lines_value,
    read_user_asks,
    write_packed_shares,
)
from sluicegate.quota.wire.bounds import Bounds
from sluicegate.quota.wire.validation import amount, duration, fail, flag, name, time, whole

try:
    import orjson
except ImportError:  # a node without the central's extra
    orjson = None  # type: ignore[assignment]

__all__ = ["read_answer", "read_message", "write_answer", "write_classic", "write_message"]

_MAX_VERSION = 1 << 56
_SHARES_PER_LINE = 2  # in text, for each line that a report may have
_DEFAULT_BOUNDS = Bounds()


def read_message(frame: str, line_reader: JsonLineReader, bounds: Bounds) -> Report | Ask:
    """Read a report or an ask of a node; `line_reader` is that of its connection."""
    lines = None
    if len(frame) > bounds.frame_bytes:
        fail("the length of the frame", len(frame), f"at most {bounds.frame_bytes}")
    try:
        packed = frame.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"the frame is not UTF-8: {error}") from error
    begin = find_lines_value(packed)
    if begin >= 0:
        # The bulk is read by our own parser: to make a list of each line would cost more than
        # all that is done with it. The rest is JSON like any other.
        lines, end = line_reader.parse(packed, begin, bounds)
        frame = f"{packed[:begin].decode()}{{}}{packed[end:].decode()}"
    kind, body = _open(frame, bounds, "report", "ask")
    if kind == "ask":
        return _ask(body, bounds)
    return _report(body, lines or line_reader.pack(body.get("lines"), bounds), bounds)


def read_answer(frame: str, bounds: Bounds) -> Ack | Quota:
    """What a central has sent."""
    kind, body = _open(frame, bounds, "ack", "quota")
    return _ack(body, bounds) if kind == "ack" else _quota(body, bounds)


def write_message(message: Report | Ask) -> str:
    if isinstance(message, Report):
        body = message._asdict()
        body["lines"] = dict(message.lines.items())
        return _dumps("report", body)
    users = {
        service: {user: user_ask._asdict() for user, user_ask in users.items()}
        for service, users in message.users.items()
    }
    return _dumps("ask", {**message._asdict(), "users": users})


def write_answer(answer: Ack | Quota, bounds: Bounds) -> str:
    if isinstance(answer, Ack):
        return _dumps("ack", answer._asdict())
    _check_size(answer.services, bounds)
    head = answer._asdict()
    del head["services"]
    services = ",".join(
        f'{_text(service)}:{{"newcomers":{_text(part.newcomers)},"users":{_users(part)}'
        f"{_hints(part)}}}"
        for service, part in answer.services.items()
    )
    return f'{{"quota":{{{_text(head)[1:-1]},"services":{{{services}}}}}}}'


def write_classic(
    quota: Mapping[str, ServiceQuota], slot: int, bounds: Bounds = _DEFAULT_BOUNDS
) -> str:
    """What a classic node is told of `slot`."""
    _check_size(quota, bounds)
    services = ",".join(
        f'{_text(service)}:{{"{slot}":{_users(part, is_classic=True)}}}'
        for service, part in quota.items()
    )
    return f"{{{services}}}"


def _check_size(quota: Mapping[str, ServiceQuota], bounds: Bounds) -> None:
    """Raise ValueError if a quota is too large for a JSON frame, which is written in one step."""
    shares = sum(
        part.users.count for part in quota.values() if isinstance(part.users, PackedShares)
    )
    if shares > _SHARES_PER_LINE * bounds.lines:
        raise ValueError(
            f"too many shares in a JSON frame: got {shares}, expected at most "
            f"{_SHARES_PER_LINE * bounds.lines}; use binary frames"
        )


def _users(part: ServiceQuota, *, is_classic: bool = False) -> str:
    if isinstance(part.users, PackedShares):
        return write_packed_shares(part.users, is_classic=is_classic).decode()
    if is_classic:
        return _text(
            {
                user: {resource: share.granted for resource, share in shares.items()}
                for user, shares in part.users.items()
                if shares
            }
        )
    return _text(part.users)


def _hints(part: ServiceQuota) -> str:
    return f',"hints":{_text(part.hints)}' if part.hints else ""


def _text(value: object) -> str:
    if orjson is None:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return orjson.dumps(value, default=tuple).decode()


def _dumps(kind: str, body: dict[str, Any]) -> str:
    return _text({kind: body})


def _loads(frame: str) -> object:
    try:
        if orjson is not None:
            return orjson.loads(frame)
        return json.loads(frame, parse_constant=lambda text: fail("a number", text, "a finite one"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the frame is not JSON: {error}") from error


def _open(frame: str, bounds: Bounds, *kinds: str) -> tuple[str, dict[str, Any]]:
    if len(frame) > bounds.frame_bytes:
        fail("the length of the frame", len(frame), f"at most {bounds.frame_bytes}")
    message = _loads(frame)
    if type(message) is dict:
        for kind in kinds:
            if type(body := message.get(kind)) is dict:
                return kind, body
    fail("the frame", message, f"an object with the key {' or '.join(kinds)}")


def _mapping(what: str, value: object, most: int) -> dict[str, Any]:
    if type(value) is not dict:
        fail(what, value, "an object")
    if len(value) > most:
        fail(f"the number of {what}", len(value), f"at most {most}")
    return value


def _report(body: dict[str, Any], lines: PackedLines, bounds: Bounds) -> Report:
    return Report(
        name("node", body.get("node"), bounds.name_bytes),
        whole("boot", body.get("boot")),
        whole("sequence", body.get("sequence"), 0, 1 << 31),
        whole("epoch", body.get("epoch"), -1),
        whole("since", body.get("since"), 0, 1 << 31),
        whole("slot", body.get("slot"), -1),
        time("sent", body.get("sent")),
        lines,
        flag("leaving", body.get("leaving", False)),
        whole("settled_slot", body.get("settled_slot", -1), -1),
    )


def _ask(body: dict[str, Any], bounds: Bounds) -> Ask:
    return Ask(
        name("node", body.get("node"), bounds.name_bytes),
        whole("boot", body.get("boot")),
        time("sent", body.get("sent")),
        read_user_asks(body.get("users"), bounds),
    )


def _ack(body: dict[str, Any], bounds: Bounds) -> Ack:
    return Ack(
        name("central", body.get("central"), bounds.name_bytes),
        flag("leads", body.get("leads")),
        whole("epoch", body.get("epoch"), -1),
        whole("boot", body.get("boot")),
        whole("sequence", body.get("sequence"), 0, 1 << 31),
        time("sent", body.get("sent")),
        time("time", body.get("time")),
    )


def _quota(body: dict[str, Any], bounds: Bounds) -> Quota:
    services = {
        name("service", service, bounds.service_bytes): _service_quota(part, bounds)
        for service, part in _mapping("services", body.get("services"), bounds.services).items()
    }
    return Quota(
        name("central", body.get("central"), bounds.name_bytes),
        whole("epoch", body.get("epoch"), -1),
        whole("version", body.get("version"), 0, _MAX_VERSION),
        whole("slot", body.get("slot"), -1),
        time("time", body.get("time")),
        whole("nodes", body.get("nodes"), 0, 1 << 32),
        flag("whole", body.get("whole")),
        duration("interval", body.get("interval")),
        services,
    )


def _service_quota(value: object, bounds: Bounds) -> ServiceQuota:
    part = _mapping("a service", value, 1 << 30)
    newcomers = _mapping("newcomers", part.get("newcomers", {}), bounds.resources)
    users = _mapping("users", part.get("users", {}), bounds.entries)
    for user, resources in users.items():
        name("user", user, bounds.name_bytes)
        for resource, share in _mapping("resources", resources, bounds.resources).items():
            name("resource", resource, bounds.name_bytes)
            resources[resource] = _share(share)
    return ServiceQuota(
        users,
        {
            name("resource", resource, bounds.name_bytes): amount("newcomers", share)
            for resource, share in newcomers.items()
        },
        {
            name("user", user, bounds.name_bytes): _hint(hint)
            for user, hint in _mapping("hints", part.get("hints", {}), bounds.users).items()
        },
    )


def _share(share: object) -> Share:
    if type(share) is not list or len(share) < 2:
        fail("a share", share, "[granted, safe]")
    return Share(amount("granted", share[0]), amount("safe", share[1]))


def _hint(hint: object) -> Hint:
    if type(hint) is not list or len(hint) < 3:
        fail("a hint", hint, "[wait, recall, may_float]")
    return Hint(duration("wait", hint[0]), flag("recall", hint[1]), flag("may_float", hint[2]))
