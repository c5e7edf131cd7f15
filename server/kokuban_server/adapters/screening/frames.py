"""What goes between a server and the process that works on texts for it: JSON, with its length before it."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from kokuban_server.core.redaction.masking import Place, Redaction, ToEncrypt, Wish, redact
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding, Screening, ShownView, Verdict
from kokuban_server.core.sensitive import Handling, Kind, Terms
from kokuban_server.core.trust import Source, SourceKind
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH: Final = struct.Struct(">I")


def framed(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Give a frame."""
    raw = json.dumps(content).encode()  # in ASCII: halves of surrogate pairs have no UTF-8
    return LENGTH.pack(len(raw)) + raw


def answer(raw: bytes, screen: Callable[[str, Source], Screening]) -> bytes:
    """Do what a frame asks for, and give the frame that tells what came of it. Raises what `screen` raises."""
    task, *asked = json.loads(raw)
    return _screened(screen, *asked) if task == _SCREEN else _redacted(*asked)


_SCREEN: Final = "screen"
_REDACT: Final = "redact"


def encode_question(text: str, source: Source) -> bytes:
    """Give the frame that asks about a text."""
    return framed([_SCREEN, text, source.kind.value, source.uri])


def _screened(screen: Callable[[str, Source], Screening], text: str, kind: int, uri: str) -> bytes:
    screening = screen(text, Source(SourceKind(kind), uri))
    findings = [finding._replace(severity=finding.severity.value) for finding in screening.findings]  # type: ignore[arg-type] # as JSON
    return framed([screening.verdict.value, findings, screening.views, screening.version])


def encode_fault(reason: str) -> bytes:
    """Give the frame that tells why there is no verdict."""
    return framed({"fault": reason})


def decode_answer(raw: bytes) -> Screening:
    """Read what was found. Raises `ScreenerError` for an answer that says why there is no verdict."""
    told = json.loads(raw)
    if isinstance(told, dict):
        raise ScreenerError(told["fault"])
    verdict, findings, views, version = told
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
    return framed([_REDACT, text, terms, wish.key.hex(), wish.is_json, wish.addresses])


def _redacted(text: str, terms: list[int], key: str, is_json: bool, addresses: bool) -> bytes:  # noqa: FBT001 - as they travel
    redaction = redact(text, Wish(Terms(*map(Handling, terms)), bytes.fromhex(key), is_json, addresses))
    places = [place._replace(kind=place.kind.value) for place in redaction.places]  # type: ignore[arg-type] # as JSON
    kinds = [kind.value for kind in redaction.kinds]
    return framed(redaction._replace(places=places, kinds=kinds))  # type: ignore[arg-type] # as JSON


def decode_redaction(raw: bytes) -> Redaction:
    """Read what became of a text."""
    text, places, total, counts, kinds, is_refused, is_whole, version, to_encrypt, named = json.loads(raw)
    found = tuple(Place(type_, Kind(kind), reading, start, end) for type_, kind, reading, start, end in places)
    sealed = tuple(ToEncrypt(*one) for one in to_encrypt)
    known = frozenset(map(Kind, kinds))
    return Redaction(text, found, total, counts, known, is_refused, is_whole, version, sealed, tuple(named))
