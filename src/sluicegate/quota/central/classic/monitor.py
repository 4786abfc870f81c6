"""The monitor of the classic protocol: answers queries about connections and slots; no I/O.

    {"monitor": "consumption_sum", "start_slot": 1515118660, "end_slot": 1515118666}

asks for a range of slots; without slots for all there are, without an end for one slot. The answer
is one JSON text. For a large ledger it is long: so it is written in steps of some milliseconds, a
part of the users in each, and it is bounded. Changes between two steps may be seen or not.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias, TypeVar

import orjson

from sluicegate.quota.central.classic.protocol import InvalidMessage, Parsed, short, whole
from sluicegate.quota.central.net.connection import Connection
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger._queries import (
    distribution_of,
    list_users,
    nodes_with_quota,
    read_quota,
    slot_totals,
)
from sluicegate.quota.ledger._service_ledger import ServiceLedger

__all__ = ["Monitor"]

_MAX_BYTES = 4 << 20  # to put them together and to send them are steps of some 10 ms
_AT_ONCE = 500  # users that are written in some 3 ms

# Written in steps, in pieces that are joined once, at the end. No pieces: nothing to report.
_Text: TypeAlias = Generator[None, None, list[bytes]]
_Item = TypeVar("_Item")
_Tables: TypeAlias = Iterator[Mapping[str, object]]


class Monitor:
    """Answers the queries of monitoring clients."""

    def __init__(self, state: CentralState, connections: Callable[[], list[Connection]]) -> None:
        self._state = state
        self._connections = connections
        self._subjects: dict[str, Callable[[int], _Text]] = {
            "reported": self._reported,
            "consumption_sum": lambda slot: self._sums(slot, rejected=False),
            "rejection_sum": lambda slot: self._sums(slot, rejected=True),
            "quota": self._quota,
        }

    def answer(self, now: float, message: Parsed) -> Generator[None, None, bytes]:
        pieces = yield from self._answer_pieces(now, message)
        if len(pieces) > 1:
            yield
        return b"".join(pieces) or b"{}"

    def _answer_pieces(self, now: float, message: Parsed) -> _Text:
        subject = message["monitor"]
        if subject == "connections":
            return [orjson.dumps(self._connected())]
        slots = self._slots(now, message)
        if subject == "distribution":
            return (yield from self._distribution(slots))
        subject_pieces = self._subjects.get(subject) if isinstance(subject, str) else None
        if subject_pieces is None:
            shown = subject[:60] if isinstance(subject, str) else short(subject)
            raise InvalidMessage("InvalidSubject", f"invalid subject: {shown}")
        return (yield from self._object((str(slot), subject_pieces(slot)) for slot in slots))

    def _slots(self, now: float, message: Parsed) -> range:
        """The requested slots, as far as the ledger has them."""
        here = self._state.slot(now)
        first, last = here - self._state.ledger.nr_slot - 1, here + 2
        if message.get("start_slot") is None:
            return range(first, last + 1)
        start = end = whole("start_slot", message["start_slot"])
        if message.get("end_slot") is not None:
            end = whole("end_slot", message["end_slot"])
        return range(max(start, first), min(end, last) + 1)

    # The subjects

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

    def _reported(self, slot: int) -> _Text:
        """Who reported in a slot, of the slot before it."""
        yield
        nodes = self._state.ledger.reported(slot - 1)
        if not nodes:
            return []
        ports = {each.node: each.port for each in self._connections() if each.node is not None}
        told = {
            node: {str(ports.get(node, 0)): {"node_id": node, "slot_number": slot}}
            for node in nodes
        }
        return [orjson.dumps(told)]

    def _sums(self, slot: int, *, rejected: bool) -> _Text:
        """By service, user and resource; of all services when there is something of one."""

        def tables(service_ledger: ServiceLedger) -> _Tables:
            for users in _batches(list_users(service_ledger, slot)):
                yield slot_totals(service_ledger, slot, users, rejected)

        return (yield from self._services(tables))

    def _quota(self, slot: int) -> _Text:
        """By node: the quota of nodes that report in a slot, which is for the slot after it."""
        service_ledgers = self._state.ledger.service_ledgers
        nodes = dict.fromkeys(
            node
            for service_ledger in service_ledgers.values()
            for node in nodes_with_quota(service_ledger, slot + 1)
        )
        return (yield from self._object((node, self._quota_of(slot + 1, node)) for node in nodes))

    def _quota_of(self, slot: int, node: str) -> _Text:
        return (
            yield from self._object(
                (service, self._given(service_ledger, slot, node))
                for service, service_ledger in self._state.ledger.service_ledgers.items()
                if node in nodes_with_quota(service_ledger, slot)
            )
        )

    def _given(self, service_ledger: ServiceLedger, slot: int, node: str) -> _Text:
        users: dict[str, dict[str, float]] = {}
        at: int | None = 0
        while at is not None:
            at = read_quota(service_ledger, slot, node, users, at, 4 * _AT_ONCE)
            yield
        tables = (dict(batch) for batch in _batches(users.items()))
        return [b'{"%d":' % slot, *(yield from self._table(tables)), b"}"]

    def _distribution(self, slots: range) -> _Text:
        """The last report of each node, where it is of one of these slots."""

        def tables(service_ledger: ServiceLedger) -> _Tables:
            for users in _batches(list_users(service_ledger, None)):
                yield distribution_of(service_ledger, users, slots.start, slots.stop)

        return (yield from self._services(tables, include_empty=True))

    # Text

    def _services(
        self, tables: Callable[[ServiceLedger], _Tables], *, include_empty: bool = False
    ) -> _Text:
        """The users of each service; nothing if no service has any, unless `include_empty`."""
        written: list[bytes] = []
        is_empty = not include_empty
        for service, service_ledger in list(self._state.ledger.service_ledgers.items()):
            users = yield from self._table(tables(service_ledger))
            is_empty = is_empty and users == [b"{}"]
            written += [b"," if written else b"{", orjson.dumps(service), b":", *users]
        return [] if is_empty or not written else [*written, b"}"]

    def _object(self, fields: Iterable[tuple[str, _Text]]) -> _Text:
        """One object of the fields that are not empty."""
        written: list[bytes] = []
        size = 0
        for name, field in fields:
            pieces = yield from field
            if pieces:
                size = self._measured(size, pieces)
                written += [b"," if written else b"{", orjson.dumps(name), b":", *pieces]
        return [*written, b"}"] if written else []

    def _table(self, tables: _Tables) -> _Text:
        """All tables as one object."""
        written: list[bytes] = []
        size = 0
        for table in tables:
            if table:
                piece = orjson.dumps(table)[1:-1]
                size = self._measured(size, [piece])
                written += [b"," if written else b"{", piece]
            yield
        return [*written, b"}"] if written else [b"{}"]

    def _measured(self, size: int, pieces: list[bytes]) -> int:
        size += sum(map(len, pieces))
        if size > _MAX_BYTES:
            raise InvalidMessage(
                "TooLarge", f"the answer has more than {_MAX_BYTES} bytes: ask for fewer slots"
            )
        return size


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    rest = iter(items)
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch
