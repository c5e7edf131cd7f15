"""The API's service of tasks: each method decodes, calls one use case, and encodes. Those that write are commits."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from kokuban.v1 import task_service_pb2 as pb
from kokuban_server.core.refusals import Refusal
from kokuban_server.core.revision import encode_token
from kokuban_server.wire import decode, decode_locks, decode_tasks, encode_tasks
from kokuban_server.wire.fields import parse_message
from kokuban_server.wire.rpc import Call, Method, ServerStreamMethod, UnaryMethod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from kokuban.v1 import commit_pb2
    from kokuban_server.app.archives import Archives
    from kokuban_server.app.commits import Committed
    from kokuban_server.app.recorded_calls import RecordedTaskWaits
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.task_claims import TaskClaims
    from kokuban_server.app.task_reading import TaskReading
    from kokuban_server.app.word_screening import WordScreening
    from kokuban_server.wire.redacting import RedactedCommits, Redactor


class TaskService:
    """kokuban.v1.TaskService."""

    def __init__(
        self,
        commits: RedactedCommits,
        claims: TaskClaims,
        waits: RecordedTaskWaits,
        reading: TaskReading,
        archives: Archives,
        redactor: Redactor,
        words: WordScreening,
        request_ids: RequestIds,
        epoch: str,
    ) -> None:
        self._commits = commits
        self._claims = claims
        self._waits = waits
        self._reading = reading
        self._archives = archives
        self._redactor = redactor
        self._words = words
        self._request_ids = request_ids
        self._epoch = epoch

    @property
    def methods(self) -> dict[str, Method]:
        """Every method of the service by its name in the proto."""
        return {
            "CreateTask": UnaryMethod(self.create_task, writes=True),
            "GetTask": UnaryMethod(self.get_task),
            "ListTasks": UnaryMethod(self.list_tasks),
            "ListEvents": UnaryMethod(self.list_events),
            "ClaimNextStep": UnaryMethod(self.claim_next_step, writes=True),
            "WaitForTask": ServerStreamMethod(self.wait_for_task, writes=True),
            "ResumeTask": UnaryMethod(self.resume_task, writes=True),
            "CancelTask": UnaryMethod(self.cancel_task, writes=True),
            "ExportTask": UnaryMethod(self.export_task),
            "ArchiveTask": UnaryMethod(self.archive_task, writes=True),
            "RestoreTask": UnaryMethod(self.restore_task, writes=True),
        }

    async def create_task(self, raw: bytes, call: Call) -> bytes:
        """Begin a task."""
        message = parse_message(pb.CreateTaskRequest, raw)
        with _named_as_asked(_of_creation):
            committed = await self._commit(decode_tasks.created(message), call)
        token = encode_token(self._epoch, committed.revision)
        return pb.CreateTaskResponse(token=token, replayed=committed.replayed).SerializeToString()

    async def get_task(self, raw: bytes, call: Call) -> bytes:
        """Say how a task stands."""
        board, region = decode_tasks.get_task(parse_message(pb.GetTaskRequest, raw))
        standing, revision = await self._reading.get(call.principal, board, region, call.deadline)
        token = encode_token(self._epoch, revision)
        return pb.GetTaskResponse(task=encode_tasks.task(standing), token=token).SerializeToString()

    async def list_tasks(self, raw: bytes, call: Call) -> bytes:
        """Say which tasks there are."""
        board, size, token = decode_tasks.list_tasks(parse_message(pb.ListTasksRequest, raw))
        page, next_token, revision = await self._reading.list_tasks(call.principal, board, size, token, call.deadline)
        return encode_tasks.tasks(page, next_token, revision, self._epoch).SerializeToString()

    async def list_events(self, raw: bytes, call: Call) -> bytes:
        """Say what happened in a task."""
        message = parse_message(pb.ListEventsRequest, raw)
        board, region, after_event, size, token = decode_tasks.list_events(message)
        page = await self._reading.list_events(
            call.principal, board, region, after_event, size, token, call.deadline, decode.trusting(message)
        )
        return encode_tasks.events(page, self._epoch).SerializeToString()

    async def claim_next_step(self, raw: bytes, call: Call) -> bytes:
        """Give a step to work on."""
        message = parse_message(pb.ClaimNextStepRequest, raw)
        request = decode_tasks.claim_next_step(message, self._request_ids.digest, call.traceparent)
        if await self._redactor.mask(call.principal, message, request.board, (request.region,), call.deadline):
            request = request._replace(purpose=decode_locks.purpose(message.purpose))
        named = call.principal, request.board, request.session_id
        await self._words.judge(*named, "purpose", request.purpose, call.deadline)
        claimed = await self._claims.claim(call.principal, request, call.deadline)
        return encode_tasks.claimed(claimed, self._epoch).SerializeToString()

    async def wait_for_task(self, raw: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        """Say how a part of a task stands until it is over."""
        request = decode_tasks.wait_for_task(parse_message(pb.WaitForTaskRequest, raw), call.traceparent)
        standings = self._waits.wait(call.principal, request, call.draining, call.deadline)
        async with contextlib.aclosing(standings):
            async for standing, revision in standings:
                yield encode_tasks.standing(standing, revision, self._epoch).SerializeToString()

    async def resume_task(self, raw: bytes, call: Call) -> bytes:
        """Answer interrupts."""
        message = parse_message(pb.ResumeTaskRequest, raw)
        with _named_as_asked(_of_answers):
            committed = await self._commit(decode_tasks.resumed(message), call)
        board, region = message.board, decode_tasks.task_region(message.task)
        standing, _ = await self._reading.get(call.principal, board, region, call.deadline)
        return pb.ResumeTaskResponse(
            task=encode_tasks.task(standing),
            token=encode_token(self._epoch, committed.revision),
            replayed=committed.replayed,
        ).SerializeToString()

    async def cancel_task(self, raw: bytes, call: Call) -> bytes:
        """End a task."""
        message = parse_message(pb.CancelTaskRequest, raw)
        with _named_as_asked(_of_cancelling):
            committed = await self._commit(decode_tasks.cancelled(message), call)
        token = encode_token(self._epoch, committed.revision)
        return pb.CancelTaskResponse(token=token, replayed=committed.replayed).SerializeToString()

    async def export_task(self, raw: bytes, call: Call) -> bytes:
        """Give a task as the lines of an archive."""
        board, region, token = decode_tasks.export_task(parse_message(pb.ExportTaskRequest, raw))
        page = await self._archives.export(call.principal, board, region, token, call.deadline)
        return pb.ExportTaskResponse(
            lines=page.lines,
            manifest=page.manifest,
            next_page_token=page.next_page_token,
            token=encode_token(self._epoch, page.revision),
        ).SerializeToString()

    async def archive_task(self, raw: bytes, call: Call) -> bytes:
        """Remove a task that was exported."""
        request = decode_tasks.archive_task(parse_message(pb.ArchiveTaskRequest, raw), self._request_ids.digest)
        ended = await self._archives.archive(call.principal, request, call.deadline)
        token = encode_token(self._epoch, ended.revision)
        return pb.ArchiveTaskResponse(token=token, replayed=ended.replayed).SerializeToString()

    async def restore_task(self, raw: bytes, call: Call) -> bytes:
        """Bring back a part of a task."""
        request = decode_tasks.restore_task(parse_message(pb.RestoreTaskRequest, raw), self._request_ids.digest)
        next_line, left_out, ended = await self._archives.restore(call.principal, request, call.deadline)
        response = pb.RestoreTaskResponse(next_line=next_line, left_out=left_out)
        if ended is not None:
            response.token = encode_token(self._epoch, ended.revision)
            response.replayed = ended.replayed
        return response.SerializeToString()

    async def _commit(self, message: commit_pb2.CommitRequest, call: Call) -> Committed:
        request = decode.commit_request(message, self._request_ids.digest, call.traceparent)
        return (await self._commits.commit(call.principal, message, request, call.deadline))[0]


def _of_creation(field: str) -> str:
    """Give the field of a request to create a task that a field of its commit stands for."""
    field = re.sub(r"^mutations\[0\](\.create_task)?", "task", field)
    return re.sub(r"^mutations\[(\d+)\](\.add_step\.step)?", lambda found: f"steps[{int(found[1]) - 1}]", field)


def _of_answers(field: str) -> str:
    """Give the field of a request that answers interrupts, likewise."""
    field = re.sub(r"^(mutations\[\d+\])\.append_event\.data", r"\1.append_event.answer", field)
    if field.endswith(".append_event.task"):
        return "task"
    return re.sub(r"^mutations\[(\d+)\](\.append_event)?", r"answers[\1]", field)


def _of_cancelling(field: str) -> str:
    """Give the field of a request that cancels a task, likewise."""
    return re.sub(r"^mutations\[0\](\.cancel_task)?", "task", field)


@contextlib.contextmanager
def _named_as_asked(renamed: Callable[[str], str]) -> Iterator[None]:
    """Have refusals name the fields of the caller's own request instead of those of the commit that it stands for."""
    try:
        yield
    except Refusal as refusal:
        if isinstance(getattr(refusal, "field_path", None), str):
            refusal.field_path = renamed(refusal.field_path)  # type: ignore[attr-defined]  # it has one, as was looked up
        raise
