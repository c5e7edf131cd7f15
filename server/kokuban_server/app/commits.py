"""The one write: every change of a board, whatever the call, goes through `Commits.commit`."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, cast

from kokuban_server.app.archived import archive_keys_of, refuse_archived
from kokuban_server.app.bars import Written, refuse_barred
from kokuban_server.app.deadlines import halfway, left_s
from kokuban_server.app.folds import Folds
from kokuban_server.app.lineage import NO_LINEAGE, NO_ORIGINS, Lineage, Origins, is_plain
from kokuban_server.app.mirrored_store import commit_surely
from kokuban_server.app.quarantine_shelf import OnShelf, marker_of, name_of
from kokuban_server.app.stages import NEXT_STAGE
from kokuban_server.app.states import puts_of_state, states_at
from kokuban_server.app.task_writing import is_event, prefix_of
from kokuban_server.app.write_screening import Admitted, HeldBack, is_screened
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Principal, Verb
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put, TimeBefore
from kokuban_server.core.commit import (
    AddToSet,
    AppendToList,
    At,
    Belief,
    Delete,
    Endorse,
    Increment,
    MergePatch,
    Moment,
    MustNotExist,
    Outcome,
    Plan,
    RecordEvent,
    Step,
    field_of,
    outcome_of,
    plan,
    plan_fold,
)
from kokuban_server.core.commit import Put as PutEntry
from kokuban_server.core.entry import NOTHING, Act, Current, OperationAnswer
from kokuban_server.core.provenance import has_origin
from kokuban_server.core.quarantine import HeldAuthor, Quarantined, QuarantineState
from kokuban_server.core.refusals import (
    Contended,
    ContentPending,
    ContentQuarantined,
    ContentRefused,
    DeadlineTooShort,
    InvalidRequest,
    NotFound,
    NotHolder,
    OutcomeUnknown,
    ParentNotFound,
    Refusal,
    RequestIdReused,
    ScreeningUnavailable,
    SessionLost,
    StoreUnavailable,
    TokenFromAnotherStore,
    TooManyRequests,
)
from kokuban_server.core.trust import OWN_WORD, Label, TaintMode, WithoutVerdict
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.codec import decode_entry, decode_operation, encode_entry, encode_operation
from kokuban_server.records.provenance_codec import encode_origins
from kokuban_server.records.quarantine_codec import encode_quarantined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.board_sizes import BoardSizes
    from kokuban_server.app.boards import Board
    from kokuban_server.app.heads import Heads
    from kokuban_server.app.lineage import Lineages
    from kokuban_server.app.lock_guards import FenceGiven, Held, LockGuards
    from kokuban_server.app.lock_mirror import LockMirror
    from kokuban_server.app.quarantine_shelf import QuarantineShelf
    from kokuban_server.app.redactions import Holdings
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.app.task_writing import Happening, Looked, TaskWriting
    from kokuban_server.app.write_screening import WriteScreening
    from kokuban_server.core.audit import AuditEntry
    from kokuban_server.core.commit import Commuting, Mutation, Target
    from kokuban_server.core.names import EntryKey
    from kokuban_server.core.trust import Source
    from kokuban_server.ports.board_store import BoardStore, Record

_NO_VERDICT = (ScreeningUnavailable, TooManyRequests, DeadlineTooShort)
_COMMUTING = (Increment, AppendToList, AddToSet)


class CommitRequest(NamedTuple):
    """A commit as the wire has parsed it."""

    board: str
    request_id: str
    id_time_ms: int
    """When the id was made, as it says itself."""
    digest: bytes
    """Of everything that was asked; the same for the same arguments."""
    beliefs: tuple[tuple[EntryKey, MustNotExist | At], ...]
    mutations: tuple[tuple[EntryKey, Mutation, int], ...]
    """Each with its place in the request, where releases may stand in between."""
    reason: str
    retry_of: str
    traceparent: str
    fences: tuple[FenceGiven, ...] = ()
    """Every lock under which the commit writes, those that it releases among them."""
    releases: tuple[tuple[int, str], ...] = ()
    """The places of the mutations that release a lock, and the locks."""
    origins: Origins = NO_ORIGINS
    audit: AuditEntry | None = None
    """What is recorded at the same revision."""
    raw: bytes = b""
    """As it was sent, but masked, to be kept if it is held back."""
    holdings: Holdings | None = None
    """What redaction has left in it; nothing where it was not redacted."""

    def holding(self, holdings: Holdings) -> CommitRequest:
        """Give it with what redaction has left in it: in a third of the time that `_replace` takes, for each commit."""
        return CommitRequest(*self[:-1], holdings)


class Committed(NamedTuple):
    """The answer of a commit that holds."""

    revision: int
    commit_time_ms: int
    replayed: bool
    outcomes: tuple[Outcome, ...]
    """Of the mutations that write an entry."""
    releases: tuple[int, ...] = ()
    """The places of the mutations that release a lock."""


class _NotScreenedError(Exception):
    """What needed no verdict when the commit was looked at needs one now: by its read scope, or by the policy."""


class _Released(NamedTuple):
    """A commit in quarantine that is made now."""

    shelf: OnShelf
    reviewer: Principal
    """By whose right it is made."""
    reason: str
    reviewed_by: str
    """Nobody, where it was only waiting for what screens."""

    def settled(self, now_ms: int, sequences: tuple[int, ...]) -> Quarantined:
        """Give what stays of it."""
        return replace(
            self.shelf.item,
            request=b"",
            state=QuarantineState.RELEASED,
            reviewer=self.reviewed_by,
            author=None,
            review_reason=self.reason,
            review_time_ms=now_ms,
            sequences=sequences,
        )


@dataclass(slots=True)
class _Attempt:
    """A commit on its way, with everything that stays the same however often it is planned."""

    principal: Principal
    request: CommitRequest
    board: Board
    """Under whose policy the steps were authorised; the commit is guarded on its revision."""
    steps: list[Step]
    beliefs: list[Belief]
    operation: bytes
    act: Act
    deadline: float
    lineage: Lineage | None = NO_LINEAGE
    """What its labels follow from; nothing while that is not known."""
    admitted: dict[int, Admitted] = field(default_factory=dict)
    """What screening made of its mutations, by their places."""
    released: _Released | None = None
    """What it is released from, and by whom; nothing for a commit that was not held back."""
    in_doubt: bool = False
    """Something was sent for it whose fate is not known yet."""
    tasks: Looked | None = None
    """What is known of the tasks that it writes events of."""
    happening: Happening | None = None
    """What its events come to, as it was planned last."""

    @property
    def targets(self) -> list[Target]:
        """Every entry the commit names. Where its events come to lie is not known before it is planned."""
        named = [step.target for step in self.steps if not is_event(step)]
        return named + [belief.target for belief in self.beliefs] if self.beliefs else named

    @property
    def archives(self) -> list[bytes]:
        """The keys of what would stand for the tasks in whose regions it names anything, were they archived."""
        named = [step.target for step in self.steps]
        return archive_keys_of(named + [belief.target for belief in self.beliefs] if self.beliefs else named)

    @property
    def unheld_archives(self) -> list[bytes]:
        """Those of them that nothing else keeps away: who archives a task moves the end of its log."""
        tied = self.happening.tied if self.happening is not None else ()
        return [key for key in self.archives if key[len(keys.TASK_ARCHIVE) :] not in tied]

    @property
    def board_prefix(self) -> bytes:
        """What the board's keys have in common."""
        return keys.board_prefix(self.principal.tenant, self.request.board)

    @property
    def puts(self) -> bool:
        """Whether it does more than delete and release."""
        return not all(isinstance(step.mutation, Delete) for step in self.steps)


