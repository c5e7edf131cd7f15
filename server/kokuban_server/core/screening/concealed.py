"""What stands in a text but is not seen by who reads it on a page or a screen."""

from __future__ import annotations

import re
from itertools import permutations
from typing import TYPE_CHECKING, Final

from kokuban_server.core.screening.decoding import as_text
from kokuban_server.core.screening.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban_server.core.screening.decoding import Part

# Only the flags that Unicode recommends: any other sequence behind a flag could spell out a text, some letters each.
_TAGS = re.compile(
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074"
    "|\U000e0077\U000e006c\U000e0073)\U000e007f|([\U000e0001-\U000e007f]+)"
)
_SELECTORS = re.compile(
    "[\U000e0100-\U000e01ef]|[\ufe00-\ufe0f](?=[\ufe00-\ufe0f\U000e0100-\U000e01ef])"
    "|(?<=[\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f]"
)
_ZERO_WIDTH = re.compile("[\u200b-\u200d\u2060-\u2064\ufeff\u180e\u00ad]")
_BITS_MIN: Final = 64
_SYMBOLS_MAX: Final = 4

STYLED: Final = (
    r"display\s*:\s*none|visibility\s*:\s*hidden|opacity\s*:\s*0(?:\.0+)?\s*(?:[;\"']|$)|font-size\s*:\s*[01](?:\.\d+)?(?:px|pt|em|%)?"
    r"|color\s*:\s*(?:#f{3}(?:f{3})?\b|white|transparent|rgba?\(\s*255\s*,\s*255\s*,\s*255)|(?:left|top|text-indent)\s*:\s*-\d{3,}|(?:max-)?(?:height|width)\s*:\s*0(?:px)?\s*[;\"']"
)
PATTERNS: Final[dict[str, tuple[str, Pattern]]] = {
    "html-comment": ("<!--", Pattern(r"(?s)<!--(.*?)-->")),
    "html-unclosed-comment": ("<!--", Pattern(r"(?s)<!--((?:[^-]|-[^-]|--[^>])*)\z")),
    "html-styled": (
        "<",
        Pattern(
            r"(?is)<[a-z][a-z0-9]*\s[^>]*?(?:style\s*=\s*[\"'][^>]*?(?:" + STYLED + r")|\bhidden\b|aria-hidden)"
            r"[^>]*>((?:[^<]|<[^/])*)"
        ),
    ),
    "html-not-displayed": (
        "<",
        Pattern(r"(?i)<(?:template|noscript|title|desc|script|style)\b[^>]*>([^<]{8,})"),
    ),
    "html-attribute": (
        "=",
        Pattern(
            r"(?is)[\s\"'](?:alt|title|content|aria-label|aria-description|data-[a-z\-]+|placeholder|value|summary)"
            r"\s*=\s*(?:\"([^\"]{8,})\"|'([^']{8,})')"
        ),
    ),
    "markdown-comment": (
        "]:",
        Pattern(r"(?m)^[ ]{0,3}\[[^\]\n]{1,100}\]:[ \t]*\S*[ \t]+(?:\(([^\n]*)\)|\"([^\n]*)\"|'([^\n]*)')"),
    ),
    "markdown-title": ("](", Pattern(r"\]\([^\s()]*[ \t]+(?:\"([^\"\n]*)\"|'([^'\n]*)')")),
    "markdown-alternative": ("![", Pattern(r"!\[([^\]\n]{8,})\]")),
    "latex": (
        "\\",
        Pattern(
            r"\\(?:(?:text)?color(?:\[[^\]\n]*\])?\{(?:white|[^}\n]*1,\s*1,\s*1)\}|tiny\b|h?phantom\b"
            r"|fontsize\{[01](?:pt)?\})[\s{]*((?:\\[a-z]+[\s{]*)*[^}]*)"
        ),
    ),
    "pushed-away": ("", Pattern(r"(?s)(?:(?:\n[ \t\r]*){24}|[ \t\x{3000}\x{a0}]{160})\s*(\S.*)")),
}
"""Each with what a text without it does not have, which is looked for first."""
IN_PLACE: Final = frozenset({*PATTERNS, "terminal"})
"""What is hidden in these ways stands in the text as it is."""
WAYS: Final = frozenset({*IN_PLACE, "tags", "variation-selectors", "zero-width-bits"})
"""The names of all ways of hiding."""
# Every step of these two ends at the next escape character, so that they too are linear; RE2 is slow where matches are many.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_UNSEEN = re.compile(r"\x1b\[(?:[0-9;]*;)?8m([^\x1b]+)|\x1b\]([^\x07\x1b]+)")


def without_terminal_codes(text: str) -> str:
    """Give the text without what moves a terminal's cursor or colours its letters."""
    return _TERMINAL.sub("", text) if "\x1b" in text else text


def tags(text: str) -> Part | None:
    """Give what is spelt in tag characters, the recommended flags aside."""
    runs = [match for match in _TAGS.finditer(text) if match.lastindex]
    spelt = "".join(chr(ord(tag) & 0x7F) for run in runs for tag in run.group())
    return (spelt, runs[0].start(), runs[-1].end()) if runs else None


def selected(text: str) -> Part | None:
    """Give what is spelt in variation selectors, each a byte."""
    signs = list(_SELECTORS.finditer(text))
    points = [ord(sign.group()) for sign in signs]
    spelt = as_text(bytes(point & 0xF if point <= 0xFE0F else point - 0xE0100 + 16 for point in points))  # noqa: PLR2004
    return (spelt, signs[0].start(), signs[-1].end()) if spelt else None


def zero_width_bits(text: str) -> Part | None:
    """Give what is spelt in zero-width characters as bits."""
    signs = list(_ZERO_WIDTH.finditer(text))
    run = "".join(sign.group() for sign in signs)
    symbols = sorted(set(run))
    if len(run) < _BITS_MIN or not 1 < len(symbols) <= _SYMBOLS_MAX:
        return None
    for zero, one in permutations(symbols, 2):
        bits = "".join("0" if symbol == zero else "1" for symbol in run if symbol in {zero, one})
        bits = bits[: len(bits) // 8 * 8]
        spelt = as_text(int(bits, 2).to_bytes(len(bits) // 8, "big")) if bits else None
        if spelt:
            return spelt, signs[0].start(), signs[-1].end()
    return None


def parts(text: str) -> Iterator[tuple[str, list[Part]]]:
    """Give, for each way of hiding, what is hidden that way, and where."""
    for name, (sign, pattern) in PATTERNS.items():
        if sign in text:
            found = [part for part in pattern.parts(text) if part[0]]
            if found:
                yield name, found
    unseen = [(match[match.lastindex or 0], match.start(), match.end()) for match in _UNSEEN.finditer(text)]
    if unseen:
        yield "terminal", unseen
    if not text.isascii():
        for name, spell in (("tags", tags), ("variation-selectors", selected), ("zero-width-bits", zero_width_bits)):
            spelt = spell(text)
            if spelt is not None:
                yield name, [spelt]
