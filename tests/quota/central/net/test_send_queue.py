"""What waits for a node that does not read: never more than what still counts."""

from sluicegate.quota.central.net.send_queue import SendQueue
from sluicegate.quota.messages import Ack, Quota


def ack(sequence: int) -> Ack:
    return Ack("c", True, 1, 1, sequence, 0.0, 0.0)


def quota(slot: int, *, whole: bool) -> Quota:
    return Quota("c", 1, 1, slot, 0.0, 1, whole, {})


def taken(send_queue: SendQueue) -> list[Ack | Quota]:
    messages = []
    while (message := send_queue.take()) is not None:
        messages.append(message)
    return messages


def test_of_acknowledgements_and_whole_quotas_only_the_newest_wait() -> None:
    send_queue = SendQueue()
    for number in range(100):
        send_queue.put(ack(number))
        send_queue.put(quota(number, whole=True))
    assert len(send_queue) == 2
    assert taken(send_queue) == [ack(99), quota(99, whole=True)]
    assert len(send_queue) == 0


def test_a_whole_quota_replaces_the_amendments_of_its_slot_and_before() -> None:
    send_queue = SendQueue()
    for slot in (4, 5, 6):
        send_queue.put(quota(slot, whole=False))
    send_queue.put(quota(5, whole=True))
    send_queue.put(quota(5, whole=False))
    assert [(each.slot, each.whole) for each in taken(send_queue) if isinstance(each, Quota)] == [
        (5, True),
        (6, False),
        (5, False),
    ]


def test_amendments_are_bounded() -> None:
    send_queue = SendQueue()
    for slot in range(1000):
        send_queue.put(quota(slot, whole=False))
    assert len(send_queue) == 64
    assert taken(send_queue)[-1] == quota(999, whole=False)
