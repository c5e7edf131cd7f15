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
from kokuban_server.wire import decode, encode, provenance, quarantine
from kokuban_server.wire.fields import entry_key, page_size, page_token, parse_message, words
from kokuban_server.wire.rpc import Call, Method, UnaryMethod
from kokuban_server.wire.values import parse_json

if TYPE_CHECKING:
    from kokuban_server.app.endorsements import Endorsements
    from kokuban_server.app.provenance_trace import ProvenanceTrace
    from kokuban_server.app.quarantine_review import QuarantineReview
    from kokuban_server.app.removals import KnownRemoval, Removals
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.revealing import Revealing
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.provenance import Selector
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
        provenance_trace: ProvenanceTrace,
        removals: Removals,
        revealing: Revealing,
        redactor: Redactor,
        request_ids: RequestIds,
        epoch: str,
    ) -> None:
        self._review = review
        self._trace = provenance_trace
        self._removals = removals
        self._revealing = revealing
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
            "RevealEntry": UnaryMethod(self.reveal_entry),
            "TraceProvenance": UnaryMethod(self.trace_provenance),
            "PurgeSource": UnaryMethod(self.purge_source, writes=True),
            "EraseSubject": UnaryMethod(self.erase_subject, writes=True),
            "GetRemoval": UnaryMethod(self.get_removal),
            "ListRemovals": UnaryMethod(self.list_removals),
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
            parse_json(text, "text")
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

    async def reveal_entry(self, raw: bytes, call: Call) -> bytes:
        """Give an entry with what is encrypted in it opened."""
        message = parse_message(pb.RevealEntryRequest, raw)
        board, key = parse_board(message.board), entry_key(message.key, "key")
        at = decode.revision_at(message.at, "at") if message.HasField("at") else None
        trusting = decode.trusting(message)
        revealed = await self._revealing.reveal(call.principal, board, key, at, call.deadline, trusting)
        found, texts, revision = revealed
        return pb.RevealEntryResponse(
            entry=encode.entry(found.key, found.record, found.revision, self._epoch),
            texts=[pb.RevealedText(**text._asdict()) for text in texts],
            token=encode_token(self._epoch, revision),
        ).SerializeToString()

    async def trace_provenance(self, raw: bytes, call: Call) -> bytes:
        """Say what a state was made of, or what was made of it."""
        message = parse_message(pb.TraceProvenanceRequest, raw)
        request = provenance.trace_request(message)
        found = await self._trace.trace(call.principal, request, call.deadline)
        return pb.TraceProvenanceResponse(
            states=provenance.trace(found, self._epoch),
            truncated=found.truncated,
            token=encode_token(self._epoch, found.revision),
        ).SerializeToString()

    async def purge_source(self, raw: bytes, call: Call) -> bytes:
        """Say what a purge would remove, or begin it."""
        message = parse_message(pb.PurgeSourceRequest, raw)
        board, kind = parse_board(message.board), message.WhichOneof("what")
        # A source is found by the mask under which it was written.
        await self._redactor.mask(call.principal, message, board, (), call.deadline)
        plan = None
        if kind == "selector":
            known, plan = await self._plan(message, board, provenance.selector(message.selector), call)
        elif kind == "plan":
            plan_id = provenance.removal_id(message.plan, "plan")
            known = await self._removals.begin(call.principal, board, plan_id, call.deadline, is_erasure=False)
        else:
            raise InvalidRequest("FIELD_REQUIRED", "what", "a selector or a plan")
        return pb.PurgeSourceResponse(
            removal=provenance.removal(known, self._epoch), plan=plan, token=encode_token(self._epoch, known.revision)
        ).SerializeToString()

    async def erase_subject(self, raw: bytes, call: Call) -> bytes:
        """Say what the erasure of a person would remove, or begin it."""
        message = parse_message(pb.EraseSubjectRequest, raw)
        board, kind = parse_board(message.board), message.WhichOneof("what")
        await self._redactor.mask(call.principal, message, board, (), call.deadline)
        plan = None
        if kind == "user":
            known, plan = await self._plan(message, board, provenance.user(message.user), call)
        elif kind == "plan":
            plan_id = provenance.removal_id(message.plan, "plan")
            known = await self._removals.begin(call.principal, board, plan_id, call.deadline, is_erasure=True)
        else:
            raise InvalidRequest("FIELD_REQUIRED", "what", "a user or a plan")
        return pb.EraseSubjectResponse(
            removal=provenance.removal(known, self._epoch), plan=plan, token=encode_token(self._epoch, known.revision)
        ).SerializeToString()

    async def _plan(
        self, message: pb.PurgeSourceRequest | pb.EraseSubjectRequest, board: str, selector: Selector, call: Call
    ) -> tuple[KnownRemoval, pb.RemovalPlan]:
        known, plan = await self._removals.plan(
            call.principal,
            board,
            selector,
            words(message.reason, "reason", limits.REASON_BYTES_MAX),
            call.deadline,
            allows_reingest=message.allows_reingest,
        )
        return known, provenance.plan(plan, self._epoch)

    async def get_removal(self, raw: bytes, call: Call) -> bytes:
        """Tell how far a removal has come."""
        message = parse_message(pb.GetRemovalRequest, raw)
        board, name = parse_board(message.board), provenance.removal_id(message.id, "id")
        known = await self._removals.get(call.principal, board, name, call.deadline)
        return pb.GetRemovalResponse(
            removal=provenance.removal(known, self._epoch), token=encode_token(self._epoch, known.revision)
        ).SerializeToString()

    async def list_removals(self, raw: bytes, call: Call) -> bytes:
        """List a board's removals."""
        message = parse_message(pb.ListRemovalsRequest, raw)
        size = page_size(message.page_size, limits.REMOVAL_PAGE_ENTRIES_MAX)
        page = await self._removals.list_removals(
            call.principal, parse_board(message.board), size, page_token(message.page_token), call.deadline
        )
        return pb.ListRemovalsResponse(
            removals=[provenance.removal(known, self._epoch) for known in page.found],
            next_page_token=page.next_page_token,
            token=encode_token(self._epoch, page.revision),
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
