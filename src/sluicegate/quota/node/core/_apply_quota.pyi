from collections.abc import Mapping

from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core._report_tracker import ReportTracker
from sluicegate.quota.messages import Share

__all__ = ["forget", "put_settled", "put_shares"]

def put_shares(
    user_table: UserTable,
    time: float,
    service: str,
    users: Mapping[str, Mapping[str, Share] | None],
    *,
    slot: int,
    version: int,
) -> None: ...
def put_settled(user_table: UserTable, tracker: ReportTracker) -> None: ...
def forget(user_table: UserTable, time: float, service: str, user: str, since: int) -> bool: ...
