"""The classes of the store's records, and what is wrong with a record of each: one row in `CLASSES` for each class.

Nothing here reads the store. A record is judged by what it says itself and by the records it names, all from one state; the
repair is whatever the verdict writes and removes, guarded on all of them (`app.doctor`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.app.quarantine_shelf import commit_of, marker_of
from kokuban_server.core import keys, limits
from kokuban_server.core.archives import ArchivePhase
from kokuban_server.core.boards import BoardState, PurgeCount
from kokuban_server.core.change_set import DeleteKey, Put
from kokuban_server.core.entry import EntryState
from kokuban_server.core.examination import FindingKind
from kokuban_server.core.quarantine import QuarantineState
from kokuban_server.core.refusals import StoreCorrupt
from kokuban_server.core.removals import RemovalState
from kokuban_server.records.archive_codec import decode_archive
from kokuban_server.records.board_codec import decode_board, decode_purge, encode_purge
from kokuban_server.records.codec import decode_board_size, decode_entry, decode_mark, decode_operation, decode_progress
from kokuban_server.records.conflict_codec import decode_conflict
from kokuban_server.records.lock_codec import decode_generation, decode_lock, decode_session, encode_lock
from kokuban_server.records.provenance_codec import decode_origins, decode_removal
from kokuban_server.records.quarantine_codec import decode_quarantined
from kokuban_server.records.task_codec import decode_notes
from kokuban_server.records.trust_codec import decode_read_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kokuban_server.ports.board_store import Record

_HOUR_MS: Final = 3_600 * 1_000
_DIGEST_KEY_BYTES: Final = 32


class Seen(NamedTuple):
    """A record, what it was judged by, and when: all of one state of the store."""

    record: Record
    related: Mapping[bytes, Record | None]
    now_ms: int
    """The store's time."""
    revision: int
    """The store's."""
    operations_kept_ms: int
    """How long operation records are kept."""


class Verdict(NamedTuple):
    """What is wrong with a record, and what would put it right: nothing, if nothing can."""

    kind: FindingKind
    words: str
    puts: tuple[Put, ...] = ()
    deletes: tuple[DeleteKey, ...] = ()
    may_be_in_work: bool = False
    """Some server may be about to put it right. It counts only if it is still so a moment later."""

    @property
    def is_repairable(self) -> bool:
        """Whether something would put it right."""
        return bool(self.puts or self.deletes)


def _named_nothing(record: Record) -> tuple[bytes, ...]:  # noqa: ARG001 - of a record that stands for itself
    return ()


def _nothing_wrong(seen: Seen) -> Verdict | None:  # noqa: ARG001 - with what can be read
    return None


def _below_class(prefix: bytes, key: bytes) -> bytes:
    """Give what a key says of tenant and board: they follow its class."""
    return key[len(prefix) :]


def _nowhere(prefix: bytes, key: bytes) -> bytes:  # noqa: ARG001 - of what belongs to the whole store
    return b""


class RecordClass(NamedTuple):
    """A class of records."""

    name: str
    prefix: bytes
    judge: Callable[[Seen], Verdict | None] = _nothing_wrong
    """Says what is wrong. Raises `StoreCorrupt` or `ValueError` for what cannot be read."""
    related: Callable[[Record], tuple[bytes, ...]] = _named_nothing
    """Gives the keys of the records that a record is judged by. Raises as `judge` does."""
    where: Callable[[bytes, bytes], bytes] = _below_class
    """Gives the part of a key, behind this prefix, that begins with tenant and board; nothing for what is the whole store's."""
    goes_with_board: bool = True
    """It goes when its board does."""
    on_lease: bool = False
    """It hangs on a lease."""
    is_named: bool = True
    """The last part of its key is a name that says nothing of any content. Else it is told by a digest of its key."""
    by_tenant: bool = True
    """The tenant comes first in its keys, so that others' need not be read."""

    def prefixes(self, tenant: str) -> tuple[bytes, ...]:
        """Give the prefixes below which lies what a tenant may have examined: its own, and what is nobody's own."""
        return (self.prefix + keys.join(tenant.encode()), self.prefix + b"/") if self.by_tenant else (self.prefix,)


