"""The ways in which a text can be read, of which whoever wrote it may have meant another than the one that is seen."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.screening import concealed, decoding, folding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban_server.core.screening.decoding import Part

PLAIN: Final = "plain"

_LEET: Final = str.maketrans("013457@$!|", "oieastasii")
_LEET_L: Final = str.maketrans("013457@$!|", "oleastasll")
_HAS_LEET = re.compile(r"[A-Za-z][013457@$!|]|[013457@$!|][A-Za-z]")
_HAS_DIGIT = re.compile(r"[0-9]")
_HAS_LEET_L = re.compile(r"[1!|]")
_ROT13: Final = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "NOPQRSTUVWXYZABCDEFGHIJKLMnopqrstuvwxyzabcdefghijklm"
)
_SPELT = re.compile(r"(?<![^\W_])[^\W_]{1,3}(?:[\W_]{1,5}[^\W_]{1,3}(?![^\W_])){7,}")
_MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,200}>|\*\*|__|`")
_NOT_LETTERS = re.compile(r"[\W_]+")
_DECODERS: Final = (
    ("base64", decoding.base64_parts),
    ("base32", decoding.base32_parts),
    ("hex", decoding.hex_parts),
)


class Place(NamedTuple):
    """Where a part of a view comes from."""

    at: int
    """Where it begins in the view."""
    start: int
    end: int
    """Where it stands in the original."""


@dataclass(frozen=True, slots=True)
class View:
    """One reading of a text."""

    name: str
    """How it was made, the last step last: `plain`, `folded`, `base64+unescaped`."""
    text: str
    base: str = ""
    """The name of the view that it spells otherwise. Empty: what it shows was hidden or encoded."""
    is_spelt: bool = False
    """Only letters are left of it, without what separates words."""
    is_aligned: bool = False
    """Its characters stand where the original's stand."""
    places: tuple[Place, ...] = ()
    """Where its parts come from, if that is known."""

    def origin(self, start: int, end: int) -> tuple[int, int] | None:
        """Give where in the original that stands which stands there in this view."""
        if self.is_aligned:
            return start, end
        if not self.places:
            return None
        place = self.places[bisect_right(self.places, start, key=lambda place: place.at) - 1]
        return place.start, place.end

    def covered(self) -> tuple[Place, ...]:
        """Give what of the original it comes from, as one."""
        if not self.places:
            return ()
        return (Place(0, min(place.start for place in self.places), max(place.end for place in self.places)),)


class Canonical(NamedTuple):
    """What a text comes to."""

    views: tuple[View, ...]
    """The plain one first."""
    is_cut: bool
    """A bound was reached: there may be more in it than the views show."""


def canonical(text: str) -> Canonical:
    """Give every view of a text, whatever its characters."""
    making = _Making(folding.whole(text))
    return Canonical(tuple(making.views), making.is_cut)


class _Making:
    """Makes the views of a text: each that is taken from another is looked through in its turn, to a depth."""

    def __init__(self, text: str) -> None:
        self.views: list[View] = []
        self.is_cut = False
        self._taken_before: set[tuple[str, str]] = set()
        self._left = limits.SCREENED_CHARACTERS_MIN + len(text) * limits.SCREENED_TIMES_MAX
        self._look_through(View(PLAIN, text, is_aligned=True), (), 0)

    def _look_through(self, view: View, names: tuple[str, ...], depth: int) -> None:
        if depth > limits.SCREENED_DEPTH_MAX:
            self.is_cut = True
            return
        if not self._add(view):
            return
        folded = folding.fold(concealed.without_terminal_codes(view.text))
        self._respell(view, folded, names)
        for name, found in self._taken(view.text, folded):
            parts = [part for part in found if (name, part[0]) not in self._taken_before]
            if not parts:
                continue
            self._taken_before.update((name, part) for part, _, _ in parts)
            within = (*names, name)
            places = []
            at = 0
            is_located = folded == view.text or name in concealed.WAYS
            for part, start, end in parts:
                origin = view.origin(start, end) if is_located else None
                if origin is not None:
                    places.append(Place(at, *origin))
                at += len(part) + 1
            text = "\n".join(part for part, _, _ in parts)
            taken = View("+".join(within), text, places=tuple(places) if places else view.covered())
            if name in concealed.IN_PLACE:
                self._add(taken)  # it stands in the text as it is, and is decoded with it
            else:
                self._look_through(taken, within, depth + 1)
        unescaped = decoding.unescape(folded)
        if unescaped != folded:
            within = (*names, "unescaped")
            whole = View("+".join(within), unescaped, base=view.name, places=view.covered())
            self._look_through(whole, within, depth + 1)

    @staticmethod
    def _taken(text: str, folded: str) -> Iterator[tuple[str, list[Part]]]:
        """Give what is hidden or encoded in a text, by how."""
        yield from concealed.parts(text)
        for name, decode in _DECODERS:
            parts = list(decode(folded))
            if parts:
                yield name, parts

    def _respell(self, view: View, folded: str, names: tuple[str, ...]) -> None:
        """Add the ways in which the letters of a text can be read."""
        is_same = folded == view.text
        aligned = view.is_aligned and is_same
        places = view.places if is_same else view.covered()

        def add(name: str, text: str, *, in_place: bool = True, is_spelt: bool = False) -> None:
            self._add(
                View(
                    "+".join((*names, name)),
                    text,
                    base=view.name,
                    is_spelt=is_spelt,
                    is_aligned=aligned and in_place,
                    places=places if in_place else view.covered(),
                )
            )

        if not is_same:
            add("folded", folded)
        if _HAS_LEET.search(folded):
            add("leet", folded.translate(_LEET))
            if _HAS_LEET_L.search(folded):
                add("leet-l", folded.translate(_LEET_L))
        add("rot13", folded.translate(_ROT13))
        add("reversed", folded[::-1], in_place=False)
        spelt = "\n".join(_NOT_LETTERS.sub("", match.group()) for match in _SPELT.finditer(folded))
        if spelt:
            add("spelt", spelt, in_place=False, is_spelt=True)
            if _HAS_DIGIT.search(spelt):
                add("spelt-leet", spelt.translate(_LEET), in_place=False, is_spelt=True)
        unmarked = _MARKUP.sub("", folded)
        if unmarked != folded:
            add("unmarked", unmarked, in_place=False)

    def _add(self, view: View) -> bool:
        if len(self.views) >= limits.SCREENED_VIEWS_ENTRIES_MAX or len(view.text) > self._left:
            self.is_cut = True
            return False
        self._left -= len(view.text)
        self.views.append(view)
        return True
