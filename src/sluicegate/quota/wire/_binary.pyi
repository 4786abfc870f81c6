from typing import TypeAlias

from typing_extensions import disjoint_base

from sluicegate.quota.packed._shares import PackedShares
from sluicegate.quota.packed._report_lines import PackedLines, StringTable
from sluicegate.quota.messages import Lines, Share
from sluicegate.quota.wire.bounds import Bounds

__all__ = ["StringTableWriter", "read_entries", "read_lines", "read_shares"]

_Services: TypeAlias = list[tuple[str, dict[str, dict[str, Share]] | PackedShares]]

def read_entries(
    frame: bytes, at: int, string_table: StringTable, bounds: Bounds, most: int
) -> int: ...
def read_lines(
    frame: bytes, at: int, string_table: StringTable, most: int
) -> tuple[PackedLines, int]: ...
def read_shares(
    frame: bytes,
    at: int,
    string_table: StringTable,
    services: dict[str, dict[str, dict[str, Share]]],
    most: int,
) -> int: ...

@disjoint_base
class KnownBuckets: ...

@disjoint_base
class StringTableWriter:
    def __init__(self, bounds: Bounds) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def user_count(self) -> int: ...
    def start_shares(self, services: _Services, *, whole: bool) -> None: ...
    def resolve_shares(self, services: _Services) -> bool: ...
    def write_shares(self, services: _Services) -> tuple[bool, bytes]: ...
    def write_lines(self, lines: Lines | PackedLines) -> tuple[bool, bytes]: ...
