"""Binary frames once more, written from docs/protocol.md alone: a second opinion.

It shares nothing with the package, not even the messages: one is what stands in a text frame,
`{"report": {...}}`, with a line as `(consumed, rejected, requests, settled, held, granted,
returned)`, a credit as `(granted, returned, used, cost)`, a share as `(granted, safe)` and a hint
as `(wait, recall, may_float)`. What a frame is made of stands in the tables; `Reader` and `Writer`
go through them. Where the page leaves a choice to who writes, `Writer` takes one by chance, so that
others are seen than ours takes. What is no frame, by the page, raises NotAFrame.

Each direction of a connection has a reader and a writer of its own: both keep a string table.
"""

import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

KINDS = {1: "report", 2: "ask", 3: "ack", 4: "quota"}
FLAGS = {
    "report": ("reset", "leaving"),
    "ask": ("reset",),
    "ack": ("leads",),
    "quota": ("reset", "whole", "hints"),
}
SENDER = {"report": "node", "ask": "node", "ack": "central", "quota": "central"}
HEAD = {
    "report": "boot:q sequence:I since:I epoch:q slot:q sent:d settled_slot:q",
    "ask": "boot:q sent:d",
    "ack": "epoch:q boot:q sequence:I sent:d time:d",
    "quota": "epoch:q version:Q slot:q time:d nodes:I interval:d",
}
TIMES = ("sent", "time")
LONGEST_DURATION = 3600.0
LOWEST = {"epoch": -1, "slot": -1, "settled_slot": -1}
BEYOND = {"sequence": 1 << 31, "since": 1 << 31, "version": 1 << 56}
LONGEST = {"service": 50}
MOST = 10.0**18
MOST_REQUESTS = 10**9

SETTLED = {0: None, 4: None, 8: "I", 12: "d"}  # bits of a line's form: how it stands there
AFTER_SETTLED = ((16, "I"), (32, "I"), (64, "d"))  # rejected, requests, held
CREDIT = ((4, 0.0), (8, 0.0), (16, 0.0), (32, 1.0))  # bits of a row's form, and what else it is

Message = dict[str, dict[str, Any]]
Entry = tuple[str, str, str]  # service, user, resource


class NotAFrame(ValueError):
    """What came is no frame of the protocol."""


def hold(is_so: bool, what: str) -> None:
    if not is_so:
        raise NotAFrame(what)


def fields(kind: str) -> Iterator[tuple[str, str]]:
    for field in HEAD[kind].split():
        name, _, code = field.partition(":")
        yield name, code


def nested(tree: dict[str, Any], *path: str) -> dict[str, Any]:
    for step in path:
        tree = tree.setdefault(step, {})
    return tree


