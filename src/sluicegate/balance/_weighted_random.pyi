from typing_extensions import disjoint_base

from sluicegate.balance._balancer import Balancer

__all__ = ["WeightedRandom"]

@disjoint_base
class WeightedRandom(Balancer): ...
