from typing_extensions import disjoint_base

from headgate.quota._given import GivenShares
from headgate.quota._lines import PackedLines
from headgate.quota.wire.bounds import Bounds

__all__ = ["TextEntries", "write_users"]

@disjoint_base
class TextEntries:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def pack(self, lines: object, bounds: Bounds) -> PackedLines: ...

def write_users(shares: GivenShares, *, is_classic: bool = False) -> bytes: ...
