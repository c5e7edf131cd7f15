"""Reading entries: one, several, a page, a history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from kokuban_server.app.archived import refuse_hidden
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.kept_states import PastState, gone, kept_state
from kokuban_server.app.page_tokens import page_token as make_page_token
from kokuban_server.app.page_tokens import read_page_token
from kokuban_server.app.states import scan_states
from kokuban_server.core import keys, limits
from kokuban_server.core.access import REVIEWERS, Verb
from kokuban_server.core.names import EntryKey
from kokuban_server.core.read_scopes import Given
from kokuban_server.core.refusals import (
    NotFound,
    ReadScopeRequired,
    ResponseTooLarge,
    TokenAheadOfStore,
    TokenFromAnotherStore,
    Withheld,
)
from kokuban_server.core.revision import encode_token, revision_of
from kokuban_server.core.trust import OWN_WORD, Parent, TaintMode, Trust
from kokuban_server.ports.board_store import LOCAL, STRONG, AtLeast, Snapshot
from kokuban_server.records.codec import decode_entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.judged_states import JudgedStates
    from kokuban_server.app.read_scopes import ReadScopes
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import At
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.names import Region
    from kokuban_server.ports.board_store import BoardStore, Consistency, Record


class AskStrong(NamedTuple):
    """As of now."""


class AskAtLeast(NamedTuple):
    """At least as fresh as a token."""

    token: str


class AskSnapshot(NamedTuple):
    """Exactly at a token."""

    token: str


class AskLocal(NamedTuple):
    """Whatever is at hand."""


class Trusting(NamedTuple):
    """How much trust a reader wants, and where it is noted what it was given of less."""

    floor: Trust | None = None
    """The least trusted that is wanted; nothing for what the region's rules say."""
    session_id: str = ""
    """Whose read scope notes what is given of external text; nothing for none."""


UNSAID = Trusting()


class _Records(Protocol):
    """What a cut and a page have in common."""

    @property
    def store_time_ms(self) -> int: ...
    @property
    def records(self) -> Sequence[Record | None]: ...


_Cut = TypeVar("_Cut", bound=_Records)

Freshness: TypeAlias = AskStrong | AskAtLeast | AskSnapshot | AskLocal

_FIELDS: dict[type[Freshness], str] = {
    AskStrong: "consistency.strong",
    AskAtLeast: "consistency.at_least",
    AskSnapshot: "consistency.snapshot",
    AskLocal: "consistency.local",
}

_SCANS_MAX = 16
"""How often a page is filled up before it is given short: bounds the work behind a long run of tombstones."""


class Found(NamedTuple):
    """One entry's state, with its name."""

    key: EntryKey
    record: EntryRecord
    revision: int
    withheld: bool = False
    """It is trusted less than was asked for: shown without a word of its writers'."""


class Entries(NamedTuple):
    """Several entries of one cut."""

    found: list[Found]
    missing: list[EntryKey]
    revision: int


class Listing(NamedTuple):
    """One page."""

    found: list[Found]
    next_page_token: str
    revision: int


