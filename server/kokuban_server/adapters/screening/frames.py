"""What goes between a server and the process that screens for it: JSON, with its length before it."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding, Screening, ShownView, Source, SourceKind, Verdict
from kokuban_server.ports.screener import ScreenerError

LENGTH: Final = struct.Struct(">I")


def framed(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Give a frame."""
    raw = json.dumps(content).encode()  # in ASCII: halves of surrogate pairs have no UTF-8
    return LENGTH.pack(len(raw)) + raw


def encode_question(text: str, source: Source) -> bytes:
    """Give the frame that asks about a text."""
    return framed([text, source.kind.value, source.uri])


def decode_question(raw: bytes) -> tuple[str, Source]:
    """Read what a frame asks."""
    text, kind, uri = json.loads(raw)
    return text, Source(SourceKind(kind), uri)


def encode_answer(screening: Screening) -> bytes:
    """Give the frame that tells what was found."""
    findings = [finding._replace(severity=finding.severity.value) for finding in screening.findings]  # type: ignore[arg-type] # as JSON
    return framed([screening.verdict.value, findings, screening.views, screening.version])


def encode_fault(reason: str) -> bytes:
    """Give the frame that tells why there is no verdict."""
    return framed({"fault": reason})


def decode_answer(raw: bytes) -> Screening:
    """Read what was found. Raises `ScreenerError` for an answer that says why there is no verdict."""
    answer = json.loads(raw)
    if isinstance(answer, dict):
        raise ScreenerError(answer["fault"])
    verdict, findings, views, version = answer
    return Screening(
        Verdict(verdict),
        tuple(
            Finding(rule, Severity(severity), view, tuple(span) if span else None, excerpt)
            for rule, severity, view, span, excerpt in findings
        ),
        tuple(ShownView(*view) for view in views),
        version,
    )
