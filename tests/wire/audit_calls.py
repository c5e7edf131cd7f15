"""What tests ask of the audit log, and the acts that they have recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kokuban.v1 import admin_service_pb2, audit_pb2
from tests.wire.calls import acquire_request

if TYPE_CHECKING:
    from tests.wire.conftest import Running


async def audit_records(running: Running, roles: str = "auditor", **wanted: Any) -> list[audit_pb2.AuditRecord]:  # noqa: ANN401 - any field's
    """Give the log's records, also those that wait to be written, over as many pages as there are."""
    await running.server._audit._flush(asyncio.get_running_loop().time() + 10.0)
    auditor = running.as_agent("bookkeeper", roles)
    found: list[audit_pb2.AuditRecord] = []
    token = ""
    while True:
        request = audit_pb2.ListAuditRecordsRequest(
            filter=audit_pb2.AuditFilter(**wanted), page_token=token, page_size=7
        )
        page = await auditor.admin.ListAuditRecords(request, metadata=auditor.metadata)
        found += page.records
        token = page.next_page_token
        if not token:
            return found


async def verdict(running: Running, anchor_hash: str = "") -> audit_pb2.VerifyAuditResponse:
    """Have the log judged."""
    auditor = running.as_agent("bookkeeper", "auditor")
    answer: audit_pb2.VerifyAuditResponse = await auditor.admin.VerifyAudit(
        audit_pb2.VerifyAuditRequest(anchor_hash=anchor_hash), metadata=auditor.metadata
    )
    return answer


async def kinds(running: Running, anchor_hash: str = "") -> set[str]:
    """Give what is wrong with the log, each kind once."""
    found = await verdict(running, anchor_hash)
    assert (found.fault_count == 0) == (not found.faults)
    return {audit_pb2.AuditFaultKind.Name(fault.kind).removeprefix("AUDIT_FAULT_KIND_") for fault in found.faults}


async def settle(running: Running) -> None:
    """Have a server write what waits, and anchor what moved."""
    await running.server._audit.settle(asyncio.get_running_loop().time() + 10.0)


async def make_board(running: Running, name: str, *more: tuple[str, str]) -> None:
    """Do an act that is recorded."""
    chief = running.as_agent("chief", "operator")
    await chief.admin.CreateBoard(admin_service_pb2.CreateBoardRequest(board=name), metadata=(*chief.metadata, *more))


async def break_a_lock(running: Running, path: str, reason: str = "because") -> str:
    """Do another; give the lock's id."""
    holder = await running.join()
    granted = await holder.agent.grant(acquire_request(holder.session, path))
    await running.as_agent("keeper", "supervisor").break_lock(granted.lock.id, reason)
    return granted.lock.id
