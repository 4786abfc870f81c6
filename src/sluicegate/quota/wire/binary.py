"""Binary frames: their kinds, heads and names; `_binary.pyx` and `_asks.pyx` have the bulk.

Numbers are little-endian. A frame begins with its kind and its flags; a name is a byte with its
length and so many bytes of UTF-8. Each direction of a connection has a string table: an *entry* is
a (service, user, resource); a frame that uses new ones introduces them first, and they are
numbered in order, so that a line or a share names its entry by number, and the one after the
line before by nothing at all. A flag says that the string table is reset. docs/protocol.md
specifies the format.

So frames must be read in the order they were written, and none may be left out: what is not to
be sent must not be written.
"""

import struct
from collections.abc import Generator
from typing import Any, NoReturn

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Ack, Ask, Hint, Quota, Report, ServiceQuota, Share
from sluicegate.quota.packed._report_lines import StringTable
from sluicegate.quota.wire._asks import (
    read_hints,
    read_user_asks,
    write_hints,
    write_user_asks,
)
from sluicegate.quota.wire._binary import StringTableWriter, read_entries, read_lines, read_shares
from sluicegate.quota.wire.bounds import Bounds
from sluicegate.quota.wire.validation import amount, duration, fail, name, time, whole

__all__ = ["FrameReader", "FrameWriter"]

_REPORT, _ASK, _ACK, _QUOTA = 1, 2, 3, 4  # the kinds

_RESET = 1  # flag of a report, an ask and a quota: the string table is reset
_LEAVING = 2  # of a report
_WHOLE = 2  # of a quota
_HINTS = 4  # of a quota: hints follow
_LEADS = 1  # of an ack

_REPORT_HEAD = struct.Struct("<qIIqqdq")
_ASK_HEAD = struct.Struct("<qd")
_ACK_BODY = struct.Struct("<qqIdd")
_QUOTA_HEAD = struct.Struct("<qQqdId")
_U16, _U32, _F64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<d")


