"""Looks through the store for records with which something is wrong, and puts right what can be, while agents work.

What looks wrong in one page of a scan is judged again with everything it is judged by, read in one cut. A repair is one change
set that is guarded on every record of that cut, those that were not there among them: whatever came to life in between, or was
written, is left alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import commit_surely
from kokuban_server.app.page_tokens import concealed_page_token, read_concealed_page_token
from kokuban_server.app.store_classes import (
    CLASSES,
    RecordClass,
    Seen,
    Verdict,
    board_key_of,
    digest_of,
    judge,
    name_of,
    related_of,
    tenant_of,
)
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Role
from kokuban_server.core.audit import BEGUN, STORE_REPAIR, AuditEntry
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey
from kokuban_server.core.examination import Finding, FindingKind, FindingOutcome
from kokuban_server.core.refusals import InvalidRequest, StoreFull
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.audit_reading import AuditReading
    from kokuban_server.core.access import Principal
    from kokuban_server.ports.board_store import BoardStore, Cut, Page, Record

_READ_AT_ONCE: Final = 256
_AT_ONCE: Final = 32
_SECOND_LOOK_S: Final = 2.0
"""Longer than what some server may be about to put right takes, and than a lease's last second, in which it is told as gone."""
_ABOVE: Final = b"\xff"
"""What follows a class's prefix in no key of it, and is above all that does."""
_UNKNOWN = "unknown"
_AUDIT = "audit log"


class ExaminedPage(NamedTuple):
    """What was found in one page of the store's records."""

    findings: list[Finding]
    record_class: str
    """Of which class the page was."""
    examined: int
    next_page_token: str
    revision: int


class _Step(NamedTuple):
    """A part of the examination: the records of a class below a prefix, in order of their keys."""

    row: RecordClass
    prefix: bytes


class _Suspect(NamedTuple):
    """A record that looks as if something is wrong with it."""

    row: RecordClass
    record: Record
    has_lost_lease: bool = False


