"""The client and its boards: reading, writing, listing, watching, locking."""

from __future__ import annotations

import copy
import enum
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kokuban_client import _channel, _wire
from kokuban_client._audit import AuditRecords
from kokuban_client._calls import Calls
from kokuban_client._conflicts import Conflicts, ConflictWatch
from kokuban_client._examination import Examination
from kokuban_client._identity import Identity
from kokuban_client._locks import ClaimHold, RequestedHold
from kokuban_client._removals import Removals
from kokuban_client._retry import CONFLICTS, Deadline
from kokuban_client._sessions import TTL_S_DEFAULT, Session, Sessions
from kokuban_client._task_waits import TaskWait
from kokuban_client._tasks import StepHold
from kokuban_client._transaction import Changes
from kokuban_client._watch import Watch
from kokuban_client._wire import audit as audit_wire
from kokuban_client._wire import conflicts as conflict_wire
from kokuban_client._wire import locks as lock_wire
from kokuban_client._wire import policies
from kokuban_client._wire import tasks as task_wire
from kokuban_client._wire import trust as trust_wire
from kokuban_client._wire.labels import provenance
from kokuban_client.errors import (
    AlreadyExists,
    Conflict,
    LockLost,
    NotFound,
    Refused,
    RevisionMismatch,
    TokenFromAnotherStore,
)
from kokuban_client.types import (
    KEEP,
    Access,
    AuditVerdict,
    Batch,
    BoardInfo,
    BoardPolicy,
    CommitResult,
    ConflictSummary,
    Consistency,
    Currency,
    Entry,
    EntryChange,
    EntryKey,
    Fence,
    Freshness,
    Keep,
    Lock,
    LockListing,
    LockMode,
    LockScope,
    LockTarget,
    LockWait,
    LossCause,
    NewStep,
    PlainContent,
    Policy,
    PolicyVersion,
    Presence,
    QuarantinedCommit,
    QuarantineState,
    Queued,
    Redaction,
    Revealed,
    Review,
    Revision,
    Screening,
    SessionState,
    Snapshot,
    Source,
    SourceKind,
    Status,
    Task,
    TaskEvent,
    TaskPart,
    Trust,
    Verb,
    WatchStart,
    Written,
    content_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Self

    from kokuban_client._identity import FilePath
    from kokuban_client._locks import Hold
    from kokuban_client._transaction import State
    from kokuban_client.archives import TaskArchive

_Answer = TypeVar("_Answer")

_UPDATE_ATTEMPTS_MAX = 100


class _Nothing(enum.Enum):
    NOTHING = "nothing"


NOTHING = _Nothing.NOTHING
"""No value to begin with: None would be one."""


def connect(
    address: str | None = None,
    *,
    agent: str | None = None,
    roles: Sequence[str] | None = None,
    token: str | None = None,
    token_file: FilePath | None = None,
    ca_file: FilePath | None = None,
    cert_file: FilePath | None = None,
    key_file: FilePath | None = None,
    server_name: str | None = None,
    timeout_s: float = 30.0,
    wait_for_ready: bool = True,
) -> Client:
    """Give a client of the server at an address, to be used with `async with`; it connects at the first call.

    `agent` and `roles` are for a server that believes them, on this machine. Others want a `token`, or a `token_file` that is
    read again when it changes, or a certificate in `cert_file` with its key in `key_file`, or both; then only the server
    knows who calls. `ca_file` turns TLS on and says whose servers to trust, `server_name` which name their certificate must
    hold if not the address's. What is not given comes from `KOKUBAN_ADDRESS` (else 127.0.0.1:7420), `KOKUBAN_AGENT`,
    `KOKUBAN_ROLES`, `KOKUBAN_TOKEN` and so on: where agent or roles are given, the environment's credentials are not looked
    at, and where a credential is given, its agent and roles are not.

    `timeout_s` is the time that a call may take, retries included, where the call does not say otherwise. With
    `wait_for_ready` a server that cannot be reached is waited for until then, without it the call fails at once.
    Raises ValueError if nobody is named, a credential is given together with agent or roles, a file is not what it should
    be, or a token would travel in plain text to another machine.
    """
    if not timeout_s > 0:
        raise ValueError("timeout_s must be above 0")
    identity = Identity.of(
        address,
        agent,
        roles,
        token=token,
        token_file=token_file,
        ca_file=ca_file,
        cert_file=cert_file,
        key_file=key_file,
        server_name=server_name,
    )
    return Client(identity, timeout_s=timeout_s, wait_for_ready=wait_for_ready)


class Client:
    """One agent's connection to a server. Made by `connect`; closed on leaving `async with`, or by `aclose`."""

    def __init__(self, identity: Identity, *, timeout_s: float, wait_for_ready: bool) -> None:
        self._identity = identity
        self._calls = Calls(identity, timeout_s=timeout_s, wait_for_ready=wait_for_ready)
        self._sessions = Sessions(self._calls)

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._identity.address

    @property
    def agent(self) -> str:
        """Who calls, by the development identity; an empty text where a credential says it."""
        return self._identity.agent

    def board(self, board: str) -> Board:
        """Give a board by its id. Asks the server nothing."""
        return Board(self._calls, self._sessions, board)

    async def status(self, *, timeout_s: float | None = None) -> Status:
        """Say how the server and its store are."""
        answer = await self._calls.call(lambda link: link.admin.GetStatus, _wire.status_request(), timeout_s=timeout_s)
        return _wire.status(answer)

    async def create_board(self, board: str, *, timeout_s: float | None = None) -> BoardInfo:
        """Make a board; raises BoardExists if there is one of that id. For operators.

        Where an answer did not come it is asked again, so BoardExists may mean that the first try has made it.
        """
        request = policies.create_board_request(board)
        answer = await self._calls.call(lambda link: link.admin.CreateBoard, request, timeout_s=timeout_s)
        return policies.board_info(answer.board)

    async def get_board(self, board: str, *, timeout_s: float | None = None) -> BoardInfo:
        """Describe a board. One that was deleted is there for operators only."""
        request = policies.get_board_request(board)
        answer = await self._calls.call(lambda link: link.admin.GetBoard, request, timeout_s=timeout_s)
        return policies.board_info(answer.board)

    async def boards(self, *, show_deleted: bool = False, timeout_s: float | None = None) -> tuple[BoardInfo, ...]:
        """Name the boards that there are for the caller; `timeout_s` is for each page. Deleted ones are for operators."""
        found: list[BoardInfo] = []
        page_token = ""
        while True:
            request = policies.list_boards_request(page_token, show_deleted=show_deleted)
            answer = await self._calls.call(lambda link: link.admin.ListBoards, request, timeout_s=timeout_s)
            found += map(policies.board_info, answer.boards)
            page_token = answer.next_page_token
            if not page_token:
                return tuple(found)

    async def delete_board(self, board: str, reason: str, *, timeout_s: float | None = None) -> BoardInfo:
        """Remove a board with all that it holds: at once for everybody, and then from the store. For operators.

        `get_board` tells when nothing is left, with a receipt of what was removed.
        """
        request = policies.delete_board_request(board, reason)
        answer = await self._calls.call(lambda link: link.admin.DeleteBoard, request, timeout_s=timeout_s)
        return policies.board_info(answer.board)

    async def get_policy(self, board: str, *, timeout_s: float | None = None) -> BoardPolicy:
        """Give a board's policy. For operators, supervisors and auditors."""
        request = policies.get_policy_request(board)
        answer = await self._calls.call(lambda link: link.admin.GetPolicy, request, timeout_s=timeout_s)
        return policies.board_policy(answer)

    async def set_policy(
        self, board: str, policy: Policy, *, replaces: int, reason: str = "", timeout_s: float | None = None
    ) -> PolicyVersion:
        """Lay down a board's policy as a whole. For operators.

        `replaces` is the number of the policy that holds now, 0 for the first; raises PolicyChanged if another does.
        """
        request = policies.set_policy_request(board, policy, replaces, reason)
        answer = await self._calls.call(lambda link: link.admin.SetPolicy, request, timeout_s=timeout_s)
        return policies.policy_version(answer.record)

    async def explain_access(
        self, board: str, region: str, verb: Verb | str, *, timeout_s: float | None = None
    ) -> Access:
        """Say what would become of a request of one's own in a region, and by which rule."""
        request = policies.explain_access_request(board, region, Verb(verb))
        answer = await self._calls.call(lambda link: link.admin.ExplainAccess, request, timeout_s=timeout_s)
        return policies.access(answer)

    async def compact(self, before: str, *, timeout_s: float | None = None) -> int:
        """Forget the store's history before a token; give the number up to which it is forgotten. For operators."""
        answer = await self._calls.call(
            lambda link: link.admin.Compact, _wire.compact_request(before), timeout_s=timeout_s
        )
        return answer.compacted_revision

    def audit_records(
        self,
        *,
        board: str = "",
        agent: str = "",
        act: str = "",
        begin: datetime | None = None,
        end: datetime | None = None,
        page_size: int = 0,
        timeout_s: float | None = None,
    ) -> AuditRecords:
        """Give the records of the audit log in order of time, to be iterated over with `async for`. For auditors and operators.

        What is given narrows it down: `begin` is the earliest time of recording, and all are before `end`. `timeout_s` is for
        each page.
        """
        wanted = audit_wire.filter_message(board=board, agent=agent, act=act, begin=begin, end=end)
        return AuditRecords(self._calls, wanted, page_size=page_size, timeout_s=timeout_s)

    async def verify_audit(self, *, anchor_hash: str = "", timeout_s: float | None = None) -> AuditVerdict:
        """Say whether the audit log is as it was written, and holds an anchor that was kept. For auditors and operators.

        It reads the whole log: give it time.
        """
        request = audit_wire.verify_request(anchor_hash)
        answer = await self._calls.call(lambda link: link.admin.VerifyAudit, request, timeout_s=timeout_s)
        return audit_wire.verdict(answer)

    def examine_store(self, *, repair: bool = False, timeout_s: float | None = None) -> Examination:
        """Look through the store for records with which something is wrong, and put right what can be. For operators.

        Gives what was found page by page, to be iterated over with `async for`; the work is done while that goes on. It may
        be done while agents work: what lives is never touched. `timeout_s` is for each page.
        """
        return Examination(self._calls, repair=repair, timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Close the sessions and the connections. Locks that are in use are lost.

        Calls in flight end with ClientClosed, or OutcomeUnknown if they were writing.
        """
        try:
            await self._sessions.aclose()
        finally:
            await self._calls.close()
            await self._sessions.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Board(Removals):
    """One project's blackboard.

    Every method takes `timeout_s` for the whole call, retries included, and raises what `kokuban_client.errors` lists.
    Calls that write take `reason`, which the history shows, and `request_id`: a commit is repeated under its id until its
    outcome is known, and giving the id of an earlier one that ended with OutcomeUnknown finds out what became of it. They
    also take `fences`: the locks under which they write, which must all be held at that very moment. The writes of
    `lock.board` have the lock's fence by themselves.
    """

    def __init__(self, calls: Calls, sessions: Sessions, board: str, holds: tuple[Hold, ...] = ()) -> None:
        super().__init__(calls, board)
        self._sessions = sessions
        self._holds = holds

    @property
    def id(self) -> str:
        """The board's id."""
        return self._board

    @property
    def token(self) -> str:
        """The newest state that this client has written to this board, or an empty text."""
        return self._calls.tokens.carried(self._board)

    # Reading

    async def get(
        self,
        region: str,
        path: str,
        *,
        floor: Trust | None = None,
        consistency: Consistency = Freshness.STRONG,
        timeout_s: float | None = None,
    ) -> Entry:
        """Read an entry; raises NotFound if there is none that may be read, Withheld if it is trusted less than `floor`.

        Without `floor` the region's own holds, which is `Trust.AGENT` unless the board's policy says otherwise. Ask for
        external text with `Trust.EXTERNAL`: its value is an `External`. From then on all that this client writes to the board
        is marked as possibly made of it.
        """
        trusting = await self._trusting(floor)

        async def read(demand: Consistency) -> Entry:
            request = _wire.get_request(self._board, region, path, self._demand(demand), trusting)
            answer = await self._calls.call(lambda link: link.board.GetEntry, request, timeout_s=timeout_s)
            return _wire.entry(answer.entry, answer.token)

        return await self._read(read, consistency)

    async def find(
        self,
        region: str,
        path: str,
        *,
        floor: Trust | None = None,
        consistency: Consistency = Freshness.STRONG,
        timeout_s: float | None = None,
    ) -> Entry | None:
        """Read an entry, or give None if there is none that may be read. See `get`."""
        try:
            return await self.get(region, path, floor=floor, consistency=consistency, timeout_s=timeout_s)
        except NotFound:
            return None

    async def get_many(
        self,
        keys: Iterable[EntryKey | tuple[str, str]],
        *,
        floor: Trust | None = None,
        consistency: Consistency = Freshness.STRONG,
        timeout_s: float | None = None,
    ) -> Batch:
        """Read up to 100 entries, given as (region, path), in one consistent cut. What is below the floor is `withheld`."""
        named = list(keys)
        trusting = await self._trusting(floor)

        async def read(demand: Consistency) -> Batch:
            request = _wire.batch_get_request(self._board, named, self._demand(demand), trusting)
            answer = await self._calls.call(lambda link: link.board.BatchGetEntries, request, timeout_s=timeout_s)
            return _wire.batch(answer)

        return await self._read(read, consistency)

    def list(
        self,
        region: str,
        path: str = "",
        *,
        consistent: bool = False,
        consistency: Consistency = Freshness.STRONG,
        floor: Trust | None = None,
        omit_values: bool = False,
        page_size: int = 0,
        timeout_s: float | None = None,
    ) -> Listing:
        """Give the entries at and below a path, in order, read page by page while they are iterated over.

        Each page is one consistent cut; with `consistent` the whole listing is. What is below the floor is `withheld`; see
        `get`. `timeout_s` is for each page.
        """
        return Listing(
            self,
            region,
            path,
            consistent=consistent,
            consistency=consistency,
            floor=floor,
            omit_values=omit_values,
            page_size=page_size,
            timeout_s=timeout_s,
        )

    async def history(
        self,
        region: str,
        path: str,
        *,
        floor: Trust | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> tuple[EntryChange, ...]:
        """Give an entry's kept history, newest first; `timeout_s` is for each page that must be read.

        What is below the floor is `withheld`; see `get`.
        """
        trusting = await self._trusting(floor)
        changes: list[EntryChange] = []
        page_token = ""
        while limit is None or len(changes) < limit:
            left = 0 if limit is None else min(limit - len(changes), 1000)
            # A page token belongs to a listing with these very fields, so the page size may not shrink on the way.
            page_size = left if limit is not None and not page_token and limit <= 1000 else 0  # noqa: PLR2004 - the API's
            request = _wire.revisions_request(
                self._board, region, path, page_size=page_size, page_token=page_token, trusting=trusting
            )
            answer = await self._calls.call(lambda link: link.board.ListRevisions, request, timeout_s=timeout_s)
            changes += map(_wire.change, answer.revisions)
            page_token = answer.next_page_token
            if not page_token:
                break
        return tuple(changes[:limit])

    def watch(
        self,
        *targets: tuple[str, str] | str,
        start: WatchStart | str,
        omit_values: bool = False,
        bookmarks: bool = False,
        on_gap: Literal["raise", "relist"] = "raise",
        give_up_after_s: float | None = 300.0,
    ) -> Watch:
        """Give the changes at and below up to 16 targets: each a (region, path), or a region.

        `start` is NOW, SNAPSHOT (what is there first, then changes) or a token. A broken stream is resumed by itself,
        without gap or repeat. Where that cannot be, the reason is raised; with `on_gap="relist"` a Reset is given instead,
        and then a new snapshot. A Reset also comes when a snapshot broke off halfway. A server that stays away for longer
        than `give_up_after_s` raises Unavailable.
        """
        return Watch(
            self._calls,
            self._board,
            [(target, "") if isinstance(target, str) else target for target in targets],
            start,
            omit_values=omit_values,
            bookmarks=bookmarks,
            on_gap=on_gap,
            give_up_after_s=give_up_after_s,
        )

    # Writing

    async def put(
        self,
        region: str,
        path: str,
        value: object,
        *,
        at: Revision | None = None,
        must_not_exist: bool = False,
        unconditional: bool = False,
        metadata: Mapping[str, str] | None = None,
        ttl: float | timedelta | None = None,
        expire_time: datetime | None = None,
        mask: Sequence[str] | None = None,
        source: Source | None = None,
        derived_from: Iterable[State] = (),
        reason: str = "",
        retry_of: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Create or change an entry, believing exactly one of `at`, `must_not_exist`, `unconditional`.

        The value is `str` for text; dict, list, number, bool or None for JSON; `Binary` for bytes; `KEEP` for what is there.
        Without `mask` the put changes only what is given. `source` and `derived_from` say where the value comes from, if it is
        not the agent's own word; how far it is trusted follows from that, and stands in the result.

        Raises TypeError or ValueError before anything is sent if the belief is missing or the value cannot be written;
        RevisionMismatch or AlreadyExists if somebody was faster, and that is never retried here.
        """
        content: PlainContent | Keep = KEEP if value is KEEP else content_of(value)
        mutation = _wire.put(
            region,
            path,
            content,
            at=at,
            must_not_exist=must_not_exist,
            unconditional=unconditional,
            metadata=metadata,
            ttl=ttl,
            expire_time=expire_time,
            mask=mask,
            provenance=provenance(source, derived_from),
        )
        result = await self._commit(
            [mutation], reason=reason, retry_of=retry_of, request_id=request_id, fences=fences, timeout_s=timeout_s
        )
        return _wire.written(result, region, path, None if isinstance(content, Keep) else content)

    async def delete(
        self,
        region: str,
        path: str,
        *,
        at: Revision | None = None,
        unconditional: bool = False,
        reason: str = "",
        retry_of: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Delete an entry, believing exactly one of `at`, `unconditional`."""
        mutation = _wire.delete(region, path, at=at, unconditional=unconditional)
        result = await self._commit(
            [mutation], reason=reason, retry_of=retry_of, request_id=request_id, fences=fences, timeout_s=timeout_s
        )
        return _wire.written(result, region, path)

    async def increment(
        self,
        region: str,
        path: str,
        by: int = 1,
        *,
        reason: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Add to a whole number, made from 0 if there is none. The result's `value` is the sum."""
        mutation = _wire.increment(region, path, by)
        result = await self._commit(
            [mutation], reason=reason, request_id=request_id, fences=fences, timeout_s=timeout_s
        )
        return _wire.written(result, region, path)

    async def append(
        self,
        region: str,
        path: str,
        *items: object,
        source: Source | None = None,
        derived_from: Iterable[State] = (),
        reason: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Append JSON values to a list, made empty if there is none. The result's `value` is the whole list."""
        mutation = _wire.append_to_list(region, path, items, provenance(source, derived_from))
        result = await self._commit(
            [mutation], reason=reason, request_id=request_id, fences=fences, timeout_s=timeout_s
        )
        return _wire.written(result, region, path)

    async def add_to_set(
        self,
        region: str,
        path: str,
        *items: object,
        source: Source | None = None,
        derived_from: Iterable[State] = (),
        reason: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Append those JSON values to a list that it does not hold yet. The result's `value` is the whole list."""
        mutation = _wire.add_to_set(region, path, items, provenance(source, derived_from))
        result = await self._commit(
            [mutation], reason=reason, request_id=request_id, fences=fences, timeout_s=timeout_s
        )
        return _wire.written(result, region, path)

    async def merge_patch(
        self,
        region: str,
        path: str,
        patch: object,
        *,
        at: Revision,
        source: Source | None = None,
        derived_from: Iterable[State] = (),
        reason: str = "",
        retry_of: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Apply a JSON merge patch (RFC 7396) to the entry as it was at a revision. The result's `value` is what it made."""
        mutation = _wire.merge_patch(region, path, patch, at, provenance(source, derived_from))
        result = await self._commit(
            [mutation], reason=reason, retry_of=retry_of, request_id=request_id, fences=fences, timeout_s=timeout_s
        )
        return _wire.written(result, region, path)

    async def update(
        self,
        region: str,
        path: str,
        fn: Callable[[Any], object | Awaitable[object]],
        *,
        merge: Callable[[Any, Any, Any], object | Awaitable[object]] | None = None,
        create: object = NOTHING,
        attempts: int = _UPDATE_ATTEMPTS_MAX,
        reason: str = "",
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Written:
        """Read an entry, let `fn` make its new value, and write that on top of exactly what was read.

        When somebody else was faster, the entry is read again and `fn` called again on what is there now; with `merge`, `fn`
        is called once and then `merge(base, theirs, mine)`, where base is what `mine` was made from. `create` is the value
        to begin with where there is no entry; without it NotFound is raised. Metadata and expiry stay as they are.

        Raises the last conflict after that many attempts, or when `timeout_s` is over; the time that `fn` and `merge` take
        does not count. What they raise ends the update.
        """
        if attempts < 1:
            raise ValueError("attempts must be 1 or more")
        deadline = Deadline.after(self._calls.timeout_s if timeout_s is None else timeout_s, _channel.now_s())
        base: object = NOTHING
        mine: object = NOTHING
        previous, lost = "", 0
        while True:
            entry = await self._read_for_update(region, path, create, deadline)
            started_s = _channel.now_s()
            # Each reader of the value gets one of its own: a function that changes what it is given spoils nobody's base.
            if merge is None or mine is NOTHING:
                mine = await _channel.settled(fn(_value_or(entry, create)))
            else:
                mine = await _channel.settled(merge(base, _value_or(entry, create), mine))
            base = _value_or(entry, create)
            deadline = deadline.later_by(_channel.now_s() - started_s)
            try:
                return await self.put(
                    region,
                    path,
                    mine,
                    at=entry.revision if entry else None,
                    must_not_exist=entry is None,
                    reason=reason,
                    retry_of=previous,
                    fences=fences,
                    timeout_s=_left_s(deadline),
                )
            except (RevisionMismatch, AlreadyExists) as conflict:
                lost += 1
                previous = conflict.request_id
                wait_s = CONFLICTS.delay_s(lost)
                if lost >= attempts or wait_s >= deadline.left_s(_channel.now_s()):
                    raise
            await _channel.pause(wait_s)

    async def _read_for_update(self, region: str, path: str, create: object, deadline: Deadline) -> Entry | None:
        try:
            return await self.get(region, path, timeout_s=_left_s(deadline))
        except NotFound:
            if create is NOTHING:
                raise
            return None

    def commit(
        self,
        *,
        reason: str = "",
        retry_of: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Transaction:
        """Give a commit to be filled inside `async with` and sent as one atomic act on leaving it without an error."""
        return Transaction(
            self, reason=reason, retry_of=retry_of, request_id=request_id, fences=fences, timeout_s=timeout_s
        )

    async def _commit(
        self,
        mutations: Sequence[_wire.Mutation],
        preconditions: Sequence[_wire.EntryPrecondition] = (),
        *,
        reason: str,
        retry_of: str = "",
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        released: Sequence[Fence] = (),
        timeout_s: float | None = None,
    ) -> CommitResult:
        holds = [*self._holds, *(one for one in fences if not isinstance(one, Fence))]
        for hold in holds:
            hold.check()
        named = [*(hold.fence for hold in holds), *(one for one in fences if isinstance(one, Fence))]
        # A lock that the commit releases is one of its fences by that.
        carried = [fence for fence in dict.fromkeys(named) if fence not in released]
        leaving = [
            own
            for fence in released
            if (own := self._sessions.hold(fence.lock_id)) and own.fence == fence and own.begin_release()
        ]
        scope = self._sessions.read_scope(self._board)
        try:
            answer, identity = await self._calls.write(
                lambda link: link.board.Commit,
                lambda identity: _wire.commit_request(
                    self._board,
                    identity,
                    mutations,
                    preconditions,
                    reason=reason,
                    retry_of=retry_of,
                    fences=carried,
                    session=scope,
                ),
                request_id=request_id,
                timeout_s=timeout_s,
            )
        except BaseException as failure:
            for own in leaving:
                own.end_release(released=False, perhaps=not isinstance(failure, (Conflict, Refused)))
            self._judge_fences([*named, *released], failure)
            raise
        for own in leaving:
            own.end_release(released=True)
        result = _wire.commit_result(answer, identity)
        self._calls.tokens.wrote(self._board, result.revision, result.token)
        return result

    def _judge_fences(self, fences: Sequence[Fence], failure: BaseException) -> None:
        """Tell the locks of this client if the failure of a commit means that they are lost."""
        restored = isinstance(failure, TokenFromAnotherStore) and "fence" in failure.field
        for fence in fences:
            if restored or (isinstance(failure, LockLost) and failure.lock_id == fence.lock_id):
                own = self._sessions.hold(fence.lock_id)
                if own is not None and own.fence == fence:
                    own.lose(LossCause.REFUSED)

    # Sessions and locks

    def session(
        self,
        *,
        ttl_s: float = TTL_S_DEFAULT,
        label: str = "",
        on_state: Callable[[SessionState], object] | None = None,
    ) -> Session:
        """Give a session on this board, to be opened by `async with`: what locks hang on.

        It lives for `ttl_s` (2 seconds to 1 hour) without renewal, and is renewed in the background. `on_state` is told when
        it is in jeopardy, live again, or lost. Locks that name no session share one that is opened when it is needed and
        closed with the client.
        """
        return Session(self._sessions, self._calls, self._board, ttl_s=ttl_s, label=label, on_state=on_state)

    def lock(
        self,
        region: str,
        path: str = "",
        *,
        purpose: str,
        mode: LockMode | Literal["exclusive", "shared"] = LockMode.EXCLUSIVE,
        scope: LockScope | Literal["subtree", "entry"] = LockScope.SUBTREE,
        wait_s: float = 0.0,
        hold_max_s: float | None = None,
        lock_delay_s: float | None = None,
        retry_of: str = "",
        session: Session | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        on_queued: Callable[[Queued], object] | None = None,
        timeout_s: float | None = None,
    ) -> HeldLock:
        """Give a lock, to be held by `async with`, which raises when it is not granted: the block never runs without it.

        `purpose` is shown to whoever is refused or waits. Without `wait_s` somebody else's lock is told at once, as
        LockedByOther; with it, LockWaitExpired when the time is over, and `on_queued` is told where the request stands.
        `hold_max_s` ends the lock however well it is renewed; `lock_delay_s` is for how long its place stays closed after a
        loss. `retry_of` is the request id of a refusal that this request answers to, so that its conflict's outcome is known.
        `timeout_s` is the time to reach a server, on top of the wait. When the lock is lost `on_lost` is called with the
        LockLost, which must not take long, then the block is stopped; see `HeldLock`.
        """
        return self.lock_all(
            [LockTarget(region, path, LockScope(scope))],
            purpose=purpose,
            mode=mode,
            wait_s=wait_s,
            hold_max_s=hold_max_s,
            lock_delay_s=lock_delay_s,
            retry_of=retry_of,
            session=session,
            on_lost=on_lost,
            on_queued=on_queued,
            timeout_s=timeout_s,
        )

    def lock_all(
        self,
        targets: Iterable[LockTarget | tuple[str, str, str]],
        *,
        purpose: str,
        mode: LockMode | Literal["exclusive", "shared"] = LockMode.EXCLUSIVE,
        wait_s: float = 0.0,
        hold_max_s: float | None = None,
        lock_delay_s: float | None = None,
        retry_of: str = "",
        session: Session | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        on_queued: Callable[[Queued], object] | None = None,
        timeout_s: float | None = None,
    ) -> HeldLock:
        """Give one lock over up to 16 targets, each (region, path, "entry" or "subtree"): all of them or none. See `lock`."""
        named = [
            one if isinstance(one, LockTarget) else LockTarget(one[0], one[1], LockScope(one[2])) for one in targets
        ]
        request = lock_wire.acquire_request(
            self._board,
            targets=named,
            mode=LockMode(mode),
            purpose=purpose,
            wait_s=wait_s,
            hold_max_s=hold_max_s,
            lock_delay_s=lock_delay_s,
            retry_of=retry_of,
        )
        return HeldLock(
            self,
            request,
            wait_s=wait_s,
            session=session,
            hold_max_s=hold_max_s,
            on_lost=on_lost,
            on_queued=on_queued,
            timeout_s=timeout_s,
        )

    def claim(
        self,
        candidates: Iterable[EntryKey | Entry | tuple[str, str]],
        *,
        purpose: str,
        scope: LockScope | Literal["entry", "subtree"] = LockScope.ENTRY,
        hold_max_s: float | None = None,
        lock_delay_s: float | None = None,
        retry_of: str = "",
        session: Session | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        timeout_s: float | None = None,
    ) -> Claim:
        """Give a claim on the first of up to 64 entries that exists and that nobody holds, to be held by `async with`.

        All of one region, best first. It is an exclusive lock whose `entry` is the entry as it was at that very moment. It
        never waits: NothingToClaim if there is none.
        """
        request = lock_wire.claim_request(
            self._board,
            candidates=((one[0], one[1]) if isinstance(one, tuple) else (one.region, one.path) for one in candidates),
            scope=LockScope(scope),
            purpose=purpose,
            hold_max_s=hold_max_s,
            lock_delay_s=lock_delay_s,
            retry_of=retry_of,
        )
        return Claim(self, request, session=session, hold_max_s=hold_max_s, on_lost=on_lost, timeout_s=timeout_s)

    # Tasks

    async def create_task(
        self,
        task: str,
        goal: object,
        steps: Iterable[NewStep | str] = (),
        *,
        refuses_config: bool = False,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Begin a task, with up to 30 first steps; a bare name is a step that says no more. AlreadyExists if there was one.

        With `refuses_config`, a step that has a checkpoint of one configuration is not given to a worker with another.
        """
        steps = tuple(steps)
        await self._calls.write(
            lambda link: link.tasks.CreateTask,
            lambda identity: task_wire.create_request(
                self._board, identity, task, goal, steps, refuses_config=refuses_config
            ),
            request_id=request_id,
            timeout_s=timeout_s,
        )

    async def task(self, task: str, *, timeout_s: float | None = None) -> Task:
        """Say how a task stands."""
        request = task_wire.get_request(self._board, task)
        answer = await self._calls.call(lambda link: link.tasks.GetTask, request, timeout_s=timeout_s)
        return task_wire.task(answer.task)

    async def tasks(self, *, timeout_s: float | None = None) -> tuple[Task, ...]:
        """Give the tasks that the caller may read, without who holds their steps; `timeout_s` is for each page."""
        found: list[Task] = []
        page_token = ""
        while True:
            request = task_wire.list_request(self._board, page_token=page_token)
            answer = await self._calls.call(lambda link: link.tasks.ListTasks, request, timeout_s=timeout_s)
            found += map(task_wire.task, answer.tasks)
            page_token = answer.next_page_token
            if not page_token:
                return tuple(found)

    async def task_events(
        self,
        task: str,
        *,
        after: int = 0,
        count: int | None = None,
        floor: Trust | None = None,
        timeout_s: float | None = None,
    ) -> tuple[TaskEvent, ...]:
        """Give what happened in a task after an event, at most `count`; `timeout_s` is for each page.

        Data from outside comes with a `floor` of Trust.EXTERNAL only, and then as External.
        """
        found: list[TaskEvent] = []
        page_token = ""
        trusting = await self._trusting(floor)
        page_size = 1000 if count is None else max(1, min(count, 1000))
        while True:
            request = task_wire.events_request(
                self._board, task, after, page_size=page_size, page_token=page_token, trusting=trusting
            )
            answer = await self._calls.call(lambda link: link.tasks.ListEvents, request, timeout_s=timeout_s)
            found += [task_wire.task_event(message, answer.token) for message in answer.events]
            page_token = answer.next_page_token
            if not page_token or (count is not None and len(found) >= count):
                return tuple(found[:count])

    def claim_step(
        self,
        task: str,
        *,
        labels: Sequence[str] = (),
        purpose: str = "to work on it",
        config_fingerprint: str = "",
        hold_max_s: float | None = None,
        lock_delay_s: float | None = None,
        session: Session | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
        timeout_s: float | None = None,
    ) -> ClaimedStep:
        """Give a claim on the step of a task that is next for a worker with these labels, to be held by `async with`.

        It never waits: NoStepReady if there is none.
        """
        request = task_wire.claim_request(
            self._board,
            task,
            labels=labels,
            purpose=purpose,
            config_fingerprint=config_fingerprint,
            hold_max_s=hold_max_s,
            lock_delay_s=lock_delay_s,
        )
        return ClaimedStep(self, request, session=session, hold_max_s=hold_max_s, on_lost=on_lost, timeout_s=timeout_s)

    async def wait_for_task(
        self,
        task: str,
        part: str = "",
        *,
        wait_s: float = 3_600.0,
        session: Session | None = None,
        on_change: Callable[[TaskPart], object] | None = None,
        timeout_s: float | None = None,
    ) -> TaskPart:
        """Wait until a step or subtask of a task, or the task itself, is over, for up to an hour; say how it stands then.

        Meanwhile the session is known to wait: Deadlock if those on whose steps that depends wait for what it holds, whatever
        for. LockWaitExpired when the time is over. `on_change` hears how it stands until then.
        """
        calls = self._calls
        reach_s = calls.timeout_s if timeout_s is None else timeout_s
        wait = TaskWait(calls, self._board, task, part, wait_s=wait_s, timeout_s=reach_s, on_change=on_change)
        return await wait.until_over(session or await self._sessions.default(self._board))

    async def resume_task(
        self,
        task: str,
        answers: Mapping[str, object],
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Task:
        """Answer open interrupts by their ids, all or none, and say how the task stands then. NotOpen for another id."""
        answer, _ = await self._calls.write(
            lambda link: link.tasks.ResumeTask,
            lambda identity: task_wire.resume_request(self._board, identity, task, answers),
            request_id=request_id,
            timeout_s=timeout_s,
        )
        return task_wire.task(answer.task)

    async def cancel_task(
        self, task: str, reason: str = "", *, request_id: str | None = None, timeout_s: float | None = None
    ) -> None:
        """End a task: whoever works on one of its steps is refused with TaskOver from then on."""
        await self._calls.write(
            lambda link: link.tasks.CancelTask,
            lambda identity: task_wire.cancel_request(self._board, identity, task, reason),
            request_id=request_id,
            timeout_s=timeout_s,
        )

    async def open_subtask(
        self, task: str, subtask: str, goal: object, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Begin a subtask at a path of a task, such as `sub_02`. Steps whose paths lie below it are its own."""
        opened = [task_wire.open_subtask(task, subtask, goal)]
        await self._commit(opened, reason="", request_id=request_id, timeout_s=timeout_s)

    async def complete_subtask(
        self,
        task: str,
        subtask: str,
        summary: object,
        *,
        results: Iterable[object] = (),
        lessons: Iterable[object] = (),
        notes_ttl_s: float | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """End a subtask with what came of it and what was learnt, all in one commit.

        Its working notes, the entries below `notes` there, are kept for `notes_ttl_s` more, else for 7 days. Raises
        SubtaskNotReady while a step of it is neither done nor dead, or a subtask of it is open. If it was opened for a step
        that somebody works on, that is for them: `step.board.complete_subtask`.
        """
        changes = Changes()
        for result in results:
            changes.subtask_result(task, subtask, result)
        for lesson in lessons:
            changes.subtask_lesson(task, subtask, lesson)
        changes.complete_subtask(task, subtask, summary, notes_ttl_s=notes_ttl_s)
        mutations, _ = changes.close()
        await self._commit(mutations, reason="", request_id=request_id, timeout_s=timeout_s)

    async def revive_step(
        self,
        task: str,
        step: str,
        reason: str,
        *,
        attempts: int = 3,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Give a dead step further attempts: it goes on from its last checkpoint. Raises StepNotDead."""
        revived = [task_wire.revive(task, step, reason, attempts)]
        await self._commit(revived, reason="", request_id=request_id, timeout_s=timeout_s)

    async def export_task(self, task: str, write: Callable[[str], object], *, timeout_s: float | None = None) -> None:
        """Have a task written down as the lines of an archive: `write` is called with each, and last with the manifest.

        All of one state; `timeout_s` is for each page. To keep it in a file: `kokuban_client.archives.NewArchive`.
        """
        page_token = ""
        while True:
            request = task_wire.export_request(self._board, task, page_token=page_token)
            answer = await self._calls.call(lambda link: link.tasks.ExportTask, request, timeout_s=timeout_s)
            for line in answer.lines:
                write(line)
            page_token = answer.next_page_token
            if not page_token:
                write(answer.manifest)
                return

    async def archive_task(
        self, task: str, digest: str, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Remove a task that was exported, by the digest in its manifest: have the archive on disk before.

        ArchiveMismatch if the task was written to since, TaskHeld if somebody works on it; nothing is removed then.
        """
        await self._calls.write(
            lambda link: link.tasks.ArchiveTask,
            lambda identity: task_wire.archive_request(self._board, identity, task, digest),
            request_id=request_id,
            timeout_s=timeout_s,
        )

    async def restore_task(self, archive: TaskArchive, *, timeout_s: float | None = None) -> int:
        """Bring back the task of an archive; give how much was left out, as it was removed from the board since.

        Goes on where somebody else has stopped. `timeout_s` is for each part.
        """

        async def send(lines: Sequence[str], request_id: str | None) -> tuple[task_wire.RestoreTaskResponse, str]:
            return await self._calls.write(
                lambda link: link.tasks.RestoreTask,
                lambda identity: task_wire.restore_request(self._board, identity, archive.task, archive.digest, lines),
                request_id=request_id,
                timeout_s=timeout_s,
            )

        answer, request_id = await send((), None)
        for lines in archive.backwards(answer.next_line):
            answer, _ = await send(lines, request_id)
        return answer.left_out

    async def _record(
        self, mutations: Sequence[_wire.Mutation], *, fences: Sequence[Hold] = (), released: Sequence[Fence] = ()
    ) -> None:
        """Commit what a step records."""
        await self._commit(mutations, reason="", fences=fences, released=released)

    async def _event_of(self, task: str, number: int) -> TaskEvent:
        """Give an event, wherever its data comes from: it was recorded by a worker of the same step."""
        return (await self.task_events(task, after=number - 1, count=1, floor=Trust.EXTERNAL))[0]

    async def check_current(
        self,
        *,
        entries: Iterable[Entry | Written | tuple[str, str, Revision]] = (),
        fences: Iterable[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Currency:
        """Say whether entries are still as they were and fences alive, in one consistent cut.

        The gate to ask right before an effect outside the board. It narrows the gap between the last look and the effect, and
        cannot close it.
        """
        request = lock_wire.check_current_request(
            self._board,
            [one if isinstance(one, tuple) else (one.region, one.path, one.revision) for one in entries],
            [one if isinstance(one, Fence) else one.fence for one in fences],
        )
        answer = await self._calls.call(lambda link: link.board.CheckCurrent, request, timeout_s=timeout_s)
        return lock_wire.currency(answer)

    async def endorse(
        self,
        region: str,
        path: str,
        *,
        at: Revision,
        trust: Trust,
        reason: str,
        request_id: str | None = None,
        fences: Sequence[Fence | Hold] = (),
        timeout_s: float | None = None,
    ) -> Revision:
        """Trust an entry more, as it was at a revision, and give the revision that it has from then on. The only way up.

        For supervisors (up to `Trust.USER`), operators (up to `OPERATOR`) and the system. It is audited with its reason.
        """
        carried = [one if isinstance(one, Fence) else one.fence for one in (*self._holds, *fences)]
        answer, _ = await self._calls.write(
            lambda link: link.trust.Endorse,
            lambda identity: trust_wire.endorse_request(
                self._board, identity, region, path, at=at, trust=trust, reason=reason, fences=carried
            ),
            request_id=request_id,
            timeout_s=timeout_s,
        )
        made = _wire.revision(answer.revision)
        self._calls.tokens.wrote(self._board, made, answer.token)
        return made

    async def quarantine(
        self,
        *,
        state: QuarantineState | str = QuarantineState.WAITING,
        agent: str = "",
        uri: str = "",
        show_texts: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[QuarantinedCommit, ...]:
        """Give the commits in quarantine, the oldest first, of an agent or a source's URI where that is given.

        For supervisors, operators and the system. `timeout_s` is for each page.
        """
        found: list[QuarantinedCommit] = []
        page_token = ""
        while True:
            request = trust_wire.quarantine_request(
                self._board,
                state=QuarantineState(state),
                agent=agent,
                uri=uri,
                show_texts=show_texts,
                page_token=page_token,
            )
            answer = await self._calls.call(lambda link: link.trust.ListQuarantine, request, timeout_s=timeout_s)
            found += map(trust_wire.quarantined, answer.commits)
            page_token = answer.next_page_token
            if not page_token:
                return tuple(found)

    async def review_quarantine(
        self, ids: Iterable[str], *, release: bool, reason: str, timeout_s: float | None = None
    ) -> tuple[Review, ...]:
        """Release or reject up to 100 commits in quarantine, each judged alone. Asking again is safe.

        What is released is committed then, trusted no more than it would have been; preconditions and fences are judged again.
        """
        request = trust_wire.review_request(self._board, ids, release=release, reason=reason)
        answer = await self._calls.call(lambda link: link.trust.ReviewQuarantine, request, timeout_s=timeout_s)
        return tuple(map(trust_wire.review, answer.results))

    def conflicts(
        self,
        *,
        region: str = "",
        path: str = "",
        agent: str = "",
        reason: str = "",
        begin: datetime | None = None,
        end: datetime | None = None,
        page_size: int = 0,
        timeout_s: float | None = None,
    ) -> Conflicts:
        """Give who lost to whom, the newest first, to be iterated over with `async for`.

        What is given narrows it down: `path` is an entry or what it lies below and needs its region, `agent` is one of the
        two sides, `begin` the earliest time, and all are before `end`. `timeout_s` is for each page.
        """
        wanted = conflict_wire.filter_message(
            region=region, path=path, agent=agent, reason=reason, begin=begin, end=end
        )
        return Conflicts(self._calls, self._board, wanted, page_size=page_size, timeout_s=timeout_s)

    def watch_conflicts(
        self,
        *,
        region: str = "",
        path: str = "",
        agent: str = "",
        reason: str = "",
        after: str = "",
        give_up_after_s: float = 300.0,
    ) -> ConflictWatch:
        """Give conflicts as they are written, and each again when more is known of it, to be iterated over with `async for`.

        Begins behind the token `after`, or now. A broken stream is resumed by itself; a server that stays away for longer
        than `give_up_after_s` raises Unavailable.
        """
        wanted = conflict_wire.filter_message(region=region, path=path, agent=agent, reason=reason)
        return ConflictWatch(self._calls, self._board, wanted, after=after, give_up_after_s=give_up_after_s)

    async def conflict_summary(
        self,
        *,
        region: str = "",
        path: str = "",
        agent: str = "",
        reason: str = "",
        begin: datetime | None = None,
        end: datetime | None = None,
        top: int = 0,
        timeout_s: float | None = None,
    ) -> ConflictSummary:
        """Say where conflicts are, between whom, how often, and what they cost; of paths and pairs the first `top`."""
        wanted = conflict_wire.filter_message(
            region=region, path=path, agent=agent, reason=reason, begin=begin, end=end
        )
        request = conflict_wire.summarize_request(self._board, wanted, top=top)
        answer = await self._calls.call(lambda link: link.conflicts.SummarizeConflicts, request, timeout_s=timeout_s)
        return conflict_wire.summary(answer)

    async def screen_text(
        self,
        text: str,
        *,
        source: SourceKind | None = None,
        uri: str = "",
        show_views: bool = False,
        timeout_s: float | None = None,
    ) -> Screening:
        """Say what screening finds in a text, and what it would propose for it. A dry run: nothing is kept.

        `source` and `uri` say where the text comes from. That nothing is found does not mean that nothing is there.
        """
        request = trust_wire.screen_request(self._board, text, source, uri, show_views=show_views)
        answer = await self._calls.call(lambda link: link.trust.ScreenText, request, timeout_s=timeout_s)
        return trust_wire.screening(answer)

    async def reveal(
        self,
        region: str,
        path: str,
        *,
        at: Revision | None = None,
        floor: Trust | None = None,
        timeout_s: float | None = None,
    ) -> Revealed:
        """Read an entry, or the state of it `at` a revision, with what is encrypted in it opened; audited.

        For those whom the policy names as the region's `revealers`; raises RevealForbidden for others, and as `get`.
        """
        request = trust_wire.reveal_request(self._board, region, path, at, await self._trusting(floor))
        answer = await self._calls.call(lambda link: link.trust.RevealEntry, request, timeout_s=timeout_s)
        return trust_wire.revealed(answer)

    async def redact_text(
        self,
        text: str,
        *,
        is_json: bool = False,
        network_addresses: bool = False,
        timeout_s: float | None = None,
    ) -> Redaction:
        """Say what secrets and personal data a text holds, and give it with those masked. A dry run: nothing is kept.

        A text that is JSON stays so. That nothing is found does not mean that nothing is there.
        """
        request = trust_wire.redact_request(self._board, text, is_json=is_json, network_addresses=network_addresses)
        answer = await self._calls.call(lambda link: link.trust.RedactText, request, timeout_s=timeout_s)
        return trust_wire.redaction(answer)

    async def locks(self, region: str, path: str = "", *, timeout_s: float | None = None) -> LockListing:
        """Say who holds and who waits for what at, above and below a path; `timeout_s` is for each page."""
        locks: list[Lock] = []
        waits: list[LockWait] = []
        token = page_token = ""
        while True:
            request = lock_wire.list_locks_request(self._board, region, path, page_token=page_token)
            answer = await self._calls.call(lambda link: link.locks.ListLocks, request, timeout_s=timeout_s)
            locks += map(lock_wire.lock, answer.locks)
            waits += map(lock_wire.lock_wait, answer.waits)
            token, page_token = token or answer.token, answer.next_page_token
            if not page_token:
                return LockListing(tuple(locks), tuple(waits), token)

    async def sessions(self, *, timeout_s: float | None = None) -> tuple[Presence, ...]:
        """Say who is there, and what each holds and waits for; `timeout_s` is for each page."""
        there: list[Presence] = []
        page_token = ""
        while True:
            request = lock_wire.list_sessions_request(self._board, page_token=page_token)
            answer = await self._calls.call(lambda link: link.sessions.ListSessions, request, timeout_s=timeout_s)
            there += map(lock_wire.presence, answer.sessions)
            page_token = answer.next_page_token
            if not page_token:
                return tuple(there)

    async def break_lock(
        self, lock_id: str, reason: str, *, skip_lock_delay: bool = False, timeout_s: float | None = None
    ) -> Lock:
        """Take a lock from its holder, who is told why, and give the lock as it was. Needs the role supervisor or operator."""
        request = lock_wire.break_request(self._board, lock_id, reason, skip_lock_delay=skip_lock_delay)
        answer = await self._calls.call(lambda link: link.locks.BreakLock, request, timeout_s=timeout_s)
        return lock_wire.lock(answer.lock)

    def _under(self, hold: Hold) -> Board:
        """Give this board with every write under one more lock."""
        return Board(self._calls, self._sessions, self._board, (*self._holds, hold))

    async def _trusting(self, floor: Trust | None) -> _wire.Trusting:
        """Give how much trust a read wants. One that asks for external text begins the client's read scope."""
        if floor is not None and floor < Trust.AGENT:
            return _wire.Trusting(floor, await self._sessions.begin_read_scope(self._board))
        return _wire.Trusting(floor, self._sessions.read_scope(self._board))

    def _demand(self, consistency: Consistency) -> _wire.ReadConsistency:
        return _wire.consistency_message(consistency, self.token)

    async def _read(self, read: Callable[[Consistency], Awaitable[_Answer]], consistency: Consistency) -> _Answer:
        """Read; where the store has been replaced since the carried token was given, forget the token and read strongly."""
        carried = self.token
        try:
            return await read(consistency)
        except TokenFromAnotherStore:
            if consistency is not Freshness.SESSION:
                raise
            self._calls.tokens.drop(self._board, carried)
            return await read(Freshness.STRONG)


class HeldLock(RequestedHold):
    """A lock of one's own, made by `Board.lock` and held inside `async with`, where it is kept alive in the background.

    The block never runs without the lock. When the lock is lost meanwhile (its session may be over, it was broken or held too
    long, or a server refused its fence), then in this order: `on_lost` is called; the block is cancelled (a thread cannot be:
    it must `check`); and when it has ended, what may be left of the lock is given back and `async with` raises LockLost.
    `lock.board` is the board with the lock's fence on every write: a server refuses them all once the lock is gone, however
    late they arrive.
    """

    def __init__(self, board: Board, request: lock_wire.AcquireLockRequest, **options: Any) -> None:  # noqa: ANN401 - those of RequestedHold
        super().__init__(board._sessions, board._calls, board.id, request, **options)  # noqa: SLF001 - the board's own lock
        self._on = board

    @property
    def board(self) -> Board:
        """The board, whose writes are all made under this lock."""
        return self._on._under(self)  # noqa: SLF001 - as above


class Claim(ClaimHold):
    """An entry that is locked for oneself, made by `Board.claim` and held inside `async with`; else as `HeldLock`."""

    def __init__(self, board: Board, request: lock_wire.ClaimEntryRequest, **options: Any) -> None:  # noqa: ANN401 - those of ClaimHold
        super().__init__(board._sessions, board._calls, board.id, request, **options)  # noqa: SLF001 - as above
        self._on = board

    @property
    def board(self) -> Board:
        """The board, whose writes are all made under this lock."""
        return self._on._under(self)  # noqa: SLF001 - as above


class ClaimedStep(StepHold):
    """A step of a task, made by `Board.claim_step` and worked on inside `async with`; its lock is as a `HeldLock`'s.

    Leaving the block without having said how the step ends gives it back; leaving it by an exception fails the attempt.
    """

    def __init__(self, board: Board, request: task_wire.ClaimNextStepRequest, **options: Any) -> None:  # noqa: ANN401 - those of StepHold
        super().__init__(
            board._sessions,  # noqa: SLF001 - the board's own step
            board._calls,  # noqa: SLF001 - as above
            board.id,
            request,
            board._record,  # noqa: SLF001 - as above
            board._event_of,  # noqa: SLF001 - as above
            **options,
        )
        self._on = board

    @property
    def board(self) -> Board:
        """The board, whose writes are all made under the step's lock."""
        return self._on._under(self)  # noqa: SLF001 - as above

    def commit(self, *, reason: str = "", timeout_s: float | None = None) -> Transaction:
        """Give a commit under the step's lock: a finding, its note, the checkpoint and the end of the step in one act."""
        return self._on.commit(reason=reason, fences=(self,), timeout_s=timeout_s)


class Listing:
    """Entries at and below a path, read page by page while they are iterated over. Iterate once."""

    def __init__(
        self,
        board: Board,
        region: str,
        path: str,
        *,
        consistent: bool,
        consistency: Consistency,
        floor: Trust | None,
        omit_values: bool,
        page_size: int,
        timeout_s: float | None,
    ) -> None:
        self._on = board
        self._floor = floor
        self._region = region
        self._path = path
        self._consistent = consistent
        self._consistency = consistency
        self._omit_values = omit_values
        self._page_size = page_size
        self._timeout_s = timeout_s
        self._entries: deque[Entry] = deque()
        self._page_token = ""
        self._read_all = False
        self._token = ""

    @property
    def token(self) -> str:
        """The state that the first page was read at; a watch that starts after it continues the listing. Empty before."""
        return self._token

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        while not self._entries:
            if self._read_all:
                raise StopAsyncIteration
            await self._next_page()
        return self._entries.popleft()

    async def _next_page(self) -> None:
        if self._consistent and self._token:
            self._consistency = Snapshot(self._token)
        answer = await self._on._read(self._page, self._consistency)  # noqa: SLF001 - the board's own listing
        self._entries.extend(_wire.entry(message, answer.token) for message in answer.entries)
        self._token = self._token or answer.token
        self._page_token = answer.next_page_token
        self._read_all = not self._page_token

    async def _page(self, demand: Consistency) -> _wire.ListEntriesResponse:
        board = self._on
        request = _wire.list_request(
            board.id,
            self._region,
            self._path,
            page_size=self._page_size,
            page_token=self._page_token,
            consistency=board._demand(demand),  # noqa: SLF001 - as above
            omit_values=self._omit_values,
            trusting=await board._trusting(self._floor),  # noqa: SLF001 - as above
        )
        return await board._calls.call(  # noqa: SLF001 - as above
            lambda link: link.board.ListEntries, request, timeout_s=self._timeout_s
        )


class Transaction(Changes):
    """One atomic commit in the making. Filled inside `async with`; sent on leaving it, unless by an error."""

    def __init__(
        self,
        board: Board,
        *,
        reason: str,
        retry_of: str,
        request_id: str | None,
        fences: Sequence[Fence | Hold],
        timeout_s: float | None,
    ) -> None:
        super().__init__()
        self._on = board
        self._fences = fences
        self._reason = reason
        self._retry_of = retry_of
        self._request_id = request_id
        self._timeout_s = timeout_s
        self._result: CommitResult | None = None

    @property
    def result(self) -> CommitResult:
        """What became of the commit; raises RuntimeError if nothing was committed."""
        if self._result is None:
            raise RuntimeError("nothing has been committed")
        return self._result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self.is_empty:
            return
        mutations, preconditions = self.close()
        self._result = await self._on._commit(  # noqa: SLF001 - the board's own commit
            mutations,
            preconditions,
            reason=self._reason,
            retry_of=self._retry_of,
            request_id=self._request_id,
            fences=self._fences,
            released=self._released,
            timeout_s=self._timeout_s,
        )


def _left_s(deadline: Deadline) -> float:
    return max(deadline.left_s(_channel.now_s()), 0.001)


def _value_or(entry: Entry | None, create: object) -> Any:  # noqa: ANN401 - text, parsed JSON, or Binary
    return copy.deepcopy(create) if entry is None else entry.value
