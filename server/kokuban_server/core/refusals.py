"""The reasons the board says no: one class for each kind of answer, with the facts as fields.

`wire.status` has one row for each reason here; `error_reason.proto` documents each for clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)  # not frozen: a traceback must be settable on the way through context managers
class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not an error of ours
    """Something the board will not do, and why."""

    @property
    def reason(self) -> str:
        """The value of `ErrorReason` without its prefix."""
        raise NotImplementedError  # pragma: no cover - every leaf gives it

    @property
    def facts(self) -> dict[str, str]:
        """What a client needs to act on the reason, named as `error_reason.proto` names it."""
        return {}

    def __str__(self) -> str:
        return " ".join([self.reason, *(f"{name}={value}" for name, value in self.facts.items())])


@dataclass(eq=False)
class InvalidRequest(Refusal):
    """A field is missing, malformed or over its limit; the caller must send something else."""

    code: str
    field_path: str
    detail: str
    more: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return self.code

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, **self.more}

    def under(self, prefix: str) -> InvalidRequest:
        """The same refusal with its field named from further up."""
        return InvalidRequest(self.code, f"{prefix}.{self.field_path}", self.detail, self.more)


@dataclass(eq=False)
class Unauthenticated(Refusal):
    """The call does not say, in a way that can be believed, who makes it."""

    code: str
    detail: str

    @property
    def reason(self) -> str:
        return self.code


@dataclass(eq=False)
class RoleRequired(Refusal):
    """The method is for callers with another role."""

    role: str
    reason = "ROLE_REQUIRED"

    @property
    def facts(self) -> dict[str, str]:
        return {"role": self.role}


@dataclass(eq=False)
class WriteForbidden(Refusal):
    """The caller may read the region, but not write it."""

    region: str
    reason = "WRITE_FORBIDDEN"

    @property
    def facts(self) -> dict[str, str]:
        return {"region": self.region}


@dataclass(eq=False)
class NotFound(Refusal):
    """There is no such thing, or the caller may not know of it: the two are told alike."""

    token: str = ""
    reason = "NOT_FOUND"

    @property
    def facts(self) -> dict[str, str]:
        return {"token": self.token} if self.token else {}


@dataclass(frozen=True, slots=True)
class Winner:
    """Who wrote the state that a loser ran into."""

    agent: str
    request_id: str
    time_ms: int
    traceparent: str

    @property
    def facts(self) -> dict[str, str]:
        """The winner as metadata; what is not known is left out."""
        named = {
            "winner_agent": self.agent,
            "winner_request_id": self.request_id,
            "winner_time_ms": str(self.time_ms),
            "winner_traceparent": self.traceparent,
        }
        return {name: value for name, value in named.items() if value}


@dataclass(eq=False)
class AlreadyExists(Refusal):
    """`must_not_exist` does not hold."""

    field_path: str
    region: str
    path: str
    actual_revision: int
    epoch: str
    winner: Winner
    reason = "ALREADY_EXISTS"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "field": self.field_path,
            "region": self.region,
            "path": self.path,
            "actual_revision": str(self.actual_revision),
            "epoch": self.epoch,
            **self.winner.facts,
        }


@dataclass(eq=False)
class BoardExists(Refusal):
    """There is a board of this id."""

    board: str
    reason = "BOARD_EXISTS"

    @property
    def facts(self) -> dict[str, str]:
        return {"board": self.board}


@dataclass(eq=False)
class PolicyChanged(Refusal):
    """The policy is not the one that the caller would replace."""

    board: str
    replaces: int
    actual: int
    author: str
    reason = "POLICY_CHANGED"

    @property
    def facts(self) -> dict[str, str]:
        named = {"board": self.board, "replaces": str(self.replaces), "actual": str(self.actual)}
        return {**named, **({"author": self.author} if self.author else {})}


@dataclass(eq=False)
class PolicyLocksOut(Refusal):
    """The policy's own author could not change it again."""

    board: str
    reason = "POLICY_LOCKS_OUT"

    @property
    def facts(self) -> dict[str, str]:
        return {"board": self.board}


@dataclass(eq=False)
class NotAdministrator(Refusal):
    """The policy names its administrators, and the caller is none of them."""

    board: str
    reason = "NOT_ADMINISTRATOR"

    @property
    def facts(self) -> dict[str, str]:
        return {"board": self.board}


