"""A limit for all processes of a host: tables in shared memory that nobody ever locks.

`SharedKeyed` is `Keyed` for many processes. `SharedTable` holds counters that many add
to and one collects. Both stand on `_chains.pyx`, which stands on a `SharedFile`.
"""

from sluicegate.limits.shared._shared_keyed import SharedKeyed
from sluicegate.limits.shared._shared_table import SharedTable

__all__ = ["SharedKeyed", "SharedTable"]
