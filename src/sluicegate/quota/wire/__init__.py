"""Encoding of messages for the websocket: binary frames, or JSON text frames.

    node     NodeWire.write(Report | Ask) -> frame      frame -> NodeWire.read -> Ack | Quota
    central  CentralWire.read(frame) -> Report | Ask    CentralWire.write(Ack | Quota) -> frame

Each connection has one of each, as binary frames refer to string table entries of the frames before
them: they must be read in the order they were written, and what has been written must be sent.
(Drop superseded quotas before encoding them.) An invalid frame raises ProtocolError with a reason,
and the connection cannot be used after it. docs/protocol.md specifies the format.
"""

from collections.abc import Generator

from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.wire import json_frames
from sluicegate.quota.wire._json_frames import JsonLineReader
from sluicegate.quota.wire.binary import FrameReader, FrameWriter
from sluicegate.quota.wire.bounds import SUBPROTOCOL, Bounds

__all__ = ["SUBPROTOCOL", "Bounds", "CentralWire", "NodeWire"]

_DEFAULT_BOUNDS = Bounds()


class CentralWire:
    """The central's end of one connection. Answers in the kind of the last frame it has read."""

    def __init__(self, bounds: Bounds = _DEFAULT_BOUNDS) -> None:
        self._bounds = bounds
        self._reader = FrameReader(bounds)
        self._writer = FrameWriter(bounds)
        self._line_reader = JsonLineReader()
        self._is_text = False

    def read(self, frame: bytes | str) -> Report | Ask:
        """Read a frame of the node; ProtocolError if it is invalid."""
        self._is_text = isinstance(frame, str)
        if isinstance(frame, str):
            return json_frames.read_message(frame, self._line_reader, self._bounds)
        message = self._reader.read(frame)
        if not isinstance(message, Report | Ask):
            raise ProtocolError(
                f"invalid message: got {type(message).__name__}, expected Report or Ask"
            )
        return message

    def write(self, message: Ack | Quota) -> bytes | str:
        """A frame to the node, which must be sent."""
        if self._is_text:
            return json_frames.write_answer(message, self._bounds)
        return self._writer.write(message)

    def writing(self, message: Ack | Quota) -> Generator[None, None, bytes | str]:
        """As `write`, in steps of some milliseconds; nothing else may be written between them."""
        if self._is_text:
            return json_frames.write_answer(message, self._bounds)
        return (yield from self._writer.writing(message))


class NodeWire:
    """The node's end of one connection."""

    def __init__(self, *, binary: bool = True, bounds: Bounds = _DEFAULT_BOUNDS) -> None:
        self._bounds = bounds
        self._reader = FrameReader(bounds)
        self._writer = FrameWriter(bounds)
        self._is_text = not binary

    def read(self, frame: bytes | str) -> Ack | Quota:
        """Read a frame of the central; ProtocolError if it is invalid."""
        if isinstance(frame, str):
            return json_frames.read_answer(frame, self._bounds)
        message = self._reader.read(frame)
        if not isinstance(message, Ack | Quota):
            raise ProtocolError(
                f"invalid message: got {type(message).__name__}, expected Ack or Quota"
            )
        return message

    def write(self, message: Report | Ask) -> bytes | str:
        """A frame to the central, which must be sent."""
        return json_frames.write_message(message) if self._is_text else self._writer.write(message)