@dataclass(eq=False)
class RevisionMismatch(Refusal):
    """`at` does not hold: the entry moved on since the caller read it, or is gone. Read again and decide again."""

    field_path: str
    region: str
    path: str
    expected_revision: int
    actual_revision: int
    exists: bool
    epoch: str
    winner: Winner | None
    reason = "REVISION_MISMATCH"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "field": self.field_path,
            "region": self.region,
            "path": self.path,
            "expected_revision": str(self.expected_revision),
            "actual_revision": str(self.actual_revision),
            "exists": "true" if self.exists else "false",
            "epoch": self.epoch,
            **(self.winner.facts if self.winner else {}),
        }


@dataclass(eq=False)
class Contended(Refusal):
    """Planning lost the race each time; nothing was written."""

    attempts: int
    reason = "CONTENDED"

    @property
    def facts(self) -> dict[str, str]:
        return {"attempts": str(self.attempts)}


@dataclass(eq=False)
class StateUnfit(Refusal):
    """The entry's present value does not admit the mutation."""

    code: str
    field_path: str
    region: str
    path: str
    more: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return self.code

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "region": self.region, "path": self.path, **self.more}


@dataclass(eq=False)
class TrustTooLow(Refusal):
    """What would be written is trusted less than what it would change, or than the region or the caller's right allows."""

    field_path: str
    what: str
    """What wants more: `entry`, `region` or `caller`."""
    trust: str
    least: str
    region: str = ""
    path: str = ""
    reason = "TRUST_TOO_LOW"

    @property
    def facts(self) -> dict[str, str]:
        place = {"region": self.region, "path": self.path} if self.region else {}
        return {"field": self.field_path, "what": self.what, "trust": self.trust, "least": self.least, **place}


@dataclass(eq=False)
class ReadScopeRequired(Refusal):
    """The region wants to know what the writer, or the reader of external text, has been given."""

    region: str
    reason = "READ_SCOPE_REQUIRED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": "session", "region": self.region}


@dataclass(eq=False)
class ReadScopeFull(Refusal):
    """The read scope can note no more external states, so it is given none."""

    session_id: str
    limit: int
    reason = "READ_SCOPE_FULL"

    @property
    def facts(self) -> dict[str, str]:
        return {"session": self.session_id, "limit": str(self.limit)}


@dataclass(eq=False)
class Withheld(Refusal):
    """The entry is there, but trusted less than was asked for."""

    region: str
    path: str
    revision: int
    epoch: str
    trust: str
    floor: str
    token: str
    reason = "WITHHELD"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "region": self.region,
            "path": self.path,
            "revision": str(self.revision),
            "epoch": self.epoch,
            "trust": self.trust,
            "floor": self.floor,
            "token": self.token,
        }


@dataclass(eq=False)
class ParentNotFound(Refusal):
    """A state that something is said to be made of is not there, or the caller may not know of it: the two are told alike."""

    field_path: str
    reason = "PARENT_NOT_FOUND"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path}


@dataclass(eq=False)
class ContentQuarantined(Refusal):
    """Screening found what a reviewer should see first; the commit is kept and applies nothing."""

    field_path: str
    quarantine_id: str
    rule: str
    rule_set: str
    reason = "CONTENT_QUARANTINED"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "field": self.field_path,
            "quarantine_id": self.quarantine_id,
            "rule": self.rule,
            "rule_set": self.rule_set,
        }


@dataclass(eq=False)
class ContentPending(Refusal):
    """Nothing is screened now; the commit is kept, and made once it was."""

    field_path: str
    quarantine_id: str
    reason = "CONTENT_PENDING"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "quarantine_id": self.quarantine_id}


@dataclass(eq=False)
class ContentRefused(Refusal):
    """Screening found what a reviewer should see first, and the commit is not kept."""

    field_path: str
    rule: str
    rule_set: str
    why: str
    """`full`, `rejected` or `words`."""
    reason = "CONTENT_REFUSED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "rule": self.rule, "rule_set": self.rule_set, "why": self.why}


@dataclass(eq=False)
class ContentSensitive(Refusal):
    """A text holds what the board's policy refuses, or what cannot be masked where it stands; nothing was written."""

    field_path: str
    type: str
    kind: str
    reason = "CONTENT_SENSITIVE"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "type": self.type, "kind": self.kind}


