"""The method of the API's AdminService that examines the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from kokuban.v1 import examination_pb2 as pb
from kokuban_server.app.store_classes import digest_of
from kokuban_server.core.examination import FindingKind, FindingOutcome
from kokuban_server.core.revision import encode_token
from kokuban_server.wire.fields import page_token, parse_message
from kokuban_server.wire.rpc import Call, Method, UnaryMethod

if TYPE_CHECKING:
    from kokuban_server.app.doctor import Doctor
    from kokuban_server.core.examination import Finding

_log = structlog.get_logger()
_KINDS = {kind: pb.StoreFindingKind.Value(f"STORE_FINDING_KIND_{kind.name}") for kind in FindingKind}
_OUTCOMES = {
    outcome: pb.StoreFindingOutcome.Value(f"STORE_FINDING_OUTCOME_{outcome.name}") for outcome in FindingOutcome
}


class ExaminationMethods:
    """That method of kokuban.v1.AdminService that examines the store."""

    def __init__(self, doctor: Doctor) -> None:
        self._doctor = doctor

    @property
    def methods(self) -> dict[str, Method]:
        """This method by its name in the proto."""
        return {"ExamineStore": UnaryMethod(self.examine)}

    async def examine(self, raw: bytes, call: Call) -> bytes:
        """Look through one page of records."""
        message = parse_message(pb.ExamineStoreRequest, raw)
        token = page_token(message.page_token)
        page = await self._doctor.examine(call.principal, token, call.deadline, repair=message.repair)
        for finding in page.findings:
            _log.warning(
                "store.finding",
                kind=finding.kind.value,
                record_class=finding.record_class,
                outcome=finding.outcome.value,
                key=finding.key.hex(),
                digest=digest_of(finding.key),
                by=call.principal.agent,
            )
        return pb.ExamineStoreResponse(
            findings=map(_finding, page.findings),
            record_class=page.record_class,
            examined_count=page.examined,
            next_page_token=page.next_page_token,
            token=encode_token(self._doctor.epoch, page.revision),
        ).SerializeToString()


def _finding(finding: Finding) -> pb.StoreFinding:
    return pb.StoreFinding(
        kind=_KINDS[finding.kind],
        record_class=finding.record_class,
        board=finding.board,
        record=finding.record,
        detail=finding.words,
        outcome=_OUTCOMES[finding.outcome],
    )