def board_key_of(row: RecordClass, key: bytes) -> bytes:
    """Give the key of the board that a record is of; nothing for what is of none."""
    tenant, board, *_ = (*row.where(row.prefix, key).split(b"/", 2), b"", b"")
    return keys.BOARD + tenant + b"/" + board + b"/" if tenant and board else b""


def tenant_of(row: RecordClass, key: bytes) -> str:
    """Give the tenant that a record is of; nothing for what is the whole store's. Raises `ValueError`."""
    return keys.unescape(row.where(row.prefix, key).split(b"/", 1)[0]).decode()


def name_of(row: RecordClass, key: bytes) -> str:
    """Say which record it is, without a path."""
    if row.is_named:
        return keys.unescape(key[:-1].rpartition(b"/")[2]).decode("utf-8", "backslashreplace")
    return digest_of(key)


def digest_of(key: bytes) -> str:
    """Give by what a record is found in the log whose key may not be shown."""
    return "sha256:" + hashlib.sha256(key).hexdigest()[:16]


def judge(row: RecordClass, seen: Seen) -> Verdict | None:
    """Say what is wrong with a record of a class."""
    key = seen.record.key
    try:
        board_key = board_key_of(row, key) if row.goes_with_board else b""
        if board_key and _is_gone(seen, board_key):
            words = "its board is not there, or was deleted and purged"
            return Verdict(FindingKind.ORPHANED, words, deletes=(DeleteKey(key),))
        if row.on_lease and seen.record.lease is None:
            words = "it hangs on no lease, so it would stay for ever"
            return Verdict(FindingKind.UNLEASED, words, deletes=(DeleteKey(key),))
        return row.judge(seen)
    except (StoreCorrupt, ValueError, LookupError) as error:
        return Verdict(FindingKind.UNREADABLE, f"it cannot be read: {type(error).__name__}")


def related_of(row: RecordClass, record: Record) -> tuple[bytes, ...]:
    """Give the keys of all records by which a record is judged, beside its own; none for what cannot be read."""
    try:
        board_key = board_key_of(row, record.key) if row.goes_with_board else b""
        named = row.related(record)
    except (StoreCorrupt, ValueError, LookupError):
        return ()
    return tuple(dict.fromkeys((*named, board_key) if board_key else named))


def _is_gone(seen: Seen, board_key: bytes) -> bool:
    record = seen.related[board_key]
    # One that is deleted and not purged yet is being removed by the upkeep.
    return record is None or decode_board(board_key, record.value).state is BoardState.PURGED


# Entries.


def _by_head(seen: Seen) -> Verdict | None:
    key = seen.record.key
    state = decode_entry(key, seen.record.value)
    due_ms = state.expire_time_ms or state.sweep_time_ms
    if due_ms and seen.related[keys.due(due_ms, key)] is None:
        words = "nothing reminds the upkeep of its end: it would stay for ever"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(keys.due(due_ms, key), b""),))
    if not state.is_at_head_alone and seen.related[keys.history_record(key, state.sequence)] is None:
        words = "its history lacks this state: it cannot be listed or read at its revision; the entry's next write ends that"
        return Verdict(FindingKind.INCOMPLETE, words)
    return None


def _named_by_head(record: Record) -> tuple[bytes, ...]:
    state = decode_entry(record.key, record.value)
    due_ms = state.expire_time_ms or state.sweep_time_ms
    history = () if state.is_at_head_alone else (keys.history_record(record.key, state.sequence),)
    return (*history, keys.due(due_ms, record.key)) if due_ms else history


