"""A table made from another one is the table that would have been made anew."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.quota import Entry
from sluicegate.quota.ledger.limits_table import LimitsTable

SERVICES = ("front", "back")
USERS = ("*", "ann", "bob", "carl")

names = st.tuples(st.sampled_from(SERVICES), st.sampled_from(USERS))
rates = st.none() | st.integers(min_value=0, max_value=3)  # None: the entry is removed
slots = st.lists(st.lists(st.tuples(names, rates), max_size=4), max_size=6)


def make_entry(name: tuple[str, str], rate: int) -> Entry:
    resources = ("requests", "reads") if rate % 2 else ("requests",)
    return Entry(*name, rates=dict.fromkeys(resources, float(rate)))


def make_table(
    entries: dict[tuple[str, str], Entry], base: LimitsTable | None = None
) -> LimitsTable:
    return LimitsTable(entries.values(), 1.0, base)


def told(table: LimitsTable) -> object:
    """Everything a table says."""
    return (
        table.version,
        sorted(table.services),
        [table.newcomers(service, 2) for service in SERVICES],
        [
            table.bucket_limit(service, user, resource)
            for service in SERVICES
            for user in USERS
            for resource in ("requests", "reads")
        ],
        sorted(table.started_after(0)),
    )


@given(changes=slots)
def test_changed_by_entries_or_made_anew_or_compared_with_its_base(
    changes: list[list[tuple[tuple[str, str], int | None]]],
) -> None:
    """In each slot some entries are changed, and then the table takes effect."""
    entries: dict[tuple[str, str], Entry] = {}
    changed, anew, compared = (make_table(entries) for _ in range(3))
    for table in (changed, anew, compared):
        table.activate(1, None)
    for slot, in_slot in enumerate(changes, 2):
        before = changed, anew, compared
        for name, rate in in_slot:
            if rate is None:
                entries.pop(name, None)
                changed = changed.without(*name)
            else:
                entries[name] = make_entry(name, rate)
                changed = changed.with_entry(entries[name])
            compared = make_table(entries, compared)
        anew = make_table(entries)
        for table, old in zip((changed, anew, compared), before, strict=True):
            if table is not old:
                table.activate(slot, old)
        assert told(changed) == told(anew) == told(compared)


def test_a_table_in_force_is_not_changed_by_the_one_made_from_it() -> None:
    table = make_table({("front", "ann"): make_entry(("front", "ann"), 3)})
    table.activate(1, None)
    before = told(table)
    table.with_entry(make_entry(("front", "bob"), 1)).activate(2, table)
    table.without("front", "ann").activate(2, table)
    assert told(table) == before