class Commits:
    """Plans commits on what is known, has the store judge them, and plans again where it was wrong."""

    def __init__(
        self,
        store: BoardStore,
        access: Access,
        heads: Heads,
        time: StoreTime,
        request_ids: RequestIds,
        locks: LockGuards,
        mirror: LockMirror,
        lineages: Lineages,
        audit: AuditLog,
        screening: WriteScreening,
        shelf: QuarantineShelf,
        tasks: TaskWriting,
        sizes: BoardSizes | None = None,
    ) -> None:
        self._store = store
        self._access = access
        self._heads = heads
        self._time = time
        self._request_ids = request_ids
        self._locks = locks
        self._mirror = mirror
        self._lineages = lineages
        self._audit = audit
        self._screening = screening
        self._shelf = shelf
        self._tasks = tasks
        self._sizes = sizes
        self._folds = Folds(self._commit_as_one, self._commit_alone, limits.FOLD_MUTATIONS_MAX)

    async def commit(self, principal: Principal, request: CommitRequest, deadline: float) -> Committed:
        """Apply a commit once, and give its answer; `deadline` is the loop's time by which to answer.

        Raises the refusal of what does not hold (nothing was written then), or `OutcomeUnknown`, after which the same
        request says what became of it.
        """
        holdings = request.holdings
        board = holdings.board if holdings is not None else await self._access.enter(principal, request.board, deadline)
        await self._locks.stand(deadline)
        if self._sizes is not None:
            await self._sizes.stand(deadline)
        attempt = self._prepare(principal, request, board, deadline)
        if holdings is not None and holdings.refusal is not None:
            return await self._replayed(attempt, holdings.refusal)
        if attempt.lineage is None:
            replay = await self._trace(attempt) or await self._admit(attempt)
            if replay is not None:
                return replay
        if request.beliefs:  # a belief that does not hold tells something of its entry
            read = [self._access.open_under(board, principal, key.region, Verb.READ) for key, _ in request.beliefs]
            await self._access.account(principal, read, deadline)
        try:
            if (
                len(attempt.steps) == 1
                and not attempt.beliefs
                and not request.fences
                and isinstance(attempt.steps[0].mutation, _COMMUTING)
                and attempt.steps[0].label is OWN_WORD
            ):
                return await self._folds.join(attempt.steps[0].target.head, attempt.operation, attempt)
            return await self._commit_screened(attempt)
        except OutcomeUnknown as unknown:
            raise OutcomeUnknown(request.request_id, unknown.detail) from unknown
        except (StoreUnavailable, Contended) as refusal:
            if not attempt.in_doubt:
                raise
            # They say that nothing was changed; of the last try that is true.
            raise OutcomeUnknown(request.request_id, str(refusal)) from refusal

    def _prepare(self, principal: Principal, request: CommitRequest, board: Board, deadline: float) -> _Attempt:
        """Authorise every region that the commit names, and refuse ids outside the window and foreign revisions."""
        lineage = NO_LINEAGE if is_plain(principal, request.origins) else None
        steps, beliefs = self._authorised(principal, request, board, lineage, {})
        epoch = self._store.epoch
        for given in request.fences:
            if given.fence.epoch != epoch:
                raise TokenFromAnotherStore(f"{given.field}.epoch")
        self._request_ids.check(request.request_id, request.id_time_ms)
        operation = keys.operation(
            request.id_time_ms, principal.tenant, request.board, principal.agent, request.request_id
        )
        act = _act(principal.agent, request)
        return _Attempt(principal, request, board, steps, beliefs, operation, act, deadline, lineage)

    async def _replayed(self, attempt: _Attempt, refusal: Refusal) -> Committed:
        """Give the answer that a commit had before there was a reason to refuse it, or raise the refusal."""
        cut = await self._store.read([attempt.operation], STRONG, left_s(attempt.deadline))
        self._time.saw(cut.store_time_ms)
        replay = await self._answered(attempt, cut.records[0], cut.store_time_ms)
        if replay is None:
            raise refusal
        return replay

    async def _trace(self, attempt: _Attempt) -> Committed | None:
        """Find out what the commit's labels follow from; or give the answer that it had already.

        What has ended since then is no reason to refuse a commit that stands.
        """
        principal, request = attempt.principal, attempt.request
        try:
            lineage = await self._lineages.of(principal, attempt.board, request.origins, attempt.deadline)
        except (ParentNotFound, SessionLost, NotHolder):
            _, replay = await self._look(attempt)
            if replay is not None:
                return replay
            raise
        attempt.steps, attempt.beliefs = self._authorised(principal, request, attempt.board, lineage, {})
        attempt.lineage = lineage
        return None

    async def _admit(self, attempt: _Attempt) -> Committed | None:
        """Have what comes from outside looked at before it is written; or give the answer that the commit had already.

        Raises `ContentQuarantined` for what is kept for a reviewer, `ContentRefused` where that is full, and `ContentPending`
        for what is kept until there is a verdict.
        """
        while True:
            board, request = attempt.board, attempt.request
            steps = [step for step in attempt.steps if is_screened(step, board.policy)]
            may_wait = all(step.target.rules.without_verdict is WithoutVerdict.HOLD for step in steps)
            deadline = halfway(attempt.deadline) if may_wait else attempt.deadline
            try:
                judged = await self._screening.judge(attempt.principal, board.id, steps, request.reason, deadline)
            except (HeldBack, *_NO_VERDICT) as none:
                if not may_wait and not isinstance(none, HeldBack):
                    raise
                try:
                    _, replay = await self._look(attempt)
                except _NotScreenedError:
                    continue
                if replay is not None:
                    return replay
                if isinstance(none, HeldBack):
                    await self._hold_back(attempt, none)
                else:
                    await self._set_aside(attempt, steps[0], none)
            else:
                attempt.admitted = dict(judged)
                attempt.steps = [_marked(step, attempt.admitted) for step in attempt.steps]
                return None

    async def _hold_back(self, attempt: _Attempt, held: HeldBack) -> None:
        """Keep a commit for a reviewer, and refuse it; come back if it was answered meanwhile, or its board has changed."""
        rule = held.findings[0].rule
        if await self._shelf.is_full(attempt.board, attempt.deadline):
            raise ContentRefused(held.field, rule, held.rule_set, "full")
        item = self._as_kept(attempt, held.field, held.source)
        name = await self._keep(attempt, replace(item, findings=held.findings, rule_set=held.rule_set))
        if name:
            raise ContentQuarantined(held.field, name, rule, held.rule_set)

    async def _set_aside(self, attempt: _Attempt, step: Step, none: Refusal) -> None:
        """Keep a commit until there is a verdict, and say so; come back as `_hold_back` does.

        Raises `none` where there is no room.
        """
        if await self._shelf.is_full(attempt.board, attempt.deadline):
            raise none
        request = attempt.request
        named = [key.region for key, _, _ in request.mutations] + [key.region for key, _ in request.beliefs]
        author = HeldAuthor.of(attempt.principal, named)
        item = self._as_kept(attempt, f"mutations[{step.place}]", step.label.source)
        name = await self._keep(attempt, replace(item, state=QuarantineState.PENDING, author=author))
        if name:
            raise ContentPending(item.field, name)

    def _as_kept(self, attempt: _Attempt, field: str, source: Source) -> Quarantined:
        return Quarantined(
            attempt.request.raw,
            attempt.principal.agent,
            self._time.now_ms(),
            tuple(step.target.key for step in attempt.steps),
            tuple((step.place, step.label) for step in attempt.steps),
            (),
            "",
            field,
            source,
            attempt.operation,
        )

    async def _keep(self, attempt: _Attempt, item: Quarantined) -> str:
        """Keep a commit; give its id, or nothing if it was answered meanwhile, or its board or read scope has changed."""
        identity = self._request_ids.digest(b"quarantine\x00" + attempt.operation).hex()
        name = name_of(item, identity)
        answer = encode_operation(OperationAnswer(attempt.request.digest, item.create_time_ms, (), name))
        scope = None if attempt.lineage is None else attempt.lineage.scope
        guards = () if scope is None else (scope.guard,)
        is_kept = await self._shelf.keep(attempt.board, item, identity, answer, attempt.deadline, guards)
        return name if is_kept else ""

    async def make_pending(
        self, author: Callable[[], Principal], shelf: OnShelf, request: CommitRequest, deadline: float
    ) -> Committed:
        """Commit, once, what was set aside, by its author's right; fences and beliefs are judged now.

        `author` gives the author with the rights that it has when it is asked, or raises. Raises `HeldBack`,
        `ScreeningUnavailable` and what a commit raises, and `Contended` if another server has made it, or more of it needs a
        verdict now.
        """
        attempt = await self._of_author(author(), shelf, request, deadline)
        steps = [step for step in attempt.steps if is_screened(step, attempt.board.policy)]
        judged = await self._screening.judge(attempt.principal, attempt.board.id, steps, request.reason, deadline)
        attempt = await self._of_author(author(), shelf, request, deadline)  # a verdict takes its time
        attempt.admitted = dict(judged)
        if _lacks_verdict(attempt, attempt.steps, attempt.board):
            raise Contended(1)
        attempt.steps = [_marked(step, attempt.admitted) for step in attempt.steps]
        try:
            return await self._commit_alone(attempt)
        except _NotScreenedError:
            raise Contended(1) from None

    async def _of_author(self, author: Principal, shelf: OnShelf, request: CommitRequest, deadline: float) -> _Attempt:
        """Begin a commit that was set aside, by its author's right; nothing in it is trusted more than that now says."""
        most = author.trust_ceiling
        labels = [(place, label._replace(trust=min(label.trust, most))) for place, label in shelf.item.labels]
        shelf = shelf._replace(item=replace(shelf.item, labels=tuple(labels)))
        attempt = await self._of_shelf(author, shelf, request, deadline)
        attempt.released = _Released(shelf, author, "", "")
        return attempt

    async def release(
        self,
        reviewer: Principal,
        shelf: OnShelf,
        request: CommitRequest,
        reason: str,
        audit: AuditEntry,
        deadline: float,
    ) -> Committed:
        """Commit what was held back, once, as its author's act and by the reviewer's right; fences and beliefs are judged now.

        Raises what a commit raises, and `Contended` if somebody else has reviewed it meanwhile.
        """
        attempt = await self._of_shelf(reviewer, shelf, request._replace(audit=audit), deadline)
        attempt.released = _Released(shelf, reviewer, reason, reviewer.agent)
        return await self._commit_alone(attempt)

    async def _of_shelf(
        self, principal: Principal, shelf: OnShelf, request: CommitRequest, deadline: float
    ) -> _Attempt:
        """Begin a commit that was kept, by a principal's right and as its author's act."""
        board = await self._access.enter(principal, request.board, deadline)
        await self._locks.stand(deadline)
        if self._sizes is not None:
            await self._sizes.stand(deadline)
        item = shelf.item
        steps, beliefs = self._authorised(principal, request, board, NO_LINEAGE, dict(item.labels))
        author = Principal(principal.tenant, item.agent, frozenset())
        return _Attempt(author, request, board, steps, beliefs, shelf.key, _act(item.agent, request), deadline)

    def _authorised(
        self,
        principal: Principal,
        request: CommitRequest,
        board: Board,
        lineage: Lineage | None,
        labels: Mapping[int, Label],
    ) -> tuple[list[Step], list[Belief]]:
        """Open every region that the commit names; label what it writes if the lineage is known.

        `labels` are those that were given before, by the mutations' places.
        """
        open_region = self._access.open_under
        epoch = self._store.epoch
        steps = []
        for key, mutation, index in request.mutations:
            region = open_region(board, principal, key.region, Verb.WRITE)
            if isinstance(mutation, PutEntry | Delete | MergePatch | Endorse):
                precondition = mutation.precondition
                if isinstance(precondition, At) and precondition.epoch != epoch:
                    raise TokenFromAnotherStore(f"mutations[{index}].{field_of(mutation)}.precondition.at")
            label = labels.get(index)
            if isinstance(mutation, Endorse):
                label = Label(mutation.trust)
            elif (
                label is None
                and lineage is not None
                and (lineage is not NO_LINEAGE or region.rules.taint_mode is TaintMode.ENFORCE)
            ):
                label = lineage.label(principal, board, region, index, writes=not isinstance(mutation, Delete))
            label = _holding(request, region, index, label or OWN_WORD)
            if board.record.bars and not isinstance(mutation, Delete):
                barred = Written(key.region, label, principal, f"mutations[{index}].{field_of(mutation)}")
                refuse_barred(barred, board, self._request_ids.digest)
            target = region.target_of_events(key) if isinstance(mutation, RecordEvent) else region.target(key)
            steps.append(Step(target, mutation, index, label))
        beliefs = []
        for index, (key, belief) in enumerate(request.beliefs):
            region = open_region(board, principal, key.region, Verb.READ)
            if isinstance(belief, At) and belief.epoch != epoch:
                raise TokenFromAnotherStore(f"preconditions[{index}].precondition.at")
            beliefs.append(Belief(region.target(key), belief))
        return steps, beliefs

    async def _commit_screened(self, attempt: _Attempt) -> Committed:
        """Commit; what turns out to need screening meanwhile is screened first."""
        while True:
            try:
                return await self._commit_alone(attempt)
            except _NotScreenedError:
                replay = await self._admit(attempt)
                if replay is not None:
                    return replay

    async def _commit_alone(self, attempt: _Attempt) -> Committed:
        tasks = [prefix_of(step.target) for step in attempt.steps if is_event(step)]
        if not tasks:
            return await self._commit_now(attempt)
        async with self._tasks.turn(tasks, attempt.deadline):
            return await self._commit_now(attempt)

    async def _commit_now(self, attempt: _Attempt) -> Committed:
        await NEXT_STAGE
        states = self._guess(attempt)
        certain = states is None
        if states is None:
            states, replay = await self._look(attempt)
            if replay is not None:
                return replay
        for attempts in range(limits.PLAN_ATTEMPTS_MAX):
            try:
                planned, change, moment = await self._planned(attempt, states)
            except Refusal:
                if certain:
                    raise
            else:
                await NEXT_STAGE
                revision = await self._apply(change, [attempt])
                if revision is not None:
                    self._learn(planned, revision, attempt.happening)
                    self._mirror.learn(change, revision)
                    return Committed(revision, moment.now_ms, False, tuple(planned.outcomes), _places(attempt.request))
                if attempts:  # the first guess is often merely old; after that, somebody else is really faster
                    await asyncio.sleep(random.uniform(0, 0.002 * (1 << min(attempts, 6))))  # noqa: S311 - jitter
            states, replay = await self._look(attempt)
            certain = True
            if replay is not None:
                return replay
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _planned(self, attempt: _Attempt, states: dict[bytes, Current]) -> tuple[Plan, ChangeSet, Moment]:
        moment = self._moment()
        held = self._held(attempt)
        if attempt.tasks is None:
            planned = plan(attempt.steps, attempt.beliefs, states, attempt.act, moment)
        else:
            happening = attempt.happening = self._happening(attempt, attempt.tasks, moment)
            await NEXT_STAGE
            states = states | dict.fromkeys(happening.heads, NOTHING)
            planned = plan(happening.steps, attempt.beliefs, states, attempt.act, moment)
            happening.add_to(planned)
        await NEXT_STAGE
        return planned, self._change_set(planned, [attempt], moment, held), moment

    def _happening(self, attempt: _Attempt, looked: Looked, moment: Moment) -> Happening:
        """Give what the commit's events come to."""
        fences = [given.fence.lock_id for given in attempt.request.fences]
        releases = [lock_id for _, lock_id in attempt.request.releases]
        return self._tasks.plan(attempt.steps, looked, fences, releases, attempt.board_prefix, moment)

    def _held(self, attempt: _Attempt) -> Held:
        """Hold the commit against the locks of its regions."""
        return self._locks.judge(attempt.principal, attempt.request.board, attempt.steps, attempt.request.fences)

    def _doubts(self, attempt: _Attempt) -> list[bytes]:
        request = attempt.request
        return self._locks.doubts(attempt.principal, request.board, attempt.steps, request.fences)

    def _moment(self) -> Moment:
        time = self._time
        return Moment(time.now_ms(), time.seen_ms, self._store.epoch)

    def _guess(self, attempt: _Attempt) -> dict[bytes, Current] | None:
        """Give what is remembered of every entry; nothing if too little is known to try.

        An entry that is not known, and that the writer says does not exist, is taken not to.
        """
        states = {}
        known = self._remembered
        if any(map(is_event, attempt.steps)):
            attempt.tasks = self._tasks.guess(attempt.steps)
            if attempt.tasks is None:
                return None
        for target, mutation, _, _ in attempt.steps:
            current = known(target.head)
            if current is None:
                if not _makes_anew(mutation):
                    return None
                current = NOTHING
            states[target.head] = current
        for target, precondition in attempt.beliefs:
            if target.head in states:
                continue
            current = known(target.head)
            if current is None:
                if not isinstance(precondition, MustNotExist):
                    return None
                current = NOTHING
            states[target.head] = current
        return states

    def _remembered(self, head: bytes) -> Current | None:
        """Give what is remembered of an entry, but not one whose time has come by this server's clock.

        Store time may not have got there yet, and a plan on the old state would write the entry back to life: `_look` moves
        store time first.
        """
        current = self._heads.get(head)
        if current is None or current.record is None or not current.record.expire_time_ms:
            return current
        return None if current.record.expire_time_ms <= self._time.now_ms() else current

    async def _look(self, attempt: _Attempt) -> tuple[dict[bytes, Current], Committed | None]:
        """Read every entry and the operation record in one cut: the states, or the answer the commit had already.

        An entry whose time has come by this server's clock, but not yet by store time, first moves store time. Locks that
        turn out to be other than this server thought are read again with the rest. If the board's policy has changed, the
        commit is authorised anew.
        """
        heads = list({target.head for target in attempt.targets})
        while True:
            doubts = dict.fromkeys(self._doubts(attempt))
            scope = None if attempt.lineage is None else attempt.lineage.scope
            scopes = [] if scope is None else [scope.key]
            tasks = self._tasks.keys_of(attempt.steps)
            archives = attempt.archives
            named = [attempt.operation, attempt.board.key, *heads, *doubts, *tasks, *archives, *scopes]
            cut = await self._store.read(named, STRONG, left_s(attempt.deadline))
            self._time.saw(cut.store_time_ms)
            record, board, *found = cut.records
            scope_record = found.pop() if scopes else None
            archived = [found.pop() for _ in archives]
            answered = await self._answered(attempt, record, cut.store_time_ms)
            if answered is not None:
                return {}, answered
            if board is None:
                raise NotFound
            refuse_archived(archived, writes=True)
            await self._trace_again(attempt, board)
            if self._catch_up(attempt, board, scope_record):
                continue
            found_doubts = found[len(heads) : len(heads) + len(doubts)]
            if tasks:
                attempt.tasks = self._tasks.read(tasks, found[-len(tasks) :])
            if await self._locks.settle(list(doubts), found_doubts, cut.revision, attempt.deadline):
                continue
            if any(key not in doubts for key in self._doubts(attempt)):
                continue  # the watch has brought a lock meanwhile, which may be gone again
            states = self._states(heads, found)
            now_ms = self._time.now_ms()
            expiries = [state.record.expire_time_ms for state in states.values() if state.record is not None]
            due = any(cut.store_time_ms < expiry_ms <= now_ms for expiry_ms in expiries)
            if not due or not await self._time.tick(left_s(attempt.deadline)):
                return states, None

    def _states(self, heads: Sequence[bytes], records: Sequence[Record | None]) -> dict[bytes, Current]:
        """Give the states that were read, and remember them."""
        states = {}
        for head, state in zip(heads, records, strict=False):  # what was read behind them is of something else
            current = NOTHING if state is None else Current(decode_entry(head, state.value), state.revision)
            states[head] = current
            self._heads.learn(head, current)
        return states

    async def _answered(self, attempt: _Attempt, record: Record | None, store_time_ms: int) -> Committed | None:
        """Give the answer that a commit had already, by the record that makes it happen once.

        Raises `RequestIdExpired`, and `Contended` for what somebody else has released or rejected meanwhile.
        """
        request, released = attempt.request, attempt.released
        if released is not None:
            if record is None or record.revision != released.shelf.revision:
                raise Contended(1)
            return None
        if record is not None:
            return await self._replay(attempt, record.value, record.revision)
        self._request_ids.check_at(request.request_id, request.id_time_ms, store_time_ms)
        return None

    async def _trace_again(self, attempt: _Attempt, board_record: Record) -> None:
        """Find the commit's parents again if something was removed since they were found. Raises `ParentNotFound`."""
        lineage, known = attempt.lineage, attempt.board.record.removals
        if lineage is None or not lineage.parents:
            return
        board = self._access.learn(board_record)
        if board.record.removals != known:
            found = await self._lineages.of(attempt.principal, board, lineage.origins, attempt.deadline)
            attempt.lineage = lineage._replace(parents=found.parents)

    def _catch_up(self, attempt: _Attempt, board_record: Record, scope_record: Record | None) -> bool:
        """Authorise and label anew if the board's policy or the read scope has changed; true if the policy has."""
        lineage, board = attempt.lineage, attempt.board
        if lineage is not None and lineage.scope is not None:
            newest = self._lineages.newest(lineage.scope, scope_record)
            lineage = lineage if newest is lineage.scope else lineage._replace(scope=newest)
        is_new = board_record.revision > board.revision
        if is_new:
            board = self._access.learn(board_record)
        if is_new or lineage is not attempt.lineage:
            # First, as it may refuse: an attempt of a fold is tried again alone, and must not look authorised then.
            released = attempt.released
            who = attempt.principal if released is None else released.reviewer
            labels = {} if released is None else dict(released.shelf.item.labels)
            steps, attempt.beliefs = self._authorised(who, attempt.request, board, lineage, labels)
            is_seen = released is not None and released.reviewed_by
            if not is_seen and _lacks_verdict(attempt, steps, board):
                attempt.steps, attempt.board, attempt.lineage = steps, board, lineage
                raise _NotScreenedError
            attempt.steps = [_marked(step, attempt.admitted) for step in steps]
            attempt.board, attempt.lineage = board, lineage
        return is_new

    async def _replay(self, attempt: _Attempt, raw: bytes, revision: int) -> Committed:
        """Give the answer that this request id had, if it is the same request."""
        answer = decode_operation(attempt.operation, raw)
        if answer.digest != attempt.request.digest:
            raise RequestIdReused(attempt.request.request_id)
        if answer.quarantine_id:
            shelf = await self._of_quarantine(attempt, answer.quarantine_id)
            answer = answer._replace(sequences=shelf.item.sequences, commit_time_ms=shelf.item.review_time_ms)
            revision = shelf.revision
        steps = self._tasks.as_recorded(attempt.steps, answer.event_numbers)
        written = [(step.target.head, sequence) for step, sequence in zip(steps, answer.sequences, strict=True)]
        records = await states_at(self._store, written, attempt.deadline)
        outcomes = []
        for step, sequence, found in zip(steps, answer.sequences, records, strict=True):
            if found is None:
                outcomes.append(Outcome(sequence, None))
                continue
            state = decode_entry(found.key, found.value)
            computed = state.value if isinstance(step.mutation, (*_COMMUTING, MergePatch)) else None
            outcomes.append(outcome_of(state, computed, step.target.rules))
        return Committed(revision, answer.commit_time_ms, True, tuple(outcomes), _places(attempt.request))

    async def _of_quarantine(self, attempt: _Attempt, name: str) -> OnShelf:
        """Give a commit that was held back and released since. Raises the refusal of one that was not."""
        try:
            shelf = await self._shelf.find(attempt.board, name, attempt.deadline)
        except NotFound:
            raise ContentRefused("mutations", "", "", "rejected") from None
        item = shelf.item
        if item.state is QuarantineState.PENDING:
            raise ContentPending(item.field, name)
        rule = item.findings[0].rule if item.findings else ""
        if item.state is QuarantineState.WAITING:
            raise ContentQuarantined(item.field, name, rule, item.rule_set)
        if item.state is QuarantineState.REJECTED:
            raise ContentRefused(item.field, rule, item.rule_set, "rejected")
        return shelf

    def _change_set(self, planned: Plan, attempts: Sequence[_Attempt], moment: Moment, held: Held) -> ChangeSet:
        """Give the plan as the store takes it, with what makes each of its requests happen once."""
        # One for each board, of which there are several only where a region beyond boards is written.
        guards = planned.guards + held.guards
        guards += dict.fromkeys([attempt.board.guard for attempt in attempts])
        guards += map(Absent, attempts[0].unheld_archives)  # what is folded is of one region
        lineage = attempts[0].lineage  # what is folded is written in no scope
        if lineage is not None and lineage.scope is not None:
            guards.append(lineage.scope.guard)
        puts = puts_of(planned) + planned.more
        deletes: list[DeleteKey] = planned.clean_ups
        sequences = tuple([record.sequence for _, record in planned.states])
        if any(has_origin(record.label) for _, record in planned.states):
            puts.append(_origins(planned, attempts[0], moment))
        youngest_ms = attempts[0].request.id_time_ms
        for attempt in attempts:
            request = attempt.request
            released = attempt.released
            if released is None:
                guards.append(Absent(attempt.operation))
                numbers = planned.event_numbers
                answer = encode_operation(OperationAnswer(request.digest, moment.now_ms, sequences, "", numbers))
                puts.append(Put(attempt.operation, answer))
            else:  # its own record makes it happen once
                guards.append(AtRevision(attempt.operation, released.shelf.revision))
                puts.append(Put(attempt.operation, encode_quarantined(released.settled(moment.now_ms, sequences))))
                if released.shelf.item.state is QuarantineState.PENDING:
                    deletes = [*deletes, DeleteKey(marker_of(attempt.operation))]
            youngest_ms = min(youngest_ms, request.id_time_ms)
            if request.releases:
                deletes = deletes + self._releases(attempt)
        ends_ms = [held.end_ms] if held.end_ms else []
        if attempts[0].released is None:
            ends_ms.append(self._request_ids.end_ms(youngest_ms))
        if ends_ms:
            guards.append(TimeBefore(min(ends_ms)))
        change = ChangeSet(tuple(guards), tuple(puts), tuple(deletes))
        _refuse_too_large(change, planned, attempts[0])
        if self._sizes is not None and any(attempt.puts for attempt in attempts):
            self._sizes.admit(attempts[0].board_prefix, attempts[0].board.id, change)
        return change

    def _releases(self, attempt: _Attempt) -> list[DeleteKey]:
        return [
            DeleteKey(keys.on_board(kind, attempt.board_prefix, lock_id))
            for _, lock_id in attempt.request.releases
            for kind in (keys.LOCK, keys.MARKER)
        ]

    async def _apply(self, change: ChangeSet, attempts: Sequence[_Attempt]) -> int | None:
        """Have the store judge and apply the set; give its revision, or nothing if a guard does not hold.

        After an answer that did not come the identical set is sent again: if the first did stand, its operation record now
        fails the second, and the caller, looking again, finds its own answer.
        """
        sizes, revision = self._sizes, None
        growth = sizes.begin(attempts[0].board_prefix, change) if sizes is not None else 0

        def doubt() -> None:
            for attempt in attempts:
                attempt.in_doubt = True

        try:
            deadline = min([attempt.deadline for attempt in attempts])
            audit = attempts[0].request.audit
            if audit is None:
                revision = await commit_surely(self._store, change, deadline, doubt)
            else:
                commit = partial(commit_surely, self._store, on_doubt=doubt)
                revision = await self._audit.commit_with(audit, change, deadline, commit)
        except CommitRefused:
            pass
        finally:
            if sizes is not None:
                sizes.end(attempts[0].board_prefix, growth, revision)
        return revision

    def _learn(self, planned: Plan, revision: int, happening: Happening | None = None) -> None:
        for head, record in planned.states:
            if record.event is None:  # an event is not written again
                self._heads.learn(head, Current(record, revision))
        if happening is not None:
            self._tasks.happened(happening, revision)

    async def _commit_as_one(self, attempts: list[_Attempt]) -> list[Committed] | None:
        """Commit commuting mutations of one entry as one state.

        Give the answers, or nothing if the state kept moving or a member is a replay.
        """
        target = attempts[0].steps[0].target
        mutations = [cast("Commuting", attempt.steps[0].mutation) for attempt in attempts]
        acts = tuple([attempt.act for attempt in attempts])
        current = self._remembered(target.head)
        for _ in range(2):
            if current is None:
                states, replay = await self._look(attempts[0])
                if replay is not None:
                    return None
                current = states[target.head]
            moment = self._moment()
            held = self._held(attempts[0])
            planned = plan_fold(target, mutations, acts, current, moment)
            change = self._change_set(planned, attempts, moment, held)
            revision = await self._apply(change, attempts)
            if revision is not None:
                self._learn(planned, revision)
                return [Committed(revision, moment.now_ms, False, (outcome,)) for outcome in planned.outcomes]
            current = None
        return None


