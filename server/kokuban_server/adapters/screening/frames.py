"""What goes between a server and the process that works on texts for it: JSON, with its length before it."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from kokuban_server.core.redaction.masking import Place, Redaction, Wish, redact
from kokuban_server.core.redaction.terms import Handling, Kind, Terms
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding, Screening, ShownView, Verdict, screen
from kokuban_server.core.trust import Source, SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH: Final = struct.Struct(">I")


def framed(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Give a frame."""
    raw = json.dumps(content).encode()  # in ASCII: halves of surrogate pairs have no UTF-8
    return LENGTH.pack(len(raw)) + raw


def answer(raw: bytes) -> bytes:
    """Do what a frame asks for, and give the frame that tells what came of it."""
    task, *asked = json.loads(raw)
    return _TASKS[task](*asked)


def encode_question(text: str, source: Source) -> bytes:
    """Give the frame that asks about a text."""
    return framed(["screen", text, source.kind.value, source.uri])


def _screen(text: str, kind: int, uri: str) -> bytes:
    screening = screen(text, Source(SourceKind(kind), uri))
    findings = [finding._replace(severity=finding.severity.value) for finding in screening.findings]  # type: ignore[arg-type] # as JSON
    return framed([screening.verdict.value, findings, screening.views, screening.version])


def decode_answer(raw: bytes) -> Screening:
    """Read what was found."""
    verdict, findings, views, version = json.loads(raw)
    return Screening(
        Verdict(verdict),
        tuple(
            Finding(rule, Severity(severity), view, tuple(span) if span else None, excerpt)
            for rule, severity, view, span, excerpt in findings
        ),
        tuple(ShownView(*view) for view in views),
        version,
    )


def encode_wish(text: str, wish: Wish) -> bytes:
    """Give the frame that asks for a text to be redacted."""
    terms = [handling.value for handling in wish.terms]
    return framed(["redact", text, terms, wish.key.hex(), wish.is_json, wish.addresses])


def _redact(text: str, terms: list[int], key: str, is_json: bool, addresses: bool) -> bytes:  # noqa: FBT001 - as they travel
    redaction = redact(text, Wish(Terms(*map(Handling, terms)), bytes.fromhex(key), is_json, addresses))
    places = [place._replace(kind=place.kind.value) for place in redaction.places]  # type: ignore[arg-type] # as JSON
    kinds = [kind.value for kind in redaction.kinds]
    return framed(redaction._replace(places=places, kinds=kinds))  # type: ignore[arg-type] # as JSON


def decode_redaction(raw: bytes) -> Redaction:
    """Read what became of a text."""
    text, places, total, kinds, *more = json.loads(raw)
    found = tuple(Place(type_, Kind(kind), reading, start, end) for type_, kind, reading, start, end in places)
    return Redaction(text, found, total, frozenset(map(Kind, kinds)), *more)


_TASKS: Final[dict[str, Callable[..., bytes]]] = {"screen": _screen, "redact": _redact}
