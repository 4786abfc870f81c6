"""Requests and responses as bytes.

A request is {content_type, reply_to, correlation_id, timeout, data}, a response {correlation_id,
status, data}. Both are msgpack maps, or JSON objects when the request's content type is "json"; a
response has the encoding of its request. Which of the two a message is shows in its first byte: no
msgpack map begins with a brace or with white space.

Data is what JSON can say, and in msgpack bytes and times with a time zone besides. What msgspec
turns into these arrives as such: a dataclass as a dict, a tuple as a list, a date as text.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from sluicegate.errors import ProtocolError

__all__ = [
    "BUSY",
    "DEFAULT_MAX_PAYLOAD",
    "FAILED",
    "JSON",
    "LARGEST_REQUEST",
    "LONGEST_TIMEOUT",
    "MSGPACK",
    "OK",
    "TIMED_OUT",
    "InvalidRequest",
    "Request",
    "Response",
    "Sender",
    "check_content_type",
    "decode_data",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

OK = 0
TIMED_OUT = 500
BUSY = 503
FAILED = 520

JSON = "json"
MSGPACK = "msgpack"

DEFAULT_MAX_PAYLOAD = 1024 * 1024
LARGEST_REQUEST = 8 * 1024 * 1024  # bytes, that a worker reads; see recover.lua
LONGEST_TIMEOUT = 1e9  # seconds


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a worker reads it. `data` is still encoded, for it may never be needed."""

    content_type: str
    reply_to: str
    correlation_id: str | int
    timeout: float
    data: msgspec.Raw
    __msgspec_cache__: ClassVar[Any]  # where msgspec keeps what it knows of the class


@dataclass(frozen=True, slots=True)
class Response:
    correlation_id: str | int
    status: int
    data: Any = None
    __msgspec_cache__: ClassVar[Any]


@dataclass(frozen=True, slots=True)
class Sender:
    """Whom to answer: as much of a request as that needs."""

    reply_to: str
    correlation_id: str | int
    content_type: str = MSGPACK
    __msgspec_cache__: ClassVar[Any]


class InvalidRequest(ProtocolError):
    """A request that cannot be read; `sender` is known if that much of it can be."""

    def __init__(self, reason: str, sender: Sender | None = None) -> None:
        super().__init__(f"invalid request: {reason}")
        self.sender = sender


_MAPS = [bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF)]  # of msgpack

_msgpack_encoder = msgspec.msgpack.Encoder()
_json_encoder = msgspec.json.Encoder()
_msgpack_request = msgspec.msgpack.Decoder(Request)
_json_request = msgspec.json.Decoder(Request)
_msgpack_sender = msgspec.msgpack.Decoder(Sender)
_json_sender = msgspec.json.Decoder(Sender)
_msgpack_response = msgspec.msgpack.Decoder(Response)
_json_response = msgspec.json.Decoder(Response)
_msgpack_data = msgspec.msgpack.Decoder()
_json_data = msgspec.json.Decoder()


def check_content_type(content_type: str) -> str:
    if content_type not in (MSGPACK, JSON):
        raise ValueError(f"content_type must be 'msgpack' or 'json', got {content_type!r}")
    return content_type


def encode_request(
    content_type: str, reply_to: str, correlation_id: str, timeout: float, data: Any
) -> bytes:
    """Raises `TypeError` or `ValueError`, or an error of the data's own, where it fails."""
    return _encode(
        content_type,
        {
            "content_type": content_type,
            "reply_to": reply_to,
            "correlation_id": correlation_id,
            "timeout": timeout,
            "data": data,
        },
    )


def decode_request(payload: bytes) -> Request:
    decoder = _json_request if _is_json(payload) else _msgpack_request
    try:
        request = decoder.decode(payload)
    except Exception as error:  # noqa: BLE001  see `_reason`
        is_map = payload[:1] in _MAPS or _is_json(payload)
        reason = _reason(error) if is_map else "it is neither a JSON object nor a msgpack map"
        raise InvalidRequest(reason, _decode_sender(payload)) from None
    if not 0.0 <= request.timeout <= LONGEST_TIMEOUT:
        reason = f"timeout must be seconds, got {request.timeout!r}"
        raise InvalidRequest(reason, _decode_sender(payload))
    if request.content_type not in (MSGPACK, JSON):
        reason = f"content_type must be 'msgpack' or 'json', got {request.content_type!r:.100}"
        raise InvalidRequest(reason, _decode_sender(payload))
    return request


def _is_json(payload: bytes) -> bool:
    return payload[:1] in (b"{", b" ", b"\n", b"\r", b"\t")


def _decode_sender(payload: bytes) -> Sender | None:
    is_json = _is_json(payload)
    try:
        sender = (_json_sender if is_json else _msgpack_sender).decode(payload)
    except Exception:  # noqa: BLE001  see `_reason`
        return None
    return replace(sender, content_type=JSON) if is_json else sender


def decode_data(request: Request) -> Any:
    decoder = _json_data if request.content_type == JSON else _msgpack_data
    try:
        return decoder.decode(request.data)
    except Exception as error:  # noqa: BLE001  see `_reason`
        raise InvalidRequest(f"data: {_reason(error)}") from None


def encode_response(content_type: str, response: Response) -> bytes:
    """Raises as `encode_request`."""
    return _encode(content_type, response)


def decode_response(payload: bytes) -> Response:
    decoder = _json_response if _is_json(payload) else _msgpack_response
    try:
        return decoder.decode(payload)
    except Exception as error:  # noqa: BLE001  see `_reason`
        raise ProtocolError(f"invalid response: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Why bytes could not be decoded, as text that can be encoded.

    msgspec raises more than its `DecodeError`: `UnicodeDecodeError` for a string that is not UTF-8,
    `TypeError` for a map as a key, `RecursionError`, `OverflowError`. The bytes are a stranger's,
    so whatever they raise is the stranger's fault.
    """
    return str(error).encode(errors="replace").decode()


def _encode(content_type: str, message: Any) -> bytes:
    encoder = _json_encoder if content_type == JSON else _msgpack_encoder
    try:
        return encoder.encode(message)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"data cannot be encoded as {content_type}: {error}") from None