class Doctor:
    """Examines what a tenant has in the store, and what belongs to the store as a whole."""

    def __init__(
        self,
        store: BoardStore,
        access: Access,
        audit: AuditLog,
        audit_reading: AuditReading,
        operations_kept_ms: int,
        digest: Callable[[bytes], bytes],
        second_look_s: float = _SECOND_LOOK_S,
    ) -> None:
        self._store = store
        self._access = access
        self._audit = audit
        self._audit_reading = audit_reading
        self._operations_kept_ms = operations_kept_ms
        self._digest = digest
        self._second_look_s = second_look_s

    @property
    def epoch(self) -> str:
        """The store's epoch."""
        return self._store.epoch

    async def examine(self, principal: Principal, token: str, deadline: float, *, repair: bool) -> ExaminedPage:
        """Look through the next page of records, and repair what can be if that is asked for.

        A page is of one class. Nothing of other tenants is looked at, nor of boards beyond the credential. Raises
        `RoleRequired`.
        """
        self._access.require_role(principal, Role.OPERATOR)
        steps = [_Step(row, prefix) for row in CLASSES for prefix in row.prefixes(principal.tenant)]
        number, after_token = _read_token(token, len(steps) + 2)
        if number == len(steps):
            return await self._unknown(number + 1, deadline)
        if number > len(steps):
            return await self._audit_log(principal, deadline)
        step = steps[number]
        listing = keys.join(b"examine", principal.tenant.encode(), str(number).encode())
        after = read_concealed_page_token(after_token, listing, step.prefix, self._digest)
        page = await self._store.scan(
            step.prefix, after, limits.STORE_EXAMINED_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, left_s(deadline)
        )
        next_token = f"{number + 1}."
        if page.more:
            last = page.records[-1].key  # may be of an entry that the caller may not read
            next_token = f"{number}.{concealed_page_token(last, listing, step.prefix, self._digest)}"
        page = page._replace(records=tuple(one for one in page.records if _is_for(principal, step.row, one.key)))
        findings = await self._findings(principal, step.row, page, deadline, repair=repair)
        return ExaminedPage(findings, step.row.name, len(page.records), next_token, page.revision)

    async def _unknown(self, next_number: int, deadline: float) -> ExaminedPage:
        """Look for records of no class that is known: one of each kind is told. Whose they are nobody knows."""
        known = (*(row.prefix for row in CLASSES), keys.AUDIT)
        findings: list[Finding] = []
        after, revision, examined = b"", 0, 0
        while examined < limits.STORE_EXAMINED_ENTRIES_MAX:
            page = await self._store.scan(b"", after, 1, limits.PAGE_BYTES_MAX, STRONG, left_s(deadline))
            revision = page.revision
            if not page.records:
                break
            key = page.records[0].key
            prefix = next((prefix for prefix in known if key.startswith(prefix)), None)
            if prefix is not None and not key.startswith(prefix + _ABOVE):
                after = prefix + _ABOVE
                continue
            examined += 1
            after = key
            words = "it is no record that this server knows; a newer one may have written it"
            not_repairable = FindingOutcome.NOT_REPAIRABLE
            findings.append(Finding(FindingKind.UNKNOWN, _UNKNOWN, "", digest_of(key), key, words, not_repairable))
        return ExaminedPage(findings, _UNKNOWN, examined, f"{next_number}.", revision)

    async def _audit_log(self, principal: Principal, deadline: float) -> ExaminedPage:
        """Have the tenant's audit log judged."""
        verdict = await self._audit_reading.verify(principal, b"", deadline)
        findings = [
            Finding(
                FindingKind.AUDIT_BROKEN,
                _AUDIT,
                "",
                f"{fault.chain or 'anchors'} from {fault.sequence}",
                b"",
                f"{fault.kind.value}, {fault.extent} of them; `kokuban audit verify` tells more",
                FindingOutcome.NOT_REPAIRABLE,
            )
            for fault in verdict.faults
        ]
        return ExaminedPage(findings, _AUDIT, verdict.records + verdict.anchors, "", verdict.revision)

    async def _findings(
        self, principal: Principal, row: RecordClass, page: Page, deadline: float, *, repair: bool
    ) -> list[Finding]:
        """Judge records of a class; give what is wrong, and what became of it."""
        records = page.records
        named = (key for record in records for key in related_of(row, record))
        related = await self._read(named, deadline)
        lost = await self._lost_leases(row, records, deadline)
        suspects = [
            _Suspect(row, record, record.lease in lost)
            for record in records
            if record.lease in lost or judge(row, self._seen(record, related, page)) is not None
        ]
        certain: list[tuple[Seen, Verdict]] = []
        in_work: list[tuple[Seen, Verdict]] = []
        for seen, verdict in await self._judged(suspects, deadline):
            (in_work if verdict.may_be_in_work else certain).append((seen, verdict))
        if in_work:
            await asyncio.sleep(min(self._second_look_s, left_s(deadline) / 2))
            lost = await self._lost_leases(row, [seen.record for seen, _ in in_work], deadline)
            again = [_Suspect(row, seen.record, seen.record.lease in lost) for seen, _ in in_work]
            certain += await self._judged(again, deadline)
        if repair and any(verdict.is_repairable for _, verdict in certain):
            target = f"{len(certain)} records of {row.name}"
            await self._audit.append(AuditEntry(STORE_REPAIR, principal, target=target, outcome=BEGUN), deadline)
        findings = []
        for begin in range(0, len(certain), _AT_ONCE):
            part = certain[begin : begin + _AT_ONCE]
            outcomes = await asyncio.gather(
                *[self._outcome(seen, verdict, deadline, repair=repair) for seen, verdict in part]
            )
            findings += [
                _finding(row, seen.record.key, verdict, outcome)
                for (seen, verdict), outcome in zip(part, outcomes, strict=True)
            ]
        return findings

    async def _judged(self, suspects: list[_Suspect], deadline: float) -> list[tuple[Seen, Verdict]]:
        """Judge each again by one cut of all that it is judged by. What was written since it was seen is let go."""
        judged = []
        for row, record, has_lost_lease in suspects:
            named = (record.key, *(key for key in related_of(row, record) if key != record.key))
            cut = await self._store.read(named, STRONG, left_s(deadline))
            found = cut.records[0]
            if found is None or found.revision != record.revision:
                continue
            related = dict(zip(named[1:], cut.records[1:], strict=True))
            seen = self._seen(found, related, cut)
            verdict = judge(row, seen)
            if verdict is None and has_lost_lease:
                words = "the lease it hangs on does not live, so it would stay for ever"
                deletes = (DeleteKey(found.key),)
                verdict = Verdict(FindingKind.UNLEASED, words, deletes=deletes, may_be_in_work=True)
            if verdict is not None:
                judged.append((seen, verdict))
        return judged

    def _seen(self, record: Record, related: Mapping[bytes, Record | None], state: Page | Cut) -> Seen:
        return Seen(record, related, state.store_time_ms, state.revision, self._operations_kept_ms)

    async def _outcome(self, seen: Seen, verdict: Verdict, deadline: float, *, repair: bool) -> FindingOutcome:
        """Repair what can be, if it is still as it was seen, and say what came of it."""
        if not verdict.is_repairable:
            return FindingOutcome.NOT_REPAIRABLE
        if not repair:
            return FindingOutcome.FOUND
        guards = [AtRevision(seen.record.key, seen.record.revision)]
        guards += [
            Absent(key) if record is None else AtRevision(key, record.revision)  # type: ignore[misc]  # both are guards
            for key, record in seen.related.items()
        ]
        try:
            await commit_surely(self._store, ChangeSet(tuple(guards), verdict.puts, verdict.deletes), deadline)
        except CommitRefused:
            return FindingOutcome.CHANGED
        except StoreFull:
            return FindingOutcome.STORE_FULL
        return FindingOutcome.REPAIRED

    async def _read(self, named: Iterable[bytes], deadline: float) -> Mapping[bytes, Record | None]:
        """Give what keys hold; not of one state."""
        distinct = list(dict.fromkeys(named))
        found: dict[bytes, Record | None] = {}
        for begin in range(0, len(distinct), _READ_AT_ONCE):
            part = distinct[begin : begin + _READ_AT_ONCE]
            cut = await self._store.read(part, STRONG, left_s(deadline))
            found.update(zip(part, cut.records, strict=True))
        return found

    async def _lost_leases(self, row: RecordClass, records: Sequence[Record], deadline: float) -> set[int]:
        """Give the leases, among those that records hang on, that do not live."""
        if not row.on_lease:
            return set()
        distinct = list({record.lease for record in records if record.lease is not None})
        lost: set[int] = set()
        for begin in range(0, len(distinct), _AT_ONCE):
            part = distinct[begin : begin + _AT_ONCE]
            alive = await asyncio.gather(*[self._lives(lease, deadline) for lease in part])
            lost.update(lease for lease, lives in zip(part, alive, strict=True) if not lives)
        return lost

    async def _lives(self, lease: int, deadline: float) -> bool:
        try:
            await self._store.lease_left(lease, left_s(deadline))
        except LeaseLost:
            return False
        return True


