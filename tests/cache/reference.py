"""The policies as plain Python, written from the papers to be read, not to be fast.

`ReferenceCache` does what all of them have in common, with a dict and no cleverness. A policy
keeps keys in lists, the oldest first, and answers four questions: what changes when a key is
`used`; which key goes when another one comes (`choose`); where a new one goes (`added`); and
how to forget one that was deleted or has expired (`removed`).
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from sluicegate import ManualClock

__all__ = ["REFERENCES", "ReferenceCache", "SketchReference"]

Key = Hashable
DUE_PER_PUT = 8


@dataclass
class Entry:
    value: Any
    weight: int
    expires_at: float


class ReferenceCache:
    """The mapping around a policy. `evicted` lists what `on_evict` is called with."""

    def __init__(
        self,
        capacity: int,
        clock: ManualClock,
        ttl: float | None = None,
        weigh: Callable[[Key, Any], int] | None = None,
    ) -> None:
        self.capacity = capacity
        self.clock = clock
        self.ttl = math.inf if ttl is None else ttl
        self.weigh = weigh or (lambda key, value: 1)
        self.evicted: list[tuple[Key, Any]] = []
        self.hits = self.misses = self.evictions = self.expirations = 0
        self.clear()

    # --- what a policy answers

    def start(self) -> None:
        raise NotImplementedError

    def used(self, key: Key) -> None:
        """`key` was read or replaced."""

    def coming(self, key: Key, weight: int) -> None:
        """`key` is new and will be added, before room is made for it."""

    def choose(self, key: Key | None, weight: int) -> Key:
        """The key to evict for `key`; it is forgotten by the policy, apart from ghosts."""
        raise NotImplementedError

    def evicted_by_choice(self, key: Key, weight: int, coming_weight: int) -> None:
        """`key` was chosen and is evicted: the policy may remember it."""

    def added(self, key: Key) -> None:
        raise NotImplementedError

    def removed(self, key: Key) -> None:
        raise NotImplementedError

    def order(self) -> list[Key]:
        raise NotImplementedError

    # --- the mapping

    @property
    def weight(self) -> int:
        return sum(entry.weight for entry in self.entries.values())

    def is_live(self, key: Key) -> bool:
        return key in self.entries and self.entries[key].expires_at > self.clock.now()

    def get(self, key: Key, default: Any = None) -> Any:
        if self.is_live(key):
            self.hits += 1
            self.used(key)
            return self.entries[key].value
        self.misses += 1
        if key in self.entries:
            self.drop_expired(key)
        return default

    def peek(self, key: Key) -> Any:
        return self.entries[key].value if self.is_live(key) else None

    def set(
        self, key: Key, value: Any, ttl: float | None = None, weight: int | None = None
    ) -> None:
        weight = self.weigh(key, value) if weight is None else weight
        entry = Entry(value, weight, self.clock.now() + (self.ttl if ttl is None else ttl))
        if key in self.entries and not self.is_live(key):
            self.drop_expired(key)
        for due in self.due()[:DUE_PER_PUT]:
            self.drop_expired(due)
        old_weight = self.entries[key].weight if key in self.entries else 0
        if key in self.entries and self.weight - old_weight + weight <= self.capacity:
            self.entries[key] = entry
            self.used(key)
            return
        if key in self.entries:
            self.forget(key)
        if weight > self.capacity:
            self.evictions += 1
            self.evicted.append((key, value))
            return
        self.coming(key, weight)
        if self.make_room(key, weight):
            self.entries[key] = entry
            self.added(key)
        else:
            self.evictions += 1
            self.evicted.append((key, value))

    def make_room(self, key: Key, weight: int) -> bool:
        while self.weight + weight > self.capacity:
            if self.due():
                self.drop_expired(self.due()[0])
                continue
            victim = self.choose(key, weight)
            if victim == key:
                return False
            entry = self.entries.pop(victim)
            self.evictions += 1
            self.evicted.append((victim, entry.value))
            self.evicted_by_choice(victim, entry.weight, weight)
        return True

    def setdefault(self, key: Key, default: Any) -> Any:
        found = self.get(key, self)
        if found is not self:
            return found
        self.set(key, default)
        return default

    def pop(self, key: Key) -> Any:
        """The value, or None."""
        if self.is_live(key):
            value = self.entries[key].value
            self.forget(key)
            return value
        if key in self.entries:
            self.drop_expired(key)
        return None

    def popitem(self) -> tuple[Key, Any] | None:
        self.expire()
        if not self.entries:
            return None
        key = self.choose(None, 1)
        return key, self.entries.pop(key).value

    def clear(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.start()

    def due(self) -> list[Key]:
        """The keys that have expired, the first to expire first."""
        now = self.clock.now()
        keys = [key for key, entry in self.entries.items() if entry.expires_at <= now]
        return sorted(keys, key=lambda key: self.entries[key].expires_at)

    def expire(self) -> int:
        due = self.due()
        for key in due:
            self.drop_expired(key)
        return len(due)

    def drop_expired(self, key: Key) -> None:
        self.expirations += 1
        self.evicted.append((key, self.entries[key].value))
        self.forget(key)

    def forget(self, key: Key) -> None:
        self.removed(key)
        del self.entries[key]

    def weight_in(self, queue: list[Key]) -> int:
        return sum(self.entries[key].weight for key in queue if key in self.entries)


class FifoReference(ReferenceCache):
    def start(self) -> None:
        self.queue: list[Key] = []

    def choose(self, key: Key | None, weight: int) -> Key:
        return self.queue.pop(0)

    def added(self, key: Key) -> None:
        self.queue.append(key)

    def removed(self, key: Key) -> None:
        self.queue.remove(key)

    def order(self) -> list[Key]:
        return self.queue


class LruReference(FifoReference):
    def used(self, key: Key) -> None:
        self.queue.remove(key)
        self.queue.append(key)


class ClockReference(FifoReference):
    """The hand goes round over the entries; here they go past the hand."""

    def start(self) -> None:
        super().start()
        self.referenced: set[Key] = set()

    def used(self, key: Key) -> None:
        self.referenced.add(key)

    def choose(self, key: Key | None, weight: int) -> Key:
        while self.queue[0] in self.referenced:
            self.referenced.remove(self.queue[0])
            self.queue.append(self.queue.pop(0))
        return self.queue.pop(0)

    def removed(self, key: Key) -> None:
        self.referenced.discard(key)
        super().removed(key)


class SieveReference(FifoReference):
    """Zhang and others, NSDI 2024, algorithm 1. `hand` is an index into the queue."""

    def start(self) -> None:
        super().start()
        self.visited: set[Key] = set()
        self.hand = 0

    def used(self, key: Key) -> None:
        self.visited.add(key)

    def choose(self, key: Key | None, weight: int) -> Key:
        self.hand %= len(self.queue)
        while self.queue[self.hand] in self.visited:
            self.visited.remove(self.queue[self.hand])
            self.hand = (self.hand + 1) % len(self.queue)
        if self.hand == len(self.queue) - 1:  # what is behind the newest is the oldest, always
            self.hand = 0
            return self.queue.pop()
        return self.queue.pop(self.hand)

    def removed(self, key: Key) -> None:
        index = self.queue.index(key)
        self.visited.discard(key)
        del self.queue[index]
        if index < self.hand:
            self.hand -= 1
        elif self.hand == len(self.queue):
            self.hand = 0


class LfuReference(FifoReference):
    """The queue is in the order of the last uses."""

    def start(self) -> None:
        super().start()
        self.uses: dict[Key, int] = {}

    def used(self, key: Key) -> None:
        self.uses[key] += 1
        self.queue.remove(key)
        self.queue.append(key)

    def choose(self, key: Key | None, weight: int) -> Key:
        victim = min(self.queue, key=lambda key: self.uses[key])  # the first of several
        self.queue.remove(victim)
        return victim

    def added(self, key: Key) -> None:
        self.uses[key] = 1
        super().added(key)

    def order(self) -> list[Key]:
        return sorted(self.queue, key=lambda key: self.uses[key])


class ArcReference(ReferenceCache):
    """Megiddo and Modha, FAST 2003, figure 4; pages are weighed, which is 1 without weights."""

    def start(self) -> None:
        self.t1: list[Key] = []
        self.t2: list[Key] = []
        self.b1: list[Key] = []
        self.b2: list[Key] = []
        self.ghosts: dict[Key, int] = {}
        self.p = 0.0
        self.origin = ""

    def size(self, *queues: list[Key]) -> int:
        return sum(
            self.entries[key].weight if key in self.entries else self.ghosts[key]
            for queue in queues
            for key in queue
        )

    def used(self, key: Key) -> None:
        for queue in (self.t1, self.t2):
            if key in queue:
                queue.remove(key)
        self.t2.append(key)

    def coming(self, key: Key, weight: int) -> None:
        if key in self.b1:  # case II
            self.origin = "b1"
            ratio = max(1.0, self.size(self.b2) / self.size(self.b1))
            self.p = min(self.p + weight * ratio, self.capacity)
            self.b1.remove(key)
        elif key in self.b2:  # case III
            self.origin = "b2"
            ratio = max(1.0, self.size(self.b1) / self.size(self.b2))
            self.p = max(self.p - weight * ratio, 0.0)
            self.b2.remove(key)
        else:  # case IV
            self.origin = "new"
            if self.size(self.t1, self.b1) + weight > self.capacity:
                self.shorten_b1(weight)
            else:
                self.shorten_b2(weight)

    def shorten_b1(self, weight: int) -> None:
        while self.b1 and self.size(self.t1, self.b1) + weight > self.capacity:
            del self.ghosts[self.b1.pop(0)]

    def shorten_b2(self, weight: int) -> None:
        queues = (self.t1, self.t2, self.b1, self.b2)
        while self.b2 and self.size(*queues) + weight > 2 * self.capacity:
            del self.ghosts[self.b2.pop(0)]

    def choose(self, key: Key | None, weight: int) -> Key:
        size = self.size(self.t1)
        exceeds = size > self.p or (key is not None and self.origin == "b2" and size == self.p)
        queue = self.t1 if self.t1 and (exceeds or not self.t2) else self.t2
        self.chosen_from_t1 = queue is self.t1
        return queue.pop(0)

    def evicted_by_choice(self, key: Key, weight: int, coming_weight: int) -> None:
        self.ghosts[key] = weight
        (self.b1 if self.chosen_from_t1 else self.b2).append(key)
        self.shorten_b1(coming_weight if self.origin == "new" else 0)
        self.shorten_b2(coming_weight)

    def added(self, key: Key) -> None:
        self.ghosts.pop(key, None)
        (self.t1 if self.origin == "new" else self.t2).append(key)

    def removed(self, key: Key) -> None:
        (self.t1 if key in self.t1 else self.t2).remove(key)

    def order(self) -> list[Key]:
        return self.t1 + self.t2


class S3FifoReference(ReferenceCache):
    """Yang and others, SOSP 2023, algorithm 1; evicts one entry at a time."""

    def start(self) -> None:
        self.small: list[Key] = []
        self.main: list[Key] = []
        self.ghost: dict[Key, int] = {}
        self.frequency: dict[Key, int] = {}
        self.was_ghost = False

    def used(self, key: Key) -> None:
        self.frequency[key] = min(self.frequency[key] + 1, 3)

    def coming(self, key: Key, weight: int) -> None:
        self.was_ghost = self.ghost.pop(key, None) is not None

    def choose(self, key: Key | None, weight: int) -> Key:
        self.chosen_from_small = False
        if self.weight_in(self.small) >= self.capacity / 10 or not self.main:
            while self.small:
                tail = self.small.pop(0)
                if self.frequency[tail] <= 1:
                    self.chosen_from_small = True
                    return tail
                self.frequency[tail] = 0
                self.main.append(tail)
                if self.weight_in(self.main) > 0.9 * self.capacity:
                    return self.choose_from_main()
        return self.choose_from_main()

    def choose_from_main(self) -> Key:
        while True:
            tail = self.main.pop(0)
            if self.frequency[tail] == 0:
                return tail
            self.frequency[tail] -= 1
            self.main.append(tail)

    def evicted_by_choice(self, key: Key, weight: int, coming_weight: int) -> None:
        if self.chosen_from_small:
            self.ghost[key] = weight
            while sum(self.ghost.values()) > 0.9 * self.capacity:
                del self.ghost[next(iter(self.ghost))]

    def added(self, key: Key) -> None:
        self.frequency[key] = 0
        (self.main if self.was_ghost else self.small).append(key)

    def removed(self, key: Key) -> None:
        (self.small if key in self.small else self.main).remove(key)

    def order(self) -> list[Key]:
        return self.small + self.main


class SketchReference:
    """A count-min sketch of four rows: a key has one counter of each in one block of 128."""

    def __init__(self) -> None:
        self.words = 64
        self.counters = [0] * (16 * self.words)
        self.samples = 0

    def places(self, key: Key) -> list[int]:
        mask = 2**64 - 1
        mixed = hash(key) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        mixed ^= mixed >> 31
        block = mixed % (self.words // 8)
        places = []
        for row in range(4):
            bits = (mixed >> (32 + 5 * row)) % 32
            places.append(128 * block + 32 * row + 16 * (bits % 2) + bits // 2)
        return places

    def frequency(self, key: Key) -> int:
        return min(self.counters[place] for place in self.places(key))

    def add(self, key: Key, sample_limit: int) -> None:
        for place in self.places(key):
            self.counters[place] = min(self.counters[place] + 1, 15)
        self.samples += 1
        if self.samples >= sample_limit:
            self.counters = [counter // 2 for counter in self.counters]
            self.samples //= 2

    def double(self) -> None:
        self.words *= 2
        self.counters *= 2


class TinyLfuReference(ReferenceCache):
    """W-TinyLFU: an LRU window, a segmented LRU behind it, and a sketch that lets in."""

    def start(self) -> None:
        self.window: list[Key] = []
        self.probation: list[Key] = []
        self.protected: list[Key] = []
        self.sketch = SketchReference()
        self.set_window_limit(0)
        self.turned_away = 0
        self.requests: list[bool] = []  # whether each was a hit, since the last step
        self.last_ratio = 0.0
        self.step = -0.04 * self.capacity

    def set_window_limit(self, limit: int) -> None:
        self.window_limit = max(min(limit, self.capacity * 4 // 5), self.capacity // 100, 1)
        self.protected_limit = (self.capacity - self.window_limit) * 4 // 5

    def see(self, key: Key, is_hit: bool) -> None:
        self.sketch.add(key, 10 * min(self.sketch.words, self.capacity))
        self.requests.append(is_hit)
        if len(self.requests) == 10 * self.capacity:
            self.climb()

    def climb(self) -> None:
        ratio = sum(self.requests) / len(self.requests)
        change = ratio - self.last_ratio
        if change < 0:
            self.step = -self.step
        self.set_window_limit(self.window_limit + int(self.step))
        if abs(change) >= 0.05:
            self.step = math.copysign(0.04 * self.capacity, self.step)
        else:
            self.step *= 0.98
        self.last_ratio = ratio
        self.requests = []

    def queue_of(self, key: Key) -> list[Key]:
        return next(
            queue for queue in (self.window, self.probation, self.protected) if key in queue
        )

    def used(self, key: Key) -> None:
        self.see(key, True)
        queue = self.queue_of(key)
        queue.remove(key)
        (self.window if queue is self.window else self.protected).append(key)
        if queue is self.probation:
            while self.weight_in(self.protected) > self.protected_limit:
                self.probation.append(self.protected.pop(0))

    def coming(self, key: Key, weight: int) -> None:
        if len(self.entries) >= self.sketch.words:
            self.sketch.double()
        self.see(key, False)

    def choose(self, key: Key | None, weight: int) -> Key:
        candidate = None
        if weight > self.window_limit:
            candidate = key
        elif self.weight_in(self.window) + weight > self.window_limit:
            candidate = self.window[0]
        if not self.probation + self.protected:
            return self.window.pop(0)
        resident = (self.probation + self.protected)[0]
        if candidate is not None and not self.wins(candidate, resident):
            if candidate != key:
                self.window.remove(candidate)
            return candidate
        if candidate is not None and candidate != key:
            self.window.remove(candidate)
            self.probation.append(candidate)
        self.queue_of(resident).remove(resident)
        return resident

    def wins(self, candidate: Key, resident: Key) -> bool:
        frequency = self.sketch.frequency(candidate)
        if frequency > self.sketch.frequency(resident):
            return True
        if frequency >= 6:
            self.turned_away += 1
        if self.turned_away == 128:
            self.turned_away = 0
            return True
        return False

    def added(self, key: Key) -> None:
        if self.entries[key].weight > self.window_limit:
            self.probation.append(key)
            return
        self.window.append(key)
        while self.weight_in(self.window) > self.window_limit:
            self.probation.append(self.window.pop(0))

    def removed(self, key: Key) -> None:
        self.queue_of(key).remove(key)

    def order(self) -> list[Key]:
        return self.window + self.probation + self.protected


REFERENCES: dict[str, type[ReferenceCache]] = {
    "fifo": FifoReference,
    "lru": LruReference,
    "lfu": LfuReference,
    "clock": ClockReference,
    "arc": ArcReference,
    "sieve": SieveReference,
    "s3fifo": S3FifoReference,
    "tinylfu": TinyLfuReference,
}
