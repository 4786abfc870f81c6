from sluicegate.quota.messages import Hint, UserAsk
from sluicegate.quota.packed._report_lines import StringTable
from sluicegate.quota.wire._binary import StringTableWriter
from sluicegate.quota.wire.bounds import Bounds

__all__ = ["read_hints", "read_user_asks", "write_hints", "write_user_asks"]

def read_user_asks(
    frame: bytes, at: int, string_table: StringTable, bounds: Bounds
) -> tuple[dict[str, dict[str, UserAsk]], int]: ...
def read_hints(
    frame: bytes, at: int, services: list[str], bounds: Bounds
) -> tuple[dict[str, dict[str, Hint]], int]: ...
def write_user_asks(
    table: StringTableWriter, services: dict[str, dict[str, UserAsk]], bounds: Bounds
) -> tuple[bool, bytes]: ...
def write_hints(hints: list[dict[str, Hint]]) -> bytes: ...
