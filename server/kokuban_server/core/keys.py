"""Store keys: the one place where names become bytes, and bytes names again.

Every segment is escaped and ends in `/`, so no key is ever a prefix of a sibling's, and the keys below a path are exactly
those that begin with its key. A key's first segment says what it holds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from kokuban_server.core.names import EntryKey, Region, RegionKind, parse_region
from kokuban_server.core.tasks import EVENTS_PATH

HEAD: Final = b"e/"  # an entry's present state
HISTORY: Final = b"h/"  # an entry's states in order, newest first; of an event only those that are past
OPERATION: Final = b"o/"  # what makes a commit happen once
DUE: Final = b"x/"  # what the sweeper has to look at, and when
BOARD: Final = b"b/"  # that a board exists
OWNER: Final = b"w/"  # which server does a piece of background work
MARK: Final = b"c/"  # which revision was current when
TICK: Final = b"j/tick"  # written to move store time
SECRET: Final = b"s/digest"  # the key of operation digests
PURGE: Final = b"d/"  # that a deleted board's content is being removed
SIZE: Final = b"z/"  # what a board takes, as it was last counted
RESCREENING: Final = b"r/walk"  # how far what older rules have let in was judged again
PENDING: Final = b"r/p/"  # that such a commit waits for what screens
QUARANTINE: Final = b"q/"  # a commit that was held back, in order of time
ORIGIN: Final = b"i/"  # what the states of a commit were made of, in order of time on its board
REMOVAL: Final = b"p/d/"  # the purge of a source, or the erasure of a person, the newest first
REMOVAL_RUNNING: Final = b"p/r/"  # that it is being done
QUARANTINE_DUE: Final = b"v/"  # when such a commit is removed
SCOPE: Final = b"t/"  # what external text a read scope was given
AUDIT: Final = b"u/"  # everything of the audit log
AUDIT_RECORD: Final = b"u/r/"  # an act that somebody may have to answer for, in order of time within its tenant
AUDIT_HEAD: Final = b"u/h/"  # the end of a chain of records
AUDIT_MOVED: Final = b"u/m/"  # the end of a chain that moved since it was anchored
AUDIT_ANCHOR: Final = b"u/a/"  # what the ends of chains were
AUDIT_NEWEST: Final = b"u/n/"  # a tenant's newest anchor
CONFLICT: Final = b"y/r/"  # a request that lost, in order of time on its board, the newest first
CONFLICT_PLACE: Final = b"y/i/"  # where the record of a conflict stands, by the conflict's id
TASK_LOG: Final = b"j/l/"  # the number of a task's last event
TASK: Final = b"j/s/"  # how a task stands
TASK_ACTION: Final = b"j/a/"  # that an action of a task was recorded
TASK_NOTES: Final = b"j/n/"  # that the working notes of a subtask have to be given an expiry
TASK_ARCHIVE: Final = b"j/t/"  # that a task was archived
ARCHIVING: Final = b"j/w/"  # that it is being done

LOCKING: Final = b"k/"  # everything about sessions and locks, so that one watch sees it all in order
SESSION: Final = b"k/n/"  # a session, on its lease
LOCK: Final = b"k/l/"  # a lock, on its session's lease: what fences are compared with
MARKER: Final = b"k/m/"  # that a lock was granted and not released
WAIT: Final = b"k/a/"  # a request that waits, on its session's lease
TASK_WAIT: Final = b"k/t/"  # that somebody waits for a part of a task, on the lease of the server where they do
LOCK_GENERATION: Final = b"k/g/"  # moved by every grant and downgrade in a region
QUEUE_GENERATION: Final = b"k/q/"  # moved by every wait that begins in a region
SERVER: Final = b"k/r/"  # that a server lives, on a lease of its own

NOWHERE: Final = HEAD
"""A key that never holds anything: read where there is nothing that the caller may read, so that the answer takes as long and
names a state all the same."""

_ESCAPED = re.compile(rb"[\x00-\x1f%/\x7f]")
_TASK_REGION: Final = f"{RegionKind.TASK}:".encode()
_EVENT: Final = re.compile(rb"e/[^/]*/[^/]*/" + _TASK_REGION + rb"[^/]*/" + re.escape(f"{EVENTS_PATH}/".encode()))
_SEQUENCE_TOP: Final = 0xFFFF_FFFF_FFFF_FFFF
_TIME_TOP_MS: Final = 999_999_999_999_999
_SEPARATOR: Final = b"\x00"  # never stands in an escaped segment, so a history is apart from what is below its entry


def escape(segment: bytes) -> bytes:
    """Give the segment without `/`, `%`, control bytes or DEL: each stands as `%XX`."""
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], segment)


def unescape(segment: bytes) -> bytes:
    """Undo `escape`."""
    return re.sub(rb"%([0-9A-F]{2})", lambda found: bytes((int(found[1], 16),)), segment)


def join(*segments: bytes) -> bytes:
    """Give the key of the segments, each escaped and ended by `/`."""
    return b"".join(escape(segment) + b"/" for segment in segments)


def split(key: bytes) -> list[bytes]:
    """Undo `join`."""
    return [unescape(segment) for segment in key.split(b"/")[:-1]]


def prefix_end(prefix: bytes) -> bytes:
    """Give the least key above every key with this prefix; empty when there is none (nothing, or only 0xff bytes)."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b""