def _by_history(seen: Seen) -> Verdict | None:
    key = seen.record.key
    head_key = keys.head_of_history(key)
    state, head = decode_entry(key, seen.record.value), seen.related[head_key]
    if head is None:
        return Verdict(FindingKind.ORPHANED, "there is no entry whose history it is", deletes=(DeleteKey(key),))
    if state.sequence > decode_entry(head_key, head.value).sequence:
        words = "it is a later state than the entry's present one"
        return Verdict(FindingKind.IMPOSSIBLE, words, deletes=(DeleteKey(key),))
    return None


def _by_reminder(seen: Seen) -> Verdict | None:
    key = seen.record.key
    due_ms, head_key = keys.parse_due(key)
    head = seen.related[head_key]
    removed = (DeleteKey(key),)
    if head is None:
        return Verdict(FindingKind.ORPHANED, "there is no entry of whose end it reminds", deletes=removed)
    state = decode_entry(head_key, head.value)
    if due_ms != (state.expire_time_ms or state.sweep_time_ms):
        return Verdict(FindingKind.ORPHANED, "the entry's present state does not end then", deletes=removed)
    if due_ms < seen.now_ms - _HOUR_MS:
        dead = "expired" if state.state is EntryState.LIVE else "has been dead long enough to be removed"
        return Verdict(FindingKind.OVERDUE, f"its entry {dead} for more than an hour: no server does the upkeep")
    return None


def _named_by_reminder(record: Record) -> tuple[bytes, ...]:
    return (keys.parse_due(record.key)[1],)


def _where_of_reminder(prefix: bytes, key: bytes) -> bytes:  # noqa: ARG001 - its own
    return keys.parse_due(key)[1][len(keys.HEAD) :]


def _by_operation(seen: Seen) -> Verdict | None:
    key = seen.record.key
    minute, _, _, _, _ = keys.split(key[len(keys.OPERATION) :])
    decode_operation(key, seen.record.value)
    begun_ms, now_ms = int(minute) * 60_000, seen.now_ms
    if begun_ms < now_ms - seen.operations_kept_ms - _HOUR_MS:
        words = "its request could not be repeated any more for over an hour: no server does the upkeep"
        return Verdict(FindingKind.OVERDUE, words, deletes=(DeleteKey(key),))
    if begun_ms > now_ms + limits.REQUEST_ID_AHEAD_MS_MAX + _HOUR_MS:
        words = "its request id is of a time that has not come, so no request can have had it"
        return Verdict(FindingKind.IMPOSSIBLE, words, deletes=(DeleteKey(key),))
    return None


def _where_of_operation(prefix: bytes, key: bytes) -> bytes:
    return key[len(prefix) :].partition(b"/")[2]


# Boards, and the background work.


def _by_board(seen: Seen) -> Verdict | None:
    key = seen.record.key
    board = decode_board(key, seen.record.value)
    purge_key = keys.purge(*keys.parse_board(key))
    if board.state is BoardState.DELETED and seen.related[purge_key] is None:
        words = "it was deleted, and nothing has its content removed"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(purge_key, encode_purge(PurgeCount())),))
    return None


def _named_by_board(record: Record) -> tuple[bytes, ...]:
    return (keys.purge(*keys.parse_board(record.key)),)


def _by_purge(seen: Seen) -> Verdict | None:
    key = seen.record.key
    decode_purge(key, seen.record.value)
    board_key = keys.board(*keys.parse_purge(key))
    board = seen.related[board_key]
    if board is not None and decode_board(board_key, board.value).state is BoardState.LIVE:
        words = "it has a board's content removed that nobody deleted"
        return Verdict(FindingKind.ORPHANED, words, deletes=(DeleteKey(key),))
    return None


def _named_by_purge(record: Record) -> tuple[bytes, ...]:
    return (keys.board(*keys.parse_purge(record.key)),)


def _by_size(seen: Seen) -> Verdict | None:
    key = seen.record.key
    decode_board_size(key, seen.record.value)
    if seen.related[keys.BOARD + key[len(keys.SIZE) :]] is None:
        return Verdict(FindingKind.ORPHANED, "there is no board whose size it is", deletes=(DeleteKey(key),))
    return None


