"""What tests ask of the log of conflicts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kokuban.v1 import conflict_pb2, conflict_service_pb2, error_reason_pb2

if TYPE_CHECKING:
    from tests.wire.calls import Agent
    from tests.wire.conftest import Running


async def settle(running: Running) -> None:
    """Have a server write the conflicts that wait."""
    await running.server._conflicts.settle(asyncio.get_running_loop().time() + 10.0)


async def listed(
    running: Running,
    reader: Agent | None = None,
    page_size: int = 0,
    **wanted: Any,  # noqa: ANN401 - any field's
) -> list[conflict_pb2.Conflict]:
    """Give the conflicts that an agent is told of, over as many pages as there are."""
    await settle(running)
    asker = reader or running.agent
    found: list[conflict_pb2.Conflict] = []
    token = ""
    while True:
        page = await asker.conflicts.ListConflicts(
            conflict_service_pb2.ListConflictsRequest(
                board="main",
                filter=conflict_pb2.ConflictFilter(**wanted),
                page_size=page_size,
                page_token=token,
            ),
            metadata=asker.metadata,
        )
        found += page.conflicts
        token = page.next_page_token
        if not token:
            return found


async def summary(
    running: Running,
    reader: Agent | None = None,
    top: int = 0,
    **wanted: Any,  # noqa: ANN401 - any field's
) -> conflict_service_pb2.SummarizeConflictsResponse:
    """Give the overview that an agent is given."""
    await settle(running)
    asker = reader or running.agent
    request = conflict_service_pb2.SummarizeConflictsRequest(
        board="main", filter=conflict_pb2.ConflictFilter(**wanted), top=top
    )
    answer: conflict_service_pb2.SummarizeConflictsResponse = await asker.conflicts.SummarizeConflicts(
        request, metadata=asker.metadata
    )
    return answer


def reason(conflict: conflict_pb2.Conflict) -> str:
    return error_reason_pb2.ErrorReason.Name(conflict.reason).removeprefix("ERROR_REASON_")


def result(conflict: conflict_pb2.Conflict) -> str:
    return conflict_pb2.ConflictOutcome.Name(conflict.outcome).removeprefix("CONFLICT_OUTCOME_")
