"""Binary frames once more, in plain Python, as docs/protocol.md tells them.

The tests let it read what the compiled one has written, and the other way round.

Numbers are little-endian. A frame begins with its kind and its flags; a name is a byte with its
length and so many bytes of UTF-8. Each direction of a connection has a dictionary: an *entry* is
a (service, user, resource); a frame that uses new ones introduces them first, and they are
numbered in order, so that a line or a share names its entry by number, and the one after the
line before by nothing at all. A flag says that the dictionary begins anew.

So frames must be read in the order they were written, and none may be left out: what is not to
be sent must not be written.
"""

import math
import struct
from typing import Any, NoReturn

from headgate.errors import ProtocolError
from headgate.quota.protocol import Ack, Ask, Line, Lines, Quota, Report, ServiceQuota, Share
from headgate.quota.wire.bounds import Bounds
from headgate.quota.wire.checks import MOST, amount, fail, name, time, whole

__all__ = ["FrameReader", "FrameWriter"]

REPORT, ASK, ACK, QUOTA = 1, 2, 3, 4  # the kinds

ANEW = 1  # flag of a report and a quota: the dictionary begins anew
LEAVING = 2  # of a report
WHOLE = 2  # of a quota
LEADS = 1  # of an ack

HAS_SERVICE, HAS_USER = 1, 2  # of an entry: else that of the entry before

HAS_NUMBER = 1  # of a line: else it is the entry after the one before
CONSUMED_REAL = 2
SETTLED_ALL, SETTLED_WHOLE, SETTLED_REAL = 4, 8, 12  # 0: nothing
HAS_REJECTED, HAS_REQUESTS, HAS_HELD = 16, 32, 64

Entry = tuple[str, str, str]

_REPORT_HEAD = struct.Struct("<qIIqqdq")
_ASK_HEAD = struct.Struct("<qqd")
_ACK_BODY = struct.Struct("<qqIdd")
_QUOTA_HEAD = struct.Struct("<qQqdI")
_U16, _U32, _F64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<d")
_PAIR, _SHARE = struct.Struct("<II"), struct.Struct("<ff")


