"""What requests of all services have in common: names, ids, pages, fences, times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from kokuban_server.app.lock_guards import FenceGiven
from kokuban_server.core import limits
from kokuban_server.core.locks import Fence
from kokuban_server.core.names import EntryKey, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import is_epoch
from kokuban_server.core.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from kokuban.v1 import entry_pb2, lock_pb2

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
NANOS_PER_MS = 1_000_000
_TIME_S_MAX = 253_402_300_799
"""The end of the year 9999, where timestamps end."""
_Request = TypeVar("_Request", bound=Message)


def parse_message(kind: type[_Request], raw: bytes) -> _Request:
    """Give the message of the bytes, or refuse them as malformed."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidRequest(
            "MALFORMED_REQUEST", "", "not a message of this method, or text that is not UTF-8"
        ) from None


def too_many(field: str, limit: int, actual: int) -> InvalidRequest:
    """Give the refusal of a list that is too long."""
    return InvalidRequest(
        "TOO_MANY_ITEMS", field, f"at most {limit}, these are {actual}", {"limit": str(limit), "actual": str(actual)}
    )


def entry_key(message: entry_pb2.EntryKey, field: str) -> EntryKey:
    """Give the entry that a key names."""
    try:
        return EntryKey(parse_region(message.region), parse_path(message.path))
    except InvalidRequest as refusal:
        raise refusal.under(field) from None


def request_id(text: str) -> int:
    """Give the time in a request id, in milliseconds: the first 48 bits (RFC 9562, section 5.7)."""
    if not text:
        raise InvalidRequest(
            "REQUEST_ID_REQUIRED", "request_id", "a commit without an id could not be made to happen once"
        )
    if not UUID7.fullmatch(text):
        raise InvalidRequest(
            "REQUEST_ID_INVALID", "request_id", "not a UUID of version 7 in canonical lower-case spelling"
        )
    return int(text[:8] + text[9:13], 16)


def retry_given(text: str) -> str:
    """Give the id of the request that one replaces, or nothing."""
    if text and not UUID7.fullmatch(text):
        raise InvalidRequest("FIELD_INVALID", "retry_of", "not a UUID of version 7 in canonical lower-case spelling")
    return text


def page_size(size: int, most: int = limits.PAGE_ENTRIES_MAX) -> int:
    """Give how many one page may have."""
    if not 0 <= size <= most:
        raise InvalidRequest("FIELD_INVALID", "page_size", f"0 to {most}")
    return size or limits.PAGE_ENTRIES_DEFAULT


def page_token(token: str) -> str:
    """Give the token of a page, which is read where its listing is known."""
    if len(token) > limits.PAGE_TOKEN_BYTES_MAX:
        raise InvalidRequest("PAGE_TOKEN_INVALID", "page_token", "not a token of a listing with these fields")
    return token


_LOCK_ID = re.compile(r"[0-9a-f]{32}")


def lock_name(text: str, field: str) -> str:
    """Give the id of a lock or session, or refuse it. 32 lower-case hexadecimal digits."""
    if not text:
        raise InvalidRequest("FIELD_REQUIRED", field, "32 lower-case hexadecimal digits")
    if not _LOCK_ID.fullmatch(text):
        raise InvalidRequest("FIELD_INVALID", field, "32 lower-case hexadecimal digits")
    return text


def fence_given(message: lock_pb2.Fence, field: str) -> Fence:
    """Give a fence."""
    lock_id = lock_name(message.lock_id, f"{field}.lock_id")
    if message.revision <= 0:
        raise InvalidRequest("FIELD_INVALID", f"{field}.revision", "a revision's number is above 0")
    if not is_epoch(message.epoch):
        raise InvalidRequest("TOKEN_INVALID", f"{field}.epoch", "16 lower-case hexadecimal digits")
    return Fence(lock_id, message.revision, message.epoch)


def fences_given(messages: Sequence[lock_pb2.Fence], field: str) -> list[FenceGiven]:
    """Give a list of fences, each of another lock."""
    if len(messages) > limits.FENCES_ENTRIES_MAX:
        raise too_many(field, limits.FENCES_ENTRIES_MAX, len(messages))
    given: dict[str, FenceGiven] = {}
    for index, message in enumerate(messages):
        place = f"{field}[{index}]"
        fence = fence_given(message, place)
        if fence.lock_id in given:
            raise InvalidRequest("DUPLICATE_KEY", place, "each lock is named at most once")
        given[fence.lock_id] = FenceGiven(place, fence)
    return list(given.values())


def trust_level(number: int, field: str) -> Trust:
    """Give a trust level. Required."""
    if not number:
        raise InvalidRequest("FIELD_REQUIRED", field, "a trust level")
    try:
        return Trust(number)
    except ValueError:
        raise InvalidRequest("FIELD_INVALID", field, "not a trust level that this server knows") from None


def session_given(text: str) -> str:
    """Give the session that a request names, or nothing."""
    return lock_name(text, "session") if text else ""


def words(text: str, field: str, limit: int, *, required: bool = True) -> str:
    """Give a text for people, of at most so many bytes."""
    if required and not text:
        raise InvalidRequest("FIELD_REQUIRED", field, "say in words what for")
    if len(text) > limit or len(text.encode()) > limit:
        raise InvalidRequest("FIELD_INVALID", field, f"at most {limit} bytes")
    return text


def duration_ms(message: Duration, field: str, least: int, most: int) -> int:
    """Give a time in milliseconds, within its bounds."""
    fine = message.nanos % NANOS_PER_MS or not -999_999_999 <= message.nanos <= 999_999_999  # noqa: PLR2004 - a second's
    fine = fine or message.seconds * message.nanos < 0  # a duration has one sign
    ms = message.seconds * 1000 + message.nanos // NANOS_PER_MS
    if fine or not least <= ms <= most:
        raise InvalidRequest(
            "DURATION_INVALID", field, f"whole milliseconds, {least} to {most} of them", {"limit": str(most)}
        )
    return ms


def time_ms(message: Timestamp, field: str) -> int:
    """Give a time in milliseconds; 0 where none is given."""
    is_whole = 0 <= message.nanos < 1000 * NANOS_PER_MS and not message.nanos % NANOS_PER_MS
    if not is_whole or not 0 <= message.seconds <= _TIME_S_MAX:
        raise InvalidRequest("FIELD_INVALID", field, "whole milliseconds, from 1970 to 9999")
    return message.seconds * 1000 + message.nanos // NANOS_PER_MS