@lru_cache(maxsize=4096)
def region_prefix(tenant: str, board: str, region: Region) -> bytes:
    """Give what is common to the keys of a region, behind their first segment.

    The regions beyond a board have no board in their key (nor, for `global`, a tenant): an empty segment, which no board
    and no tenant has.
    """
    if region.kind is RegionKind.GLOBAL:
        return join(b"", b"", str(region).encode())
    if region.kind is RegionKind.TENANT:
        return join(tenant.encode(), b"", str(region).encode())
    return join(tenant.encode(), board.encode(), str(region).encode())


def path_key(path: str) -> bytes:
    """Give the part of a key that a path makes."""
    raw = path.encode()
    return raw + b"/" if _ESCAPED.search(raw.replace(b"/", b"")) is None else join(*raw.split(b"/"))


@lru_cache(maxsize=16_384)
def head(region: bytes, path: str) -> bytes:
    """Give the key of an entry's present state. `region` comes from `region_prefix`."""
    return head_once(region, path)


def head_once(region: bytes, path: str) -> bytes:
    """Give the same of an entry that is not named again soon, so that it need not be remembered."""
    return HEAD + region + path_key(path)


def head_of(tenant: str, board_id: str, key: EntryKey) -> bytes:
    """Give the key of the present state of an entry that is named on a board."""
    return head(region_prefix(tenant, board_id, key.region), key.path)


def heads(region: bytes, path: str = "") -> bytes:
    """Give the prefix of the heads at and below a path, or of a whole region."""
    return HEAD + region + (path_key(path) if path else b"")


def history(head_key: bytes) -> bytes:
    """Give the prefix of an entry's history records."""
    return HISTORY + head_key[len(HEAD) :] + _SEPARATOR


def history_record(head_key: bytes, sequence: int) -> bytes:
    """Give the key of one history record. Later sequences sort first."""
    return history(head_key) + (_SEQUENCE_TOP - sequence).to_bytes(8, "big")


def head_of_history(key: bytes) -> bytes:
    """Give the head key that a history record's key belongs to."""
    return HEAD + key[len(HISTORY) : -9]


def is_of_event(head_key: bytes) -> bool:
    """Say whether a head is of an event of a task, whose present state stands there alone."""
    return _EVENT.match(head_key) is not None


def task_heads(board_prefix_key: bytes) -> bytes:
    """Give the prefix of all heads in a board's tasks, their events among them."""
    return HEAD + board_prefix_key + _TASK_REGION


def operation(time_ms: int, tenant: str, board: str, agent: str, request_id: str) -> bytes:
    """Give the key of an operation record, in order of the minute in the id, so that a sweep is a range."""
    return operations_before(time_ms) + _caller(tenant, board, agent) + join(request_id.encode())


@lru_cache(maxsize=4096)
def _caller(tenant: str, board: str, agent: str) -> bytes:
    return join(tenant.encode(), board.encode(), agent.encode())


