from typing import final

from sluicegate.quota.ledger._service_ledger import ServiceLedger

__all__ = ["AnswerWriter"]

@final
class AnswerWriter:
    def __init__(self, service_ledger: ServiceLedger) -> None: ...