def _named_by_size(record: Record) -> tuple[bytes, ...]:
    return (keys.BOARD + record.key[len(keys.SIZE) :],)


def _by_mark(seen: Seen) -> Verdict | None:
    key = seen.record.key
    time_ms, revision = decode_mark(key, seen.record.value)
    if revision > seen.revision or time_ms > seen.now_ms + _HOUR_MS:
        words = "it names a state that the store has not reached: history would be forgotten by it too early"
        return Verdict(FindingKind.IMPOSSIBLE, words, deletes=(DeleteKey(key),))
    return None


def _by_progress(seen: Seen) -> Verdict | None:
    key = seen.record.key
    progress = decode_progress(key, seen.record.value)
    if max(progress.judged_revision, progress.walk_revision) > seen.revision:
        words = "it says of states to come that they were judged: they would be taken to be"
        return Verdict(FindingKind.IMPOSSIBLE, words, deletes=(DeleteKey(key),))
    return None


def _by_digest_key(seen: Seen) -> Verdict | None:
    if seen.record.key != keys.SECRET:
        return Verdict(FindingKind.UNKNOWN, "it is no record that this server knows")
    if len(seen.record.value) != _DIGEST_KEY_BYTES:
        raise ValueError("not a key")
    return None


# Sessions and locks.


def _key_beside(kind: bytes, key: bytes, name: str) -> bytes:
    """Give the key of another record of a board's locking."""
    return keys.on_board(kind, keys.parse_locking(key)[1], name)


def _by_session(seen: Seen) -> Verdict | None:
    decode_session(seen.record.key, seen.record.value)
    return None


def _by_lock(seen: Seen) -> Verdict | None:
    key = seen.record.key
    session_key, marker_key = _named_by_lock(seen.record)
    if seen.related[session_key] is None:
        return Verdict(FindingKind.ORPHANED, "there is no session that holds it", deletes=(DeleteKey(key),))
    if seen.related[marker_key] is None:
        words = "its marker is missing, so no request for a lock sees it"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(marker_key, seen.record.value),))
    return None


def _named_by_lock(record: Record) -> tuple[bytes, ...]:
    key = record.key
    lock = decode_lock(key, record.value)
    return (
        _key_beside(keys.SESSION, key, lock.session_id),
        _key_beside(keys.MARKER, key, keys.name_on_board(key)),
    )


def _by_marker(seen: Seen) -> Verdict | None:
    key = seen.record.key
    marker = decode_lock(key, seen.record.value)
    if seen.related[_key_beside(keys.LOCK, key, keys.name_on_board(key))] is not None:
        return None
    if not marker.lost_time_ms:
        words = "its lock was lost, and no server has noted that: what it takes stays closed"
        put = Put(key, encode_lock(marker._replace(lost_time_ms=seen.now_ms)))
        return Verdict(FindingKind.INCOMPLETE, words, puts=(put,), may_be_in_work=True)
    if marker.lost_time_ms + marker.lock_delay_ms < seen.now_ms - limits.LOCK_DELAY_MS_MAX:
        words = "its lock delay is over for more than a minute, and what it takes is still closed"
        return Verdict(FindingKind.OVERDUE, words, deletes=(DeleteKey(key),), may_be_in_work=True)
    return None


def _named_by_marker(record: Record) -> tuple[bytes, ...]:
    return (_key_beside(keys.LOCK, record.key, keys.name_on_board(record.key)),)


def _by_wait(seen: Seen) -> Verdict | None:
    """Judge a request that waits. One whose server is gone is the lock upkeep's affair: its caller may take it over yet."""
    key = seen.record.key
    if seen.related[_named_by_wait(seen.record)[0]] is None:
        return Verdict(FindingKind.ORPHANED, "there is no session that waits", deletes=(DeleteKey(key),))
    return None


