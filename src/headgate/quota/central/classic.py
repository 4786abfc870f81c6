"""The protocol of classic nodes: one JSON text for each report, one for each answer; no I/O.

    {"node_id": "n1", "slot_number": 1515118666,
     "consumption": {"front": {"ann": {"traffic_up": 11534593}}},
     "rejection": {"front": {"bob": {"traffic_up": 10}}}}

`slot_number` is the slot of sending; the numbers are of the slot before it. The answer is the
quota of the slot after it, for every service there is and every one the report names:

    {"front": {"1515118667": {"ann": {"traffic_up": 1048576000.0}}}}

    {"monitor": "consumption_sum", "start_slot": 1515118660, "end_slot": 1515118666}

asks for what the central knows; without slots, for all it has, without an end for one slot. A
message that makes no sense is answered with `error_code` and `error_message`.

Lua writes an empty table as `[]` as often as `{}`, and whole numbers as floats: both are taken.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import orjson

from headgate.errors import ProtocolError
from headgate.quota.central.connection import Connection
from headgate.quota.central_state import CentralState
from headgate.quota.protocol import ServiceQuota
from headgate.quota.wire import Bounds
from headgate.quota.wire.text import write_classic

__all__ = ["ClassicBook", "InvalidMessage", "Parsed", "error", "parse"]

Parsed: TypeAlias = dict[str, Any]
_Counts: TypeAlias = dict[str, dict[str, dict[str, float]]]


class InvalidMessage(ProtocolError):
    """A message that cannot be understood; `code` is what the answer's error_code says."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def error(code: str, message: str) -> bytes:
    return orjson.dumps({"error_code": code, "error_message": message})


def parse(text: bytes | str) -> Parsed:
    """The object that a text holds."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        raise InvalidMessage("InvalidMessage", f"expected JSON: {fault}") from None
    if not isinstance(message, dict):
        raise InvalidMessage("InvalidMessage", f"expected an object, got {type(message).__name__}")
    return message


class ClassicBook:
    """What the central says to classic nodes, and to those who look."""

    def __init__(
        self, state: CentralState, bounds: Bounds, connections: Callable[[], list[Connection]]
    ) -> None:
        self._state = state
        self._bounds = bounds
        self._connections = connections
        self._subjects: dict[str, Callable[[int], Mapping[str, object]]] = {
            "reported": self._reported,
            "consumption_sum": state.ledger.consumption_sum,
            "rejection_sum": state.ledger.rejection_sum,
            "quota": self._quota,
        }

    # Reports

    def node_of(self, message: Parsed) -> str:
        node: str = self._name("node_id", message.get("node_id"))
        return node

    def report(self, now: float, message: Parsed) -> bytes:
        """Book a report; the quota that answers it."""
        node = self.node_of(message)
        sent_in = _whole("slot_number", message.get("slot_number"))
        consumption = self._counts("consumption", message)
        rejection = self._counts("rejection", message)
        ledger = self._state.ledger
        slot = self._state.slot(now)
        try:
            ledger.book_classic(slot, node, sent_in, consumption, rejection)
        except ProtocolError as fault:
            raise InvalidMessage("InvalidMessage", str(fault)) from None
        # A node whose clock is a little off gets the quota of the slot it means. One that is far
        # off gets ours, under the number it has for it.
        about = sent_in if abs(sent_in - slot) <= 1 else slot
        quotas = dict(ledger.quota(about, node))
        for service in (*consumption, *rejection):
            quotas.setdefault(service, ServiceQuota({}, {}))
        return write_classic(quotas, sent_in + 1).encode()

    def _counts(self, what: str, message: Parsed) -> _Counts:
        services = _table(what, message.get(what, {}))
        users_left = self._bounds.users
        counts: _Counts = {}
        for service, users in services.items():
            self._name("a service", service, self._bounds.service_bytes)
            users = _table(what, users)
            users_left -= len(users)
            if users_left < 0:
                raise InvalidMessage(
                    "TooManyUsers", f"{what} must have at most {self._bounds.users} users"
                )
            if not set(map(type, users.values())) <= {dict}:
                users = {user: _table(what, resources) for user, resources in users.items()}
            self._names("a user", users)
            self._names("a resource", set().union(*users.values()))
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
            raise InvalidMessage("InvalidMessage", f"{what} must be a name, got {_short(name)}")
        if len(name) * 4 > most and len(name.encode()) > most:
            raise InvalidMessage(
                "InvalidMessage", f"{what} must have at most {most} bytes, got {_short(name)}"
            )
        return name

    # The monitor

    def monitor(self, now: float, message: Parsed) -> bytes:
        """Answer one who looks."""
        subject = message["monitor"]
        if subject == "connections":
            return orjson.dumps(self._connected())
        slots = self._slots(now, message)
        if subject == "distribution":
            return orjson.dumps(self._distribution(slots))
        look = self._subjects.get(subject) if isinstance(subject, str) else None
        if look is None:
            raise InvalidMessage("InvalidSubject", f"invalid subject: {_plain(subject)}")
        return orjson.dumps(
            {str(slot): data for slot in slots if any((data := look(slot)).values())}
        )

    def _slots(self, now: float, message: Parsed) -> range:
        """The slots that are asked for, as far as they can be known."""
        here = self._state.slot(now)
        first, last = here - self._state.ledger.nr_slot - 1, here + 2
        if message.get("start_slot") is None:
            return range(first, last + 1)
        start = end = _whole("start_slot", message["start_slot"])
        if message.get("end_slot") is not None:
            end = _whole("end_slot", message["end_slot"])
        return range(max(start, first), min(end, last) + 1)

    def _connected(self) -> dict[str, dict[str, object]]:
        return {
            f"{each.address}:{each.port}": {
                "client_ip": each.address,
                "client_port": each.port,
                "conn_uuid": f"{each.address}:{each.port}",
                "connect_time": each.since,
                "node_id": each.node,
                "kind": each.kind,
            }
            for each in self._connections()
        }

    def _reported(self, slot: int) -> dict[str, dict[str, object]]:
        """Who reported in a slot, of the slot before it."""
        ports = {each.node: each.port for each in self._connections() if each.node is not None}
        return {
            node: {str(ports.get(node, 0)): {"node_id": node, "slot_number": slot}}
            for node in self._state.ledger.reported(slot - 1)
        }

    def _quota(self, slot: int) -> dict[str, dict[str, object]]:
        """What nodes that report in a slot are told, which is of the slot after it."""
        given = self._state.ledger.quotas(slot + 1)
        return {
            node: {service: {str(slot + 1): users} for service, users in services.items()}
            for node, services in given.items()
        }

    def _distribution(self, slots: range) -> dict[str, object]:
        """The last report of each node, where it is of one of these slots."""
        return {
            service: {
                user: {
                    resource: {
                        node: cell for node, cell in nodes.items() if cell["slot_number"] in slots
                    }
                    for resource, nodes in resources.items()
                }
                for user, resources in users.items()
            }
            for service, users in self._state.ledger.distribution().items()
        }


def _table(what: str, value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if value == [] or value is None:
        return {}
    raise InvalidMessage("InvalidMessage", f"{what} must hold objects, got {_short(value)}")


def _whole(what: str, value: object) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise InvalidMessage(
            "InvalidMessage", f"{what} must be a whole number from 0 up, got {_short(value)}"
        )
    return value


def _short(value: object) -> str:
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else ""
    return shown if 0 < len(shown) <= 60 else shown[:57] + "..." or type(value).__name__


def _plain(value: object) -> str:
    return value[:60] if isinstance(value, str) else _short(value)
