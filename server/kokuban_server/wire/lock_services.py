"""The API's services of sessions and locks: each method decodes, calls one use case, and encodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from kokuban.v1 import lock_service_pb2 as lock_service_pb
from kokuban.v1 import session_service_pb2 as session_pb
from kokuban_server.app.stages import NEXT_STAGE
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import encode_token
from kokuban_server.wire import decode_locks, encode_locks
from kokuban_server.wire.fields import parse_message
from kokuban_server.wire.rpc import Call, Method, ProgressMethod, StreamMethod, UnaryMethod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from kokuban_server.app.held_locks import HeldLocks
    from kokuban_server.app.lock_asked import LockRequest, Queued
    from kokuban_server.app.recorded_calls import RecordedLocks
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.sessions import Sessions
    from kokuban_server.app.word_screening import WordScreening
    from kokuban_server.wire.redacting import Redactor
    from kokuban_server.wire.rpc import Send

_log = structlog.get_logger()


class SessionService:
    """kokuban.v1.SessionService."""

    def __init__(
        self, sessions: Sessions, redactor: Redactor, words: WordScreening, request_ids: RequestIds, epoch: str
    ) -> None:
        self._sessions = sessions
        self._redactor = redactor
        self._words = words
        self._request_ids = request_ids
        self._epoch = epoch

    @property
    def methods(self) -> dict[str, Method]:
        """Every method of the service by its name in the proto."""
        return {
            "OpenSession": UnaryMethod(self.open_session, writes=True),
            "KeepAlive": StreamMethod(self.keep_alive, keeps_alive=True),
            "CloseSession": UnaryMethod(self.close_session),
            "ListSessions": UnaryMethod(self.list_sessions),
        }

    async def open_session(self, raw: bytes, call: Call) -> bytes:
        """Begin a session."""
        message = parse_message(session_pb.OpenSessionRequest, raw)
        request = decode_locks.open_session(message, self._request_ids.digest)
        if await self._redactor.mask(call.principal, message, request.board, (), call.deadline):
            request = request._replace(label=decode_locks.label(message.label))
        await self._words.judge(call.principal, request.board, "", "label", request.label, call.deadline)
        opened = await self._sessions.open(call.principal, request, call.deadline)
        return encode_locks.opened(opened, self._epoch).SerializeToString()

    async def keep_alive(self, requests: AsyncIterator[bytes], call: Call) -> AsyncGenerator[bytes, None]:
        """Renew a session and send what its holder should know."""
        first = await anext(aiter(requests), None)
        if first is None:
            raise InvalidRequest("FIELD_REQUIRED", "session_id", "the first message names board and session")
        board, session_id = decode_locks.keep_alive(parse_message(session_pb.KeepAliveRequest, first))

        async def renewals() -> AsyncGenerator[None, None]:
            yield
            async for raw in requests:
                message = parse_message(session_pb.KeepAliveRequest, raw)
                decode_locks.keep_alive_again(message, board, session_id)
                yield

        parts = self._sessions.keep_alive(call.principal, board, session_id, renewals(), call.deadline)
        try:
            async for news in parts:
                yield encode_locks.news(news).SerializeToString()
        finally:
            await parts.aclose()

    async def close_session(self, raw: bytes, call: Call) -> bytes:
        """End a session."""
        board, session_id = decode_locks.close_session(parse_message(session_pb.CloseSessionRequest, raw))
        closed = await self._sessions.close(call.principal, board, session_id, call.deadline)
        return session_pb.CloseSessionResponse(already_gone=not closed).SerializeToString()

    async def list_sessions(self, raw: bytes, call: Call) -> bytes:
        """Say who is there."""
        board, size, token = decode_locks.list_sessions(parse_message(session_pb.ListSessionsRequest, raw))
        page, next_token, revision = await self._sessions.list_sessions(
            call.principal, board, size, token, call.deadline
        )
        sight = self._sessions.sight(call.principal, board)
        return encode_locks.presence(page, next_token, revision, self._epoch, sight).SerializeToString()


class LockService:
    """kokuban.v1.LockService."""

    def __init__(
        self,
        requests: RecordedLocks,
        held: HeldLocks,
        redactor: Redactor,
        words: WordScreening,
        request_ids: RequestIds,
        epoch: str,
    ) -> None:
        self._requests = requests
        self._redactor = redactor
        self._words = words
        self._held = held
        self._request_ids = request_ids
        self._epoch = epoch

    @property
    def methods(self) -> dict[str, Method]:
        """Every method of the service by its name in the proto."""
        return {
            "AcquireLock": ProgressMethod(self.acquire_lock, writes=True),
            "ClaimEntry": UnaryMethod(self.claim_entry, writes=True),
            "DowngradeLock": UnaryMethod(self.downgrade_lock, writes=True),
            "ReleaseLock": UnaryMethod(self.release_lock),
            "ListLocks": UnaryMethod(self.list_locks),
            "BreakLock": UnaryMethod(self.break_lock, writes=True),
        }

    async def acquire_lock(self, raw: bytes, call: Call, send: Send) -> bytes:
        """Give the grant; send where the request stands until then."""
        is_gathered = True

        def go_on_alone() -> None:
            nonlocal is_gathered
            if is_gathered:
                is_gathered = False
                call.gathering.end()

        try:
            await call.gathering.begin()
            message = parse_message(lock_service_pb.AcquireLockRequest, raw)
            request = decode_locks.acquire_lock(message, self._request_ids.digest, call.traceparent)
            await NEXT_STAGE
            request = await self._looked_through(message, request, call)

            async def tell(queued: Queued) -> None:
                go_on_alone()  # it waits: others are not to be held for it
                sight = self._held.sight(call.principal, request.board)
                await send(encode_locks.queued(queued, sight).SerializeToString())

            granted = await self._requests.acquire(call.principal, request, tell, call.deadline)
        finally:
            go_on_alone()
        await NEXT_STAGE
        return encode_locks.acquired(granted, self._epoch).SerializeToString()

    async def _looked_through(
        self,
        message: lock_service_pb.AcquireLockRequest | lock_service_pb.ClaimEntryRequest,
        request: LockRequest,
        call: Call,
    ) -> LockRequest:
        """Give a request with its purpose masked and screened."""
        regions = (target.region for target in request.targets)
        if await self._redactor.mask(call.principal, message, request.board, regions, call.deadline):
            request = request._replace(purpose=decode_locks.purpose(message.purpose))
        named = call.principal, request.board, request.session_id
        await self._words.judge(*named, "purpose", request.purpose, call.deadline)
        return request

    async def claim_entry(self, raw: bytes, call: Call) -> bytes:
        """Lock one of several entries."""
        message = parse_message(lock_service_pb.ClaimEntryRequest, raw)
        request = decode_locks.claim_entry(message, self._request_ids.digest, call.traceparent)
        request = await self._looked_through(message, request, call)
        granted = await self._requests.claim(call.principal, request, call.deadline)
        return encode_locks.claimed(granted, self._epoch).SerializeToString()

    async def downgrade_lock(self, raw: bytes, call: Call) -> bytes:
        """Make a lock shared."""
        board, fence = decode_locks.fence_of(parse_message(lock_service_pb.DowngradeLockRequest, raw))
        shown, revision = await self._held.downgrade(call.principal, board, fence, call.deadline)
        sight = self._held.sight(call.principal, board)
        return lock_service_pb.DowngradeLockResponse(
            lock=encode_locks.lock(shown, sight), token=encode_token(self._epoch, revision)
        ).SerializeToString()

    async def release_lock(self, raw: bytes, call: Call) -> bytes:
        """Give a lock back."""
        board, fence = decode_locks.fence_of(parse_message(lock_service_pb.ReleaseLockRequest, raw))
        await NEXT_STAGE
        released, revision = await self._held.release(call.principal, board, fence, call.deadline)
        await NEXT_STAGE
        outcome = lock_service_pb.RELEASE_OUTCOME_RELEASED if released else lock_service_pb.RELEASE_OUTCOME_ALREADY_GONE
        return lock_service_pb.ReleaseLockResponse(
            outcome=outcome, token=encode_token(self._epoch, revision)
        ).SerializeToString()

    async def list_locks(self, raw: bytes, call: Call) -> bytes:
        """Say who holds and who waits."""
        board, region, path, size, token = decode_locks.list_locks(parse_message(lock_service_pb.ListLocksRequest, raw))
        page = await self._held.list_locks(call.principal, board, region, path, size, token, call.deadline)
        sight = self._held.sight(call.principal, board)
        return encode_locks.lock_page(page, self._epoch, sight).SerializeToString()

    async def break_lock(self, raw: bytes, call: Call) -> bytes:
        """Take a lock from its holder."""
        message = parse_message(lock_service_pb.BreakLockRequest, raw)
        board, lock_id, reason = decode_locks.break_lock(message)
        if await self._redactor.mask(call.principal, message, board, (), call.deadline):
            board, lock_id, reason = decode_locks.break_lock(message)
        shown, revision = await self._held.break_lock(
            call.principal,
            board,
            lock_id,
            reason,
            call.deadline,
            skip_lock_delay=message.skip_lock_delay,
            traceparent=call.traceparent,
        )
        _log.warning("lock.broken", board=board, lock=lock_id, holder=shown.lock.agent, by=call.principal.agent)
        sight = self._held.sight(call.principal, board)
        return lock_service_pb.BreakLockResponse(
            lock=encode_locks.lock(shown, sight), token=encode_token(self._epoch, revision)
        ).SerializeToString()