def _by_task_wait(seen: Seen) -> Verdict | None:
    """Judge a wait for a part of a task: the server where it waits, on whose lease it hangs, is about to see what is wrong."""
    verdict = _by_wait(seen)
    return None if verdict is None else verdict._replace(may_be_in_work=True)


def _named_by_wait(record: Record) -> tuple[bytes, ...]:
    return (_key_beside(keys.SESSION, record.key, decode_lock(record.key, record.value).session_id),)


def _by_generation(seen: Seen) -> Verdict | None:
    decode_generation(seen.record.key, seen.record.value)
    return None


# Trust.


def _by_quarantined(seen: Seen) -> Verdict | None:
    reminder = _named_by_quarantined(seen.record)[0]
    if seen.related[reminder] is None:
        words = "nothing reminds the upkeep of its end: it would stay for ever"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(reminder, b""),))
    marker = marker_of(seen.record.key)
    item = decode_quarantined(seen.record.key, seen.record.value)
    if item.state is QuarantineState.PENDING and seen.related[marker] is None:
        words = "nothing says that it waits for what screens: it would wait for ever"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(marker, b""),))
    return None


def _named_by_quarantined(record: Record) -> tuple[bytes, ...]:
    item = decode_quarantined(record.key, record.value)
    return (keys.quarantine_due(item.create_time_ms + limits.QUARANTINE_MS, record.key), marker_of(record.key))


def _by_pending(seen: Seen) -> Verdict | None:
    key = seen.record.key
    if seen.related[commit_of(key)] is None:
        words = "there is no commit that waits for what screens"
        return Verdict(FindingKind.ORPHANED, words, deletes=(DeleteKey(key),), may_be_in_work=True)
    return None


def _named_by_pending(record: Record) -> tuple[bytes, ...]:
    return (commit_of(record.key),)


def _by_quarantine_reminder(seen: Seen) -> Verdict | None:
    key = seen.record.key
    if seen.related[keys.parse_quarantine_due(key)] is None:
        words = "there is no commit in quarantine of whose end it reminds"
        return Verdict(FindingKind.ORPHANED, words, deletes=(DeleteKey(key),))
    if key < keys.quarantine_due_before(seen.now_ms - _HOUR_MS):
        words = "its commit should have been removed more than an hour ago: no server does the upkeep"
        return Verdict(FindingKind.OVERDUE, words)
    return None


def _named_by_quarantine_reminder(record: Record) -> tuple[bytes, ...]:
    named = keys.parse_quarantine_due(record.key)
    if not named.startswith(keys.QUARANTINE):
        raise ValueError("not the key of a commit in quarantine")
    return (named,)


def _where_of_quarantine_reminder(prefix: bytes, key: bytes) -> bytes:  # noqa: ARG001 - its own
    return keys.parse_quarantine_due(key)[len(keys.QUARANTINE) :]


def _by_scope(seen: Seen) -> Verdict | None:
    """Judge a read scope. It outlives its session, and what was written in it refers to it (ADR 0014)."""
    decode_read_scope(seen.record.key, seen.record.value)
    return None


def _by_origin(seen: Seen) -> Verdict | None:
    """Judge what states were made of. What is superfluous among it is swept by a walk of its own."""
    decode_origins(seen.record.key, seen.record.value, seen.record.revision)
    return None


def _by_removal(seen: Seen) -> Verdict | None:
    removal = decode_removal(seen.record.key, seen.record.value)
    running = _named_by_removal(seen.record)[0]
    if removal.state is RemovalState.RUNNING and seen.related[running] is None:
        words = "it was begun, and nothing has it go on"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(running, b""),))
    return None


def _named_by_removal(record: Record) -> tuple[bytes, ...]:
    return (keys.REMOVAL_RUNNING + record.key[len(keys.REMOVAL) :],)


def _by_running_removal(seen: Seen) -> Verdict | None:
    key = seen.record.key
    removal_key = _named_by_running_removal(seen.record)[0]
    removal = seen.related[removal_key]
    if removal is None or decode_removal(removal_key, removal.value).state is not RemovalState.RUNNING:
        words = "there is no removal that is being done"
        return Verdict(FindingKind.ORPHANED, words, deletes=(DeleteKey(key),))
    return None


