"""`usage`: the users of a ledger against their limits, the busiest first.

Rates are per second, whatever the length of a slot: `limit`, `consumed` and `rejected` (requests
refused), in the last full slot and as the mean of the last ten. A slot is full when an assignment
has come after it: then its reports have arrived.

For many users the answer is made in steps, so that nodes get their answers meanwhile.

What a bucket holds (`level`), what is promised of it or held by running requests (`outstanding`)
and what was ever booked (`recorded`) are amounts. A level is None when there is no limit, or when
nothing is known of the bucket: it is full, or nobody has met the user yet.
"""

import math
from collections.abc import Generator

from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger._queries import busiest_users, usage_of
from sluicegate.quota.ledger.ledger import Ledger

__all__ = ["MEAN_SLOTS", "full_slot", "usage"]

MEAN_SLOTS = 10
_ROWS_AT_ONCE = 100

_Row = dict[str, object]


def full_slot(state: CentralState, now: float) -> int:
    """The last slot whose reports have arrived."""
    return math.floor(state.time(now) / state.ledger.slot_seconds - 0.5) - 1


def usage(
    ledger: Ledger, slot: int, *, service: str | None, user: str | None, limit: int
) -> Generator[None, None, list[_Row]]:
    """At most `limit` users of one service or all, or one user, as they were up to `slot`."""
    services = [name for name in ledger.services if service in (None, name)]
    if user is not None:
        rows = [_row(ledger, slot, name, user) for name in services]
        return [row for row in rows if row["resources"]][:limit]
    ranked: list[tuple[float, str, str]] = []
    for name in services:
        found = busiest_users(ledger.service_ledgers[name], slot, MEAN_SLOTS, limit)
        ranked.extend((-score, name, busy) for score, busy in found)
        yield
    rows = []
    for _, name, busy in sorted(ranked)[:limit]:
        rows.append(_row(ledger, slot, name, busy))
        if not len(rows) % _ROWS_AT_ONCE:
            yield
    return rows


def _row(ledger: Ledger, slot: int, service: str, user: str) -> _Row:
    service_ledger = ledger.service_ledgers[service]
    entry = ledger.entry(service, user)
    rates = entry.rates if entry is not None else {}
    seen = usage_of(service_ledger, user, slot, MEAN_SLOTS)
    second = ledger.slot_seconds
    slots = max(1, min(MEAN_SLOTS, slot - service_ledger.first + 1))
    resources = {}
    for resource in sorted({*rates, *seen}):
        consumed, rejected, consumed_in_all, rejected_in_all = seen.get(resource, (0.0,) * 4)
        resources[resource] = {
            "limit": rates.get(resource),
            "level": ledger.level(service, user, resource, slot + 1),
            "consumed": consumed / second,
            "rejected": rejected / second,
            "consumed_mean": consumed_in_all / (slots * second),
            "rejected_mean": rejected_in_all / (slots * second),
            "outstanding": ledger.outstanding(service, user, resource),
            "recorded": ledger.recorded(service, user, resource),
        }
    return {"service": service, "user": user, "resources": resources}
