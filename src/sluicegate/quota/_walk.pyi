from sluicegate.quota._host import Host
from sluicegate.quota._report_book import ReportBook

__all__ = ["collect", "count_states"]

def collect(host: Host, book: ReportBook, window: int, since: int) -> None: ...
def count_states(host: Host, time: float) -> dict[str, dict[str, int]]: ...
