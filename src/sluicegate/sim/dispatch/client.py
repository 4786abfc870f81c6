"""`SimulatedClient`: the real `ClientCore`, and around it what `Dispatcher` does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sluicegate.dispatch.client_core import Call, ClientCore, Outcome
from sluicegate.dispatch.messages import Cancelled, Enqueued, Outgoing
from sluicegate.dispatch.wire import MSGPACK, decode_response, encode_request
from sluicegate.errors import Unavailable
from sluicegate.sim.dispatch.audit import Audit, Sent
from sluicegate.sim.dispatch.process import Process
from sluicegate.sim.dispatch.server import Server
from sluicegate.sim.world import World

__all__ = ["ClientOptions", "SimulatedClient"]

_RETRY_AFTER = 0.05


@dataclass(frozen=True, slots=True)
class ClientOptions:
    max_waiting: int = 1000
    max_wait_seconds: float = 0.0


class SimulatedClient(Process):
    def __init__(
        self, world: World, server: Server, audit: Audit, name: str, options: ClientOptions
    ) -> None:
        super().__init__(world, name)
        self.options = options
        self.core: ClientCore[Sent] = ClientCore("simulated")
        self._server = server
        self._audit = audit
        self._outbox: list[Call[Sent]] = []
        self._reply_to = name
        self._read = 0
        self._unavailable: Unavailable | None = None
        self._timer_at = float("inf")
        self._receive_more()

    def call(
        self, item: Sequence[Any], timeout: float, stream: int = 1, key: str = ""
    ) -> Call[Sent]:
        """Send a request. It ends in the audit."""
        number = item[0]
        sent = self._audit.sent(self, number, timeout)
        payload = encode_request(MSGPACK, self._reply_to, str(number), timeout, item)
        now = self.local()
        outgoing = Outgoing(stream, key.encode(), payload)
        call = Call(str(number), outgoing, key, now, now + timeout, sent)
        self.core.add(call)
        if not self._outbox:
            self.after(0.0, self._flush)
        self._outbox.append(call)
        self._set_timer(call.deadline)
        return call

    def give_up(self, call: Call[Sent]) -> None:
        """The caller cancels its call."""
        if call.waiter.outcomes:
            return
        self._audit.gave_up(call.waiter)
        if self.core.give_up(call):
            self._cancel([call])

    def _flush(self) -> None:
        sent, self._outbox = self._outbox, []
        calls = [call for call in sent if not call.waiter.is_given_up]
        self.core.failed([call for call in sent if call.waiter.is_given_up], Unavailable("none"))
        if not calls:
            return
        model, server, options = self._server.model, self._server, self.options

        def enqueue() -> Enqueued:
            reply = model.enqueue(
                server.now,
                [call.outgoing for call in calls],
                options.max_waiting,
                options.max_wait_seconds,
                3600.0,
            )
            self._audit.enqueued([call.waiter for call in calls], reply)
            return reply

        def enqueued(reply: Enqueued) -> None:
            outcomes, cancel = self.core.enqueued(calls, reply)
            self._complete(outcomes)
            if cancel:
                self._cancel(cancel)

        def failed(error: Unavailable) -> None:
            self._complete(self.core.failed(calls, error))

        server.exchange(self, enqueue, enqueued, failed, may_repeat=False)

    def _cancel(self, calls: list[Call[Sent]]) -> None:
        model, server = self._server.model, self._server
        tasks = [call.task for call in calls if call.task is not None]

        def cancel() -> list[Cancelled]:
            self._audit.cancelling(model, tasks)
            return model.cancel(server.now, tasks)

        def cancelled(reply: list[Cancelled]) -> None:
            self._complete(self.core.cancelled(self.local(), calls, reply))

        server.exchange(self, cancel, cancelled, lambda _: None)

    def _receive_more(self) -> None:
        model, seen, key = self._server.model, self._read, self._reply_to.encode()
        self._server.read(
            self, lambda: model.replies.get(key, [])[seen:], self._received, self._receive_again
        )

    def _receive_again(self, error: Unavailable) -> None:
        self._unavailable = error
        self.after(_RETRY_AFTER, self._receive_more)

    def _received(self, entries: list[list[bytes]] | None) -> None:
        self._unavailable = None
        for responses in entries or []:
            self._read += 1
            for payload in responses:
                outcome = self.core.respond(decode_response(payload))
                if outcome is not None:
                    self._complete([outcome])
        self._receive_more()

    def _set_timer(self, deadline: float) -> None:
        if deadline < self._timer_at:
            self._timer_at = deadline
            self.after(max(deadline - self.local(), 0.0) + 1e-6, self._expire, deadline)

    def _expire(self, planned_for: float) -> None:
        if planned_for != self._timer_at:
            return
        self._timer_at = float("inf")
        outcomes, cancel = self.core.expire(self.local(), self._unavailable)
        self._complete(outcomes)
        if cancel:
            self._cancel(cancel)
        deadline = self.core.next_deadline()
        if deadline is not None:
            self._set_timer(deadline)

    def _complete(self, outcomes: Iterable[Outcome]) -> None:
        for sent, result, error in outcomes:
            self._audit.completed(sent, result, error)