def _read_token(token: str, steps: int) -> tuple[int, str]:
    """Give the number of the step that a page is of, and the token within it."""
    if not token:
        return 0, ""
    number, dot, rest = token.partition(".")
    if not dot or not number.isascii() or not number.isdigit() or int(number) >= steps:
        raise InvalidRequest("PAGE_TOKEN_INVALID", "page_token", "not a token of an examination")
    return int(number), rest


def _is_for(principal: Principal, row: RecordClass, key: bytes) -> bool:
    """Say whether a record may be examined for a principal: its tenant's, of a board that it may enter; or nobody's."""
    try:
        if tenant_of(row, key) not in {"", principal.tenant}:
            return False
        board = _board_of(row, key)
    except (ValueError, LookupError):
        return True  # nobody's that could be told: it is told without a name
    return not board or principal.boards.includes(board)


def _board_of(row: RecordClass, key: bytes) -> str:
    board_key = board_key_of(row, key)
    return keys.parse_board(board_key)[1] if board_key else ""


def _finding(row: RecordClass, key: bytes, verdict: Verdict, outcome: FindingOutcome) -> Finding:
    try:
        board, name = _board_of(row, key), name_of(row, key)
    except (ValueError, LookupError):
        board, name = "", digest_of(key)
    return Finding(verdict.kind, row.name, board, name, key, verdict.words, outcome)
