"""The leader's part of lending, and what it costs with many services."""

from unittest.mock import patch

from sluicegate.quota.central.lending import lender as lender_module
from sluicegate.quota.central.lending.lender import Lender
from sluicegate.quota.central.lending.messages import Borrow
from sluicegate.quota.name_list import name_list

LEASE = 2.0


def borrow(lender: Lender, now: float, peer: str) -> None:
    lender.receive(now, peer, Borrow(1, lender.epoch, now, is_leaving=False), LEASE)


def test_the_division_is_computed_only_when_a_central_or_a_service_comes_or_goes() -> None:
    services = [f"service-{number}" for number in range(1000)]
    lender = Lender("a", LEASE, lambda: services)
    with patch.object(lender_module, "divide", wraps=lender_module.divide) as divide:
        lender.begin(0.0, 1, ["b", "c"])
        for step in range(1, 100):
            for peer in ("b", "c"):
                borrow(lender, 0.1 * step, peer)
            lender.tick(0.1 * step)
            assert not lender.wants_epoch(0.1 * step)
        assert divide.call_count == 1
        services.append("one-more")
        for _ in range(3):
            lender.wants_epoch(10.0)
        assert divide.call_count == 2


def test_a_service_moves_when_its_central_is_gone() -> None:
    lender = Lender("a", LEASE, lambda: ["x", "y", "z"])
    lender.begin(0.0, 1, ["b", "c"])
    borrow(lender, 0.1, "c")
    assert set(lender.division.values()) == {"a", "b", "c"}
    borrow(lender, 1.9, "c")
    assert not lender.wants_epoch(1.9)
    assert lender.wants_epoch(2.1)  # b was expected, and has not come within a lease


def test_a_list_of_many_names_stays_short() -> None:
    assert name_list(["a", "b"]) == "a, b"
    names = [f"service-{number}" for number in range(3000)]
    assert name_list(names).endswith("service-7 and 2992 more")
    assert name_list(names[:8]).endswith("service-6, service-7")