def _holding(request: CommitRequest, region: OpenRegion, place: int, label: Label) -> Label:
    """Give a mutation's label with what redaction has left in it. Raises `RedactedOtherwiseError`."""
    if request.holdings is None:
        return label
    return request.holdings.labelled(region.region, region.rules.redaction, place, label)


def _lacks_verdict(attempt: _Attempt, steps: Sequence[Step], board: Board) -> bool:
    """Say whether some of a commit's steps have to be screened and were not."""
    return any(is_screened(step, board.policy) and step.place not in attempt.admitted for step in steps)


def _marked(step: Step, admitted: Mapping[int, Admitted]) -> Step:
    """Give a step with what screening made of it in its label."""
    verdict = admitted.get(step.place)
    if verdict is None:
        return step
    return step._replace(label=step.label.screened(verdict.rule_set, suspicious=verdict.suspicious))


def _makes_anew(mutation: Mutation) -> bool:
    """Say whether a mutation is of an entry that its writer takes not to be there."""
    if isinstance(mutation, RecordEvent):
        return True
    return isinstance(mutation, PutEntry) and isinstance(mutation.precondition, MustNotExist)


def _act(agent: str, request: CommitRequest) -> Act:
    session_id = request.origins.session_id
    return Act(agent, request.request_id, request.reason, request.traceparent, request.retry_of, session=session_id)


