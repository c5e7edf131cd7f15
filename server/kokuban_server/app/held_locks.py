"""What becomes of locks that are held: releases, downgrades, breaks; and who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.lock_asked import ShownLock
from kokuban_server.app.lock_views import Sight
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.app.stages import NEXT_STAGE
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Role, Verb
from kokuban_server.core.audit import LOCK_BREAK, AuditEntry
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, CreatedAt, DeleteKey, Put
from kokuban_server.core.locks import LockTarget, Mode
from kokuban_server.core.refusals import Contended, LockLost, NotFound, NotHolder, TokenFromAnotherStore
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost
from kokuban_server.records.lock_codec import decode_lock, encode_generation, encode_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.lock_requests import LockRequests
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.locks import Fence, LockRecord
    from kokuban_server.core.names import Region
    from kokuban_server.ports.board_store import Record


class LockPage(NamedTuple):
    """One page of who holds and who waits."""

    locks: list[ShownLock]
    waits: list[tuple[str, LockRecord]]
    next_page_token: str
    revision: int


class HeldLocks:
    """Answers what concerns locks that were granted."""

    def __init__(
        self, store: MirroredStore, access: Access, time: StoreTime, requests: LockRequests, audit: AuditLog
    ) -> None:
        self._audit = audit
        self._mirrored = store
        self._store = store.port
        self._mirror = store.mirror
        self._apply = store.apply
        self._access = access
        self._time = time
        self._requests = requests

    async def release(self, principal: Principal, board: str, fence: Fence, deadline: float) -> tuple[bool, int]:
        """Give a lock back: whether it was held until now, and a revision at which it is not held.

        Only deletes, so it works on a full store. Raises `NotHolder` for somebody else's lock.
        """
        await self._enter(principal, board, deadline)
        self._own_epoch(fence)
        prefix = keys.board_prefix(principal.tenant, board)
        lock_key = keys.on_board(keys.LOCK, prefix, fence.lock_id)
        picture = self._mirror.board(prefix)
        known = picture.locks.get(fence.lock_id) if picture is not None else None
        if known is None or known.record.agent != principal.agent or known.create_revision != fence.revision:
            lock, revision = await self._read(lock_key, deadline)
            if lock is None or not self.sight(principal, board).targets(decode_lock(lock_key, lock.value)):
                return False, revision
            if decode_lock(lock_key, lock.value).agent != principal.agent or lock.create_revision != fence.revision:
                raise NotHolder("fence", lock_id=fence.lock_id)
        handed_over = await self._requests.hand_over(principal.tenant, board, fence, deadline)
        if handed_over is not None:
            return True, handed_over
        deletes = (DeleteKey(lock_key), DeleteKey(keys.on_board(keys.MARKER, prefix, fence.lock_id)))
        change = ChangeSet((CreatedAt(lock_key, fence.revision),), (), deletes)
        await NEXT_STAGE
        try:
            return True, await self._apply(change, deadline)
        except CommitRefused:  # lost since, or an earlier try has released it and its answer was lost
            _, revision = await self._read(lock_key, deadline)
            return False, revision

    async def downgrade(self, principal: Principal, board: str, fence: Fence, deadline: float) -> tuple[ShownLock, int]:
        """Make an exclusive lock a shared one, and give it; its fence stays. Raises `LockLost` or `NotHolder`."""
        await self._enter(principal, board, deadline)
        self._own_epoch(fence)
        prefix = keys.board_prefix(principal.tenant, board)
        lock_key = keys.on_board(keys.LOCK, prefix, fence.lock_id)
        marker_key = keys.on_board(keys.MARKER, prefix, fence.lock_id)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            found, revision = await self._read(lock_key, deadline)
            if found is None or not self.sight(principal, board).targets(decode_lock(lock_key, found.value)):
                raise LockLost(fence.lock_id, "fence")
            lock = decode_lock(lock_key, found.value)
            if lock.agent != principal.agent:
                raise NotHolder("fence", lock_id=fence.lock_id)
            if found.create_revision != fence.revision:
                raise LockLost(fence.lock_id, "fence")
            shown = ShownLock(fence.lock_id, lock._replace(mode=Mode.SHARED), True, found.create_revision)
            if lock.mode is Mode.SHARED:
                return shown, revision
            raw = encode_lock(shown.lock)
            guards, puts = await self._moved(principal, board, lock, fence.lock_id, deadline)
            puts += [Put(lock_key, raw, lock.lease), Put(marker_key, raw)]
            guards.append(AtRevision(lock_key, found.revision))
            try:
                revision = await self._apply(ChangeSet(tuple(guards), tuple(puts)), deadline)
            except (CommitRefused, LeaseLost):
                continue
            return shown, revision
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _moved(
        self, principal: Principal, board: str, lock: LockRecord, lock_id: str, deadline: float
    ) -> tuple[list[Guard], list[Put]]:
        """Give what moves the lock generations of a lock's regions, guarded on where both generations stand."""
        content = encode_generation(lock_id)
        prefixes = [keys.region_prefix(principal.tenant, board, region) for region in lock.regions]
        moved = [keys.LOCK_GENERATION + prefix for prefix in prefixes]
        guarded = moved + [keys.QUEUE_GENERATION + prefix for prefix in prefixes]
        await self._mirrored.read(guarded, deadline)
        revisions = [(key, self._mirror.revision_of(key)) for key in guarded]
        guards: list[Guard] = [AtRevision(key, known) if known else Absent(key) for key, known in revisions]
        return guards, [Put(key, content) for key in moved]

    async def break_lock(
        self,
        principal: Principal,
        board: str,
        lock_id: str,
        reason: str,
        deadline: float,
        *,
        skip_lock_delay: bool,
        traceparent: str = "",
    ) -> tuple[ShownLock, int]:
        """Take a lock from its holder, and keep a record of who did and why; give the lock as it was.

        Raises `RoleRequired`, and `NotFound` for a lock of which the caller may read no region.
        """
        self._access.require_one_of(principal, (Role.SUPERVISOR, Role.OPERATOR), board)
        await self._enter(principal, board, deadline)
        prefix = keys.board_prefix(principal.tenant, board)
        lock_key = keys.on_board(keys.LOCK, prefix, lock_id)
        marker_key = keys.on_board(keys.MARKER, prefix, lock_id)
        entry = AuditEntry(LOCK_BREAK, principal, board, f"lock {lock_id}", reason)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            cut = await self._store.read([lock_key, marker_key], STRONG, left_s(deadline))
            found, marker = cut.records
            if found is None or marker is None:
                raise NotFound
            lock = decode_lock(lock_key, found.value)
            if not self.sight(principal, board).targets(lock):
                self._access.open(principal, board, lock.regions[0], Verb.READ)  # is refused, and noted
                raise NotFound
            now_ms = self._time.now_ms()
            broken = lock._replace(
                lost_time_ms=now_ms,
                broken_by=principal.agent,
                broken_reason=reason,
                broken_traceparent=traceparent,
                lock_delay_ms=0 if skip_lock_delay else lock.lock_delay_ms,
            )
            guards = (AtRevision(lock_key, found.revision), AtRevision(marker_key, marker.revision))
            change = ChangeSet(guards, (Put(marker_key, encode_lock(broken)),), (DeleteKey(lock_key),))
            try:
                revision = await self._audit.commit_with(entry, change, deadline, self._apply)
            except CommitRefused:
                continue
            return ShownLock(lock_id, lock, False, found.create_revision), revision
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def list_locks(
        self,
        principal: Principal,
        board: str,
        region: Region,
        path: str,
        page_size: int,
        token: str,
        deadline: float,
    ) -> LockPage:
        """Give a page of the waits and locks at, above and below a path, as the store has them. Raises `NotFound`."""
        await self._enter(principal, board, deadline)
        opened = self._access.open(principal, board, region, Verb.READ)
        wanted = LockTarget(region, path, subtree=True)
        prefix = keys.board_prefix(principal.tenant, board)
        listing = keys.LOCKING + prefix + str(wanted).encode()
        after = read_page_token(token, listing, keys.LOCKING)
        locks: list[ShownLock] = []
        waits: list[tuple[str, LockRecord]] = []
        last, next_token = b"", ""
        for kind in (keys.WAIT, keys.MARKER):
            if next_token or (kind == keys.WAIT and after.startswith(keys.MARKER)):
                continue
            begin = after if after.startswith(kind + prefix) else b""
            async for record in records_below(self._store, kind + prefix, deadline, begin):
                lock = decode_lock(record.key, record.value)
                if not any(target.overlaps(wanted) for target in lock.targets):
                    continue
                if len(locks) + len(waits) == page_size:
                    next_token = page_token(last, listing, keys.LOCKING)
                    break
                last = record.key  # of what is shown only: a token must not name what the caller may not read
                name = keys.parse_locking(last)[2]
                if kind == keys.WAIT:
                    waits.append((name, lock))
                else:
                    locks.append(ShownLock(name, lock, False, record.create_revision))
        shown, revision = await self._with_states(prefix, locks, deadline)
        await self._access.show(principal, [opened], deadline)
        return LockPage(shown, waits, next_token, revision)

    async def _with_states(
        self, prefix: bytes, locks: Sequence[ShownLock], deadline: float
    ) -> tuple[list[ShownLock], int]:
        """Say of each lock whether it is held, as the store has it, and at which state that is so."""
        shown: list[ShownLock] = []
        revision = 0
        for begin in range(0, max(1, len(locks)), _READ_AT_ONCE):
            part = locks[begin : begin + _READ_AT_ONCE]
            named = [keys.on_board(keys.LOCK, prefix, lock.lock_id) for lock in part]
            cut = await self._store.read(named or [keys.SECRET], STRONG, left_s(deadline))
            revision = revision or cut.revision
            shown += [lock._replace(is_held=found is not None) for lock, found in zip(part, cut.records, strict=False)]
        return shown, revision

    def sight(self, principal: Principal, board: str) -> Sight:
        """Give what a caller may see of others."""
        return Sight(self._access, principal, board)

    async def _enter(self, principal: Principal, board: str, deadline: float) -> None:
        await self._access.enter(principal, board, deadline)
        await self._mirror.stand(left_s(deadline))

    def _own_epoch(self, fence: Fence) -> None:
        if fence.epoch != self._store.epoch:
            raise TokenFromAnotherStore("fence.epoch")

    async def _read(self, key: bytes, deadline: float) -> tuple[Record | None, int]:
        cut = await self._mirrored.read([key], deadline)
        return cut.records[0], cut.revision


_READ_AT_ONCE = 200