@dataclass(eq=False)
class EncryptionUnavailable(Refusal):
    """Something would have to be encrypted, and this server has no keys; nothing was written."""

    field_path: str
    reason = "ENCRYPTION_UNAVAILABLE"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path}


@dataclass(eq=False)
class RevealForbidden(Refusal):
    """The caller may read the region, but not have opened what is encrypted there."""

    reason = "REVEAL_FORBIDDEN"


@dataclass(eq=False)
class ContentUnsearched(Refusal):
    """A text is encoded deeper than is looked at, and may hold secrets; nothing was written."""

    field_path: str
    reason = "CONTENT_UNSEARCHED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path}


@dataclass(eq=False)
class ScreeningUnavailable(Refusal):
    """What comes from outside is screened before it is written, and screening gives no verdict now."""

    field_path: str
    reason = "SCREENING_UNAVAILABLE"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path}


@dataclass(eq=False)
class SourcePurged(Refusal):
    """The source, or the user, was purged from the board."""

    field_path: str
    removal: str
    reason = "SOURCE_PURGED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "removal": self.removal}


@dataclass(eq=False)
class ReadScopePurged(Refusal):
    """The session was given something that has been purged since."""

    session_id: str
    reason = "READ_SCOPE_PURGED"

    @property
    def facts(self) -> dict[str, str]:
        return {"session_id": self.session_id}


@dataclass(eq=False)
class PurgesFull(Refusal):
    """The board has as many purges and erasures, or refuses as many sources, as it can."""

    limit: int
    reason = "PURGES_FULL"

    @property
    def facts(self) -> dict[str, str]:
        return {"limit": str(self.limit)}


@dataclass(eq=False)
class ActionRecorded(Refusal):
    """The action was recorded before, and is not done again."""

    field_path: str
    task: str
    step: str
    action: str
    event: int
    how: str
    reason = "ACTION_RECORDED"

    @property
    def facts(self) -> dict[str, str]:
        place = {"field": self.field_path, "task": self.task, "step": self.step, "action_id": self.action}
        return {**place, "event": str(self.event), "how": self.how}


@dataclass(eq=False)
class ActionInDoubt(Refusal):
    """The action was begun before, and nobody recorded how it ended."""

    field_path: str
    task: str
    step: str
    action: str
    event: int
    attempt: int
    if_in_doubt: str
    reason = "ACTION_IN_DOUBT"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "field": self.field_path,
            "task": self.task,
            "step": self.step,
            "action_id": self.action,
            "event": str(self.event),
            "attempt": str(self.attempt),
            "if_in_doubt": self.if_in_doubt,
        }


@dataclass(eq=False)
class ActionNotStarted(Refusal):
    """What would end was not begun, or has ended already."""

    field_path: str
    task: str
    step: str
    action: str
    reason = "ACTION_NOT_STARTED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "task": self.task, "step": self.step, "action_id": self.action}


@dataclass(eq=False)
class StepNotHeld(Refusal):
    """What happens in a step is recorded by who holds it."""

    field_path: str
    task: str
    step: str
    status: str
    """Empty if there is no such step."""
    reason = "STEP_NOT_HELD"

    @property
    def facts(self) -> dict[str, str]:
        status = {"status": self.status} if self.status else {}
        return {"field": self.field_path, "task": self.task, "step": self.step, **status}


@dataclass(eq=False)
class TaskOver(Refusal):
    """The task is completed or cancelled."""

    field_path: str
    task: str
    status: str
    reason = "TASK_OVER"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "task": self.task, "status": self.status}


@dataclass(eq=False)
class TaskArchived(Refusal):
    """The task was archived, or is being archived at this moment."""

    task: str
    phase: str
    archive_time_ms: int
    digest: str
    reason = "TASK_ARCHIVED"

    @property
    def facts(self) -> dict[str, str]:
        time_ms = str(self.archive_time_ms)
        return {"task": self.task, "phase": self.phase, "archive_time_ms": time_ms, "digest": self.digest}


@dataclass(eq=False)
class TaskHeld(Refusal):
    """Somebody works on a step of the task."""

    task: str
    step: str
    reason = "TASK_HELD"

    @property
    def facts(self) -> dict[str, str]:
        return {"task": self.task, "step": self.step}


@dataclass(eq=False)
class ArchiveMismatch(Refusal):
    """The digest is not that of the task as it stands, or of the archive that was made of it."""

    field_path: str
    task: str
    given: str
    actual: str
    reason = "ARCHIVE_MISMATCH"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "task": self.task, "given": self.given, "actual": self.actual}