class FrameReader:
    """Reads the frames of one direction of a connection."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._entries: list[Entry] = []
        self._users = 0
        self._frame = b""
        self._at = 0

    def read(self, frame: bytes) -> Report | Ask | Ack | Quota:
        if len(frame) > self._bounds.frame_bytes:
            fail("the length of the frame", len(frame), f"at most {self._bounds.frame_bytes}")
        self._frame, self._at = frame, 0
        kind, flags = self._bytes(2)
        if kind == REPORT:
            message: Report | Ask | Ack | Quota = self._report(flags)
        elif kind == ASK:
            message = self._ask(flags)
        elif kind == ACK:
            message = self._ack(flags)
        elif kind == QUOTA:
            message = self._quota(flags)
        else:
            fail("the kind of the frame", kind, "1, 2, 3 or 4")
        if self._at != len(frame):
            fail("what is left of the frame", len(frame) - self._at, "0 bytes")
        return message

    # Pieces

    def _bytes(self, count: int) -> bytes:
        piece = self._frame[self._at : self._at + count]
        if len(piece) < count:
            self._cut()
        self._at += count
        return piece

    def _cut(self) -> NoReturn:
        raise ProtocolError(f"the frame ends after {len(self._frame)} bytes, expected more")

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
            self._cut()
        return int(count)

    def _flags(self, flags: int, known: int) -> int:
        if flags & ~known:
            fail("flags", flags, f"none but those in {known}")
        return flags

    def _introduce(self, flags: int) -> None:
        """Take in the new entries of a frame."""
        if flags & ANEW:
            self._entries = []
            self._users = 0
        most = self._bounds.entries - len(self._entries)
        service = user = None
        for _ in range(self._count("new entries", _U32, 3, most)):
            form = self._flags(self._bytes(1)[0], HAS_SERVICE | HAS_USER)
            if form & HAS_SERVICE:
                service = self._service()
            if form & HAS_USER:
                user = self._name("user")
                self._users += 1
                if self._users > self._bounds.users:
                    fail("the number of users", self._users, f"at most {self._bounds.users}")
            if service is None or user is None:
                fail("the first new entry", form, "a service and a user")
            self._entries.append((service, user, self._name("resource")))

    def _entry(self, number: int) -> Entry:
        if number >= len(self._entries):
            fail("an entry", number, f"a number below {len(self._entries)}")
        return self._entries[number]

    # Messages

    def _report(self, flags: int) -> Report:
        self._flags(flags, ANEW | LEAVING)
        node = self._name("node")
        boot, sequence, since, epoch, slot, sent, settled_slot = self._take(_REPORT_HEAD)
        self._introduce(flags)
        lines: Lines = {}
        number = -1
        for _ in range(self._count("lines", _U32, 5, len(self._entries))):
            form = self._flags(self._bytes(1)[0], 127)
            number = self._take(_U32)[0] if form & HAS_NUMBER else number + 1
            service, user, resource = self._entry(number)
            lines.setdefault(service, {}).setdefault(user, {})[resource] = self._line(form)
        return Report(
            node,
            whole("boot", boot),
            whole("sequence", sequence, 0, 1 << 31),
            whole("epoch", epoch, -1),
            whole("since", since, 0, 1 << 31),
            whole("slot", slot, -1),
            time("sent", sent),
            lines,
            bool(flags & LEAVING),
            whole("settled_slot", settled_slot, -1),
        )

    def _line(self, form: int) -> Line:
        consumed = amount("consumed", self._take(_F64 if form & CONSUMED_REAL else _U32)[0])
        how = form & SETTLED_REAL
        settled = 0.0
        if how == SETTLED_ALL:
            settled = consumed
        elif how:
            settled = amount("settled", self._take(_F64 if how == SETTLED_REAL else _U32)[0])
        if settled > consumed:
            fail("settled", settled, f"at most consumed, which is {consumed!r}")
        rejected = self._take(_U32)[0] if form & HAS_REJECTED else 0
        requests = self._take(_U32)[0] if form & HAS_REQUESTS else 0
        held = amount("held", self._take(_F64)[0]) if form & HAS_HELD else 0.0
        return Line(consumed, rejected, requests, settled, held)

    def _ask(self, flags: int) -> Ask:
        self._flags(flags, 0)
        node = self._name("node")
        boot, slot, sent = self._take(_ASK_HEAD)
        users: dict[str, list[str]] = {}
        left = self._bounds.users
        for _ in range(self._count("services", _U16, 6, self._bounds.services)):
            service = self._service()
            count = self._count("users", _U32, 2, left)
            left -= count
            users[service] = [self._name("user") for _ in range(count)]
        return Ask(node, whole("boot", boot), whole("slot", slot, -1), time("sent", sent), users)

    def _ack(self, flags: int) -> Ack:
        self._flags(flags, LEADS)
        central = self._name("central")
        epoch, boot, sequence, sent, at = self._take(_ACK_BODY)
        return Ack(
            central,
            bool(flags & LEADS),
            whole("epoch", epoch, -1),
            whole("boot", boot),
            whole("sequence", sequence, 0, 1 << 31),
            time("sent", sent),
            time("time", at),
        )

    def _quota(self, flags: int) -> Quota:
        self._flags(flags, ANEW | WHOLE)
        central = self._name("central")
        epoch, version, slot, at, nodes = self._take(_QUOTA_HEAD)
        services: dict[str, ServiceQuota] = {}
        order = []
        for _ in range(self._count("services", _U16, 4, self._bounds.services)):
            service = self._service()
            order.append(service)
            newcomers = {}
            for _ in range(self._count("newcomers", _U16, 10, self._bounds.resources)):
                resource = self._name("resource")
                newcomers[resource] = amount("newcomers", self._take(_F64)[0])
            services[service] = ServiceQuota({}, newcomers)
        self._introduce(flags)
        for _ in range(self._count("runs", _U32, 8, self._bounds.entries)):
            first, count = self._take(_PAIR)
            if count * 8 > len(self._frame) - self._at:
                self._cut()
            for number in range(first, first + count):
                service, user, resource = self._entry(number)
                share = Share(*(amount("a share", value) for value in self._take(_SHARE)))
                if service not in services:
                    fail("the service of a share", service, "one of this quota")
                services[service].users.setdefault(user, {})[resource] = share
        for _ in range(self._count("free users", _U32, 4, self._bounds.entries)):
            (at_service,) = self._take(_U16)
            if at_service >= len(order):
                fail("a service", at_service, f"a number below {len(order)}")
            services[order[at_service]].users[self._name("user")] = {}
        return Quota(
            central,
            whole("epoch", epoch, -1),
            whole("version", version, 0, 1 << 56),
            whole("slot", slot, -1),
            time("time", at),
            nodes,
            bool(flags & WHOLE),
            services,
        )


class FrameWriter:
    """Writes the frames of one direction of a connection."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._numbers: dict[Entry, int] = {}
        self._users = 0

    def write(self, message: Report | Ask | Ack | Quota) -> bytes:
        if isinstance(message, Report):
            frame = self._report(message)
        elif isinstance(message, Ask):
            frame = self._ask(message)
        elif isinstance(message, Ack):
            frame = self._ack(message)
        else:
            frame = self._quota(message)
        if len(frame) > self._bounds.frame_bytes:
            raise ValueError(
                f"the frame has {len(frame)} bytes, expected at most {self._bounds.frame_bytes}"
            )
        return frame

    def _introduce(self, used: list[Entry], head: bytearray) -> int:
        """Write the entries of `used` that are new into `head`; the flag if it begins anew."""
        numbers = self._numbers
        new = [entry for entry in used if entry not in numbers]
        users = _changes(new)
        anew = 0
        if (
            len(numbers) + len(new) > self._bounds.entries
            or self._users + users > self._bounds.users
        ):
            numbers.clear()
            self._users = 0
            new, users, anew = used, _changes(used), ANEW
        if len(numbers) + len(new) > self._bounds.entries or users > self._bounds.users:
            raise ValueError(
                f"a frame may have {self._bounds.entries} lines of {self._bounds.users} users, "
                f"got {len(used)} of {users}"
            )
        self._users += users
        head += _U32.pack(len(new))
        service = user = None
        for entry in new:
            numbers[entry] = len(numbers)
            same_service = entry[0] == service
            same_user = same_service and entry[1] == user
            head.append((not same_service) * HAS_SERVICE | (not same_user) * HAS_USER)
            if not same_service:
                head += _packed(entry[0])
            if not same_user:
                head += _packed(entry[1])
            head += _packed(entry[2])
            service, user = entry[0], entry[1]
        return anew

    def _report(self, report: Report) -> bytes:
        used = [
            (service, user, resource)
            for service, users in report.lines.items()
            for user, resources in users.items()
            for resource in resources
        ]
        head = bytearray(2) + _packed(report.node)
        head += _REPORT_HEAD.pack(
            report.boot,
            report.sequence,
            report.since,
            report.epoch,
            report.slot,
            report.sent,
            report.settled_slot,
        )
        head[0] = REPORT
        head[1] = self._introduce(used, head) | (LEAVING if report.leaving else 0)
        head += _U32.pack(len(used))
        expected = 0
        for entry in used:
            number = self._numbers[entry]
            line = report.lines[entry[0]][entry[1]][entry[2]]
            _write_line(head, None if number == expected else number, line)
            expected = number + 1
        return bytes(head)

    def _ask(self, ask: Ask) -> bytes:
        frame = bytearray((ASK, 0)) + _packed(ask.node)
        frame += _ASK_HEAD.pack(ask.boot, ask.slot, ask.sent)
        frame += _U16.pack(len(ask.users))
        for service, users in ask.users.items():
            frame += _packed(service) + _U32.pack(len(users))
            for user in users:
                frame += _packed(user)
        return bytes(frame)

    def _ack(self, ack: Ack) -> bytes:
        body = _ACK_BODY.pack(ack.epoch, ack.boot, ack.sequence, ack.sent, ack.time)
        return bytes((ACK, LEADS if ack.leads else 0)) + _packed(ack.central) + body

    def _quota(self, quota: Quota) -> bytes:
        frame = bytearray(2) + _packed(quota.central)
        frame += _QUOTA_HEAD.pack(quota.epoch, quota.version, quota.slot, quota.time, quota.nodes)
        frame += _U16.pack(len(quota.services))
        shares: dict[Entry, Share] = {}
        free = bytearray()
        free_count = 0
        for at, (service, part) in enumerate(quota.services.items()):
            frame += _packed(service) + _U16.pack(len(part.newcomers))
            for resource, share in part.newcomers.items():
                frame += _packed(resource) + _F64.pack(share)
            for user, resources in part.users.items():
                if not resources:
                    free += _U16.pack(at) + _packed(user)
                    free_count += 1
                for resource, given in resources.items():
                    shares[service, user, resource] = given
        frame[0] = QUOTA
        frame[1] = self._introduce(list(shares), frame) | (WHOLE if quota.whole else 0)
        runs: list[tuple[int, bytearray]] = []
        expected = -1
        for entry, given in shares.items():
            number = self._numbers[entry]
            if number != expected:
                runs.append((number, bytearray()))
            runs[-1][1].extend(_SHARE.pack(given.amount, given.safe))
            expected = number + 1
        frame += _U32.pack(len(runs))
        for number, run in runs:
            frame += _PAIR.pack(number, len(run) // _SHARE.size) + run
        return bytes(frame + _U32.pack(free_count) + free)


def _packed(text: str) -> bytes:
    packed = text.encode()
    if not 0 < len(packed) < 256:
        raise ValueError(f"a name must have 1 to 200 bytes, got {text!r}")
    return bytes((len(packed),)) + packed


def _changes(entries: list[Entry]) -> int:
    """How often a user is named when the entries are written in this order."""
    before = None
    changes = 0
    for entry in entries:
        changes += entry[:2] != before
        before = entry[:2]
    return changes


def _number(value: float) -> tuple[bool, bytes]:
    """Whether it is written as a real number, and its bytes."""
    if 0.0 <= value < 4294967296.0 and value == math.floor(value):
        return False, _U32.pack(int(value))
    return True, _F64.pack(value)


def _write_line(frame: bytearray, number: int | None, line: Line) -> None:
    if not 0.0 <= line.settled <= line.consumed <= MOST or not 0.0 <= line.held <= MOST:
        raise ValueError(f"expected amounts from 0 to {MOST:g}, got {line!r}")
    is_real, consumed = _number(line.consumed)
    form = CONSUMED_REAL if is_real else 0
    settled = b""
    if line.settled == line.consumed and line.settled > 0.0:
        form |= SETTLED_ALL
    elif line.settled > 0.0:
        is_real, settled = _number(line.settled)
        form |= SETTLED_REAL if is_real else SETTLED_WHOLE
    rejected, requests = line.rejected & 0xFFFFFFFF, line.requests & 0xFFFFFFFF
    form |= HAS_REJECTED if rejected else 0
    form |= HAS_REQUESTS if requests else 0
    form |= HAS_HELD if line.held else 0
    frame.append(form if number is None else form | HAS_NUMBER)
    if number is not None:
        frame += _U32.pack(number)
    frame += consumed + settled
    if rejected:
        frame += _U32.pack(rejected)
    if requests:
        frame += _U32.pack(requests)
    if line.held:
        frame += _F64.pack(line.held)
