"""What waits for a node that does not read: never more than what still counts."""

from sluicegate.quota.central.net.send_queue import Outbox
from sluicegate.quota.messages import Ack, Quota


def ack(sequence: int) -> Ack:
    return Ack("c", True, 1, 1, sequence, 0.0, 0.0)


def quota(slot: int, *, whole: bool) -> Quota:
    return Quota("c", 1, 1, slot, 0.0, 1, whole, {})


def taken(outbox: Outbox) -> list[Ack | Quota]:
    messages = []
    while (message := outbox.take()) is not None:
        messages.append(message)
    return messages


def test_of_acknowledgements_and_whole_quotas_only_the_newest_wait() -> None:
    outbox = Outbox()
    for number in range(100):
        outbox.put(ack(number))
        outbox.put(quota(number, whole=True))
    assert len(outbox) == 2
    assert taken(outbox) == [ack(99), quota(99, whole=True)]
    assert len(outbox) == 0


def test_a_whole_quota_replaces_the_amendments_of_its_slot_and_before() -> None:
    outbox = Outbox()
    for slot in (4, 5, 6):
        outbox.put(quota(slot, whole=False))
    outbox.put(quota(5, whole=True))
    outbox.put(quota(5, whole=False))
    assert [(each.slot, each.whole) for each in taken(outbox) if isinstance(each, Quota)] == [
        (5, True),
        (6, False),
        (5, False),
    ]


def test_amendments_are_bounded() -> None:
    outbox = Outbox()
    for slot in range(1000):
        outbox.put(quota(slot, whole=False))
    assert len(outbox) == 64
    assert taken(outbox)[-1] == quota(999, whole=False)
