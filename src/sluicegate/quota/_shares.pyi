from collections.abc import Mapping

from sluicegate.quota._host import Host
from sluicegate.quota._report_book import ReportBook
from sluicegate.quota.protocol import Share

__all__ = ["forget", "put_settled", "put_shares"]

def put_shares(
    host: Host,
    time: float,
    service: str,
    users: Mapping[str, Mapping[str, Share] | None],
    *,
    slot: int,
    version: int,
) -> None: ...
def put_settled(host: Host, book: ReportBook) -> None: ...
def forget(host: Host, time: float, service: str, user: str, since: int) -> bool: ...