def _named_by_running_removal(record: Record) -> tuple[bytes, ...]:
    return (keys.REMOVAL + record.key[len(keys.REMOVAL_RUNNING) :],)


# Tasks.


def _by_archive(seen: Seen) -> Verdict | None:
    key = seen.record.key
    archive = decode_archive(key, seen.record.value)
    marker, task = _named_by_archive(seen.record)
    is_begun = archive.phase in {ArchivePhase.PREPARING, ArchivePhase.REMOVING}
    if is_begun and seen.related[marker] is None:
        words = "its task is being archived, and nothing has that go on"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(marker, b""),))
    if archive.is_hidden and seen.related[task] is not None:
        return Verdict(FindingKind.IMPOSSIBLE, "its task is said to be archived, and is there")
    return None


def _named_by_archive(record: Record) -> tuple[bytes, ...]:
    region = record.key[len(keys.TASK_ARCHIVE) :]
    return keys.ARCHIVING + region, keys.TASK + region


def _by_archiving(seen: Seen) -> Verdict | None:
    key = seen.record.key
    if seen.related[_named_by_archiving(seen.record)[0]] is None:
        return Verdict(FindingKind.ORPHANED, "there is no task that is being archived", deletes=(DeleteKey(key),))
    return None


def _named_by_archiving(record: Record) -> tuple[bytes, ...]:
    return (keys.TASK_ARCHIVE + record.key[len(keys.ARCHIVING) :],)


# Conflicts.


def _by_conflict(seen: Seen) -> Verdict | None:
    key = seen.record.key
    decode_conflict(key, seen.record.value)
    place_key = _named_by_conflict(seen.record)[0]
    place = seen.related[place_key]
    if place is None:
        words = "nothing says where it stands, so what became of it would not be noted"
        return Verdict(FindingKind.INCOMPLETE, words, puts=(Put(place_key, key),))
    if place.value != key:
        words = "the same conflict stands elsewhere as well"
        return Verdict(FindingKind.ORPHANED, words, deletes=(DeleteKey(key),))
    return None


def _named_by_conflict(record: Record) -> tuple[bytes, ...]:
    board, _, conflict_id = keys.parse_conflict(record.key)
    return (keys.conflict_place(board, conflict_id),)


def _by_conflict_place(seen: Seen) -> Verdict | None:
    key = seen.record.key
    if seen.related[seen.record.value] is None:
        return Verdict(FindingKind.ORPHANED, "there is no conflict where it says", deletes=(DeleteKey(key),))
    return None


def _named_by_conflict_place(record: Record) -> tuple[bytes, ...]:
    board, _, conflict_id = keys.parse_conflict(record.value)
    if not record.value.startswith(keys.CONFLICT) or keys.conflict_place(board, conflict_id) != record.key:
        raise ValueError("not the place of this conflict")
    return (record.value,)


# Tasks.


def _by_task_notes(seen: Seen) -> Verdict | None:
    key = seen.record.key
    decode_notes(key, seen.record.value)
    if seen.related[_named_by_task_notes(seen.record)[0]] is None:
        return Verdict(FindingKind.ORPHANED, "there is no task whose notes it is about", deletes=(DeleteKey(key),))
    return None


def _named_by_task_notes(record: Record) -> tuple[bytes, ...]:
    tenant, board_id, region, _ = keys.parse_task_notes(record.key)
    return (keys.TASK + keys.region_prefix(tenant, board_id, region),)


