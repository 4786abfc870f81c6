from collections.abc import Mapping

from sluicegate.quota.node.core._user_table import Host
from sluicegate.quota.node.core._report_tracker import ReportBook
from sluicegate.quota.messages import Share

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
