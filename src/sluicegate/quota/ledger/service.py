"""A service: whose requests are counted together, and the rule by which they are limited.

Services are independent of each other. Each has a `ServiceLedger`, and an object with three
methods that the ledger calls: `consume` when a report has come in, `assign` once a slot, and
`quota` when a node is to be told. The default is `BucketService`. Another one is registered
under the entry point group `sluicegate.quota.services`, by the name of the service, or handed to
the ledger; it is made by calling it with the service's name and its `ServiceLedger`.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger._service_ledger import ServiceLedger
from sluicegate.quota.ledger._usage import Usage
from sluicegate.quota.messages import Share
from sluicegate.quota.packed._shares import PackedShares

__all__ = ["BucketService", "MakeService", "Service", "Shares", "installed_services"]

Shares: TypeAlias = dict[str, dict[str, Share]] | PackedShares  # user, resource

_ENTRY_POINTS = "sluicegate.quota.services"


class Service(Protocol):
    """What the ledger asks of a service. An error in one is logged, counted, and hurts no other."""

    def consume(self, slot: int, usage: Usage) -> None:
        """A node has reported up to `slot`; `usage` is what is new since its last report."""

    def assign(self, slot: int) -> None:
        """Called once, in the middle of `slot`: decide the quota of the slots to come."""

    def quota(self, slot: int, node_id: str) -> Shares:
        """What `node_id` may let through in the slot after `slot`; `granted` is for that slot.

        The ledger turns it into the total of grants that a node is told.
        """


MakeService: TypeAlias = Callable[[str, ServiceLedger], Service]


class BucketService:
    """The default: a bucket per user and resource, assigned by the service ledger's rule."""

    def __init__(self, name: str, service_ledger: ServiceLedger) -> None:
        self.name = name
        self._service_ledger = service_ledger

    def consume(self, slot: int, usage: Usage) -> None:
        self._service_ledger.deduct(usage)

    def assign(self, slot: int) -> None:
        self._service_ledger.assign(slot)

    def assign_some(self, slot: int, cells: int) -> bool:
        """As `assign`, but by about so many cells at once; True when it is done."""
        return self._service_ledger.assign_some(slot, cells)

    def quota(self, slot: int, node_id: str) -> Shares:
        return self._service_ledger.quota(slot + 1, node_id)


def installed_services() -> dict[str, MakeService]:
    """The services that installed packages offer, by name."""
    from importlib.metadata import entry_points  # slow to import, and few need it

    services: dict[str, MakeService] = {}
    for point in entry_points(group=_ENTRY_POINTS):
        try:
            services[point.name] = point.load()
        except Exception as error:
            raise ConfigError(
                f"cannot load service {point.name!r} of the entry point {point.value!r}: {error!r}"
            ) from error
    return services
