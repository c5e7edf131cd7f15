"""What was found, masked."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.redaction.rules import RANKS, RULES_VERSION
from kokuban_server.core.redaction.search import find
from kokuban_server.core.seals import written_in
from kokuban_server.core.sensitive import Handling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kokuban_server.core.redaction.search import Finding
    from kokuban_server.core.sensitive import Kind, Terms

_DIGEST_BYTES: Final = 3
_JSON_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?|[{}]')
_NAMED = re.compile(r"\s*:")


class Place(NamedTuple):
    """What was found where, without what it is."""

    type: str
    kind: Kind
    reading: str
    start: int
    end: int
    """See `Finding`."""


class ToEncrypt(NamedTuple):
    """A mask in whose place what was found is to stand encrypted."""

    at: int
    until: int
    """Where the mask stands, in the text that holds it."""
    start: int
    end: int
    """Where what it stands for did, in the text as it was given."""
    type: str
    digest: str


class Redaction(NamedTuple):
    """What became of a text. Nothing that was masked can be learnt from it."""

    text: str
    """The text, with masks for what is masked and for what it was refused for."""
    places: tuple[Place, ...]
    """The first of what was found, in the order in which it begins; also of what is kept."""
    total: int
    """How much was found."""
    counts: dict[str, int]
    """How much of each type."""
    kinds: frozenset[Kind]
    """Of all that was found."""
    is_refused: bool
    """Something is of a kind that is refused."""
    is_whole: bool
    """No bound was reached: see `Found`."""
    version: str
    to_encrypt: tuple[ToEncrypt, ...] = ()
    """Of the masks those for what is to be encrypted."""
    named: tuple[str, ...] = ()
    """The types of what would be encrypted, and is a name in JSON: a name that is another each time names nothing."""


class Wish(NamedTuple):
    """How a text is to be redacted."""

    terms: Terms
    key: bytes
    """What digests are made with, up to 64 bytes. See `keyed`."""
    is_json: bool = False
    """It is JSON, which has been parsed, and stays so."""
    addresses: bool = False
    """Addresses of networks are personal data too."""


def redact(text: str, wish: Wish) -> Redaction:
    """Find what is secret or personal in a text and do with it what is wished. Raises `NotSearchedError`."""
    holes = written_in(text, wish.key)
    everything, is_whole = find(text, holes, is_json=wish.is_json, addresses=wish.addresses)
    findings = [finding for finding in everything if wish.terms.of(finding.kind) is not Handling.OFF]
    masked = [finding for finding in findings if wish.terms.of(finding.kind) is not Handling.KEEP]
    shown = findings[: limits.REDACTED_FINDINGS_SHOWN_ENTRIES_MAX]
    kinds = frozenset(finding.kind for finding in findings)
    encrypted = frozenset(kind for kind in kinds if wish.terms.of(kind) is Handling.ENCRYPT)
    masks = mask(text, masked, keyed(wish.key), encrypted, is_json=wish.is_json)
    return Redaction(
        masks.text,
        tuple(Place(found.type, found.kind, found.reading, found.start, found.end) for found in shown),
        len(findings),
        dict(Counter(finding.type for finding in findings)),
        kinds,
        any(wish.terms.of(kind) is Handling.REFUSE for kind in kinds),
        is_whole,
        RULES_VERSION,
        masks.to_encrypt,
        masks.named,
    )


def keyed(key: bytes) -> Callable[[str], str]:
    """Give what makes a value's digest of 24 bits: equal values are told equal, and are not known without the key.

    Whoever can have masks made under the same key can try values of which there are few, such as telephone numbers.
    """

    def digest(value: str) -> str:
        return hashlib.blake2b(value.encode(), key=key, digest_size=_DIGEST_BYTES).hexdigest()

    return digest


class Masked(NamedTuple):
    """A text with masks; the rest as in `Redaction`."""

    text: str
    to_encrypt: tuple[ToEncrypt, ...]
    named: tuple[str, ...]


def mask(
    text: str,
    findings: Iterable[Finding],
    digest: Callable[[str], str],
    encrypted: frozenset[Kind] = frozenset(),
    *,
    is_json: bool = False,
) -> Masked:
    """Give the text with a mask for each finding, or one for several that overlap; nothing else of it changes.

    In JSON only what stands within strings is masked. A number of which something is masked becomes a string that is the mask.
    """
    masks = _masks(findings, digest, encrypted)
    if is_json:
        masks = _within_tokens(text, masks)
    named = sorted({one.type for one in masks if one.is_encrypted and one.is_name})
    return Masked(_replaced(text, 0, masks), tuple(_to_encrypt(masks)), tuple(named))


class _Mask(NamedTuple):
    start: int
    end: int
    instead: str
    type: str
    digest: str
    is_encrypted: bool
    is_name: bool = False
    """It stands in a name within JSON."""


def _masks(findings: Iterable[Finding], digest: Callable[[str], str], encrypted: frozenset[Kind]) -> list[_Mask]:
    """Give the masks for what was found; marked are those of `encrypted` kinds, if nothing overlaps them that is of another."""
    joined: list[tuple[int, int, Finding, bool]] = []
    for finding in sorted(findings, key=lambda finding: finding.start):
        is_encrypted = finding.kind in encrypted
        if not joined or finding.start >= joined[-1][1]:
            joined.append((finding.start, finding.end, finding, is_encrypted))
            continue
        start, end, other, was_encrypted = joined[-1]
        named = min(other, finding, key=lambda one: RANKS[one.type])
        joined[-1] = start, max(end, finding.end), named, is_encrypted and was_encrypted
    masks = []
    for start, end, named, is_encrypted in joined:
        told = digest(named.value)
        masks.append(_Mask(start, end, f"[redacted:{named.type}:{told}]", named.type, told, is_encrypted))
    return masks


def _to_encrypt(masks: Iterable[_Mask]) -> Iterator[ToEncrypt]:
    shift = 0
    for one in masks:
        at = one.start + shift
        if one.is_encrypted and not one.is_name:
            yield ToEncrypt(at, at + len(one.instead), one.start, one.end, one.type, one.digest)
        shift += len(one.instead) - (one.end - one.start)


def _within_tokens(source: str, masks: list[_Mask]) -> list[_Mask]:
    """Give the masks for the strings and numbers of a JSON text. None cuts an escape: a finding begins and ends beside it."""
    found: list[_Mask] = []
    names: list[dict[str, int]] = [{}]
    place = 0
    for token in _JSON_TOKENS.finditer(source) if masks else ():
        start, end = token.span()
        if source[start] == "{":
            names.append({})
        elif source[start] == "}":
            names.pop()
        else:
            while place < len(masks) and masks[place].end <= start:
                place += 1
            within = list(_within(source, start, end, masks, place))
            if source[start] == '"' and _NAMED.match(source, end):
                within = [one._replace(is_name=True) for one in within]
                _keep_apart(source[start + 1 : end - 1], start + 1, within, names[-1])
            found += within
    return found


def _within(source: str, start: int, end: int, masks: list[_Mask], place: int) -> Iterator[_Mask]:
    """Give what of the masks from a place on is within one string, or the first of them for all of a number."""
    while place < len(masks) and masks[place].start < end:
        mask = masks[place]
        if source[start] != '"':
            yield mask._replace(start=start, end=end, instead=f'"{mask.instead}"')
            return
        begin, finish = max(mask.start, start + 1), min(mask.end, end - 1)
        if begin < finish:
            yield mask._replace(start=begin, end=finish)
        place += 1


def _keep_apart(name: str, start: int, within: list[_Mask], names: dict[str, int]) -> None:
    """Number the mask of what would stand twice as a name in one object: the same value, written in two ways."""
    first = told = _replaced(name, start, within)
    number = names.setdefault(first, 0)
    while within and number and told in names:
        number += 1
        within[-1] = within[-1]._replace(instead=f"{within[-1].instead.partition('~')[0]}~{number}")
        told = _replaced(name, start, within)
    names[first] = max(number, 1)  # the next is numbered from here: many in one object take no longer for each
    names.setdefault(told, 1)


def _replaced(text: str, start: int, masks: Iterable[_Mask]) -> str:
    """Give a text that begins at a place, with what is masked of it replaced."""
    pieces: list[str] = []
    done = start
    for mask in masks:
        pieces += (text[done - start : mask.start - start], mask.instead)
        done = mask.end
    return "".join(pieces) + text[done - start :]
