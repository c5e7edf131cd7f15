"""Exporting, archiving and restoring tasks: what is removed is what was exported, and what comes back is what was removed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.archive_reading import Place, read_place
from kokuban_server.app.archived import archived
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import commit_surely
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.app.removed_since import RemovedSince
from kokuban_server.app.states import puts_of_state
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Role, Verb
from kokuban_server.core.archives import FORMAT, Archive, ArchivePhase, LineKind, number_of, read_line, spelled
from kokuban_server.core.audit import TASK_ARCHIVE, TASK_RESTORE, AuditEntry
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put, TimeBefore
from kokuban_server.core.entry import OperationAnswer
from kokuban_server.core.refusals import (
    AlreadyExists,
    ArchiveInvalid,
    ArchiveMismatch,
    Contended,
    NotFound,
    OutcomeUnknown,
    Refusal,
    RequestIdReused,
    StoreUnavailable,
    TaskHeld,
    Winner,
)
from kokuban_server.core.revision import encode_token
from kokuban_server.core.tasks import StepStatus, event_path
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.archive_codec import (
    decode_archive,
    encode_archive,
    stored_origin,
    stored_record,
)
from kokuban_server.records.codec import decode_entry, decode_operation, encode_operation
from kokuban_server.records.provenance_codec import decode_origins
from kokuban_server.records.task_codec import decode_task, encode_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.archive_reading import ArchiveReading
    from kokuban_server.app.archive_work import ArchiveWork
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.board_sizes import BoardSizes
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.archives import Line
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.names import Region
    from kokuban_server.core.provenance import Origin
    from kokuban_server.core.tasks import TaskState
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_ANSWERING_S = 1.0
"""Of a call's time, what is left for its answer."""
_GRACE_MS = 5_000
"""By how much a comparison may outlast its call before others take the task to be free again."""
_OVERSEERS = (Role.SUPERVISOR, Role.OPERATOR)
_PUTS_AT_ONCE = 80
_BYTES_AT_ONCE = 1_000_000


class ArchiveRequest(NamedTuple):
    """A request to archive or to restore a task, as the wire has parsed it."""

    board: str
    request_id: str
    id_time_ms: int
    digest: bytes
    """Of what was asked for, without the lines."""
    region: Region
    archive: str
    """The archive's digest."""
    lines: Sequence[str] = ()


class Exported(NamedTuple):
    """A part of an archive."""

    lines: list[str]
    manifest: str
    next_page_token: str
    revision: int


class Ended(NamedTuple):
    """A task was archived, or has come back."""

    revision: int
    replayed: bool


class Restored(NamedTuple):
    """How far a restore has come."""

    next_line: int
    left_out: int
    ended: Ended | None = None


class _Found(NamedTuple):
    """What was found of a task, in one state."""

    opened: OpenRegion
    replay: Ended | None
    archive: Archive | None
    archive_revision: int
    log: Record | None
    task: Record | None
    store_time_ms: int


class _Asking(NamedTuple):
    """A request in hand."""

    principal: Principal
    request: ArchiveRequest
    operation: bytes
    prefix: bytes
    """Of the task's region."""
    deadline: float

    @property
    def archive_key(self) -> bytes:
        return keys.TASK_ARCHIVE + self.prefix

    @property
    def board_prefix(self) -> bytes:
        return keys.board_prefix(self.principal.tenant, self.request.board)


