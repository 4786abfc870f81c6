from collections.abc import Mapping

from sluicegate.quota.messages import Hint, Share, UserAsk
from sluicegate.quota.node.core._report_tracker import ReportTracker
from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.packed._shares import PackedShares

__all__ = ["forget", "put_quota", "put_settled", "read_credit", "return_credit"]

def put_quota(
    user_table: UserTable,
    time: float,
    service: str,
    users: Mapping[str, Mapping[str, Share]] | PackedShares,
    hints: Mapping[str, Hint],
    *,
    said_at: float,
    version: int,
    whole: bool,
) -> None: ...
def read_credit(user_table: UserTable, time: float, service: str, user: str) -> UserAsk | None: ...
def return_credit(
    user_table: UserTable, time: float, service: str, user: str, *, idle_seconds: float, keeps: bool = True
) -> UserAsk | float | None: ...
def put_settled(user_table: UserTable, tracker: ReportTracker) -> None: ...
def forget(user_table: UserTable, time: float, service: str, user: str, since: int) -> bool: ...