class Reads:
    """Answers reads. Everything goes through `Access`, and what has expired by store time is not there."""

    def __init__(
        self, store: BoardStore, access: Access, time: StoreTime, scopes: ReadScopes, judged: JudgedStates
    ) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._scopes = scopes
        self._judged = judged

    async def get(
        self,
        principal: Principal,
        board: str,
        key: EntryKey,
        freshness: Freshness,
        deadline: float,
        trusting: Trusting = UNSAID,
    ) -> tuple[Found, int]:
        """Give an entry and the revision it was read at. Raises `NotFound` or `Withheld` with the token of that state."""
        entries = await self.batch_get(principal, board, [key], freshness, deadline, trusting)
        if not entries.found:
            raise NotFound(encode_token(self._store.epoch, entries.revision))
        found = entries.found[0]
        if found.withheld:
            raise self._refusal(principal, board, found, trusting, entries.revision)
        return found, entries.revision

    async def get_kept(
        self, principal: Principal, board: str, key: EntryKey, at: At, deadline: float, trusting: Trusting = UNSAID
    ) -> tuple[Found, int]:
        """Give one of the states that are kept of an entry; as `get` gives the present one, and `list_revisions` all.

        Raises `TokenFromAnotherStore` for a state of another epoch.
        """
        if at.epoch != self._store.epoch:
            raise TokenFromAnotherStore("at")
        await self._enter(principal, board, trusting, deadline)
        try:
            opened = self._access.open(principal, board, key.region, Verb.READ)
        except NotFound:  # as in `list_revisions`
            cut = await self._store.read([keys.NOWHERE], STRONG, left_s(deadline))
            raise NotFound(encode_token(self._store.epoch, cut.revision)) from None
        head = keys.head(opened.prefix, key.path)
        cut = await self._store.read([head], STRONG, left_s(deadline))
        self._time.saw(cut.store_time_ms)
        present = cut.records[0]
        is_past = present is None or present.revision != at.number
        record = await kept_state(self._store, head, at.number, deadline)
        await self._access.show(principal, [opened], deadline)
        await refuse_hidden(self._store, [opened], cut.revision, STRONG, deadline)
        if record is None:
            raise NotFound(encode_token(self._store.epoch, cut.revision))
        state = decode_entry(record.key, record.value)
        if not state.is_live(self._time.now_ms()):
            raise NotFound(encode_token(self._store.epoch, cut.revision))
        found = self._shown(principal, opened, Found(key, state, record.revision), trusting, is_past=is_past)
        if found.withheld:
            raise self._refusal(principal, board, found, trusting, cut.revision)
        await self._note(principal, [opened], [found], trusting, deadline)
        return found, cut.revision

    def _refusal(self, principal: Principal, board: str, found: Found, trusting: Trusting, revision: int) -> Withheld:
        """Give what says that an entry is trusted less than was asked for."""
        key, epoch = found.key, self._store.epoch
        floor = _floor(self._access.open(principal, board, key.region, Verb.READ), trusting)
        trust, token = found.record.label.trust, encode_token(epoch, revision)
        return Withheld(str(key.region), key.path, found.revision, epoch, trust.name, floor.name, token)

    async def batch_get(
        self,
        principal: Principal,
        board: str,
        named: Sequence[EntryKey],
        freshness: Freshness,
        deadline: float,
        trusting: Trusting = UNSAID,
    ) -> Entries:
        """Give those of the entries that are there, in one cut. A region the caller may not read counts as empty.

        External text is noted in the reader's scope before it is given. Raises `ReadScopeRequired`, `ReadScopeFull`,
        `SessionLost` and `NotHolder`.
        """
        await self._enter(principal, board, trusting, deadline)
        heads: list[bytes] = []
        readable: list[EntryKey] = []
        opened: list[OpenRegion] = []
        for key in named:
            try:
                region = self._access.open(principal, board, key.region, Verb.READ)
            except NotFound:
                continue
            opened.append(region)
            heads.append(keys.head(region.prefix, key.path))
            readable.append(key)
        consistency = self._consistency(freshness)
        if not heads:  # the answer still names a state, as it would if the regions were there and empty
            heads = [keys.NOWHERE]
        cut, states = await self._settled(
            lambda: self._store.read(heads, consistency, left_s(deadline)), freshness, deadline
        )
        await self._access.show(principal, opened, deadline)
        await refuse_hidden(self._store, opened, cut.revision, consistency, deadline)
        is_past = _may_be_past(freshness)
        shown: list[tuple[OpenRegion, Found]] = []
        size = 0
        for key, region, record, state in zip(readable, opened, cut.records, states, strict=False):
            if record is not None and state is not None:
                one = self._shown(principal, region, Found(key, state, record.revision), trusting, is_past=is_past)
                shown.append((region, one))
                size += 0 if one.withheld else len(record.value)
        if size > limits.PAGE_BYTES_MAX:
            raise ResponseTooLarge(limits.PAGE_BYTES_MAX)
        found = {one.key: one for one in await self._kept(shown, freshness, deadline)}
        await self._note(principal, opened, found.values(), trusting, deadline)
        missing = [key for key in named if key not in found]
        return Entries(list(found.values()), missing, cut.revision)

    async def list_entries(
        self,
        principal: Principal,
        board: str,
        region: Region,
        path: str,
        page_size: int,
        page_token: str,
        freshness: Freshness,
        deadline: float,
        trusting: Trusting = UNSAID,
        *,
        omit_values: bool = False,
    ) -> Listing:
        """Give a page of the entries at and below a path, in one cut. A region the caller may not read is empty.

        External text is noted, and refused, as in `batch_get`; without values there is none.
        """
        await self._enter(principal, board, trusting, deadline)
        opened = self._access.open(principal, board, region, Verb.READ)
        prefix = keys.heads(opened.prefix, path)
        after = read_page_token(page_token, prefix, prefix)
        consistency = self._consistency(freshness)
        is_past = _may_be_past(freshness)
        found: list[Found] = []
        budget = limits.PAGE_BYTES_MAX
        more = True
        revision = 0
        for _ in range(_SCANS_MAX):
            limit = page_size - len(found)
            page, states = await self._settled(
                lambda: self._store.scan(prefix, after, limit, budget, consistency, left_s(deadline)),  # noqa: B023 - at once
                freshness,
                deadline,
            )
            revision = page.revision
            if consistency is not LOCAL:  # whatever else the page needs comes from the same state
                consistency = Snapshot(revision)
            for record, state in zip(page.records, states, strict=True):
                if state is not None:
                    one = Found(_name(opened, record.key), state, record.revision)
                    found.append(self._shown(principal, opened, one, trusting, is_past=is_past))
                    budget -= len(record.key) + len(record.value)
                after = record.key
            more = page.more
            if not more or len(found) >= page_size or budget <= limits.VALUE_BYTES_MAX:
                break
        await self._access.show(principal, [opened], deadline)
        await refuse_hidden(self._store, [opened], revision, consistency, deadline)
        found = await self._kept([(opened, one) for one in found], freshness, deadline)
        if not omit_values:
            await self._note(principal, [opened], found, trusting, deadline)
        return Listing(found, make_page_token(after, prefix, prefix) if more else "", revision)

    async def list_revisions(
        self,
        principal: Principal,
        board: str,
        key: EntryKey,
        page_size: int,
        page_token: str,
        deadline: float,
        trusting: Trusting = UNSAID,
    ) -> Listing:
        """Give a page of an entry's kept states, newest first. Raises `NotFound` if nothing is kept.

        A state whose own time has run out shows no value. External text is noted, and refused, as in `batch_get`.
        """
        await self._enter(principal, board, trusting, deadline)
        try:
            opened = self._access.open(principal, board, key.region, Verb.READ)
        except NotFound:  # told with the state that was read, like an entry that is not there
            cut = await self._store.read([keys.NOWHERE], STRONG, left_s(deadline))
            raise NotFound(encode_token(self._store.epoch, cut.revision)) from None
        head = keys.head(opened.prefix, key.path)
        prefix = keys.history(head)
        after = read_page_token(page_token, prefix, prefix)
        page = await scan_states(self._store, head, after, page_size, STRONG, deadline)
        self._time.saw(page.store_time_ms)
        await self._access.show(principal, [opened], deadline)
        await refuse_hidden(self._store, [opened], page.revision, STRONG, deadline)
        if not page.records and not page_token:
            raise NotFound(encode_token(self._store.epoch, page.revision))
        now_ms = self._time.now_ms()
        found: list[Found] = []
        for record in page.records:
            state = decode_entry(record.key, record.value)
            one = Found(key, shown_state(state, now_ms), record.revision)
            is_past = bool(found or page_token)  # the first is the present one
            found.append(self._shown(principal, opened, one, trusting, is_past=is_past))
        await self._note(principal, [opened], found, trusting, deadline)
        token = make_page_token(page.records[-1].key, prefix, prefix) if page.more else ""
        return Listing(found, token, page.revision)

    async def _enter(self, principal: Principal, board: str, trusting: Trusting, deadline: float) -> None:
        """Enter a board. Raises `RoleRequired` for whoever asks for what is held back and reviews nothing."""
        if trusting.floor is Trust.SUSPECT:
            self._access.require_one_of(principal, REVIEWERS, board)
        await self._access.enter(principal, board, deadline)

    async def _kept(
        self, shown: Sequence[tuple[OpenRegion, Found]], freshness: Freshness, deadline: float
    ) -> list[Found]:
        """Give what was read; of the past, what was removed since is withheld."""
        if not isinstance(freshness, AskSnapshot):
            return [one for _, one in shown]
        states = [PastState(region, one.key, one.record, one.revision) for region, one in shown]
        removed = await gone(self._store, states, deadline)
        return [_withheld(one) if (one.key, one.revision) in removed else one for _, one in shown]

    def _shown(
        self, principal: Principal, region: OpenRegion, found: Found, trusting: Trusting, *, is_past: bool
    ) -> Found:
        """Give an entry as this reader is shown it: what is below the floor withheld, parents only where it may read.

        So is what only older rules have let in, where the policy wants that.
        """
        label = found.record.label
        if (
            label is OWN_WORD and trusting.floor is None
        ):  # as nearly everything, and no floor is above it but by a policy
            return found if region.rules.read_floor <= Trust.AGENT else _withheld(found)
        if label.trust < _floor(region, trusting):
            return _withheld(found)
        if label.screened_by:
            head = b"" if is_past else keys.head(region.prefix, found.key.path)
            if self._judged.is_withheld(region, label, head, found.revision):
                return _withheld(found)
        if not label.parents:
            return found
        parents = [parent for parent in label.parents if self._may_read(principal, region, parent)]
        return found._replace(record=replace(found.record, label=label._replace(parents=tuple(parents))))

    def _may_read(self, principal: Principal, region: OpenRegion, parent: Parent) -> bool:
        if parent.key.region == region.region:
            return True
        return self._access.readable_under(region.board, principal, parent.key.region) is not None

    async def _note(
        self,
        principal: Principal,
        opened: Sequence[OpenRegion],
        found: Iterable[Found],
        trusting: Trusting,
        deadline: float,
    ) -> None:
        """Have the reader's scope note the external text that it is about to be given, where the region wants that."""
        modes = {region.region: region.rules.taint_mode for region in opened}
        given = []
        for one in found:
            trust = one.record.label.trust
            if trust >= Trust.AGENT or one.withheld or one.record.value is None:
                continue
            mode = modes[one.key.region]
            if mode is TaintMode.ENFORCE and not trusting.session_id:
                raise ReadScopeRequired(str(one.key.region))
            if mode is not TaintMode.OFF and trusting.session_id:
                label = one.record.label
                state = Parent(one.key, one.revision, one.record.sequence, label.extends_from)
                given.append(Given(state, trust))
        if given:
            await self._scopes.note(principal, opened[0].board, trusting.session_id, given, deadline)

    def _consistency(self, freshness: Freshness) -> Consistency:
        """Give the store's word for what the caller asked; refuses tokens that are not this store's."""
        if isinstance(freshness, AskStrong):
            return STRONG
        if isinstance(freshness, AskLocal):
            return LOCAL
        if isinstance(freshness, AskAtLeast):
            return AtLeast(revision_of(freshness.token, self._store.epoch, "consistency.at_least"))
        return Snapshot(revision_of(freshness.token, self._store.epoch, "consistency.snapshot"))

    async def _settled(
        self, read: Callable[[], Awaitable[_Cut]], freshness: Freshness, deadline: float
    ) -> tuple[_Cut, list[EntryRecord | None]]:
        """Read, and say of each record whether its entry is there.

        An entry whose time has come by this server's clock, but not yet by store time, first moves store time and reads
        again, so that no later read by another clock sees the entry back.
        """
        while True:
            try:
                cut = await read()
            except TokenAheadOfStore:
                raise TokenAheadOfStore(_FIELDS[type(freshness)]) from None
            self._time.saw(cut.store_time_ms)
            now_ms = self._time.now_ms()
            local = isinstance(freshness, AskLocal)  # promises nothing, and must answer without a quorum
            states: list[EntryRecord | None] = []
            due = False
            for record in cut.records:
                state = None if record is None else decode_entry(record.key, record.value)
                if state is not None and state.expire_time_ms:
                    due = due or cut.store_time_ms < state.expire_time_ms <= now_ms
                live = state is not None and state.is_live(now_ms if local else cut.store_time_ms)
                states.append(state if live else None)
            if local or not due or not await self._time.tick(left_s(deadline)):
                return cut, states


def shown_state(state: EntryRecord, store_time_ms: int) -> EntryRecord:
    """Give the state as it may be shown: without its value once its own time has run out."""
    if 0 < state.expire_time_ms <= store_time_ms and state.value is not None:
        return replace(state, value=None, metadata={})
    return state


def _may_be_past(freshness: Freshness) -> bool:
    """Say whether what is read may have been replaced long ago."""
    return isinstance(freshness, AskSnapshot | AskLocal)


def _floor(region: OpenRegion, trusting: Trusting) -> Trust:
    return region.rules.read_floor if trusting.floor is None else trusting.floor


def _withheld(found: Found) -> Found:
    return found._replace(record=found.record.withheld(), withheld=True)


def _name(region: OpenRegion, head: bytes) -> EntryKey:
    path = b"/".join(keys.split(head[len(keys.HEAD) + len(region.prefix) :])).decode()
    return EntryKey(region.region, path)
