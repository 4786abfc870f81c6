"""`Spy`: a node of the test's own, connected to one central: it notes all that this one sends."""

import time

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from sluicegate.quota.messages import Ack, Quota, Report
from sluicegate.quota.wire import NodeWire
from tests.system.fleet import CentralUnderTest

__all__ = ["Spy"]


class Spy:
    """Not over the network: it hears a central that is cut off from all others."""

    def __init__(self, central: CentralUnderTest) -> None:
        self.noted: list[Ack | Quota] = []
        self._wire = NodeWire()
        self._sequence = 0
        self._socket: ClientConnection = connect(
            central.url.replace("http", "ws"), subprotocols=["sluicegate.v1"], ping_interval=None
        ).__enter__()

    def report(self, epoch: int) -> None:
        self._sequence += 1
        slot = int(time.time()) - 1
        report = Report("spy", 1, self._sequence, epoch, self._sequence - 1, slot, 1.0, {})
        self._socket.send(self._wire.write(report))

    def messages(self, seconds: float) -> list[Ack | Quota]:
        """What arrives until nothing has come for some time; it is noted, too."""
        found: list[Ack | Quota] = []
        try:
            while True:
                found.append(self._wire.read(self._socket.recv(timeout=seconds)))
        except (TimeoutError, ConnectionClosed):
            self.noted += found
            return found

    def watch(self, epoch: int) -> bool:
        """Report once more, and note what has come; for a condition that is looked at often."""
        self.report(epoch)
        self.messages(0.0)
        return True

    def led(self, epoch: int) -> list[float]:
        """The central's time in each message of an epoch that only a leader sends, in order."""
        of_epoch = [each for each in self.noted if each.epoch == epoch]
        return [each.time for each in of_epoch if isinstance(each, Quota) or each.leads]

    def granted(self, epoch: int) -> list[float]:
        """The central's time in each Quota of an epoch, in order."""
        of_epoch = [each for each in self.noted if each.epoch == epoch]
        return [each.time for each in of_epoch if isinstance(each, Quota)]

    def close(self) -> None:
        self._socket.close()
