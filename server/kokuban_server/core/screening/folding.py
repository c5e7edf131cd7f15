"""How letters look, undone: one spelling for all characters that a reader takes for the same."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_SURROGATES = re.compile("[\ud800-\udfff]")

_INVISIBLE: Final = (
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x3164, 0xFEFF, 0xFFA0),
    *(*range(0x180B, 0x180E), *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)),
    *(*range(0xFE00, 0xFE10), *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0200)),
)
"""Characters that show nothing: zero width, direction, variation selectors, tags, fillers."""

# A small table of our own, not Unicode's whole list of confusables: that one maps in chains between all scripts and joins
# letters with digits, which a search for words does not want. Here stands what looks like a Latin letter in the fonts that
# agents' users see, from the scripts in which whole words can be spelt that way.
_LOOK_ALIKES: Final = {
    "a": "аɑαᴀ", "b": "вьƄʙᏏ", "c": "сϲᴄⅽ", "d": "ԁɗᴅժ", "e": "еєεҽᴇ", "f": "ғϝƒꜰ", "g": "ɡցɢԍ", "h": "һнհʜ",
    "i": "іıιɩɪӏ", "j": "јϳᴊ", "k": "кκᴋ", "l": "ⅼʟ", "m": "мᴍⅿ", "n": "пոηɴ", "o": "оοσօᴏ", "p": "рρᴘ",
    "q": "ԛգ", "r": "гᴦʀ", "s": "ѕꜱʂ", "t": "тτᴛ", "u": "υսᴜʋ", "v": "ѵνᴠ", "w": "ԝωᴡա", "x": "хχ", "y": "уүγʏ",
    "z": "ᴢʐ",
}  # fmt: skip
_CAPITALS: Final = {
    "A": "АΑ", "B": "ВΒ", "C": "СϹ", "E": "ЕΕ", "G": "Ԍ", "H": "НΗ", "I": "ІΙӀ", "J": "Ј", "K": "КΚ", "M": "МΜ",
    "N": "Ν", "O": "ОΟՕ", "P": "РΡ", "S": "ЅՏ", "T": "ТΤ", "X": "ХΧ", "Y": "ҮΥ", "Z": "Ζ", "V": "Ѵ", "W": "Ԝ",
}  # fmt: skip
_LATIN: Final = {
    ord(foreign): latin for table in (_LOOK_ALIKES, _CAPITALS) for latin, all_ in table.items() for foreign in all_
}
_MARKS: Final = [point for point in range(0x300, 0x1F000) if unicodedata.combining(chr(point))]
_REGIONAL_A: Final = 0x1F1E6
_SQUARED_A: Final = (0x1F130, 0x1F150, 0x1F170)
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz"

_FOLDED: Final[dict[int, str | None]] = {
    **dict.fromkeys([*_INVISIBLE, *_MARKS]),
    **_LATIN,
    **{first + place: letter for first in (_REGIONAL_A, *_SQUARED_A) for place, letter in enumerate(_ALPHABET)},
}


def whole(text: str) -> str:
    """Give the text without halves of characters, which no encoding has; as long as before."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def fold(text: str) -> str:
    """Give the text in compatible characters without marks, invisible characters and look-alikes. Case is kept."""
    if text.isascii():
        return text
    # Before too: to normalise takes quadratic time over many marks on one letter, and makes some look-alikes something else.
    plain = unicodedata.normalize("NFKD", text.translate(_FOLDED)).translate(_FOLDED)
    return unicodedata.normalize("NFKC", plain)
