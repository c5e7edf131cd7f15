"""Read scopes: what external text each was given, recorded before it is given."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import commit_surely
from kokuban_server.app.states import states_at
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, Put
from kokuban_server.core.read_scopes import ReadScope
from kokuban_server.core.refusals import Contended, NotFound, NotHolder, ReadScopeFull, SessionLost
from kokuban_server.core.trust import Trust
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.lock_codec import decode_session
from kokuban_server.records.trust_codec import decode_read_scope, encode_read_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access
    from kokuban_server.app.boards import Board
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.core.access import Principal
    from kokuban_server.core.read_scopes import Given
    from kokuban_server.ports.board_store import Record


class KnownScope(NamedTuple):
    """A read scope as it was last seen. What relies on it is guarded on its record."""

    key: bytes
    session_id: str
    scope: ReadScope | None
    """Nothing while it was given nothing external."""
    revision: int = 0

    @property
    def guard(self) -> AtRevision | Absent:
        """What ties a commit to the scope's having been given no more than this."""
        return AtRevision(self.key, self.revision) if self.revision else Absent(self.key)

    @property
    def watermark(self) -> Trust:
        """The least trusted that it was given; `SYSTEM` for nothing."""
        return Trust.SYSTEM if self.scope is None else self.scope.watermark

    @property
    def size(self) -> int:
        """How many states it was given."""
        return 0 if self.scope is None else len(self.scope.given)

    @property
    def is_purged(self) -> bool:
        """Whether something that it was given has been purged."""
        return self.scope is not None and bool(self.scope.purged_by)


class ReadScopes:
    """Remembers what scopes were given, never as an authority."""

    def __init__(self, store: MirroredStore, access: Access) -> None:
        self._mirrored = store
        self._store = store.port
        self._mirror = store.mirror
        self._access = access
        self._known: OrderedDict[bytes, KnownScope] = OrderedDict()

    async def known(self, principal: Principal, board: str, session_id: str, deadline: float) -> KnownScope:
        """Give a scope that the principal may write in: of a session of its own that lives, or that was given something before.

        Raises `SessionLost` and `NotHolder`.
        """
        prefix = keys.board_prefix(principal.tenant, board)
        key = keys.on_board(keys.SCOPE, prefix, session_id)
        known = self._known.get(key)
        if known is None:
            record = (await self._store.read([key], STRONG, left_s(deadline))).records[0]
            known = self.learn(key, session_id, record)
        else:
            self._known.move_to_end(key)
        if known.scope is None:
            agent = await self._agent_of(prefix, session_id, deadline)
        else:
            agent = known.scope.agent
        if agent != principal.agent:
            raise NotHolder("session", session_id=session_id)
        return known

    async def _agent_of(self, prefix: bytes, session_id: str, deadline: float) -> str:
        """Give whose a living session is. Raises `SessionLost`."""
        await self._mirror.stand(left_s(deadline))
        picture = self._mirror.board(prefix)
        known = None if picture is None else picture.sessions.get(session_id)
        if known is not None:
            return known.record.agent
        key = keys.on_board(keys.SESSION, prefix, session_id)
        found = (await self._mirrored.read([key], deadline)).records[0]
        if found is None:
            raise SessionLost(session_id)
        return decode_session(key, found.value).agent

    async def _require_kept(self, board: Board, states: Sequence[Given], deadline: float) -> None:
        """Raise `Contended` if one of the states was removed since it was read: it must not be given, and not be missed."""
        given = [one.state for one in states]
        names = [(keys.head_of(board.tenant, board.id, key), sequence) for key, _, sequence, _ in given]
        if None in await states_at(self._store, names, deadline):
            raise Contended(1)

    def learn(self, key: bytes, session_id: str, record: Record | None) -> KnownScope:
        """Take in what was read of a scope. Raises `SessionLost` for one that is forgotten because its session is over."""
        known = KnownScope(key, session_id, None)
        if record is None and self._known.pop(key, known).scope is not None:
            raise SessionLost(session_id)
        if record is not None:
            known = KnownScope(key, session_id, decode_read_scope(key, record.value), record.revision)
        return self._keep(known)

    def _keep(self, known: KnownScope) -> KnownScope:
        before = self._known.get(known.key)
        if before is not None and before.revision > known.revision:
            return before
        self._known[known.key] = known
        self._known.move_to_end(known.key)
        if len(self._known) > limits.READ_SCOPES_KNOWN_ENTRIES_MAX:
            self._known.popitem(last=False)
        return known

    async def note(
        self, principal: Principal, board: Board, session_id: str, states: Sequence[Given], deadline: float
    ) -> None:
        """Record that a scope is given these states. They may be given when this returns, and not before.

        Writes nothing where all had been given before. Raises `ReadScopeFull`, `SessionLost`, `NotHolder`, and `NotFound` for a
        board that is gone.
        """
        known = await self.known(principal, board.id, session_id, deadline)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            before = known.scope or ReadScope(principal.agent)
            after = before.given_more(states)
            if after is before:
                return
            if len(after.given) > limits.READ_SCOPE_ENTRIES_MAX:
                raise ReadScopeFull(session_id, limits.READ_SCOPE_ENTRIES_MAX)
            change = ChangeSet((known.guard, board.guard), (Put(known.key, encode_read_scope(after)),))
            try:
                revision = await commit_surely(self._store, change, deadline)
            except CommitRefused:
                cut = await self._store.read([known.key, board.key], STRONG, left_s(deadline))
                record, board_record = cut.records
                if board_record is None:
                    raise NotFound from None
                begun, board = board, self._access.learn(board_record)
                if not board.is_live:
                    raise NotFound from None
                if board.record.removals != begun.record.removals:
                    await self._require_kept(board, states, deadline)
                known = self.learn(known.key, session_id, record)
            else:
                self._keep(KnownScope(known.key, session_id, after, revision))
                return
        raise Contended(limits.PLAN_ATTEMPTS_MAX)
