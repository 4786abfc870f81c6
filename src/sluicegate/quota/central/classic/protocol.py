"""The classic protocol: parses JSON reports, books them and writes the answers; no I/O.

One JSON text for each report, one for each answer:

    {"node_id": "n1", "slot_number": 1515118666,
     "consumption": {"front": {"ann": {"traffic_up": 11534593}}},
     "rejection": {"front": {"bob": {"traffic_up": 10}}}}

`slot_number` is the slot of sending; the numbers are of the slot before it. The answer is the
quota of the slot after it, for every service there is and every one the report names:

    {"front": {"1515118667": {"ann": {"traffic_up": 1048576000.0}}}}

An invalid message is answered with `error_code` and `error_message`; one that has the key
`monitor` is for `monitor`.

A report is checked and its names are looked up in steps of some milliseconds, so that other
connections have their turns; then it is booked in one.

Lua writes an empty table as `[]` as often as `{}`, and whole numbers as floats: both are accepted.
"""

import math
from collections.abc import Collection, Generator
from typing import Any, TypeAlias

import orjson

from sluicegate.errors import ProtocolError
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.messages import ServiceQuota
from sluicegate.quota.wire import Bounds
from sluicegate.quota.wire.json_frames import write_classic

__all__ = ["ClassicReportHandler", "InvalidMessage", "Parsed", "error", "parse", "short", "whole"]

_MAX_AMOUNTS = 20_000  # of a report: it is booked in one step

Parsed: TypeAlias = dict[str, Any]
_Counts: TypeAlias = dict[str, dict[str, dict[str, float]]]


class InvalidMessage(ProtocolError):
    """An invalid message; `code` is the `error_code` of the answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def error(code: str, message: str) -> bytes:
    return orjson.dumps({"error_code": code, "error_message": message})


def parse(text: bytes | str) -> Parsed:
    """Parse a text that must hold a JSON object."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        raise InvalidMessage("InvalidMessage", f"expected JSON: {fault}") from None
    if not isinstance(message, dict):
        raise InvalidMessage("InvalidMessage", f"expected an object, got {type(message).__name__}")
    return message


class ClassicReportHandler:
    """Books the reports of classic nodes and answers them."""

    def __init__(self, state: CentralState, bounds: Bounds) -> None:
        self._state = state
        self._bounds = bounds

    def report(self, now: float, message: Parsed) -> Generator[None, None, bytes]:
        """Book a report and return the quota that answers it."""
        node = self._name("node_id", message.get("node_id"))
        sent_in = whole("slot_number", message.get("slot_number"))
        consumption = self._counts("consumption", message)
        yield
        rejection = self._counts("rejection", message)
        yield
        ledger = self._state.ledger
        slot = self._state.slot(now)
        self._state.lending.keep((*consumption, *rejection))
        try:
            yield from ledger.resolve_classic_names(slot, consumption, rejection)
            ledger.book_classic(slot, node, sent_in, consumption, rejection)
        except ProtocolError as fault:
            raise InvalidMessage("InvalidMessage", str(fault)) from None
        yield
        # A node whose clock is a little off gets the quota of the slot it means. One that is far
        # off gets that of the central's slot, under its own slot number.
        about = sent_in if abs(sent_in - slot) <= 1 else slot
        quotas = dict(ledger.quota(about, node))
        for service in (*consumption, *rejection):
            quotas.setdefault(service, ServiceQuota({}, {}))
        try:
            return write_classic(quotas, sent_in + 1, self._bounds).encode()
        except ValueError as fault:
            raise InvalidMessage("TooManyUsers", str(fault)) from None

    def _counts(self, what: str, message: Parsed) -> _Counts:
        services = _table(what, message.get(what, {}))
        users_left, left = self._bounds.users, _MAX_AMOUNTS
        counts: _Counts = {}
        for service, users in services.items():
            self._name("service", service, self._bounds.service_bytes)
            users = _table(what, users)
            users_left -= len(users)
            if users_left < 0:
                raise InvalidMessage(
                    "TooManyUsers", f"{what} must have at most {self._bounds.users} users"
                )
            if not set(map(type, users.values())) <= {dict}:
                users = {user: _table(what, resources) for user, resources in users.items()}
            left -= sum(map(len, users.values()))
            if left < 0:
                raise InvalidMessage(
                    "TooManyUsers", f"{what} must have at most {_MAX_AMOUNTS} amounts"
                )
            self._names("user", users)
            self._names("resource", set().union(*users.values()))
            counts[service] = users
        return counts

    def _names(self, what: str, names: Collection[str]) -> None:
        """All of them; one by one only when one is long or empty."""
        lengths = set(map(len, names))
        if lengths and (min(lengths) == 0 or max(lengths) * 4 > self._bounds.name_bytes):
            for name in names:
                self._name(what, name)

    def _name(self, what: str, name: object, most: int | None = None) -> str:
        most = self._bounds.name_bytes if most is None else most
        # A character has at most four bytes, so most names need not be written to be measured.
        if not isinstance(name, str) or not name:
            raise InvalidMessage("InvalidMessage", f"{what} must be a name, got {short(name)}")
        if len(name) * 4 > most and len(name.encode()) > most:
            raise InvalidMessage(
                "InvalidMessage", f"{what} must have at most {most} bytes, got {short(name)}"
            )
        return name


def _table(what: str, value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if value == [] or value is None:
        return {}
    raise InvalidMessage("InvalidMessage", f"{what} must contain objects, got {short(value)}")


def whole(what: str, value: object) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise InvalidMessage(
            "InvalidMessage", f"{what} must be a whole number of 0 or more, got {short(value)}"
        )
    return value


def short(value: object) -> str:
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else ""
    return shown if 0 < len(shown) <= 60 else shown[:57] + "..." or type(value).__name__
