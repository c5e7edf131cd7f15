"""What things are called: boards, regions, paths and agents, parsed once and refused with a reason."""

from __future__ import annotations

import enum
import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.refusals import InvalidRequest

_BOARD = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_AGENT = re.compile(r"[\x21-\x7e]+")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_~@:=+,-][A-Za-z0-9_.~@:=+,-]*(?:/[A-Za-z0-9_~@:=+,-][A-Za-z0-9_.~@:=+,-]*)*")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class RegionKind(enum.StrEnum):
    """What a region is for; decides who may use it."""

    SHARED = "shared"
    AGENT = "agent"
    TASK = "task"
    CONVERSATION = "conversation"
    USER = "user"
    TENANT = "tenant"
    GLOBAL = "global"


WITHOUT_ID = frozenset({RegionKind.TENANT, RegionKind.GLOBAL})
_KINDS = {kind.value: kind for kind in RegionKind}


_REGION_CHARACTERS_MAX = max(map(len, _KINDS)) + 1 + limits.REGION_ID_BYTES_MAX


class Region(NamedTuple):
    """A part of a board, or (`tenant`, `global`) a part beyond it."""

    kind: RegionKind
    id: str

    def __str__(self) -> str:
        return str(self.kind) if self.kind in WITHOUT_ID else f"{self.kind}:{self.id}"


class EntryKey(NamedTuple):
    """One entry's name inside a board."""

    region: Region
    path: str

    def __str__(self) -> str:
        return f"{self.region}/{self.path}"


def _text_fault(text: str) -> str | None:
    """Say what is wrong with a piece of text that becomes part of a name, or nothing."""
    if _CONTROL.search(text):
        return "holds a control character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode normal form C"
    return None


def parse_board(text: str, field: str = "board") -> str:
    """Give the board id, or refuse it. Lower-case letters, digits and inner hyphens, at most 63."""
    if not text:
        raise InvalidRequest("FIELD_REQUIRED", field, "a board must be named")
    if len(text) > limits.BOARD_ID_BYTES_MAX or not _BOARD.fullmatch(text):
        raise InvalidRequest("FIELD_INVALID", field, "a board id is 1 to 63 of a-z, 0-9 and inner hyphens")
    return text


def parse_agent(text: str) -> str | None:
    """Give the agent id, or nothing if it is malformed. 1 to 128 printable ASCII characters without spaces."""
    return text if len(text) <= limits.AGENT_ID_BYTES_MAX and _AGENT.fullmatch(text) else None


@lru_cache(maxsize=4096)
def _parse_region(text: str) -> Region | str:
    """Give the region, or what is wrong with the text."""
    head, colon, rest = text.partition(":")
    kind = _KINDS.get(head)
    if kind is None:
        return "is not one of " + ", ".join(_KINDS)
    if kind in WITHOUT_ID:
        return f"`{head}` has no id" if colon else Region(kind, "")
    return _region_id_fault(head, rest) or Region(kind, rest)


def _region_id_fault(kind: str, text: str) -> str | None:
    if not text:
        return f"`{kind}` needs an id, as in `{kind}:name`"
    if "/" in text:
        return "has a `/` in its id"
    if fault := _text_fault(text):
        return fault
    if len(text.encode()) > limits.REGION_ID_BYTES_MAX:
        return f"has an id of more than {limits.REGION_ID_BYTES_MAX} bytes"
    return None


def parse_region(text: str, field: str = "region") -> Region:
    """Give the region, or refuse it."""
    if not text:
        raise InvalidRequest("REGION_REQUIRED", field, "a region must be named; there is no default and no wildcard")
    if len(text) > _REGION_CHARACTERS_MAX:  # before it is remembered: thousands of long texts would fill the memory
        raise InvalidRequest("REGION_INVALID", field, "the region is too long")
    region = _parse_region(text)
    if isinstance(region, str):
        raise InvalidRequest("REGION_INVALID", field, f"the region {region}")
    return region


def parse_path(text: str, field: str = "path") -> str:
    """Give the path, or refuse it."""
    if not text:
        raise InvalidRequest("PATH_REQUIRED", field, "a path must be named")
    if _PLAIN_PATH.fullmatch(text):  # plain ASCII without leading dots: only the sizes are left to check
        length = len(text)
    else:
        if fault := _text_fault(text):
            raise InvalidRequest("PATH_INVALID", field, f"the path {fault}")
        for segment in text.split("/"):
            if not segment:
                raise InvalidRequest("PATH_INVALID", field, "the path has an empty segment")
            if segment in {".", ".."}:
                raise InvalidRequest("PATH_INVALID", field, f"the path has a segment `{segment}`")
        length = len(text.encode())
    if length > limits.PATH_BYTES_MAX:
        raise _over("PATH_TOO_LONG", field, "bytes", limits.PATH_BYTES_MAX, length)
    depth = text.count("/") + 1
    if depth > limits.PATH_SEGMENTS_MAX:
        raise _over("PATH_TOO_DEEP", field, "segments", limits.PATH_SEGMENTS_MAX, depth)
    return text


def _over(code: str, field: str, unit: str, limit: int, actual: int) -> InvalidRequest:
    return InvalidRequest(
        code, field, f"at most {limit} {unit}, this has {actual}", {"limit": str(limit), "actual": str(actual)}
    )
