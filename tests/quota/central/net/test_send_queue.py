"""What waits for a node that does not read: never more than what still counts."""

from sluicegate.quota.central.net.send_queue import SendQueue
from sluicegate.quota.messages import Ack, Hint, Quota, ServiceQuota, Share


def ack(sequence: int) -> Ack:
    return Ack("c", True, 1, 1, sequence, 0.0, 0.0)


def quota(slot: int, *, whole: bool, version: int = 1, **granted: float) -> Quota:
    users = {user: {"r": Share(amount, 1.0)} if amount else {} for user, amount in granted.items()}
    hints = {user: Hint(3.0, False, False) for user in granted}
    services = {"front": ServiceQuota(users, {}, hints)} if granted else {}
    return Quota("c", 1, version, slot, float(slot), 1, whole, 0.05, services)


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


def test_of_grants_the_newest_total_of_each_user_waits() -> None:
    send_queue = SendQueue()
    send_queue.put(quota(4, whole=False, ann=10.0, bob=3.0))
    send_queue.put(quota(5, whole=True))
    send_queue.put(quota(6, whole=False, ann=14.0, eve=1.0))
    whole, amendment = taken(send_queue)
    assert whole.whole
    front = amendment.services["front"]
    totals = {user: shares["r"].granted for user, shares in front.users.items()}
    assert totals == {"ann": 14.0, "bob": 3.0, "eve": 1.0}
    waits = {user: hint.wait for user, hint in front.hints.items()}
    assert waits == {"ann": 3.0, "bob": 1.0, "eve": 3.0}  # from the time of the message on
    assert amendment.slot == 6


def test_a_user_without_a_limit_is_not_told_so_under_other_limits() -> None:
    send_queue = SendQueue()
    send_queue.put(quota(4, whole=False, ann=0.0, bob=3.0))
    send_queue.put(quota(5, whole=False, version=2, eve=1.0))
    (amendment,) = taken(send_queue)
    assert set(amendment.services["front"].users) == {"bob", "eve"}