class Reader:
    """Reads the frames of one direction, in their order."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def read(self, frame: bytes) -> Message:
        self._frame, self._at = frame, 0
        number, flags = self._take("B"), self._take("B")
        hold(number in KINDS, "its kind")
        kind = KINDS[number]
        hold(flags < 1 << len(FLAGS[kind]), "flags without a meaning")
        said = {flag: bool(flags >> bit & 1) for bit, flag in enumerate(FLAGS[kind])}
        if said.pop("reset", False):
            self._entries = []
        has_hints = said.pop("hints", False)
        body: dict[str, Any] = {SENDER[kind]: self._name(), **said}
        for field, code in fields(kind):
            body[field] = self._take(code)
            if field in TIMES:
                hold(abs(body[field]) <= 1e12, field)
            elif field == "interval":
                hold(0.0 <= body[field] <= LONGEST_DURATION, field)
            else:
                lowest, beyond = LOWEST.get(field, 0), BEYOND.get(field, 1 << 53)
                hold(lowest <= body[field] < beyond, field)
        rest: dict[str, Callable[[], dict[str, Any]]] = {
            "report": lambda: {"lines": self._lines()},
            "ask": lambda: {"users": self._asked()},
            "ack": dict,
            "quota": lambda: {"services": self._services(has_hints)},
        }
        body |= rest[kind]()
        hold(self._at == len(frame), "left over")
        return {kind: body}

    def _take(self, code: str) -> Any:
        form = struct.Struct("<" + code)
        hold(self._at + form.size <= len(self._frame), "it is cut")
        (value,) = form.unpack_from(self._frame, self._at)
        self._at += form.size
        return value

    def _name(self, of: str = "") -> str:
        size = self._take("B")
        text = self._frame[self._at : self._at + size]
        self._at += size
        hold(len(text) == size, "it is cut")
        hold(1 <= size <= LONGEST.get(of, 200), "the length of a name")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise NotAFrame("a name") from None

    def _amount(self, code: str) -> float:
        amount = float(self._take(code))
        hold(0.0 <= amount <= MOST, "an amount")  # NaN is not, either
        return amount

    def _entry(self, number: int) -> Entry:
        hold(number < len(self._entries), "an entry that was not introduced")
        return self._entries[number]

    def _introduce(self) -> None:
        service = user = None
        for _ in range(self._take("I")):
            form = self._take("B")
            hold(form <= 3, "the form of an entry")
            service = self._name("service") if form & 1 else service
            user = self._name() if form & 2 else user
            hold(service is not None and user is not None, "the first has both")
            self._entries.append((service, user, self._name()))

    def _lines(self) -> dict[str, Any]:
        lines: dict[str, Any] = {}
        self._introduce()
        count = self._take("I")
        hold(count <= len(self._entries), "more lines than entries")
        number = -1
        for _ in range(count):
            form = self._take("B")
            number = self._take("I") if form & 1 else number + 1
            service, user, resource = self._entry(number)
            consumed = self._amount("d" if form & 2 else "I")
            code = SETTLED[form & 12]
            settled = self._amount(code) if code else consumed if form & 12 else 0.0
            hold(settled <= consumed, "more settled than consumed")
            rejected, requests, held = (
                self._amount(code) if form & bit else 0.0 for bit, code in AFTER_SETTLED
            )
            credit = (self._amount("d"), self._amount("d")) if form & 128 else (0.0, 0.0)
            hold(credit[1] <= credit[0], "more returned than granted")
            line = (consumed, rejected, requests, settled, held, *credit)
            nested(lines, service, user)[resource] = line
        return lines

    def _requests(self) -> int:
        requests = int(self._take("I"))
        hold(requests <= MOST_REQUESTS, "requests")
        return requests

    def _asked(self) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        self._introduce()
        count = self._take("I")
        hold(count <= len(self._entries), "more rows than entries")
        number = -1
        for _ in range(count):
            form = self._take("B")
            hold(form < 128, "the form of a row")
            number = self._take("I") if form & 1 else number + 1
            service, user, resource = self._entry(number)
            said = nested(asked, service).setdefault(
                user, {"requests": 0, "resources": {}, "waits": False}
            )
            if form & 2:
                said["requests"] = self._requests()
            said["waits"] = said["waits"] or form & 64 != 0
            credit = tuple(self._amount("d") if form & bit else other for bit, other in CREDIT)
            hold(credit[1] <= credit[0], "more returned than granted")
            said["resources"][resource] = credit
        service = ""
        for _ in range(self._take("I")):
            form = self._take("B")
            hold(form < 4, "the form of a user")
            service = self._name("service") if form & 1 else service
            hold(service != "", "the first has a service")
            user = self._name()
            nested(asked, service)[user] = {
                "requests": self._requests(),
                "resources": {},
                "waits": form & 2 != 0,
            }
        return asked

    def _services(self, has_hints: bool) -> dict[str, Any]:
        services: dict[str, Any] = {}
        named = []
        for _ in range(self._take("H")):
            named.append(self._name("service"))
            newcomers = {self._name(): self._amount("d") for _ in range(self._take("H"))}
            services[named[-1]] = {"newcomers": newcomers, "users": {}, "hints": {}}
        self._introduce()
        for _ in range(self._take("I")):
            first, count = self._take("I"), self._take("I")
            hold(first + count <= len(self._entries), "an entry that was not introduced")
            for number in range(first, first + count):
                service, user, resource = self._entry(number)
                hold(service in services, "a share of a service that is not named")
                share = (self._amount("d"), self._amount("f"))
                nested(services, service, "users", user)[resource] = share
        for _ in range(self._take("I")):
            number, user = self._take("H"), self._name()
            hold(number < len(named), "a service that is not named")
            services[named[number]]["users"][user] = {}
        for _ in range(self._take("I") if has_hints else 0):
            number, user, form = self._take("H"), self._name(), self._take("B")
            hold(number < len(named), "a service that is not named")
            hold(form < 8, "the form of a hint")
            wait = self._take("d") if form & 4 else 0.0
            hold(0.0 <= wait <= LONGEST_DURATION, "a wait")
            services[named[number]]["hints"][user] = (wait, bool(form & 1), bool(form & 2))
        return services


class Writer:
    """Writes the frames of one direction, in their order, in one of the ways there are."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers: dict[Entry, int] = {}
        self._introduced = 0

    def write(self, message: Message) -> bytes:
        ((kind, body),) = message.items()
        (number,) = (number for number, name in KINDS.items() if name == kind)
        if is_reset := "reset" in FLAGS[kind] and self._may():
            self._numbers, self._introduced = {}, 0
        has_hints = kind == "quota" and (
            any(told.get("hints") for told in body["services"].values()) or self._may()
        )
        body = {"reset": is_reset, "leaving": False, "hints": has_hints, **body}
        flags = sum(bool(body[flag]) << bit for bit, flag in enumerate(FLAGS[kind]))
        self._frame = bytearray((number, flags))
        self._put_name(body[SENDER[kind]])
        for field, code in fields(kind):
            self._put(code, body[field])
        if kind == "report":
            self._put_lines(body["lines"])
        elif kind == "ask":
            self._put_asked(body["users"])
        elif kind == "quota":
            self._put_services(body["services"])
            if has_hints:
                self._put_hints(body["services"])
        return bytes(self._frame)

    def _may(self) -> bool:
        return self._chance.random() < 0.5

    def _put(self, code: str, value: float) -> None:
        self._frame += struct.pack("<" + code, value)

    def _put_name(self, name: str) -> None:
        text = name.encode()
        self._put("B", len(text))
        self._frame += text

    def _introduce(self, used: list[Entry]) -> None:
        """Those that are new, and some that are not: they have another number then."""
        new = [entry for entry in used if entry not in self._numbers or self._may()]
        self._put("I", len(new))
        before: Entry | None = None
        for entry in new:
            form = 3
            if before is not None and self._may():
                form = (entry[0] != before[0]) | (entry[1] != before[1]) << 1
            self._put("B", form)
            for name in (entry[:1] if form & 1 else ()) + (entry[1:2] if form & 2 else ()):
                self._put_name(name)
            self._put_name(entry[2])
            self._numbers[entry] = self._introduced
            self._introduced += 1
            before = entry

    def _put_lines(self, lines: dict[str, Any]) -> None:
        flat = {
            (service, user, resource): line
            for service, users in lines.items()
            for user, of_user in users.items()
            for resource, line in of_user.items()
        }
        self._introduce(list(flat))
        self._put("I", len(flat))
        before = -1
        for entry, line in flat.items():
            before = self._put_line(self._numbers[entry], before, line)

    def _put_line(self, number: int, before: int, line: tuple[float, ...]) -> int:
        consumed, rejected, requests, settled, held, granted, returned = line
        has_number = number != before + 1 or self._may()
        form = has_number | self._real(consumed) << 1 | (12 if self._real(settled) else 8)
        if settled in (0.0, consumed) and self._may():
            form = form & 3 | (4 if settled else 0)
        counted = (rejected, requests, held)
        for (bit, _), value in zip(AFTER_SETTLED, counted, strict=True):
            form |= bit if value or self._may() else 0
        form |= 128 if granted or self._may() else 0
        self._put("B", form)
        if has_number:
            self._put("I", number)
        self._put_amount("d" if form & 2 else "I", consumed)
        if code := SETTLED[form & 12]:
            self._put_amount(code, settled)
        for (bit, code), value in zip(AFTER_SETTLED, counted, strict=True):
            if form & bit:
                self._put_amount(code, value)
        if form & 128:
            self._put("d", granted)
            self._put("d", returned)
        return number

    def _put_asked(self, asked: dict[str, Any]) -> None:
        rows = [
            ((service, user, resource), credit)
            for service, users in asked.items()
            for user, said in users.items()
            for resource, credit in said["resources"].items()
        ]
        self._chance.shuffle(rows)
        last_of = {entry[:2]: at for at, (entry, _) in enumerate(rows)}
        self._introduce([entry for entry, _ in rows])
        self._put("I", len(rows))
        before = -1
        for at, ((service, user, resource), credit) in enumerate(rows):
            number = self._numbers[service, user, resource]
            requests = asked[service][user]["requests"]
            form = int(number != before + 1 or self._may())
            if asked[service][user].get("waits") and (at == last_of[service, user] or self._may()):
                form |= 64
            if (requests and at == last_of[service, user]) or self._may():
                form |= 2
            for (bit, other), value in zip(CREDIT, credit, strict=True):
                form |= bit if value != other or self._may() else 0
            self._put("B", form)
            for bit, value in ((1, number), (2, requests)):
                if form & bit:
                    self._put("I", value)
            for (bit, _), value in zip(CREDIT, credit, strict=True):
                if form & bit:
                    self._put("d", value)
            before = number
        self._put_users_without_rows(asked)

    def _put_users_without_rows(self, asked: dict[str, Any]) -> None:
        bare = [
            (service, user, said["requests"], said.get("waits", False))
            for service, users in asked.items()
            for user, said in users.items()
            if not said["resources"]
        ]
        self._put("I", len(bare))
        before = None
        for service, user, requests, waits in bare:
            names_service = service != before or self._may()
            self._put("B", names_service + 2 * waits)
            if names_service:
                self._put_name(service)
            self._put_name(user)
            self._put("I", requests)
            before = service

    def _put_amount(self, code: str, value: float) -> None:
        self._put(code, value if code == "d" else int(value))

    def _real(self, amount: float) -> bool:
        """Whether it is to be an f64: it must, or it may as well."""
        return amount >= 1 << 32 or math.floor(amount) != amount or self._may()

    def _put_services(self, services: dict[str, Any]) -> None:
        self._put("H", len(services))
        shares: dict[Entry, tuple[float, float]] = {}
        free = []
        for number, (service, told) in enumerate(services.items()):
            self._put_name(service)
            self._put("H", len(told["newcomers"]))
            for resource, amount in told["newcomers"].items():
                self._put_name(resource)
                self._put("d", amount)
            for user, of_user in told["users"].items():
                shares |= {(service, user, resource): share for resource, share in of_user.items()}
                free += [] if of_user else [(number, user)]
        self._introduce(list(shares))
        runs: list[list[Entry]] = []
        for entry in sorted(shares, key=lambda entry: self._numbers[entry]):
            follows = runs and self._numbers[entry] == self._numbers[runs[-1][-1]] + 1
            if follows and self._may():
                runs[-1].append(entry)
            else:
                runs.append([entry])
        self._chance.shuffle(runs)
        self._put("I", len(runs))
        for run in runs:
            self._put("I", self._numbers[run[0]])
            self._put("I", len(run))
            for entry in run:
                for code, value in zip("df", shares[entry], strict=True):
                    self._put(code, value)
        self._put("I", len(free))
        for number, user in free:
            self._put("H", number)
            self._put_name(user)

    def _put_hints(self, services: dict[str, Any]) -> None:
        hints = [
            (number, user, hint)
            for number, told in enumerate(services.values())
            for user, hint in told.get("hints", {}).items()
        ]
        self._put("I", len(hints))
        for number, user, (wait, recall, may_float) in hints:
            has_wait = wait > 0.0 or self._may()
            self._put("H", number)
            self._put_name(user)
            self._put("B", recall | may_float << 1 | has_wait << 2)
            if has_wait:
                self._put("d", wait)