@dataclass(eq=False)
class ArchiveInvalid(Refusal):
    """A line is not the one that the archive has at its place."""

    field_path: str
    line: int
    detail: str
    reason = "ARCHIVE_INVALID"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "line": str(self.line), "detail": self.detail}


@dataclass(eq=False)
class ArchiveTooLarge(Refusal):
    """An entry of the task is larger than a line of an archive may be."""

    task: str
    path: str
    limit: int
    actual: int
    reason = "ARCHIVE_TOO_LARGE"

    @property
    def facts(self) -> dict[str, str]:
        return {"task": self.task, "path": self.path, "limit": str(self.limit), "actual": str(self.actual)}


@dataclass(eq=False)
class NoStepReady(Refusal):
    """No step can be given to this worker now."""

    task: str
    running: int
    waiting: int
    unable: int
    dead: int
    retry_time_ms: int
    """When the first rest ends, or 0."""
    reason = "NO_STEP_READY"

    @property
    def facts(self) -> dict[str, str]:
        counts = {"running": self.running, "waiting": self.waiting, "unable": self.unable, "dead": self.dead}
        if self.retry_time_ms:
            counts["retry_time_ms"] = self.retry_time_ms
        return {"task": self.task, **{name: str(count) for name, count in counts.items()}}


@dataclass(eq=False)
class NotOpen(Refusal):
    """There is no such constraint in force, or no such interrupt or subtask open."""

    field_path: str
    task: str
    what: str
    subject: str
    reason = "NOT_OPEN"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "task": self.task, "what": self.what, "id": self.subject}


@dataclass(eq=False)
class SubtaskNotReady(Refusal):
    """Something of a subtask is left to do."""

    field_path: str
    task: str
    subtask: str
    steps: int
    """How many are neither done nor dead."""
    subtasks: int
    """How many of it are open."""
    first: str
    """One of these."""
    reason = "SUBTASK_NOT_READY"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "field": self.field_path,
            "task": self.task,
            "subtask": self.subtask,
            "steps": str(self.steps),
            "subtasks": str(self.subtasks),
            "first": self.first,
        }


@dataclass(eq=False)
class StepNotDead(Refusal):
    """Only a dead step is revived."""

    field_path: str
    task: str
    step: str
    status: str
    """Empty if there is no such step."""
    reason = "STEP_NOT_DEAD"

    @property
    def facts(self) -> dict[str, str]:
        status = {"status": self.status} if self.status else {}
        return {"field": self.field_path, "task": self.task, "step": self.step, **status}


@dataclass(eq=False)
class ConfigChanged(Refusal):
    """The worker's configuration is not that of the step's last checkpoint, and the task refuses that."""

    task: str
    step: str
    given: str
    actual: str
    reason = "CONFIG_CHANGED"

    @property
    def facts(self) -> dict[str, str]:
        return {"task": self.task, "step": self.step, "given": self.given, "actual": self.actual}


@dataclass(eq=False)
class TaskFull(Refusal):
    """The task has as many of these as it may."""

    field_path: str
    task: str
    what: str
    limit: int
    reason = "TASK_FULL"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "task": self.task, "what": self.what, "limit": str(self.limit)}


@dataclass(eq=False)
class RequestIdReused(Refusal):
    """The id belongs to a commit with other arguments."""

    request_id: str
    reason = "REQUEST_ID_REUSED"

    @property
    def facts(self) -> dict[str, str]:
        return {"request_id": self.request_id}


@dataclass(eq=False)
class RequestIdExpired(Refusal):
    """The id is outside the window in which a repeat can be told from a first time."""

    request_id: str
    window_s: int
    store_time_ms: int
    reason = "REQUEST_ID_EXPIRED"

    @property
    def facts(self) -> dict[str, str]:
        return {
            "request_id": self.request_id,
            "window_s": str(self.window_s),
            "store_time_ms": str(self.store_time_ms),
        }