class FrameReader:
    """Reads the frames of one direction of a connection."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._string_table = StringTable()
        self._frame = b""
        self._at = 0

    def read(self, frame: bytes) -> Report | Ask | Ack | Quota:
        if len(frame) > self._bounds.frame_bytes:
            fail("the length of the frame", len(frame), f"at most {self._bounds.frame_bytes}")
        self._frame, self._at = frame, 0
        kind, flags = self._bytes(2)
        if kind == _REPORT:
            message: Report | Ask | Ack | Quota = self._report(flags)
        elif kind == _ASK:
            message = self._ask(flags)
        elif kind == _ACK:
            message = self._ack(flags)
        elif kind == _QUOTA:
            message = self._quota(flags)
        else:
            fail("the kind of the frame", kind, "1, 2, 3 or 4")
        if self._at != len(frame):
            fail("the number of bytes after the message", len(frame) - self._at, "0")
        return message

    # Pieces

    def _bytes(self, count: int) -> bytes:
        piece = self._frame[self._at : self._at + count]
        if len(piece) < count:
            self._fail_truncated()
        self._at += count
        return piece

    def _fail_truncated(self) -> NoReturn:
        raise ProtocolError(f"truncated frame: got {len(self._frame)} bytes, expected more")

    def _take(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self._bytes(form.size))

    def _name(self, what: str, most: int | None = None) -> str:
        packed = self._bytes(self._bytes(1)[0])
        try:
            return name(what, packed.decode(), most or self._bounds.name_bytes)
        except UnicodeDecodeError:
            fail(what, packed, "UTF-8")

    def _service(self) -> str:
        return self._name("service", self._bounds.service_bytes)

    def _count(self, what: str, form: struct.Struct, least_bytes: int, most: int) -> int:
        """How many follow, of at least so many bytes each: never more than there can be."""
        (count,) = self._take(form)
        if count > most:
            fail(f"the number of {what}", count, f"at most {most}")
        if count * least_bytes > len(self._frame) - self._at:
            self._fail_truncated()
        return int(count)

    def _flags(self, flags: int, known: int) -> int:
        if flags & ~known:
            fail("flags", flags, f"no bits but those of {known}")
        return flags

    def _read_new_entries(self, flags: int, most: int) -> None:
        """Read the new entries of a frame into the string table."""
        if flags & _RESET:
            self._string_table = StringTable()
        self._at = read_entries(self._frame, self._at, self._string_table, self._bounds, most)

    # Messages

    def _report(self, flags: int) -> Report:
        self._flags(flags, _RESET | _LEAVING)
        node = self._name("node")
        boot, sequence, since, epoch, slot, sent, settled_slot = self._take(_REPORT_HEAD)
        most = self._bounds.lines
        self._read_new_entries(flags, most)
        lines, self._at = read_lines(self._frame, self._at, self._string_table, most)
        return Report(
            node,
            whole("boot", boot),
            whole("sequence", sequence, 0, 1 << 31),
            whole("epoch", epoch, -1),
            whole("since", since, 0, 1 << 31),
            whole("slot", slot, -1),
            time("sent", sent),
            lines,
            bool(flags & _LEAVING),
            whole("settled_slot", settled_slot, -1),
        )

    def _ask(self, flags: int) -> Ask:
        self._flags(flags, _RESET)
        node = self._name("node")
        boot, sent = self._take(_ASK_HEAD)
        self._read_new_entries(flags, self._bounds.lines)
        users, self._at = read_user_asks(self._frame, self._at, self._string_table, self._bounds)
        return Ask(node, whole("boot", boot), time("sent", sent), users)

    def _ack(self, flags: int) -> Ack:
        self._flags(flags, _LEADS)
        central = self._name("central")
        epoch, boot, sequence, sent, at = self._take(_ACK_BODY)
        return Ack(
            central,
            bool(flags & _LEADS),
            whole("epoch", epoch, -1),
            whole("boot", boot),
            whole("sequence", sequence, 0, 1 << 31),
            time("sent", sent),
            time("time", at),
        )

    def _quota(self, flags: int) -> Quota:
        self._flags(flags, _RESET | _WHOLE | _HINTS)
        central = self._name("central")
        epoch, version, slot, at, nodes, interval = self._take(_QUOTA_HEAD)
        newcomers: dict[str, dict[str, float]] = {}
        for _ in range(self._count("services", _U16, 4, self._bounds.services)):
            shares = newcomers[self._service()] = {}
            for _ in range(self._count("newcomers", _U16, 10, self._bounds.resources)):
                resource = self._name("resource")
                shares[resource] = amount("newcomers", self._take(_F64)[0])
        self._read_new_entries(flags, self._bounds.entries)
        users: dict[str, dict[str, dict[str, Share]]] = {service: {} for service in newcomers}
        self._at = read_shares(
            self._frame, self._at, self._string_table, users, self._bounds.entries
        )
        order = list(users)
        for _ in range(self._count("free users", _U32, 4, self._bounds.entries)):
            (number,) = self._take(_U16)
            if number >= len(order):
                fail("the service of a free user", number, f"a number below {len(order)}")
            users[order[number]][self._name("user")] = {}
        hints: dict[str, dict[str, Hint]] = {}
        if flags & _HINTS:
            hints, self._at = read_hints(self._frame, self._at, order, self._bounds)
        services = {
            name: ServiceQuota(users[name], newcomers[name], hints.get(name, {})) for name in order
        }
        return Quota(
            central,
            whole("epoch", epoch, -1),
            whole("version", version, 0, 1 << 56),
            whole("slot", slot, -1),
            time("time", at),
            nodes,
            bool(flags & _WHOLE),
            duration("interval", interval),
            services,
        )


class FrameWriter:
    """Writes the frames of one direction of a connection."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._string_table_writer = StringTableWriter(bounds)

    def write(self, message: Report | Ask | Ack | Quota) -> bytes:
        writing = self.writing(message)
        while True:
            try:
                next(writing)
            except StopIteration as done:
                frame: bytes = done.value
                return frame

    def writing(self, message: Report | Ask | Ack | Quota) -> Generator[None, None, bytes]:
        """As `write`, in steps of some milliseconds; nothing else may be written between them."""
        if isinstance(message, Report):
            frame = self._report(message)
        elif isinstance(message, Ask):
            frame = self._ask(message)
        elif isinstance(message, Ack):
            frame = self._ack(message)
        else:
            frame = yield from self._quota(message)
        if len(frame) > self._bounds.frame_bytes:
            raise ValueError(
                f"frame too large: got {len(frame)} bytes, "
                f"expected at most {self._bounds.frame_bytes}"
            )
        return frame

    def _report(self, report: Report) -> bytes:
        is_reset, bulk = self._string_table_writer.write_lines(report.lines)
        flags = (_RESET if is_reset else 0) | (_LEAVING if report.leaving else 0)
        head = _REPORT_HEAD.pack(
            report.boot,
            report.sequence,
            report.since,
            report.epoch,
            report.slot,
            report.sent,
            report.settled_slot,
        )
        return b"".join((bytes((_REPORT, flags)), _packed(report.node), head, bulk))

    def _ask(self, ask: Ask) -> bytes:
        is_reset, bulk = write_user_asks(self._string_table_writer, ask.users, self._bounds)
        head = _ASK_HEAD.pack(ask.boot, ask.sent)
        return b"".join((bytes((_ASK, _RESET if is_reset else 0)), _packed(ask.node), head, bulk))

    def _ack(self, ack: Ack) -> bytes:
        body = _ACK_BODY.pack(ack.epoch, ack.boot, ack.sequence, ack.sent, ack.time)
        return bytes((_ACK, _LEADS if ack.leads else 0)) + _packed(ack.central) + body

    def _quota(self, quota: Quota) -> Generator[None, None, bytes]:
        frame = bytearray(2) + _packed(quota.central)
        frame += _QUOTA_HEAD.pack(
            quota.epoch, quota.version, quota.slot, quota.time, quota.nodes, quota.interval
        )
        frame += _U16.pack(len(quota.services))
        for service, part in quota.services.items():
            frame += _packed(service) + _U16.pack(len(part.newcomers))
            for resource, share in part.newcomers.items():
                frame += _packed(resource) + _F64.pack(share)
        services = [(service, part.users) for service, part in quota.services.items()]
        self._string_table_writer.start_shares(services, whole=quota.whole)
        while not self._string_table_writer.resolve_shares(services):
            yield
        is_reset, bulk = self._string_table_writer.write_shares(services)
        hints = [part.hints for part in quota.services.values()]
        has_hints = any(hints)
        frame[0] = _QUOTA
        frame[1] = (
            (_RESET if is_reset else 0)
            | (_WHOLE if quota.whole else 0)
            | (_HINTS if has_hints else 0)
        )
        free = [
            _U16.pack(number) + _packed(user)
            for number, (_, users) in enumerate(services)
            if isinstance(users, dict)  # those of an assignment have shares
            for user, shares in users.items()
            if not shares
        ]
        told = write_hints(hints) if has_hints else b""
        return b"".join((frame, bulk, _U32.pack(len(free)), *free, told))


def _packed(text: str) -> bytes:
    packed = text.encode()
    if not 0 < len(packed) < 256:
        raise ValueError(f"a name must have 1 to 200 bytes of UTF-8, got {text!r}")
    return bytes((len(packed),)) + packed
