from typing import final

from sluicegate.quota.ledger._answers import AnswerWriter
from sluicegate.quota.ledger._service_ledger import ServiceLedger

__all__ = ["QueueServer"]

@final
class QueueServer:
    def __init__(self, service_ledger: ServiceLedger, writer: AnswerWriter) -> None: ...