def _origins(planned: Plan, attempt: _Attempt, moment: Moment) -> Put:
    """Give the record of what the states of a commit were made of."""
    steps = attempt.steps if attempt.happening is None else attempt.happening.steps
    states = [
        (step.target.key, record.sequence, record.label)
        for step, (_, record) in zip(steps, planned.states, strict=True)
        if has_origin(record.label)
    ]
    return origin_put(attempt.board_prefix, attempt.operation, attempt.act, moment.now_ms, states)


def _refuse_too_large(change: ChangeSet, planned: Plan, attempt: _Attempt) -> None:
    """Raise `COMMIT_TOO_LARGE` for what would be more than the store takes at once."""
    # One entry's states always fit, so the common commit is not measured.
    size = change.size_bytes if len(planned.states) > 1 or attempt.request.origins.provenance else 0
    if size > limits.CHANGE_SET_BYTES_MAX:
        raise InvalidRequest(
            "COMMIT_TOO_LARGE",
            "mutations",
            "what the commit would store is too large",
            {"limit": str(limits.CHANGE_SET_BYTES_MAX), "actual": str(size)},
        )
    if change.operations > limits.STORE_OPERATIONS_MAX and (planned.event_numbers or attempt.archives):
        raise InvalidRequest(
            "COMMIT_TOO_LARGE",
            "mutations",
            "what the commit would do in the store is too much",
            {"limit": str(limits.STORE_OPERATIONS_MAX), "actual": str(change.operations)},
        )


def _places(request: CommitRequest) -> tuple[int, ...]:
    """Give the places of the mutations that release a lock."""
    return tuple([place for place, _ in request.releases])


def origin_put(board: bytes, seed: bytes, act: Act, time_ms: int, states: Sequence[tuple[EntryKey, int, Label]]) -> Put:
    """Give the record of what some states were made of that an act has written, each with its key and sequence.

    `board` is what the board's keys have in common; `seed` is of this act alone.
    """
    identity = blake2b(seed, digest_size=16).hexdigest()
    return Put(keys.origin(board, time_ms, identity), encode_origins(act.agent, act.session, time_ms, states))


def puts_of(planned: Plan) -> list[Put]:
    """Give a plan's writes as the store takes them: each new state where it belongs, and the reminders."""
    puts = []
    for head, record in planned.states:
        puts += puts_of_state(head, record, encode_entry(record))
    puts += [Put(keys.history_record(head, record.sequence), encode_entry(record)) for head, record in planned.past]
    puts.extend([Put(reminder, b"") for reminder in planned.reminders])
    return puts
