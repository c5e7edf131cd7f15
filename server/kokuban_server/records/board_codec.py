"""Boards' own records and their policies to stored messages and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.boards import BoardRecord, BoardState, PolicyVersion, PurgeCount, Receipt
from kokuban_server.core.locks import LockPolicy
from kokuban_server.core.policy import NO_POLICY, Policy, RegionRule, Subjects, parse_subjects
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt
from kokuban_server.core.sensitive import STANDARD, Handling, Terms
from kokuban_server.core.trust import ScreeningProfile, StaleScreening, TaintMode, Trust, WithoutVerdict
from kokuban_server.records.provenance_codec import encode_bar, read_bar

if TYPE_CHECKING:
    from google.protobuf.message import Message


def encode_board(board: BoardRecord) -> bytes:
    """Give the stored form of a board's record."""
    message = pb.BoardRecord(
        create_time_ms=board.create_time_ms,
        creator=board.creator,
        delete_time_ms=board.delete_time_ms,
        deleted_by=board.deleted_by,
        delete_reason=board.delete_reason,
    )
    if board.version.number:
        number, time_ms, author, reason = board.version
        message.policy.number = number
        message.policy.time_ms = time_ms
        message.policy.author = author
        message.policy.reason = reason
        message.policy.rules.extend(map(_stored_rule, board.policy.rules))
        message.policy.administrators.subjects.extend(board.policy.administrators.texts)
        redaction = board.policy.redaction
        message.policy.secrets = redaction.secret.name
        message.policy.personal_data = redaction.personal.name
        message.policy.unsearched = redaction.unsearched.name
        screening, stale = board.policy.tool_screening, board.policy.tool_stale_screening
        for tool, trust in board.policy.tools.items():
            message.policy.tools.add(
                name=tool, trust=trust, screening=screening.get(tool, ""), stale_screening=stale.get(tool, "")
            )
    message.removals = board.removals
    message.bars.extend(map(encode_bar, board.bars))
    if board.receipt is not None:
        removed, time_ms = board.receipt
        message.receipt.entries = removed.entries
        message.receipt.revisions = removed.revisions
        message.receipt.locks = removed.locks
        message.receipt.conflicts = removed.conflicts
        message.receipt.time_ms = time_ms
    return message.SerializeToString()


def decode_board(key: bytes, raw: bytes) -> BoardRecord:
    """Read a board's record."""
    try:
        message = pb.BoardRecord.FromString(raw)
        return _board(message)
    except (DecodeError, ValueError, InvalidRequest) as error:
        raise StoreCorrupt(key, f"not a board record: {error}") from error


def _board(message: pb.BoardRecord) -> BoardRecord:
    stored = message.policy
    receipt = message.receipt
    is_purged = message.HasField("receipt")
    return BoardRecord(
        message.create_time_ms,
        message.creator,
        _policy(stored) if message.HasField("policy") else NO_POLICY,
        PolicyVersion(stored.number, stored.time_ms, stored.author, stored.reason),
        BoardState.PURGED if is_purged else BoardState.DELETED if message.delete_time_ms else BoardState.LIVE,
        message.delete_time_ms,
        message.deleted_by,
        message.delete_reason,
        Receipt(_count(receipt), receipt.time_ms) if is_purged else None,
        tuple(map(read_bar, message.bars)),
        message.removals,
    )


def _stored_rule(rule: RegionRule) -> pb.StoredRegionRule:
    return pb.StoredRegionRule(
        pattern=rule.pattern,
        readers=_stored_subjects(rule.readers),
        writers=_stored_subjects(rule.writers),
        lockers=_stored_subjects(rule.lockers),
        revealers=_stored_subjects(rule.revealers),
        needs_precondition=rule.needs_precondition,
        lock_policy=rule.lock_policy or "",
        history_revisions_max=rule.history_revisions_max,
        history_age_ms_max=rule.history_age_ms_max,
        default_ttl_ms=rule.default_ttl_ms,
        read_floor=rule.read_floor or 0,
        taint_mode=rule.taint_mode or "",
        allows_lowering=rule.allows_lowering,
        screening=rule.screening or "",
        secrets=rule.secrets.name if rule.secrets else "",
        personal_data=rule.personal_data.name if rule.personal_data else "",
        stale_screening=rule.stale_screening or "",
        without_verdict=rule.without_verdict or "",
    )


def _stored_subjects(subjects: Subjects | None) -> pb.StoredSubjects | None:
    return None if subjects is None else pb.StoredSubjects(subjects=subjects.texts)


def _policy(stored: pb.StoredPolicy) -> Policy:
    administrators = parse_subjects(stored.administrators.subjects, "administrators")
    tools = {tool.name: Trust(tool.trust) for tool in stored.tools}
    screening = {tool.name: ScreeningProfile(tool.screening) for tool in stored.tools if tool.screening}
    stale = {tool.name: StaleScreening(tool.stale_screening) for tool in stored.tools if tool.stale_screening}
    redaction = Terms(
        _handling(stored.secrets) or STANDARD.secret,
        _handling(stored.personal_data) or STANDARD.personal,
        _handling(stored.unsearched) or STANDARD.unsearched,
    )
    return Policy(tuple(map(_rule, stored.rules)), administrators, tools, screening, redaction, stale)


def _handling(name: str) -> Handling | None:
    """Give what becomes of what is found. Raises `ValueError`."""
    if name and name not in Handling.__members__:
        raise ValueError(f"no handling: {name}")
    return Handling[name] if name else None


def _rule(stored: pb.StoredRegionRule) -> RegionRule:
    def if_set(name: str, message: Message = stored) -> bool:
        return message.HasField(name)

    def subjects(name: str, found: pb.StoredSubjects) -> Subjects | None:
        return parse_subjects(found.subjects, name) if if_set(name) else None

    return RegionRule(
        stored.pattern,
        subjects("readers", stored.readers),
        subjects("writers", stored.writers),
        subjects("lockers", stored.lockers),
        stored.needs_precondition if if_set("needs_precondition") else None,
        LockPolicy(stored.lock_policy) if stored.lock_policy else None,
        stored.history_revisions_max if if_set("history_revisions_max") else None,
        stored.history_age_ms_max if if_set("history_age_ms_max") else None,
        stored.default_ttl_ms if if_set("default_ttl_ms") else None,
        Trust(stored.read_floor) if stored.read_floor else None,
        TaintMode(stored.taint_mode) if stored.taint_mode else None,
        stored.allows_lowering if if_set("allows_lowering") else None,
        ScreeningProfile(stored.screening) if stored.screening else None,
        _handling(stored.secrets),
        _handling(stored.personal_data),
        StaleScreening(stored.stale_screening) if stored.stale_screening else None,
        WithoutVerdict(stored.without_verdict) if stored.without_verdict else None,
        subjects("revealers", stored.revealers),
    )


def encode_purge(count: PurgeCount) -> bytes:
    """Give the stored form of how far a purge has come."""
    return pb.PurgeRecord(
        entries=count.entries, revisions=count.revisions, locks=count.locks, conflicts=count.conflicts
    ).SerializeToString()


def decode_purge(key: bytes, raw: bytes) -> PurgeCount:
    """Read how far a purge has come."""
    try:
        message = pb.PurgeRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a purge record: {error}") from error
    return _count(message)


def _count(message: pb.PurgeRecord | pb.PurgeReceipt) -> PurgeCount:
    return PurgeCount(message.entries, message.revisions, message.locks, message.conflicts)
