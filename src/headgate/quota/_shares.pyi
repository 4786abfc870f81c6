from collections.abc import Mapping

from headgate.quota._host import Host
from headgate.quota._report_book import ReportBook
from headgate.quota.protocol import Share

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