class Archives:
    """Answers who exports, archives and restores tasks."""

    def __init__(
        self,
        store: BoardStore,
        access: Access,
        time: StoreTime,
        request_ids: RequestIds,
        audit: AuditLog,
        reading: ArchiveReading,
        work: ArchiveWork,
        sizes: BoardSizes | None = None,
    ) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._request_ids = request_ids
        self._audit = audit
        self._reading = reading
        self._work = work
        self._sizes = sizes

    # Exporting.

    async def export(
        self, principal: Principal, board_id: str, region: Region, token: str, deadline: float
    ) -> Exported:
        """Give a page of a task's lines, and the manifest behind the last.

        Raises `NotFound`, `TaskArchived`, `ArchiveTooLarge`, `HistoryCompacted`; and `RoleRequired` for what is below the
        region's floor.
        """
        board = await self._access.enter(principal, board_id, deadline)
        opened = self._access.open_under(board, principal, region, Verb.READ)
        self._access.open_under(board, principal, region, Verb.WRITE)
        listing = b"export" + opened.prefix
        archive_key = keys.TASK_ARCHIVE + opened.prefix
        cut = await self._store.read([archive_key], STRONG, left_s(deadline))
        found = cut.records[0]
        if found is not None:
            raise archived(region.id, decode_archive(archive_key, found.value))
        place = read_place(read_page_token(token, listing, b"")) if token else Place(cut.revision)
        lines: list[str] = []
        budget = limits.PAGE_BYTES_MAX
        async for written in self._reading.lines(opened, place, deadline):
            entry = written.entry
            if entry is not None and entry.label.trust < opened.rules.read_floor:
                self._access.require_one_of(principal, _OVERSEERS, board_id)
            budget -= len(written.text.encode())
            if lines and budget < 0:
                await self._access.show(principal, [opened], deadline)
                return Exported(lines, "", page_token(place.packed(), listing, b""), place.revision)
            lines.append(written.text)
            place = written.place
        await self._access.show(principal, [opened], deadline)
        return Exported(lines, self._manifest(opened, place), "", place.revision)

    def _manifest(self, opened: OpenRegion, place: Place) -> str:
        return spelled(
            {
                "kind": "manifest",
                "format": FORMAT,
                "board": opened.board.id,
                "task": opened.region.id,
                "lines": place.line,
                "actions": place.actions,
                "events": place.events,
                "entries": place.entries,
                "token": encode_token(self._store.epoch, place.revision),
                "digest": place.digest,
            }
        )

    # Archiving.

    async def archive(self, principal: Principal, request: ArchiveRequest, deadline: float) -> Ended:
        """Remove a task behind a tombstone, if it is the one that was exported.

        First everybody is kept from writing to it; then it is written down anew, and compared. Raises `NotFound`, `TaskHeld`,
        `TaskArchived`, `ArchiveMismatch`, or `OutcomeUnknown`: then the same request says what became of it.
        """
        asking = await self._begin(principal, request, deadline)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            found = await self._look(asking)
            if found.replay is not None:
                return found.replay
            guard: Guard = Absent(asking.archive_key)
            if found.archive is not None:
                if found.archive.is_hidden and found.archive.digest == request.archive:
                    return Ended(found.archive_revision, replayed=True)
                is_anothers = found.archive.agent != principal.agent and found.archive.until_ms > found.store_time_ms
                if found.archive.is_hidden or is_anothers:
                    raise archived(request.region.id, found.archive)
                # Whoever compared it is gone, or is the caller itself, of whose try nothing is to come any more.
                guard = AtRevision(asking.archive_key, found.archive_revision)
            if found.log is None or found.task is None:
                raise NotFound
            await self._refuse_held(asking, decode_task(found.task.key, found.task.value))
            try:
                return await self._compare_and_remove(asking, found, guard, found.log)
            except CommitRefused:
                continue
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _refuse_held(self, asking: _Asking, state: TaskState) -> None:
        """Raise `TaskHeld` if somebody works on a step. The lock of a lost one does not come back."""
        running = [(name, step.lock_id) for name, step in state.steps.items() if step.status is StepStatus.RUNNING]
        for begin in range(0, len(running), limits.BATCH_KEYS_MAX):
            part = running[begin : begin + limits.BATCH_KEYS_MAX]
            locks = [keys.on_board(keys.LOCK, asking.board_prefix, lock) for _, lock in part]
            held = (await self._store.read(locks, STRONG, left_s(asking.deadline))).records
            for (name, _), lock in zip(part, held, strict=True):
                if lock is not None:
                    raise TaskHeld(asking.request.region.id, name)

    async def _compare_and_remove(self, asking: _Asking, found: _Found, guard: Guard, log: Record) -> Ended:
        """Close the task, compare it, and have it removed; or open it again. Raises `CommitRefused` if it was written to."""
        key = asking.archive_key
        now_ms = self._time.now_ms()
        until_ms = now_ms + round(left_s(asking.deadline) * 1000) + _GRACE_MS
        closed = Archive(ArchivePhase.PREPARING, agent=asking.principal.agent, time_ms=now_ms, until_ms=until_ms)
        marker = keys.ARCHIVING + asking.prefix
        guards = (guard, AtRevision(log.key, log.revision), found.opened.board.guard)
        # The log's end is moved too: those who record events look at that alone.
        puts = (Put(key, encode_archive(closed)), Put(marker, b""), Put(log.key, log.value))
        revision = await commit_surely(self._store, ChangeSet(guards, puts), asking.deadline)
        try:
            place = await self._compared(asking, found.opened, Place(revision))
            ended = await self._remove(asking, found.opened, replace(closed, until_ms=0), place)
        except BaseException:
            opening = ChangeSet((AtRevision(key, revision),), (), (DeleteKey(key), DeleteKey(marker)))
            with contextlib.suppress(CommitRefused, Refusal):  # else it opens when the time is over
                await self._store.commit(opening, _CALL_S)
            raise
        with contextlib.suppress(StoreUnavailable, OutcomeUnknown):  # else the upkeep goes on with it
            await self._finish(asking)
        return ended

    async def _compared(self, asking: _Asking, opened: OpenRegion, place: Place) -> Place:
        """Give how far the task was written down: all of it. Raises `ArchiveMismatch` if it is not what was exported."""
        async for written in self._reading.lines(opened, place, asking.deadline):
            place = written.place
        if place.digest != asking.request.archive:
            raise ArchiveMismatch("digest", asking.request.region.id, asking.request.archive, place.digest)
        return place

    async def _remove(self, asking: _Asking, opened: OpenRegion, archive: Archive, place: Place) -> Ended:
        """Have the task be gone: from here on what is left of it is only cleaned up."""
        request = asking.request
        archive = replace(
            archive,
            phase=ArchivePhase.REMOVING,
            digest=place.digest,
            lines=place.line,
            removals=opened.board.record.removals,
        )
        answer = encode_operation(OperationAnswer(request.digest, self._time.now_ms(), ()))
        change = ChangeSet(
            (
                AtRevision(asking.archive_key, place.revision),
                opened.board.guard,
                Absent(asking.operation),
                TimeBefore(self._request_ids.end_ms(request.id_time_ms)),
            ),
            (Put(asking.archive_key, encode_archive(archive)), Put(asking.operation, answer)),
            (DeleteKey(keys.TASK_LOG + asking.prefix), DeleteKey(keys.TASK + asking.prefix)),
        )
        target = f"{self._access.named(asking.principal, request.region)}: {place.line} lines, {place.digest}"
        entry = AuditEntry(TASK_ARCHIVE, asking.principal, request.board, target)
        return Ended(await self._audit.commit_with(entry, change, asking.deadline), replayed=False)

    async def _finish(self, asking: _Asking) -> None:
        """Remove what is left of the task. Raises `StoreUnavailable` when the time is nearly over."""
        more = True
        while more:
            if left_s(asking.deadline) < _ANSWERING_S:
                raise StoreUnavailable("what is left of the task is being removed")
            with contextlib.suppress(CommitRefused):  # another server does the same work
                more = await self._work.step(asking.prefix)

    # Restoring.

    async def restore(self, principal: Principal, request: ArchiveRequest, deadline: float) -> Restored:
        """Bring back some lines of a task's archive, from a later to an earlier one; with the first one the task is there.

        Raises `NotFound`, `AlreadyExists`, `ArchiveMismatch`, `ArchiveInvalid`, `BoardFull`, or `OutcomeUnknown`: then the same
        request says what became of it.
        """
        if self._sizes is not None:
            await self._sizes.stand(deadline)
        asking = await self._begin(principal, request, deadline)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            found = await self._look(asking)
            if found.replay is not None:
                return Restored(0, 0, found.replay)
            archive = found.archive
            if archive is None:
                if found.log is None:
                    raise NotFound
                winner = Winner("", "", 0, "")
                where = str(request.region), event_path(1), found.log.revision
                raise AlreadyExists("task", *where, self._store.epoch, winner)
            if not archive.is_hidden:
                raise archived(request.region.id, archive)
            if archive.digest != request.archive:
                raise ArchiveMismatch("digest", request.region.id, request.archive, archive.digest)
            if archive.phase is ArchivePhase.REMOVING:
                await self._finish(asking)
                continue
            if archive.phase is ArchivePhase.ARCHIVED:
                archive = replace(archive, next_line=archive.lines, next_digest=archive.digest)
            since = await RemovedSince.of(self._store, found.opened, archive, self._request_ids.digest, asking.deadline)
            with contextlib.suppress(CommitRefused):  # somebody restores it, too, or the board has changed
                return await _Restoring(self, asking, found, archive, since).go_on()
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    # What both have in common.

    async def _begin(self, principal: Principal, request: ArchiveRequest, deadline: float) -> _Asking:
        await self._access.enter(principal, request.board, deadline)
        self._request_ids.check(request.request_id, request.id_time_ms)
        operation = keys.operation(
            request.id_time_ms, principal.tenant, request.board, principal.agent, request.request_id
        )
        prefix = keys.region_prefix(principal.tenant, request.board, request.region)
        return _Asking(principal, request, operation, prefix, deadline)

    async def _look(self, asking: _Asking) -> _Found:
        """Read what there is of the task in one state, under the policy of now. Raises `NotFound`, `WriteForbidden`."""
        request, prefix = asking.request, asking.prefix
        board_key = keys.board(asking.principal.tenant, request.board)
        named = [asking.operation, board_key, asking.archive_key, keys.TASK_LOG + prefix, keys.TASK + prefix]
        cut = await self._store.read(named, STRONG, left_s(asking.deadline))
        self._time.saw(cut.store_time_ms)
        operation, board_record, archive, log, task = cut.records
        if board_record is None:
            raise NotFound
        board = self._access.learn(board_record)
        opened = self._access.open_under(board, asking.principal, request.region, Verb.READ)
        self._access.open_under(board, asking.principal, request.region, Verb.WRITE)
        replay = None
        if operation is None:
            self._request_ids.check_at(request.request_id, request.id_time_ms, cut.store_time_ms)
        elif decode_operation(operation.key, operation.value).digest != request.digest:
            raise RequestIdReused(request.request_id)
        else:
            replay = Ended(operation.revision, replayed=True)
        known = None if archive is None else decode_archive(archive.key, archive.value)
        return _Found(opened, replay, known, 0 if archive is None else archive.revision, log, task, cut.store_time_ms)

    async def apply(self, asking: _Asking, change: ChangeSet, audit: AuditEntry | None = None) -> int:
        """Have the store judge and apply a set that makes the board larger. Raises `BoardFull`, `CommitRefused`."""
        sizes, board = self._sizes, asking.board_prefix
        revision: int | None = None
        if sizes is not None:
            sizes.admit(board, asking.request.board, change)
        growth = 0 if sizes is None else sizes.begin(board, change)
        try:
            if audit is None:
                revision = await commit_surely(self._store, change, asking.deadline)
            else:
                revision = await self._audit.commit_with(audit, change, asking.deadline)
            return revision
        finally:
            if sizes is not None:
                sizes.end(board, growth, revision)

    def ending(self, asking: _Asking) -> tuple[tuple[Guard, Guard], Put]:
        """Give what makes a restore end once."""
        request = asking.request
        answer = encode_operation(OperationAnswer(request.digest, self._time.now_ms(), ()))
        guards = Absent(asking.operation), TimeBefore(self._request_ids.end_ms(request.id_time_ms))
        return guards, Put(asking.operation, answer)

    def restored(self, asking: _Asking, archive: Archive) -> AuditEntry:
        """Give what is recorded of a task that comes back."""
        region = self._access.named(asking.principal, asking.request.region)
        target = f"{region}: {archive.lines} lines, {archive.left_out} left out, {archive.digest}"
        return AuditEntry(TASK_RESTORE, asking.principal, asking.request.board, target)


