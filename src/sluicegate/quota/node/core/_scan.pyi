from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core._report_tracker import ReportTracker

__all__ = ["collect", "count_states"]

def collect(user_table: UserTable, tracker: ReportTracker, window: int, since: int) -> None: ...
def count_states(user_table: UserTable, time: float) -> dict[str, dict[str, int]]: ...
