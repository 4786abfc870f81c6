from sluicegate.quota.node.core._user_table import Host
from sluicegate.quota.node.core._report_tracker import ReportBook

__all__ = ["collect", "count_states"]

def collect(host: Host, book: ReportBook, window: int, since: int) -> None: ...
def count_states(host: Host, time: float) -> dict[str, dict[str, int]]: ...
