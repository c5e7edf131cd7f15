"""The API's services: each method decodes, calls one use case, and encodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from kokuban.v1 import admin_service_pb2 as admin_pb
from kokuban.v1 import board_service_pb2 as board_pb
from kokuban.v1 import commit_pb2, error_reason_pb2
from kokuban_server.app.deadlines import of_one_act
from kokuban_server.app.redactions import NOTHING
from kokuban_server.app.stages import NEXT_STAGE
from kokuban_server.core import limits
from kokuban_server.core.refusals import InvalidRequest, Refusal, ServerDraining
from kokuban_server.wire import decode, encode
from kokuban_server.wire.fields import parse_message
from kokuban_server.wire.prompts import answer_as_prompt, per_source_max
from kokuban_server.wire.redacting import redactions
from kokuban_server.wire.rpc import (
    Call,
    Method,
    ServerStreamMethod,
    StreamMethod,
    UnaryMethod,
    begin_span,
    end_span,
    internal_fault,
)
from kokuban_server.wire.status import CODE_BY_REASON, message_of, metadata_of, retry_delay_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from kokuban_server.app.administration import Administration
    from kokuban_server.app.current import Gate
    from kokuban_server.app.reads import Reads
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.app.watches import Watches
    from kokuban_server.wire.redacting import RedactedCommits

_log = structlog.get_logger()
_STREAMED = "kokuban.v1.BoardService.CommitStream"


class BoardService:
    """kokuban.v1.BoardService."""

    def __init__(
        self,
        commits: RedactedCommits,
        reads: Reads,
        watches: Watches,
        gate: Gate,
        time: StoreTime,
        request_ids: RequestIds,
        epoch: str,
    ) -> None:
        self._commits = commits
        self._gate = gate
        self._request_ids = request_ids
        self._reads = reads
        self._watches = watches
        self._time = time
        self._epoch = epoch

    @property
    def methods(self) -> dict[str, Method]:
        """Every method of the service by its name in the proto."""
        return {
            "Commit": UnaryMethod(self.commit, writes=True),
            "CommitStream": StreamMethod(self.commit_stream),
            "GetEntry": UnaryMethod(self.get_entry),
            "BatchGetEntries": UnaryMethod(self.batch_get_entries),
            "ListEntries": UnaryMethod(self.list_entries),
            "ListRevisions": UnaryMethod(self.list_revisions),
            "Watch": ServerStreamMethod(self.watch),
            "CheckCurrent": UnaryMethod(self.check_current),
        }

    async def commit(self, raw: bytes, call: Call) -> bytes:
        """Apply one commit."""
        message = parse_message(commit_pb2.CommitRequest, raw)
        return (await self._commit(message, call, call.deadline)).SerializeToString()

    async def _commit(
        self, message: commit_pb2.CommitRequest, call: Call, deadline: float
    ) -> commit_pb2.CommitResponse:
        request = decode.commit_request(message, self._request_ids.digest, call.traceparent)
        await NEXT_STAGE
        answer, redacted = await self._commits.commit(call.principal, message, request, deadline)
        await NEXT_STAGE
        response = encode.committed(answer, self._epoch)
        if redacted is not NOTHING:
            response.redactions.extend(redactions(redacted))
            response.unsearched_fields.extend([text.field for text in redacted.unsearched])
        return response

    async def commit_stream(self, requests: AsyncIterator[bytes], call: Call) -> AsyncGenerator[bytes, None]:
        """Apply pipelined commits; answer each when it is done.

        Ends when the client has no more and all are answered; while the server drains, when what was read is answered. No
        more is read than may wait: a place is free again when its answer has been taken.
        """
        answers: asyncio.Queue[bytes | Refusal | None] = asyncio.Queue()
        slots = asyncio.Semaphore(limits.STREAM_COMMITS_IN_FLIGHT_MAX)
        waiting: set[asyncio.Task[None]] = set()

        async def one(raw: bytes) -> None:
            try:
                answers.put_nowait(await self._streamed(raw, call))
            except Refusal as refusal:  # of a message that is not even a commit: its id is not known
                answers.put_nowait(refusal)

        async def read() -> None:
            async for raw in requests:
                await slots.acquire()
                task = asyncio.create_task(one(raw), name="commit-of-stream")
                waiting.add(task)
                task.add_done_callback(waiting.discard)

        async def oversee() -> None:
            """Wait for the end of the requests or of the server, and then for what is under way."""
            try:
                await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
                if waiting:
                    await asyncio.wait(set(waiting))
            finally:
                answers.put_nowait(None if reading.done() else ServerDraining())

        reading = asyncio.create_task(read(), name="commit-stream-reading")
        draining = asyncio.create_task(call.draining.wait(), name="commit-stream-draining")
        overseeing = asyncio.create_task(oversee(), name="commit-stream")
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, Refusal):
                    raise answer
                yield answer
                slots.release()
            reading.result()
        finally:
            for task in (reading, draining, overseeing, *waiting):
                task.cancel()

    async def _streamed(self, raw: bytes, call: Call) -> bytes:
        """Give one commit's answer on a stream; a refusal is an answer too."""
        message = parse_message(commit_pb2.CommitStreamRequest, raw).commit
        request_id = message.request_id
        deadline = of_one_act(call.deadline)
        if call.tracer is not None:  # each commit has a span of its own, as a stream may never end
            call = call._replace(traceparent=begin_span(call.tracer, _STREAMED, call.traceparent))
        status = "CANCELLED"
        try:
            with call.usage.calls:
                call.usage.write()
                try:
                    await call.gathering.begin()
                    answer = await self._commit(message, call, deadline)
                finally:
                    call.gathering.end()
        except Refusal as refusal:
            refused = refusal
            status = CODE_BY_REASON[refused.reason].name
        except Exception as fault:  # noqa: BLE001 - as at the outermost layer: the stream lives on
            refused = internal_fault("CommitStream", fault)
            status = "INTERNAL"
        else:
            status = "OK"
            return commit_pb2.CommitStreamResponse(request_id=request_id, committed=answer).SerializeToString()
        finally:
            if call.tracer is not None:
                end_span(status)
        code: int = CODE_BY_REASON[refused.reason].value[0]
        return commit_pb2.CommitStreamResponse(
            request_id=request_id,
            refused=commit_pb2.Refusal(
                code=code,
                reason=error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{refused.reason}"),
                message=message_of(refused),
                metadata=metadata_of(refused),
                retry_delay=retry_delay_of(refused),
            ),
        ).SerializeToString()

    async def get_entry(self, raw: bytes, call: Call) -> bytes:
        """Read one entry."""
        message = parse_message(board_pb.GetEntryRequest, raw)
        board, key, freshness = decode.get_entry(message)
        trusting = decode.trusting(message)
        await NEXT_STAGE
        found, revision = await self._reads.get(call.principal, board, key, freshness, call.deadline, trusting)
        await NEXT_STAGE
        return encode.got(found, revision, self._epoch).SerializeToString()

    async def batch_get_entries(self, raw: bytes, call: Call) -> bytes:
        """Read several entries in one cut."""
        message = parse_message(board_pb.BatchGetEntriesRequest, raw)
        board, named, freshness = decode.batch_get(message)
        trusting = decode.trusting(message)
        per_source_max(message.prompt)
        entries = await self._reads.batch_get(call.principal, board, named, freshness, call.deadline, trusting)
        response = encode.batch(entries, self._epoch)
        if message.HasField("prompt"):
            answer_as_prompt(response, message.prompt)
        return response.SerializeToString()

    async def list_entries(self, raw: bytes, call: Call) -> bytes:
        """Read one page of entries."""
        message = parse_message(board_pb.ListEntriesRequest, raw)
        board, region, path, size, token, freshness = decode.list_entries(message)
        per_source_max(message.prompt)
        if message.omit_values and message.HasField("prompt"):
            raise InvalidRequest("FIELD_INVALID", "omit_values", "a prompt is made of values")
        page = await self._reads.list_entries(
            call.principal,
            board,
            region,
            path,
            size,
            token,
            freshness,
            call.deadline,
            decode.trusting(message),
            omit_values=message.omit_values,
        )
        response = encode.listing(page, self._epoch, omit_values=message.omit_values)
        if message.HasField("prompt"):
            answer_as_prompt(response, message.prompt)
        return response.SerializeToString()

    async def list_revisions(self, raw: bytes, call: Call) -> bytes:
        """Read one page of an entry's history."""
        message = parse_message(board_pb.ListRevisionsRequest, raw)
        board, key, size, token = decode.list_revisions(message)
        trusting = decode.trusting(message)
        page = await self._reads.list_revisions(call.principal, board, key, size, token, call.deadline, trusting)
        return encode.history(page, self._epoch).SerializeToString()

    async def watch(self, raw: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        """Send changes until the client has enough."""
        message = parse_message(board_pb.WatchRequest, raw)
        board, targets, start = decode.watch(message)
        parts = self._watches.follow(call.principal, board, targets, start, call.deadline)
        try:
            async for part in parts:
                yield encode.watch_part(part, self._epoch, self._time.now_ms(), omit_values=message.omit_values)
        finally:
            await parts.aclose()

    async def check_current(self, raw: bytes, call: Call) -> bytes:
        """Say what still holds."""
        board, entries, fences = decode.check_current(parse_message(board_pb.CheckCurrentRequest, raw))
        verdict = await self._gate.check(call.principal, board, entries, fences, call.deadline)
        return encode.current(verdict, self._epoch).SerializeToString()


class AdminService:
    """Those methods of kokuban.v1.AdminService that concern the server and its store."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    @property
    def methods(self) -> dict[str, Method]:
        """These methods by their names in the proto."""
        return {"GetStatus": UnaryMethod(self.get_status), "Compact": UnaryMethod(self.compact)}

    async def get_status(self, raw: bytes, call: Call) -> bytes:
        """Say how the server and its store are."""
        parse_message(admin_pb.GetStatusRequest, raw)
        return encode.server_status(
            await self._administration.status(call.principal, call.deadline)
        ).SerializeToString()

    async def compact(self, raw: bytes, call: Call) -> bytes:
        """Forget history."""
        before = decode.compact(parse_message(admin_pb.CompactRequest, raw))
        compacted, revision = await self._administration.compact(call.principal, before, call.deadline)
        return encode.compacted(compacted, revision, self._administration.epoch).SerializeToString()
