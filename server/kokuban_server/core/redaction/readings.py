"""How else a text reads, with where in the text each part of that comes from."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

from kokuban_server.core.screening import concealed, decoding, folding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kokuban_server.core.screening.decoding import Part

PLAIN: Final = "plain"
HOLE: Final = "\x00"
"""Stands where a mask is, or will be: no pattern goes over it."""
Seen: TypeAlias = tuple[str, str, int, int, str]
"""Within what encodings, in which one, where, and what; the last only where several can have one place."""

_FOLDED_FROM: Final = (
    *(*range(0x00A0, 0x0100), *range(0x02B0, 0x0600), *range(0x115F, 0x1161), *range(0x17B4, 0x17B6)),
    *(
        *range(0x180B, 0x180F),
        *range(0x1D00, 0x1E00),
        *range(0x2000, 0x2500),
        *range(0x3000, 0x3001),
        *range(0x3164, 0x3165),
    ),
    *(*range(0xA700, 0xA800), *range(0xFE00, 0xFE70), *range(0xFEFF, 0xFFFD), *range(0x1D400, 0x1D800)),
    *(*range(0x1F100, 0x1F200), *range(0xE0000, 0xE0200)),
)
"""Where the characters are that show nothing, or look like one of ASCII."""


def _folds() -> dict[str, str]:
    folds = {}
    for point in _FOLDED_FROM:
        folded = folding.fold(chr(point))
        if folded != chr(point) and folded.isascii():
            folds[chr(point)] = folded
    return folds


_FOLDS: Final = _folds()
_FOLDABLE = re.compile(f"[{re.escape(''.join(_FOLDS))}]")
# Chinese text is full of wide signs; only letters and digits, or what shows nothing, can hide anything.
FOLDING_SIGNS: Final = "".join(sign for sign, folded in _FOLDS.items() if not folded or folded.isalnum())
"""What a text is worth being folded for."""
_JSON_ESCAPES = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')
_JSON_SIGNS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SOFT_BREAK = re.compile(r"=\r?\n")
_EVEN: Final = (3, 4, 6)
"""Signs that one character takes in percent, in backslashes with two or three digits, and with four."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way in which a text reads. Its parts begin at `ats`, and come from `starts` to `ends` of what it was made from."""

    name: str
    text: str
    base: Reading | None = None
    ats: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    """How many signs each character of a part comes from; 0 where only the whole part has a place."""

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Give where in the text that stands, as it was given, which stands there in this reading."""
        if self.base is None:
            return start, end
        first, last = bisect_right(self.ats, start) - 1, bisect_right(self.ats, end - 1) - 1
        begin, finish = self.starts[first], self.ends[last]
        if self.steps[first]:
            begin += (start - self.ats[first]) * self.steps[first]
        if self.steps[last]:
            finish = self.starts[last] + (end - self.ats[last]) * self.steps[last]
        return self.base.origin(begin, finish)


def respelt(base: Reading, name: str, parts: Iterable[tuple[str, int, int, int]]) -> Reading:
    """Give a reading in which some parts of another are spelt otherwise: what instead, from where to where, and its step."""
    pieces: list[str] = []
    places: list[tuple[int, int, int, int]] = []
    at = done = 0
    for piece, start, end, step in parts:
        if start > done:
            pieces.append(base.text[done:start])
            places.append((at, done, start, 1))
            at += start - done
        if piece:
            pieces.append(piece)
            places.append((at, start, end, step))
            at += len(piece)
        done = end
    if done < len(base.text) or not places:
        pieces.append(base.text[done:])
        places.append((at, done, len(base.text), 1))
    ats, starts, ends, steps = zip(*places, strict=True)
    return Reading(name, "".join(pieces), base, ats, starts, ends, steps)


def taken(base: Reading, name: str, parts: Sequence[Part]) -> Reading | None:
    """Give a reading of what is encoded or hidden in another, each part in a line of its own; nothing where there is none."""
    if not parts:
        return None
    texts, starts, ends = zip(*parts, strict=True)
    ats = (0, *accumulate(len(text) + 1 for text in texts[:-1]))
    return Reading(name, "\n".join(texts), base, ats, starts, ends, (0,) * len(parts))


def with_holes(text: str, holes: Sequence[tuple[int, int]]) -> Reading:
    """Give a text as it stands, with what no pattern goes over in some places."""
    plain = Reading(PLAIN, text)
    return respelt(plain, PLAIN, ((HOLE, start, end, 0) for start, end in holes)) if holes else plain


def json_strings(source: Reading) -> Reading:
    """Give a JSON text with the escapes in its strings undone."""
    return respelt(source, PLAIN, _json_parts(source.text)) if "\\" in source.text else source


def _json_parts(source: str) -> Iterator[tuple[str, int, int, int]]:
    for match in _JSON_ESCAPES.finditer(source):
        run = match.group()
        if run[1] != "u":
            yield _JSON_SIGNS.get(run[1], run[1]), match.start(), match.end(), 2
            continue
        spelt = bytes.fromhex(run.replace("\\u", "")).decode("utf-16-be", errors="replace")
        yield spelt, match.start(), match.end(), _step(run, spelt)


def folded(base: Reading, name: str) -> Reading:
    """Give a text without what shows nothing, and with one spelling for what looks alike."""
    signs = _FOLDABLE.finditer(base.text)
    return respelt(base, name, ((_FOLDS[sign.group()], sign.start(), sign.end(), 0) for sign in signs))


def unescaped(base: Reading, name: str) -> Reading | None:
    """Give a text with entities, percent signs and backslashes undone, once; nothing where there are none."""
    escapes = list(decoding.escapes(base.text))
    if not escapes:
        return None
    parts = [(spelt, start, end, _step(base.text[start:end], spelt)) for spelt, start, end in escapes]
    if decoding.is_quoted_printable(base.text):
        taken_up = {part[1] for part in parts}
        breaks = (match.span() for match in _SOFT_BREAK.finditer(base.text))
        parts = sorted(
            [*parts, *(("", start, end, 0) for start, end in breaks if start not in taken_up)], key=lambda part: part[1]
        )
    return respelt(base, name, parts)


def _step(run: str, spelt: str) -> int:
    step, rest = divmod(len(run), len(spelt) or 1)
    is_even = rest == 0 and step in _EVEN and run[0] in "%=\\" and (spelt.isascii() or step == _EVEN[-1])
    return step if is_even else 0


_DECODERS: Final = {
    "base64": (decoding.base64_parts, decoding.SHORT_BASE64),
    "base32": (decoding.base32_parts, decoding.SHORT_BASE32),
    "hex": (decoding.hex_parts, decoding.SHORT_HEX),
}


def decoded(base: Reading, prefix: str, encodings: frozenset[str], seen: set[Seen]) -> Iterator[Reading]:
    """Give a reading for each of these encodings that something is in, but for what was seen in another spelling."""
    within = "+".join(name for name in prefix.split("+") if name in _DECODERS)
    for name, (decode, runs) in _DECODERS.items():
        if name in encodings:
            parts = []
            for part in decode(base.text, runs):
                place = (within, name, *base.origin(*part[1:]), part[0] if within else "")
                if place not in seen:
                    seen.add(place)
                    parts.append(part)
            reading = taken(base, f"{prefix}{name}", parts)
            if reading is not None:
                yield reading


def concealed_in(base: Reading, prefix: str) -> Iterator[Reading]:
    """Give a reading for each way of writing in characters that show nothing."""
    for name, spell in (
        ("tags", concealed.tags),
        ("variation-selectors", concealed.selected),
        ("zero-width-bits", concealed.zero_width_bits),
    ):
        spelt = spell(base.text)
        reading = taken(base, f"{prefix}{name}", [spelt]) if spelt is not None else None
        if reading is not None:
            yield reading
