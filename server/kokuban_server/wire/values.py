"""Values and JSON texts of requests, as large and as deep as they may be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kokuban_server.core import json_values, limits
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.refusals import InvalidRequest

if TYPE_CHECKING:
    from kokuban.v1 import entry_pb2

_MEDIA_TYPE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def value(message: entry_pb2.Value, field: str) -> Value:
    """Give a value, or refuse it."""
    form = message.WhichOneof("form")
    if form is None:
        raise InvalidRequest("VALUE_REQUIRED", field, "a value is text, json or binary")
    if form == "external":
        raise InvalidRequest("FIELD_INVALID", f"{field}.external", "say where a value comes from by its provenance")
    if form == "text":
        given = Value(Form.TEXT, message.text)
    elif form == "json":
        given = Value(Form.JSON, message.json)
    else:
        media_type = message.binary.media_type
        if not media_type or len(media_type) > limits.MEDIA_TYPE_BYTES_MAX or not _MEDIA_TYPE.fullmatch(media_type):
            raise InvalidRequest("FIELD_INVALID", f"{field}.binary.media_type", "1 to 255 printable ASCII characters")
        given = Value(Form.BINARY, message.binary.data, media_type)
    size = given.size_bytes
    if size > limits.VALUE_BYTES_MAX:
        raise InvalidRequest(
            "VALUE_TOO_LARGE",
            f"{field}.{form}",
            f"at most {limits.VALUE_BYTES_MAX} bytes, this has {size}",
            {"limit": str(limits.VALUE_BYTES_MAX), "actual": str(size)},
        )
    if form == "json":
        parse_json(message.json, f"{field}.json")
    return given


def parse_json(text: str, field: str) -> json_values.Json:
    """Give what a JSON text says; refuse one that is none."""
    try:
        return json_values.parse(text)
    except json_values.TooDeepError:
        raise InvalidRequest(
            "JSON_TOO_DEEP",
            field,
            f"at most {limits.JSON_DEPTH_MAX} levels",
            {"limit": str(limits.JSON_DEPTH_MAX)},
        ) from None
    except json_values.NotJsonError as error:
        raise InvalidRequest("VALUE_NOT_JSON", field, str(error)[:120]) from None
