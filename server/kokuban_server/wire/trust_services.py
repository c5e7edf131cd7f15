"""The API's TrustService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import trust_pb2
from kokuban.v1 import trust_service_pb2 as pb
from kokuban_server.core import limits
from kokuban_server.core.names import parse_board
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import encode_token
from kokuban_server.core.screening.screening import Verdict
from kokuban_server.core.trust import UNDECLARED
from kokuban_server.wire import decode, encode, quarantine
from kokuban_server.wire.fields import parse_message
from kokuban_server.wire.rpc import Call, Method, UnaryMethod

if TYPE_CHECKING:
    from kokuban_server.app.endorsements import Endorsements
    from kokuban_server.app.quarantine_review import QuarantineReview
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.redaction.masking import Place
    from kokuban_server.wire.redacting import Redactor

_VERDICTS = {
    Verdict.ADMIT: pb.SCREENING_VERDICT_ADMIT,
    Verdict.ADMIT_AS_DATA: pb.SCREENING_VERDICT_ADMIT_AS_DATA,
    Verdict.QUARANTINE: pb.SCREENING_VERDICT_QUARANTINE,
}


class TrustService:
    """kokuban.v1.TrustService."""

    def __init__(
        self,
        screenings: Screenings,
        endorsements: Endorsements,
        review: QuarantineReview,
        redactor: Redactor,
        request_ids: RequestIds,
        epoch: str,
    ) -> None:
        self._review = review
        self._redactor = redactor
        self._screenings = screenings
        self._endorsements = endorsements
        self._request_ids = request_ids
        self._epoch = epoch

    @property
    def methods(self) -> dict[str, Method]:
        """Every method of the service by its name in the proto."""
        return {
            "Endorse": UnaryMethod(self.endorse, writes=True),
            "ListQuarantine": UnaryMethod(self.list_quarantine),
            "ReviewQuarantine": UnaryMethod(self.review_quarantine, writes=True),
            "ScreenText": UnaryMethod(self.screen_text),
            "RedactText": UnaryMethod(self.redact_text),
        }

    async def endorse(self, raw: bytes, call: Call) -> bytes:
        """Raise the trust of an entry's state."""
        message = parse_message(pb.EndorseRequest, raw)
        request = decode.endorse(message, self._request_ids.digest, call.traceparent)
        if await self._redactor.mask(call.principal, message, request.board, (request.key.region,), call.deadline):
            masked = decode.endorse(message, self._request_ids.digest, call.traceparent)
            request = masked._replace(digest=request.digest)
        committed = await self._endorsements.endorse(call.principal, request, call.deadline)
        return pb.EndorseResponse(
            token=encode_token(self._epoch, committed.revision),
            revision=encode.revision(committed.revision, self._epoch),
            replayed=committed.replayed,
        ).SerializeToString()

    async def list_quarantine(self, raw: bytes, call: Call) -> bytes:
        """List what is in quarantine."""
        message = parse_message(pb.ListQuarantineRequest, raw)
        board, wanted, size, token = quarantine.list_request(message)
        page = await self._review.list_commits(call.principal, board, wanted, size, token, call.deadline)
        return pb.ListQuarantineResponse(
            commits=[quarantine.commit(one.id, one.item, show_texts=message.show_texts) for one in page.found],
            next_page_token=page.next_page_token,
            token=encode_token(self._epoch, page.revision),
        ).SerializeToString()

    async def review_quarantine(self, raw: bytes, call: Call) -> bytes:
        """Release or reject what is in quarantine."""
        message = parse_message(pb.ReviewQuarantineRequest, raw)
        board, ids, release, reason = quarantine.review_request(message)
        if await self._redactor.mask(call.principal, message, board, (), call.deadline):
            board, ids, release, reason = quarantine.review_request(message)
        results = await self._review.review(call.principal, board, ids, reason, call.deadline, release=release)
        return pb.ReviewQuarantineResponse(
            results=[quarantine.result(one, self._epoch) for one in results],
            token=encode_token(self._epoch, max(one.revision for one in results)),
        ).SerializeToString()

    async def screen_text(self, raw: bytes, call: Call) -> bytes:
        """Say what is in a text."""
        message = parse_message(pb.ScreenTextRequest, raw)
        board_id, text = parse_board(message.board), _text(message.text)
        source = decode.source(message.source, "source") if message.HasField("source") else UNDECLARED
        board, found = await self._screenings.screen(call.principal, board_id, text, source, call.deadline)
        views = (pb.TextView(name=view.name, text=view.text, truncated=view.is_cut) for view in found.views)
        return pb.ScreenTextResponse(
            verdict=_VERDICTS[found.verdict],
            findings=map(encode.finding, found.findings),
            views=views if message.show_views else (),
            rule_set=found.version,
            token=encode_token(self._epoch, board.revision),
        ).SerializeToString()

    async def redact_text(self, raw: bytes, call: Call) -> bytes:
        """Say what is secret or personal in a text, and give the text without it."""
        message = parse_message(pb.RedactTextRequest, raw)
        board_id, text = parse_board(message.board), _text(message.text)
        if message.json:
            decode.parse_json(text, "text")
        board, redaction = await self._screenings.redact(
            call.principal,
            board_id,
            text,
            call.deadline,
            is_json=message.json,
            addresses=message.network_addresses,
        )
        return pb.RedactTextResponse(
            findings=map(_place, redaction.places),
            finding_count=redaction.total,
            redacted_text=redaction.text,
            incomplete=not redaction.is_whole,
            rule_set=redaction.version,
            token=encode_token(self._epoch, board.revision),
        ).SerializeToString()


def _text(text: str) -> str:
    most, size = limits.SCREENED_TEXT_BYTES_MAX, len(text.encode())
    if size > most:
        facts = {"limit": str(most), "actual": str(size)}
        raise InvalidRequest("VALUE_TOO_LARGE", "text", f"at most {most} bytes, this has {size}", facts)
    return text


def _place(place: Place) -> pb.RedactionFinding:
    return pb.RedactionFinding(
        type=place.type,
        kind=encode.KINDS[place.kind],
        view=place.reading,
        span=trust_pb2.TextSpan(start=place.start, end=place.end),
    )
