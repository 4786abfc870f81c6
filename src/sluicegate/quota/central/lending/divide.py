"""`divide`: which central leads which service."""

import math
from collections.abc import Collection, Iterable

from sluicegate.quota.stable_hash import hash_fraction

__all__ = ["divide"]


def divide(
    services: Iterable[str], centrals: Collection[str], kept: Collection[str] = (), keeper: str = ""
) -> dict[str, str]:
    """The central of each service: no central has more than its share, rounded up.

    It is rendezvous hashing with bounded loads: each service goes to the central with which it has
    the highest hash, of those with room. So it depends on the names alone, and few services move
    when a central comes or goes. `keeper` has the services in `kept`, however many they are.
    """
    names = sorted(services)
    found = {service: keeper for service in names if service in kept}
    room = dict.fromkeys(centrals, math.ceil(len(names) / max(len(centrals), 1)))
    if keeper in room:
        room[keeper] -= len(found)
    for service in names:
        if service not in found:
            open_to = [central for central in sorted(room) if room[central] > 0] or sorted(room)
            best = max(open_to, key=lambda central: hash_fraction("lead", service, central))
            found[service] = best
            room[best] -= 1
    return found
