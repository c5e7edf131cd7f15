"""The encoder's graph as it is run: the shipped one, in which each layer's attention is one step.

As shipped, attention is forty steps a layer, whose tables of 12 x 256 x 256 numbers are each written to memory and read again:
a third of all time. The runtime has one step that does all of that without them; by itself it puts it only into graphs that are
not quantised. The file is protobuf, of which the fields that are changed are read here and no others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRAPH, _OPERATOR_SETS = 7, 8
"""Fields of a model."""
_NODE, _OUTPUT = 1, 12
"""Fields of a graph."""
_NAME: Final = 3
"""Of a node."""
_BYTES: Final = 2
"""The only kind of field, besides numbers, that a model or a graph has."""

_LAYERS: Final = 6
_HEADS: Final = 12
_ATTENTION: Final = "/base/encoder/layer.{}/attention/self/{}"
_STEPS = re.compile(
    r"/base/encoder/layer\.[0-9]/attention/self/"
    r"(?:Shape|Gather|Unsqueeze|Concat|Reshape|Transpose|MatMul|Div|Add|Softmax)(?:_[0-9]+)?"
)
"""The names of what is done with queries, keys and values after they are made."""


def with_output(model: bytes, name: str) -> bytes:
    """Give the model with one more output. In protobuf, messages that follow one another are merged."""
    return model + _field(_GRAPH, _field(_OUTPUT, _field(1, name.encode())))


def with_whole_attention(model: bytes) -> bytes:
    """Give the model with each layer's attention as one step.

    It gives the same but for rounding, for windows that go by themselves: what masks the padding of others is left out.
    """
    parts = []
    for number, start, content, end in _fields(model, 0, len(model)):
        if number == _GRAPH:
            nodes = [_attention(layer) for layer in range(_LAYERS)]
            parts.append(_field(_GRAPH, b"".join([*_others(model, content, end), *nodes])))
        else:
            parts.append(model[start:end])
    version = _field(1, b"com.microsoft") + _number(2, 1)
    return b"".join([*parts, _field(_OPERATOR_SETS, version)])


def _others(model: bytes, start: int, end: int) -> Iterator[bytes]:
    """Give each field of a graph but the steps that are left out."""
    for number, begin, content, finish in _fields(model, start, end):
        if number != _NODE or not _STEPS.fullmatch(_name(model, content, finish)):
            yield model[begin:finish]


def _name(model: bytes, start: int, end: int) -> str:
    return next(
        model[begin:finish].decode() for number, _, begin, finish in _fields(model, start, end) if number == _NAME
    )


def _attention(layer: int) -> bytes:
    made = [_ATTENTION.format(layer, f"{name}/Add_output_0") for name in ("query", "key", "value")]
    heads = _field(1, b"num_heads") + _number(3, _HEADS) + _number(20, 2)  # AttributeProto.name, i, type INT
    node = [
        *(_field(1, name.encode()) for name in made),
        _field(2, _ATTENTION.format(layer, "Reshape_3_output_0").encode()),
        _field(_NAME, _ATTENTION.format(layer, "Whole").encode()),
        _field(4, b"MultiHeadAttention"),
        _field(5, heads),
        _field(7, b"com.microsoft"),
    ]
    return _field(_NODE, b"".join(node))


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Give of each field its number, and where it, its content and what follows it begin."""
    while at < end:
        start = at
        key, at = _read(raw, at)
        length, content = _read(raw, at)
        at = content + length if key & 7 == _BYTES else content
        yield key >> 3, start, content, at


def _read(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the last one
            return value, at


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content
