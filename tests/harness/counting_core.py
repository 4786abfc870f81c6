"""`CountingCore`: the core of a client that counts the responses that come for each call."""

from collections import Counter
from typing import Any

from sluicegate.dispatch.client_core import ClientCore
from sluicegate.dispatch.wire import Response

__all__ = ["CountingCore"]


class CountingCore(ClientCore[Any]):
    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.responses: Counter[str] = Counter()  # by correlation id

    def respond(self, response: Response) -> Any:
        self.responses[str(response.correlation_id)] += 1
        return super().respond(response)