def operations_before(time_ms: int) -> bytes:
    """Give a key that all operation records of earlier minutes are below."""
    return OPERATION + b"%010d/" % (time_ms // 60_000)


def due(time_ms: int, head_key: bytes) -> bytes:
    """Give the key of a reminder to look at a head at a time."""
    return due_before(time_ms) + head_key


def due_before(time_ms: int) -> bytes:
    """Give a key that all reminders of earlier times are below."""
    return DUE + b"%015d/" % time_ms


def parse_due(key: bytes) -> tuple[int, bytes]:
    """Give the time in milliseconds and the head key of a reminder."""
    digits = key[len(DUE) : len(DUE) + 15]
    return int(digits), key[len(DUE) + 16 :]


def board(tenant: str, board_id: str) -> bytes:
    """Give the key of a board's own record."""
    return BOARD + join(tenant.encode(), board_id.encode())


def boards(tenant: str) -> bytes:
    """Give the prefix of the records of a tenant's boards."""
    return BOARD + join(tenant.encode())


def parse_board(key: bytes) -> tuple[str, str]:
    """Give the tenant and the board that a board's own record is of."""
    tenant, board_id = split(key[len(BOARD) :])
    return tenant.decode(), board_id.decode()


def purge(tenant: str, board_id: str) -> bytes:
    """Give the key of the record that says how far the removal of a deleted board has come."""
    return PURGE + join(tenant.encode(), board_id.encode())


def parse_purge(key: bytes) -> tuple[str, str]:
    """Give the tenant and the board of such a record."""
    tenant, board_id = split(key[len(PURGE) :])
    return tenant.decode(), board_id.decode()


def owner(job: str) -> bytes:
    """Give the key of the record that says who does a piece of background work."""
    return OWNER + join(job.encode())


def mark(time_ms: int) -> bytes:
    """Give the key of a compaction mark; earlier ones sort first."""
    return MARK + b"%015d/" % time_ms


@lru_cache(maxsize=4096)
def board_prefix(tenant: str, board_id: str) -> bytes:
    """Give what is common to the keys of a board's sessions and locks, behind what says which they are."""
    return join(tenant.encode(), board_id.encode())


def size(board_prefix_key: bytes) -> bytes:
    """Give the key of the record of what a board takes. `board_prefix_key` comes from `board_prefix`."""
    return SIZE + board_prefix_key


def on_board(kind: bytes, board_prefix_key: bytes, name: str) -> bytes:
    """Give the key of a board's session, lock, marker or wait. `board_prefix_key` comes from `board_prefix`."""
    return kind + board_prefix_key + name.encode() + b"/"


def name_on_board(key: bytes) -> str:
    """Give the name of the session, lock or whatever else of a board a key is of."""
    return key[:-1].rpartition(b"/")[2].decode()


def parse_locking(key: bytes) -> tuple[bytes, bytes, str]:
    """Give what a key below `LOCKING` is of: its kind, and of those of a board the board's prefix and the name."""
    kind, rest = key[: len(SESSION)], key[len(SESSION) : -1]
    prefix, _, name = rest.rpartition(b"/")
    return kind, prefix + b"/", name.decode()


def board_of_generation(key: bytes) -> bytes:
    """Give the prefix of the board that a generation's region belongs to."""
    tenant, board_id, _ = key[len(LOCK_GENERATION) :].split(b"/", 2)
    return tenant + b"/" + board_id + b"/"


def quarantine_due(time_ms: int, key: bytes) -> bytes:
    """Give the key of a reminder to remove a commit in quarantine at a time."""
    return quarantine_due_before(time_ms) + key


def quarantine_due_before(time_ms: int) -> bytes:
    """Give a key that all such reminders of earlier times are below."""
    return QUARANTINE_DUE + b"%015d/" % time_ms


def parse_quarantine_due(key: bytes) -> bytes:
    """Give the key of the commit that a reminder is of."""
    return key[len(QUARANTINE_DUE) + 16 :]


def origin(board_prefix_key: bytes, time_ms: int, identity: str) -> bytes:
    """Give the key of what the states of a commit were made of. `identity` is of its own."""
    return on_board(ORIGIN, board_prefix_key, f"{time_ms:015d}-{identity}")


def new_removal(time_ms: int, identity: str) -> str:
    """Give the id of a removal: later ones sort first. `identity` is of its own."""
    return f"{_TIME_TOP_MS - time_ms:015d}-{identity}"


def parse_running(key: bytes) -> tuple[bytes, str]:
    """Give the board prefix and the id of a removal that is being done."""
    return key[len(REMOVAL_RUNNING) : -1].rpartition(b"/")[0] + b"/", name_on_board(key)


def board_of_origin(key: bytes) -> bytes:
    """Give the board prefix of such a key, or of that of a read scope."""
    return key[len(ORIGIN) : -1].rpartition(b"/")[0] + b"/"


def server(server_id: str) -> bytes:
    """Give the key of the record that says that a server lives."""
    return SERVER + join(server_id.encode())


def audit_records(tenant: str) -> bytes:
    """Give the prefix of a tenant's audit records, which are in order of time."""
    return AUDIT_RECORD + join(tenant.encode())


def audit_records_before(tenant: str, time_ms: int) -> bytes:
    """Give a key that all audit records of earlier times are below."""
    return audit_records(tenant) + b"%015d/" % time_ms


def audit_record(tenant: str, time_ms: int, chain: str, sequence: int) -> bytes:
    """Give the key of an audit record."""
    return audit_records_before(tenant, time_ms) + join(chain.encode()) + b"%016d/" % sequence


def parse_audit_record(key: bytes) -> tuple[int, str, int] | None:
    """Give time, chain and sequence of an audit record's key; nothing for what is no such key."""
    try:
        tenant, time_ms, chain, sequence = (segment.decode() for segment in split(key[len(AUDIT_RECORD) :]))
        place = int(time_ms), chain, int(sequence)
    except ValueError:
        return None
    return place if audit_record(tenant, *place) == key else None


def audit_chains(kind: bytes, tenant: str) -> bytes:
    """Give the prefix of the ends of a tenant's chains. `kind` is `AUDIT_HEAD` or `AUDIT_MOVED`."""
    return kind + join(tenant.encode())


def audit_chain(kind: bytes, tenant: str, chain: str) -> bytes:
    """Give the key of a chain's end."""
    return kind + join(tenant.encode(), chain.encode())


def parse_audit_chain(key: bytes) -> tuple[str, str]:
    """Give tenant and chain of the key of a chain's end."""
    segments = split(key[len(AUDIT_HEAD) :])
    return segments[0].decode(), segments[-1].decode()


def audit_anchors(tenant: str) -> bytes:
    """Give the prefix of a tenant's anchors, which are in order."""
    return AUDIT_ANCHOR + join(tenant.encode())


def audit_anchor(tenant: str, sequence: int) -> bytes:
    """Give the key of an anchor."""
    return audit_anchors(tenant) + b"%016d/" % sequence


def parse_audit_anchor(key: bytes) -> int:
    """Give the sequence of an anchor's key; 0 for what is no such key."""
    tenant, _, digits = key[len(AUDIT_ANCHOR) : -1].partition(b"/")
    sequence = int(digits) if digits.isdigit() else 0
    return sequence if AUDIT_ANCHOR + tenant + b"/%016d/" % sequence == key else 0


def audit_newest(tenant: str) -> bytes:
    """Give the key of what names a tenant's newest anchor."""
    return AUDIT_NEWEST + join(tenant.encode())


def conflicts(board_prefix_key: bytes) -> bytes:
    """Give the prefix of a board's conflicts. `board_prefix_key` comes from `board_prefix`."""
    return CONFLICT + board_prefix_key


def conflicts_from(board_prefix_key: bytes, time_ms: int) -> bytes:
    """Give a key that all conflicts of later times are below, and none of this time or earlier ones."""
    return conflicts(board_prefix_key) + b"%015d/" % (_TIME_TOP_MS - time_ms)


def conflict(board_prefix_key: bytes, time_ms: int, conflict_id: str) -> bytes:
    """Give the key of a conflict."""
    return conflicts_from(board_prefix_key, time_ms) + conflict_id.encode() + b"/"


def parse_conflict(key: bytes) -> tuple[bytes, int, str]:
    """Give a conflict's board prefix, time and id."""
    prefix, time, conflict_id = key[len(CONFLICT) : -1].rsplit(b"/", 2)
    return prefix + b"/", _TIME_TOP_MS - int(time), conflict_id.decode()


def conflict_place(board_prefix_key: bytes, conflict_id: str) -> bytes:
    """Give the key of what says where a conflict's record stands."""
    return CONFLICT_PLACE + board_prefix_key + conflict_id.encode() + b"/"


def task_action(region: bytes, step: str, action: str) -> bytes:
    """Give the key of what says that an action was recorded. `region` comes from `region_prefix`."""
    return TASK_ACTION + region + join(step.encode(), action.encode())


def task_notes(region: bytes, path: str) -> bytes:
    """Give the key of what says that the entries below a path of a task have to be given an expiry."""
    return TASK_NOTES + region + join(path.encode())


def parse_task_notes(key: bytes) -> tuple[str, str, Region, str]:
    """Give tenant, board, region and path of such a key."""
    tenant, board_id, region, path = (segment.decode() for segment in split(key[len(TASK_NOTES) :]))
    return tenant, board_id, parse_region(region), path


def tasks(tenant: str, board_id: str) -> bytes:
    """Give the prefix of the records of how a board's tasks stand."""
    return TASK + join(tenant.encode(), board_id.encode())


def names_in(region: bytes, key: bytes, kind: bytes) -> list[str]:
    """Give what a key says behind its kind and its region."""
    return [segment.decode() for segment in split(key[len(kind) + len(region) :])]


def parse_task(key: bytes) -> Region:
    """Give the region of a task whose record stands at a key."""
    return parse_region_of(key, TASK)


def parse_region_of(key: bytes, kind: bytes) -> Region:
    """Give the region of which there is one record of a kind."""
    return parse_region(split(key[len(kind) :])[-1].decode())


def parse_head(key: bytes) -> tuple[str, str, EntryKey]:
    """Give tenant, board and entry key of a head key."""
    tenant, board_id, region, *path = (segment.decode() for segment in split(key[len(HEAD) :]))
    return tenant, board_id, EntryKey(parse_region(region), "/".join(path))