CLASSES: Final = (
    RecordClass("board", keys.BOARD, _by_board, _named_by_board, goes_with_board=False),
    RecordClass("purge", keys.PURGE, _by_purge, _named_by_purge, goes_with_board=False),
    RecordClass("board size", keys.SIZE, _by_size, _named_by_size, goes_with_board=False),
    RecordClass("entry", keys.HEAD, _by_head, _named_by_head, is_named=False),
    RecordClass("history", keys.HISTORY, _by_history, lambda one: (keys.head_of_history(one.key),), is_named=False),
    RecordClass(
        "reminder",
        keys.DUE,
        _by_reminder,
        _named_by_reminder,
        _where_of_reminder,
        goes_with_board=False,
        is_named=False,
        by_tenant=False,
    ),
    RecordClass(
        "operation",
        keys.OPERATION,
        _by_operation,
        where=_where_of_operation,
        goes_with_board=False,  # it makes a request happen once, also one that a deleted board was the last to see
        is_named=False,
        by_tenant=False,
    ),
    RecordClass("session", keys.SESSION, _by_session, on_lease=True),
    RecordClass("lock", keys.LOCK, _by_lock, _named_by_lock, on_lease=True),
    RecordClass("lock marker", keys.MARKER, _by_marker, _named_by_marker),
    RecordClass("wait", keys.WAIT, _by_wait, _named_by_wait, on_lease=True),
    RecordClass("task wait", keys.TASK_WAIT, _by_task_wait, _named_by_wait, on_lease=True),
    RecordClass("lock generation", keys.LOCK_GENERATION, _by_generation, is_named=False),
    RecordClass("queue generation", keys.QUEUE_GENERATION, _by_generation, is_named=False),
    RecordClass("read scope", keys.SCOPE, _by_scope),
    RecordClass("quarantine", keys.QUARANTINE, _by_quarantined, _named_by_quarantined),
    RecordClass("pending commit", keys.PENDING, _by_pending, _named_by_pending),
    RecordClass(
        "quarantine reminder",
        keys.QUARANTINE_DUE,
        _by_quarantine_reminder,
        _named_by_quarantine_reminder,
        _where_of_quarantine_reminder,
        goes_with_board=False,
        by_tenant=False,
    ),
    RecordClass("origin", keys.ORIGIN, _by_origin),
    RecordClass("removal", keys.REMOVAL, _by_removal, _named_by_removal),
    RecordClass("running removal", keys.REMOVAL_RUNNING, _by_running_removal, _named_by_running_removal),
    RecordClass("task log", keys.TASK_LOG, is_named=False),
    RecordClass("task", keys.TASK, is_named=False),
    RecordClass("task action", keys.TASK_ACTION, is_named=False),
    RecordClass("task notes", keys.TASK_NOTES, _by_task_notes, _named_by_task_notes, is_named=False),
    RecordClass("task archive", keys.TASK_ARCHIVE, _by_archive, _named_by_archive, is_named=False),
    RecordClass("archiving", keys.ARCHIVING, _by_archiving, _named_by_archiving, is_named=False),
    RecordClass("conflict", keys.CONFLICT, _by_conflict, _named_by_conflict),
    RecordClass("conflict place", keys.CONFLICT_PLACE, _by_conflict_place, _named_by_conflict_place),
    RecordClass("server", keys.SERVER, where=_nowhere, goes_with_board=False, on_lease=True, by_tenant=False),
    RecordClass("owner", keys.OWNER, where=_nowhere, goes_with_board=False, on_lease=True, by_tenant=False),
    RecordClass("compaction mark", keys.MARK, _by_mark, where=_nowhere, goes_with_board=False, by_tenant=False),
    RecordClass(
        "rescreening",
        keys.RESCREENING,
        _by_progress,
        where=_nowhere,
        goes_with_board=False,
        is_named=False,
        by_tenant=False,
    ),
    RecordClass("tick", keys.TICK, where=_nowhere, goes_with_board=False, is_named=False, by_tenant=False),
    RecordClass(
        "digest key", b"s/", _by_digest_key, where=_nowhere, goes_with_board=False, is_named=False, by_tenant=False
    ),
)
"""Every class of records but the audit log's, which has a judge of its own (`core.audit_judgement`)."""