class _Restoring:
    """One part of a restore: what its lines come to, in as many commits as that takes."""

    def __init__(
        self, archives: Archives, asking: _Asking, found: _Found, archive: Archive, since: RemovedSince
    ) -> None:
        self._archives = archives
        self._asking = asking
        self._opened = found.opened
        self._revision = found.archive_revision
        self._archive = archive
        self._since = since
        self._guards: list[Guard] = []
        self._puts: list[Put] = []
        self._bytes = 0
        self._written_line = archive.next_line

    async def go_on(self) -> Restored:
        """Restore the lines that are next. Raises `CommitRefused` if somebody else has come further."""
        begun = False
        for index, text in enumerate(self._asking.request.lines):
            field = f"lines[{index}]"
            if not begun and number_of(text) > self._archive.next_line:
                continue  # restored before
            begun = True
            line = read_line(text, self._archive.next_line, self._archive.next_digest, field)
            try:
                if line.kind is LineKind.TASK:
                    return await self._end(line)
                if line.kind is LineKind.ACTION:
                    key = keys.task_action(self._asking.prefix, line.body["step"], line.body["action"])
                    await self._add([Put(key, stored_record(line.kind, line.body))])
                else:
                    await self._add_entry(line)
            except (ValueError, KeyError, TypeError) as error:
                raise ArchiveInvalid(field, line.number, "is of no form that this server knows") from error
            self._archive = replace(
                self._archive,
                phase=ArchivePhase.RESTORING,
                next_line=line.number - 1,
                next_digest=line.previous,
            )
        await self._flush()
        return Restored(self._archive.next_line, self._archive.left_out)

    async def _add_entry(self, line: Line) -> None:
        """Restore an entry as it was, with its place in its history and what is recorded of where it came from."""
        head = keys.head(self._opened.prefix, line.body["path"])
        raw = stored_record(line.kind, line.body)
        state = decode_entry(head, raw)
        said = [stored_origin(one) for one in line.body.get("origins", ())]
        recorded = [self._origin(line, index, one) for index, one in enumerate(said)]
        if await self._since.has(state, [origin for _, origins in recorded for origin in origins]):
            self._archive = replace(self._archive, left_out=self._archive.left_out + 1)
            return
        for put, _ in recorded:  # each may stand before its entry does
            await self._add([put])
        puts = puts_of_state(head, state, raw)
        due_ms = state.expire_time_ms or state.sweep_time_ms
        if due_ms:
            puts.append(Put(keys.due(due_ms, head), b""))
        await self._add(puts)
        self._guards.append(Absent(head))

    def _origin(self, line: Line, index: int, raw: bytes) -> tuple[Put, list[Origin]]:
        """Give one record of where an entry's states came from."""
        named = f"{self._archive.digest} {line.number} {index}"
        identity = blake2b(named.encode(), digest_size=16).hexdigest()
        key = keys.origin(self._asking.board_prefix, self._archive.time_ms, identity)
        return Put(key, raw), decode_origins(key, raw, 0)

    async def _add(self, puts: list[Put]) -> None:
        """Gather what is written with the lines before it, if that fits one commit."""
        size = sum(len(put.key) + len(put.value) for put in puts)
        if len(self._puts) + len(puts) > _PUTS_AT_ONCE or self._bytes + size > _BYTES_AT_ONCE:
            await self._flush()
        self._puts += puts
        self._bytes += size

    async def _flush(self) -> None:
        """Write what was gathered, together with how far that is."""
        if not self._puts and self._archive.next_line == self._written_line:
            return
        guards = (*self._standing(), *self._guards)
        puts = (Put(self._asking.archive_key, encode_archive(self._archive)), *self._puts)
        self._revision = await self._archives.apply(self._asking, ChangeSet(guards, puts))
        self._guards, self._puts, self._bytes = [], [], 0
        self._written_line = self._archive.next_line

    def _standing(self) -> tuple[Guard, ...]:
        """Give what ties a step to the one before it, and to what may not come back."""
        return AtRevision(self._asking.archive_key, self._revision), self._opened.board.guard

    async def _end(self, line: Line) -> Restored:
        """Have the task be there again: how it stands, and the end of its log, in place of what stood for it."""
        await self._flush()
        prefix = self._asking.prefix
        log, task = keys.TASK_LOG + prefix, keys.TASK + prefix
        once, answer = self._archives.ending(self._asking)
        raw = stored_record(line.kind, line.body)
        decode_task(task, raw)
        change = ChangeSet(
            (*self._standing(), Absent(log), Absent(task), *once),
            (Put(log, encode_log(line.body["last_event"])), Put(task, raw), answer),
            (DeleteKey(self._asking.archive_key),),
        )
        audit = self._archives.restored(self._asking, self._archive)
        revision = await self._archives.apply(self._asking, change, audit)
        return Restored(0, self._archive.left_out, Ended(revision, replayed=False))