@dataclass(eq=False)
class SessionLost(Refusal):
    """There is no such session of the caller's; what it held is gone."""

    session_id: str
    reason = "SESSION_LOST"

    @property
    def facts(self) -> dict[str, str]:
        return {"session_id": self.session_id}


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is in the way of a loser, and why; as far as the loser may read it."""

    region: str
    path: str
    lock_id: str
    agent: str
    session_id: str
    mode: str
    state: str
    """`HELD`, `LOST` while its lock delay lasts, or `QUEUED` for a request that waits."""
    purpose: str
    since_ms: int
    traceparent: str

    @property
    def facts(self) -> dict[str, str]:
        """The holder as metadata; what is not known is left out."""
        named = {
            "region": self.region,
            "path": self.path,
            "lock_id": self.lock_id,
            "holder_agent": self.agent,
            "holder_session": self.session_id,
            "mode": self.mode,
            "state": self.state,
            "purpose": self.purpose,
            "since_ms": str(self.since_ms),
            "holder_traceparent": self.traceparent,
        }
        return {name: value for name, value in named.items() if value}


@dataclass(eq=False)
class LockedByOther(Refusal):
    """Somebody else holds a lock there, or stands before the caller in its queue."""

    field_path: str
    holder: Holder
    reason = "LOCKED_BY_OTHER"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, **self.holder.facts}


@dataclass(eq=False)
class LockLost(Refusal):
    """The lock is gone; stop what you do under it."""

    lock_id: str
    field_path: str = ""
    reason = "LOCK_LOST"

    @property
    def facts(self) -> dict[str, str]:
        return {"lock_id": self.lock_id, **({"field": self.field_path} if self.field_path else {})}


@dataclass(eq=False)
class LockRequired(Refusal):
    """The region takes writes under a lock only, and none of the commit's fences covers this path."""

    field_path: str
    region: str
    path: str
    reason = "LOCK_REQUIRED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "region": self.region, "path": self.path}


@dataclass(eq=False)
class LockShared(Refusal):
    """A shared lock forbids writes to its holders too."""

    field_path: str
    region: str
    path: str
    lock_id: str
    reason = "LOCK_SHARED"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "region": self.region, "path": self.path, "lock_id": self.lock_id}


@dataclass(eq=False)
class NotHolder(Refusal):
    """The fence, the session or the lock is somebody else's."""

    field_path: str
    lock_id: str = ""
    session_id: str = ""
    reason = "NOT_HOLDER"

    @property
    def facts(self) -> dict[str, str]:
        named = {"field": self.field_path, "lock_id": self.lock_id, "session_id": self.session_id}
        return {name: value for name, value in named.items() if value}


@dataclass(eq=False)
class LockOverlapsOwn(Refusal):
    """The session holds or waits for something that overlaps this already."""

    field_path: str
    region: str
    path: str
    lock_id: str
    reason = "LOCK_OVERLAPS_OWN"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path, "region": self.region, "path": self.path, "lock_id": self.lock_id}


@dataclass(frozen=True, slots=True)
class CycleEdge:
    """One step of a deadlock: who waits, and for what; as far as the victim may read it."""

    agent: str
    session_id: str
    targets: tuple[tuple[str, str, bool], ...]
    """Region, path, and whether everything below belongs to it."""
    purpose: str


@dataclass(eq=False)
class Deadlock(Refusal):
    """The request is the youngest of a circle of requests that wait for each other."""

    edges: tuple[CycleEdge, ...]
    length: int
    reason = "DEADLOCK"

    @property
    def facts(self) -> dict[str, str]:
        agents = list(dict.fromkeys(edge.agent for edge in self.edges if edge.agent))
        return {"length": str(self.length), "agents": ", ".join(agents[:6])}


@dataclass(eq=False)
class LockWaitExpired(Refusal):
    """The time to wait is over, and the request has been withdrawn."""

    waited_ms: int
    holder: Holder | None
    reason = "LOCK_WAIT_EXPIRED"

    @property
    def facts(self) -> dict[str, str]:
        return {"waited_ms": str(self.waited_ms), **(self.holder.facts if self.holder else {})}


@dataclass(eq=False)
class LockWaitTakenOver(Refusal):
    """Another stream asks with the same request id, and has taken this one's place."""

    lock_id: str
    reason = "LOCK_WAIT_TAKEN_OVER"

    @property
    def facts(self) -> dict[str, str]:
        return {"lock_id": self.lock_id}


@dataclass(eq=False)
class NothingToClaim(Refusal):
    """None of the entries exists and is free."""

    missing: int
    locked: int
    reason = "NOTHING_TO_CLAIM"

    @property
    def facts(self) -> dict[str, str]:
        return {"missing": str(self.missing), "locked": str(self.locked)}


