"""The classic way to keep the ledger: the rule of six and four tenths, on dicts.

This is the peer of our book, written as such a central is written in plain Python: what each
node last reported stands in `distribution[user][resource][node]`, and once a slot the whole of
every bucket is given out, 0.6 by what the nodes consumed and 0.4 by what they rejected, reports
of the last five slots counting less with age, up to a tenth for idle nodes. Amounts are in the
resource's unit, slots whole numbers.
"""

from collections.abc import Mapping

__all__ = ["ClassicBook"]

Amounts = Mapping[str, Mapping[str, float]]  # user, resource

REMEMBERED = 5  # slots
BY_CONSUMPTION, BY_REJECTION = 0.6, 0.4
FOR_IDLE = 0.1


class ClassicBook:
    """Buckets of one service, all with the same rate per slot and the same capacity."""

    def __init__(self, rate: float, capacity: float) -> None:
        self._rate = rate
        self._capacity = capacity
        self._levels: dict[str, dict[str, float]] = {}
        self._distribution: dict[str, dict[str, dict[str, tuple[int, float, float]]]] = {}
        self._consumption_sum: dict[int, dict[str, dict[str, float]]] = {}
        self._rejection_sum: dict[int, dict[str, dict[str, float]]] = {}
        self.quota: dict[int, dict[str, dict[str, dict[str, float]]]] = {}

    def record(self, node: str, slot: int, consumption: Amounts, rejection: Amounts) -> None:
        """Book what a node counted in a slot: the sums, its last report, the levels."""
        consumption_sum = self._consumption_sum.setdefault(slot, {})
        rejection_sum = self._rejection_sum.setdefault(slot, {})
        for user, amounts in consumption.items():
            refusals = rejection.get(user, {})
            consumed_by_all = consumption_sum.setdefault(user, {})
            rejected_by_all = rejection_sum.setdefault(user, {})
            distribution = self._distribution.setdefault(user, {})
            levels = self._levels.setdefault(user, {})
            for resource, amount in amounts.items():
                refused = refusals.get(resource, 0)
                consumed_by_all[resource] = consumed_by_all.get(resource, 0.0) + amount
                rejected_by_all[resource] = rejected_by_all.get(resource, 0) + refused
                distribution.setdefault(resource, {})[node] = (slot, amount, refused)
                levels[resource] = levels.get(resource, self._rate) - amount

    def assign(self, slot: int) -> None:
        """Refill every bucket and give all of it out, as the quota of the next slot."""
        quota: dict[str, dict[str, dict[str, float]]] = {}
        for user, resources in self._distribution.items():
            levels = self._levels[user]
            for resource, nodes in resources.items():
                level = min(levels[resource] + self._rate, self._capacity)
                levels[resource] = level
                for node, share in self._shares(slot, level, nodes).items():
                    quota.setdefault(node, {}).setdefault(user, {})[resource] = share
        self.quota = {slot + 1: quota}
        for sums in (self._consumption_sum, self._rejection_sum):
            for old in [old for old in sums if old < slot - REMEMBERED]:
                del sums[old]

    def _shares(
        self, slot: int, level: float, nodes: Mapping[str, tuple[int, float, float]]
    ) -> dict[str, float]:
        consumed = rejected = 0.0
        weights: dict[str, float] = {}
        for node, (reported, consumption, rejection) in nodes.items():
            age = slot - 1 - reported
            weights[node] = weight = max(0.0, 1.0 - age / REMEMBERED)
            consumed += weight * consumption
            rejected += weight * rejection
        idle = sum(weight == 0.0 for weight in weights.values())
        left = max(0.0, level)
        reserve = FOR_IDLE * left if idle else 0.0
        left -= reserve
        by_consumption = (BY_CONSUMPTION if rejected else 1.0) / consumed if consumed else 0.0
        by_rejection = (BY_REJECTION if consumed else 1.0) / rejected if rejected else 0.0
        shares = {}
        for node, (_, consumption, rejection) in nodes.items():
            weight = weights[node]
            if weight == 0.0:
                shares[node] = float(int(reserve / idle))
            else:
                part = weight * (consumption * by_consumption + rejection * by_rejection)
                shares[node] = float(int(left * part))
        return shares
