"""Tasks exported, archived and restored with raw stubs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from kokuban.v1 import task_service_pb2 as pb
from tests.wire.calls import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.wire.task_calls import Tasks


class Export(NamedTuple):
    """An archive, and its manifest."""

    lines: list[str]
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        digest: str = self.manifest["digest"]
        return digest

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Give what the lines of a kind say."""
        return [said for line in self.lines if (said := json.loads(line))["kind"] == kind]


async def export(tasks: Tasks, task: str) -> Export:
    """Export a task, over as many pages as it takes."""
    request = pb.ExportTaskRequest(board="main", task=task)
    lines: list[str] = []
    while True:
        page = await tasks.stub.ExportTask(request, metadata=tasks.agent.metadata)
        lines += page.lines
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return Export(lines, json.loads(page.manifest))


async def archive(tasks: Tasks, task: str, digest: str, request_id: str = "") -> pb.ArchiveTaskResponse:
    request = pb.ArchiveTaskRequest(board="main", request_id=request_id or new_id(), task=task, digest=digest)
    answer: pb.ArchiveTaskResponse = await tasks.stub.ArchiveTask(request, metadata=tasks.agent.metadata)
    return answer


async def archived(tasks: Tasks, task: str) -> Export:
    """Export a task and archive it."""
    made = await export(tasks, task)
    await archive(tasks, task, made.digest)
    return made


async def restore_part(
    tasks: Tasks, task: str, digest: str, lines: Sequence[str] = (), request_id: str = ""
) -> pb.RestoreTaskResponse:
    request = pb.RestoreTaskRequest(
        board="main", request_id=request_id or new_id(), task=task, digest=digest, lines=lines
    )
    answer: pb.RestoreTaskResponse = await tasks.stub.RestoreTask(request, metadata=tasks.agent.metadata)
    return answer


async def restore(
    tasks: Tasks, task: str, made: Export, *, at_once: int = 1_000, request_id: str = ""
) -> pb.RestoreTaskResponse:
    """Bring a task back, so many lines at once."""
    request_id = request_id or new_id()
    left = made.lines[::-1]
    while True:
        answer = await restore_part(tasks, task, made.digest, left[:at_once], request_id)
        left = left[at_once:]
        if not left:
            return answer
