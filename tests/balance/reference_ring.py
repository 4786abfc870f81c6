"""The ring of `ConsistentHash` in plain Python: what a client in another language has to do."""

from bisect import bisect_left

from sluicegate.balance import Server

__all__ = ["ReferenceRing", "hash_text"]

_MASK = 2**64 - 1
_SALT = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
_GOLDEN = 0x9E3779B97F4A7C15


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _word(data: bytes) -> int:
    return int.from_bytes(data, "little")


def hash_text(text: str, kind: int) -> int:
    """64 bits of a text; `kind` is the number of "text" among the kinds of keys."""
    data = text.encode()
    size = len(data)
    value = _fold(_SALT[0] ^ kind, _SALT[1] ^ _GOLDEN ^ size)
    while len(data) > 16:
        value = _fold(_word(data[:8]) ^ _SALT[1], _word(data[8:16]) ^ value)
        data = data[16:]
    left = len(data)
    if left >= 8:
        a, b = _word(data[:8]), _word(data[left - 8 :])
    elif left >= 4:
        a, b = _word(data[:4]), _word(data[left - 4 :])
    elif left:
        a, b = data[0] << 16 | data[left >> 1] << 8 | data[left - 1], 0
    else:
        a, b = 0, 0
    return _fold(_fold(a ^ _SALT[2], b ^ value), _SALT[3] ^ 0xD6E8FEB86659FD93)


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


class ReferenceRing:
    """A sorted list of points, and a search in it."""

    def __init__(self, servers: list[Server], points: int, kind: int) -> None:
        self._kind = kind
        self._points = sorted(
            (_mix(hash_text(server.address, kind) + point * _GOLDEN & _MASK), server.address)
            for server in servers
            for point in range(points * server.weight)
        )

    def pick(self, key: str, usable: set[str]) -> str:
        """The first usable server from the place of the key on."""
        place = bisect_left(self._points, (hash_text(key, self._kind), ""))
        for _, address in self._points[place:] + self._points[:place]:
            if address in usable:
                return address
        raise AssertionError("none is usable")