@dataclass(eq=False)
class TooManyLocks(Refusal):
    """The session or the board has as many as it may; nothing was done."""

    what: str
    limit: int
    reason = "TOO_MANY_LOCKS"

    @property
    def facts(self) -> dict[str, str]:
        return {"what": self.what, "limit": str(self.limit)}


@dataclass(eq=False)
class TokenFromAnotherStore(Refusal):
    """A token or revision of another epoch."""

    field_path: str
    reason = "TOKEN_FROM_ANOTHER_STORE"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path}


@dataclass(eq=False)
class TokenAheadOfStore(Refusal):
    """A token newer than anything written."""

    field_path: str
    reason = "TOKEN_AHEAD_OF_STORE"

    @property
    def facts(self) -> dict[str, str]:
        return {"field": self.field_path}


@dataclass(eq=False)
class HistoryCompacted(Refusal):
    """The store no longer keeps what was asked for; list, then go on from the listing's token."""

    compacted_revision: int
    reason = "HISTORY_COMPACTED"

    @property
    def facts(self) -> dict[str, str]:
        return {"compacted_revision": str(self.compacted_revision)}


@dataclass(eq=False)
class WatchTooSlow(Refusal):
    """The reader's buffer is full; resume from the token."""

    token: str
    reason = "WATCH_TOO_SLOW"

    @property
    def facts(self) -> dict[str, str]:
        return {"token": self.token}


@dataclass(eq=False)
class WatchGap(Refusal):
    """The store lost a change, or may have; list, then go on from the listing's token."""

    token: str = ""
    reason = "WATCH_GAP"

    @property
    def facts(self) -> dict[str, str]:
        return {"token": self.token} if self.token else {}


@dataclass(eq=False)
class ResponseTooLarge(Refusal):
    """The answer would be too large; ask for less."""

    limit: int
    reason = "RESPONSE_TOO_LARGE"

    @property
    def facts(self) -> dict[str, str]:
        return {"limit": str(self.limit)}


@dataclass(eq=False)
class TooManyRequests(Refusal):
    """The server has as many calls in hand as it takes; nothing was done."""

    reason = "TOO_MANY_REQUESTS"


@dataclass(eq=False)
class PrincipalLimitReached(Refusal):
    """The caller's agent has as much in hand, or writes as fast, as one agent may; nothing was done."""

    what: str
    limit: int
    retry_ms: int
    """When there is room again; a guess, except for writes."""
    reason = "PRINCIPAL_LIMIT_REACHED"

    @property
    def facts(self) -> dict[str, str]:
        return {"what": self.what, "limit": str(self.limit)}


@dataclass(eq=False)
class BoardFull(Refusal):
    """The board takes as much of the store as it may; what was asked would put more, and nothing was done."""

    board: str
    limit: int
    actual: int
    retry_ms: int
    """When the board will have been counted anew."""
    reason = "BOARD_FULL"

    @property
    def facts(self) -> dict[str, str]:
        return {"board": self.board, "limit": str(self.limit), "actual": str(self.actual)}


@dataclass(eq=False)
class StoreFull(Refusal):
    """The store has no room for what this would write; reads still work."""

    reason = "STORE_FULL"


@dataclass(eq=False)
class StoreUnavailable(Refusal):
    """The store does not answer, and what was asked has definitely not happened."""

    detail: str = ""
    reason = "STORE_UNAVAILABLE"


@dataclass(eq=False)
class OutcomeUnknown(Refusal):
    """The store may or may not have done what was asked; send the same again to learn it."""

    request_id: str = ""
    detail: str = ""
    reason = "OUTCOME_UNKNOWN"

    @property
    def facts(self) -> dict[str, str]:
        return {"request_id": self.request_id} if self.request_id else {}


@dataclass(eq=False)
class DeadlineTooShort(Refusal):
    """The deadline passed before anything was done."""

    reason = "DEADLINE_TOO_SHORT"


@dataclass(eq=False)
class ServerDraining(Refusal):
    """The server is about to stop; nothing was done."""

    reason = "SERVER_DRAINING"


@dataclass(eq=False)
class StoreCorrupt(Refusal):
    """A stored record cannot be read. `key` is for the log and never leaves the server."""

    key: bytes
    detail: str
    reason = "STORE_CORRUPT"
