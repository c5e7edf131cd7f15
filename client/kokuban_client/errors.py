"""The answers that are not what was asked for: one class for each reason that a server can give.

Act on the class, or on `reason` and `facts`; never on the message, which is for people. A reason that this library does not
know comes as the class of its status code.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from kokuban_client.types import InDoubt, LossCause, Revision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kokuban_client.types import WaitEdge


class KokubanError(Exception):
    """An answer that is not what was asked for.

    `code` is the name of the gRPC status code, `reason` the machine-readable reason (empty where none was given), `facts`
    what goes with the reason, `retry_after_s` how long the server asks to wait.
    """

    REASON: ClassVar[str] = ""

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        reason: str = "",
        facts: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason or self.REASON
        self.facts: Mapping[str, str] = dict(facts or {})
        self.retry_after_s = retry_after_s
        self.sent_request_id = ""

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in sorted(self.facts.items()))
        head = self.reason or self.code
        # A server's message may begin with its reason; once is enough for the reader.
        said = self.message.removeprefix(f"{head}: ") or head
        return f"{head}: {said}" + (f" ({facts})" if facts else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.message, self.code, self.reason, dict(self.facts), self.retry_after_s)

    @property
    def field(self) -> str:
        """The request's field that the answer is about, or an empty text."""
        return self.facts.get("field", "")

    @property
    def request_id(self) -> str:
        """The id of the commit that was answered so, or an empty text if it was no commit."""
        return self.facts.get("request_id", self.sent_request_id)


def _again(
    kind: type[KokubanError],
    message: str,
    code: str,
    reason: str,
    facts: Mapping[str, str],
    retry_after_s: float | None,
) -> KokubanError:
    return kind(message, code=code, reason=reason, facts=facts, retry_after_s=retry_after_s)


def _instant(told_ms: str) -> datetime | None:
    return datetime.fromtimestamp(int(told_ms) / 1000, UTC) if told_ms.isdecimal() else None


class Conflict(KokubanError):  # noqa: N818 - an answer, not an error of ours; so are those below
    """Somebody else was faster. Nothing was written; nothing is retried unless asked for (`Board.update`)."""

    @property
    def region(self) -> str:
        """The region of the entry that was fought over."""
        return self.facts.get("region", "")

    @property
    def path(self) -> str:
        """The path of the entry that was fought over."""
        return self.facts.get("path", "")

    @property
    def expected(self) -> Revision | None:
        """The revision that the loser believed in."""
        return self._revision("expected_revision")

    @property
    def actual(self) -> Revision | None:
        """The revision that is there, or of the deletion; None if there never was one or it may not be known."""
        return self._revision("actual_revision")

    @property
    def exists(self) -> bool | None:
        """Whether the entry is there now, where that is told."""
        told = self.facts.get("exists")
        return None if told is None else told == "true"

    @property
    def winner_agent(self) -> str:
        """The agent that was faster, or an empty text where that may not be known."""
        return self.facts.get("winner_agent", "")

    @property
    def winner_request_id(self) -> str:
        """The id of the commit that was faster."""
        return self.facts.get("winner_request_id", "")

    @property
    def winner_traceparent(self) -> str:
        """The W3C trace context of the commit that was faster."""
        return self.facts.get("winner_traceparent", "")

    @property
    def winner_time(self) -> datetime | None:
        """When the winner's commit was stamped."""
        return _instant(self.facts.get("winner_time_ms", ""))

    def _revision(self, fact: str) -> Revision | None:
        number = self.facts.get(fact, "")
        return Revision(int(number), self.facts.get("epoch", "")) if number.isdecimal() and int(number) else None


class LockConflict(Conflict):
    """Somebody else holds what this needs, or stands before the caller in the queue. Nothing was done."""

    @property
    def lock_id(self) -> str:
        """The lock that is in the way, or of the request that was refused."""
        return self.facts.get("lock_id", "")

    @property
    def holder_agent(self) -> str:
        """The agent that is in the way, or an empty text where that may not be known."""
        return self.facts.get("holder_agent", "")

    @property
    def holder_session(self) -> str:
        """The session that is in the way."""
        return self.facts.get("holder_session", "")

    @property
    def holder_traceparent(self) -> str:
        """The W3C trace context in which it asked for its lock."""
        return self.facts.get("holder_traceparent", "")

    @property
    def mode(self) -> str:
        """What the lock in the way permits: `exclusive` or `shared`."""
        return self.facts.get("mode", "").lower()

    @property
    def purpose(self) -> str:
        """What for, in the words of whoever is in the way."""
        return self.facts.get("purpose", "")

    @property
    def since(self) -> datetime | None:
        """Since when it has held the lock or waited for it."""
        return _instant(self.facts.get("since_ms", ""))

    @property
    def state(self) -> str:
        """`held`; `lost` while the lock delay of a lock without holder lasts; `queued` for a request that waits."""
        return self.facts.get("state", "").lower()


class Refused(KokubanError):  # noqa: N818 - as above
    """The server will not do it, and sending the same again will not help."""


class InvalidRequest(Refused):
    """The request itself is wrong; `field` names where."""


class AccessRefused(Refused):
    """The caller may not do this, or did not say who it is."""


class HistoryLost(Refused):
    """What is needed to go on without a gap is not there. Read anew, then go on from the new token."""


class Unavailable(KokubanError):  # noqa: N818 - as above
    """The service cannot answer now. Nothing was done, or only something was read."""


class DeadlineExceeded(Unavailable):
    """The time given for the call ran out, and nothing was written."""


class Unreachable(Unavailable):
    """No server was reached. Nothing was sent."""


class ClientClosed(Unavailable):
    """The client was closed, before or during the call."""


class ServerFault(KokubanError):  # noqa: N818 - as above
    """Something is broken at the server. After a commit: the same `request_id` sent again tells whether it holds."""


class RevisionMismatch(Conflict):
    """`at` does not hold: the entry moved on, or is gone. Read again and decide again."""

    REASON = "REVISION_MISMATCH"


class AlreadyExists(Conflict):
    """`must_not_exist` does not hold."""

    REASON = "ALREADY_EXISTS"


class BoardExists(Conflict):
    """There is a board of this id."""

    REASON = "BOARD_EXISTS"


class PolicyChanged(Conflict):
    """The board's policy is not the one that was to be replaced. Read it and decide again."""

    REASON = "POLICY_CHANGED"


class Contended(Conflict):
    """The server planned the commit several times and somebody else was faster each time. Nothing was written."""

    REASON = "CONTENDED"


class LockedByOther(LockConflict):
    """Somebody else holds a lock there, or stands before the caller in its queue."""

    REASON = "LOCKED_BY_OTHER"


class LockWaitExpired(LockConflict):
    """The time to wait for a lock is over. The facts tell who was in the way."""

    REASON = "LOCK_WAIT_EXPIRED"

    @property
    def waited_s(self) -> float | None:
        """How long the request waited."""
        told = self.facts.get("waited_ms", "")
        return int(told) / 1000 if told.isdecimal() else None


class LockWaitTakenOver(LockConflict):
    """Another stream asks with the same request id, and has taken this one's place."""

    REASON = "LOCK_WAIT_TAKEN_OVER"


class Deadlock(LockConflict):
    """To wait would be to wait for ever: `cycle` names who waits for whom. Release what you hold, and ask again."""

    REASON = "DEADLOCK"

    cycle: tuple[WaitEdge, ...] = ()
    """The circle, the caller's own request first; each waits for the next, and the last for the first. A long one is told
    without its middle: `length` counts all of it."""

    @property
    def length(self) -> int:
        """How many requests the circle has."""
        told = self.facts.get("length", "")
        return int(told) if told.isdecimal() else len(self.cycle)

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"cycle": self.cycle})


class NothingToClaim(LockConflict):
    """None of the entries exists and is free."""

    REASON = "NOTHING_TO_CLAIM"

    @property
    def missing(self) -> int:
        """How many of the entries are not there."""
        return _count(self.facts.get("missing", ""))

    @property
    def locked(self) -> int:
        """How many of the entries somebody holds."""
        return _count(self.facts.get("locked", ""))


def _count(told: str) -> int:
    return int(told) if told.isdecimal() else 0


class NotFound(KokubanError):  # noqa: N818 - as above
    """There is no such thing, or the caller may not know of it."""

    REASON = "NOT_FOUND"


class MalformedRequest(InvalidRequest):
    """The bytes are not what the method takes."""

    REASON = "MALFORMED_REQUEST"


class FieldRequired(InvalidRequest):
    """A field without default is not given, or is of a kind that the server does not know."""

    REASON = "FIELD_REQUIRED"


class FieldInvalid(InvalidRequest):
    """A field's value is not of the form or within the range that it must have."""

    REASON = "FIELD_INVALID"


class RegionRequired(InvalidRequest):
    """No region is named."""

    REASON = "REGION_REQUIRED"


class RegionInvalid(InvalidRequest):
    """The region is not `kind:id` with a known kind."""

    REASON = "REGION_INVALID"


class PathRequired(InvalidRequest):
    """No path is named where one entry is meant."""

    REASON = "PATH_REQUIRED"


class PathInvalid(InvalidRequest):
    """The path has an empty segment, `.`, `..`, a control character, or is not in normal form C."""

    REASON = "PATH_INVALID"


class PathTooLong(InvalidRequest):
    """The path has too many bytes."""

    REASON = "PATH_TOO_LONG"


class PathTooDeep(InvalidRequest):
    """The path has too many segments."""

    REASON = "PATH_TOO_DEEP"


class PreconditionRequired(InvalidRequest):
    """The writer did not say what it believes, or was unconditional where the region wants a belief."""

    REASON = "PRECONDITION_REQUIRED"


class PreconditionInvalid(InvalidRequest):
    """The precondition does not fit this mutation."""

    REASON = "PRECONDITION_INVALID"


class TokenInvalid(InvalidRequest):
    """A token or revision is not one that a server gave out."""

    REASON = "TOKEN_INVALID"


class PageTokenInvalid(InvalidRequest):
    """The page token is not from a listing with these fields."""

    REASON = "PAGE_TOKEN_INVALID"


class RequestIdRequired(InvalidRequest):
    """The commit has no request id."""

    REASON = "REQUEST_ID_REQUIRED"


class RequestIdInvalid(InvalidRequest):
    """The request id is not a UUID of version 7 in canonical lower-case spelling."""

    REASON = "REQUEST_ID_INVALID"


class ValueRequired(InvalidRequest):
    """A put that creates an entry has no value."""

    REASON = "VALUE_REQUIRED"


class ValueTooLarge(InvalidRequest):
    """One value has too many bytes."""

    REASON = "VALUE_TOO_LARGE"


class ValueNotJson(InvalidRequest):
    """What should be JSON is not one JSON text, or has a name twice."""

    REASON = "VALUE_NOT_JSON"


class JsonTooDeep(InvalidRequest):
    """The JSON is nested too deep."""

    REASON = "JSON_TOO_DEEP"


class MetadataInvalid(InvalidRequest):
    """There are too many metadata pairs, or one of them is empty or too long."""

    REASON = "METADATA_INVALID"


class ExpiryInvalid(InvalidRequest):
    """The expiry is past, too near, too far, or finer than a millisecond."""

    REASON = "EXPIRY_INVALID"


class MaskInvalid(InvalidRequest):
    """The update mask names something that a put has not, or names nothing."""

    REASON = "MASK_INVALID"


class TooManyItems(InvalidRequest):
    """A list is longer than its limit."""

    REASON = "TOO_MANY_ITEMS"


class CommitTooLarge(InvalidRequest):
    """The values of a commit together have too many bytes."""

    REASON = "COMMIT_TOO_LARGE"


class DuplicateKey(InvalidRequest):
    """The same entry is named twice."""

    REASON = "DUPLICATE_KEY"


class TaskPathReserved(InvalidRequest):
    """What lies below `.task` in a task's region is written by the mutations of tasks only."""

    REASON = "TASK_PATH_RESERVED"


class LockTargetsInvalid(InvalidRequest):
    """A lock's targets are in a region without locks, or one is there twice or inside another."""

    REASON = "LOCK_TARGETS_INVALID"


class DurationInvalid(InvalidRequest):
    """A time is outside its bounds, or finer than a millisecond."""

    REASON = "DURATION_INVALID"


class CredentialRequired(AccessRefused):
    """The call carries no credential."""

    REASON = "CREDENTIAL_REQUIRED"


class CredentialInvalid(AccessRefused):
    """The credential is malformed or not known, given more than once, or names another caller than the certificate."""

    REASON = "CREDENTIAL_INVALID"


class CredentialExpired(AccessRefused):
    """The credential was good and its time is over. Where its file holds another by now, the call is repeated with that."""

    REASON = "CREDENTIAL_EXPIRED"


class RoleRequired(AccessRefused):
    """The method needs a role that the caller has not."""

    REASON = "ROLE_REQUIRED"


class WriteForbidden(AccessRefused):
    """The caller may read this region but not write it."""

    REASON = "WRITE_FORBIDDEN"


class RevealForbidden(AccessRefused):
    """The policy does not name the caller among those to whom what is encrypted in the region is opened."""

    REASON = "REVEAL_FORBIDDEN"


class NotAdministrator(AccessRefused):
    """The board's policy names its administrators, and the caller is none of them."""

    REASON = "NOT_ADMINISTRATOR"


class PolicyLocksOut(Refused):
    """The policy's own author could not change it again."""

    REASON = "POLICY_LOCKS_OUT"


class ValueTypeMismatch(Refused):
    """The entry's value is not of the kind that the mutation computes with."""

    REASON = "VALUE_TYPE_MISMATCH"


class NumberOutOfRange(Refused):
    """The sum would leave 64 bits signed."""

    REASON = "NUMBER_OUT_OF_RANGE"


class ValueFull(Refused):
    """The computed value would be too large or too deep."""

    REASON = "VALUE_FULL"


class TrustTooLow(Refused):
    """What would be written is trusted less than what it would change, or than the region or the caller's right allows."""

    REASON = "TRUST_TOO_LOW"


class Withheld(Refused):
    """The entry is there, but trusted less than was asked for: ask with a lower floor, or write over it at its revision."""

    REASON = "WITHHELD"

    @property
    def revision(self) -> Revision:
        """The state that is withheld."""
        return Revision(int(self.facts["revision"]), self.facts["epoch"])


class ContentQuarantined(Refused):
    """Screening found what a reviewer should see first: the commit is kept, and applies nothing until it is released."""

    REASON = "CONTENT_QUARANTINED"

    @property
    def quarantine_id(self) -> str:
        """Under which a reviewer finds it."""
        return self.facts.get("quarantine_id", "")


class ContentPending(Refused):
    """Nothing is screened now: the commit is kept, and made once it was. Its repeat says what became of it."""

    REASON = "CONTENT_PENDING"

    @property
    def quarantine_id(self) -> str:
        """Under which a reviewer finds it."""
        return self.facts.get("quarantine_id", "")


class ContentRefused(Refused):
    """Screening found what a reviewer should see first, and it is not kept.

    Quarantine is full, or the commit was rejected; or it is no commit, but the purpose of a lock or the label of a session.
    """

    REASON = "CONTENT_REFUSED"


class ContentSensitive(Refused):
    """A text holds something secret or personal that the board's policy refuses, or that cannot be masked where it stands."""

    REASON = "CONTENT_SENSITIVE"

    @property
    def type(self) -> str:
        """What was found: `github-token`. The value, no answer says."""
        return self.facts.get("type", "")


class EncryptionUnavailable(Refused):
    """Something would have to be encrypted, and the server has no keys. Nothing was written; it is the operator's to mend."""

    REASON = "ENCRYPTION_UNAVAILABLE"


class ContentUnsearched(Refused):
    """A text is encoded deeper, or in more ways, than is looked at, so it may hold secrets. Nothing was written."""

    REASON = "CONTENT_UNSEARCHED"


class ScreeningUnavailable(Unavailable):
    """What looks at texts from outside, and at long ones, before they are written gives no answer now. Nothing was written."""

    REASON = "SCREENING_UNAVAILABLE"


class ReadScopeRequired(Refused):
    """The region wants to know what external text the writer or reader was given: name a session."""

    REASON = "READ_SCOPE_REQUIRED"


class ReadScopeFull(Refused):
    """The client has been given as much external text as one read scope may be. Connect anew for another."""

    REASON = "READ_SCOPE_FULL"


class NotDone(Exception):  # noqa: N818 - raised by callers, of what they were to do
    """Raised inside an action of a task: it has certainly not happened, so it may be begun again."""


class TaskRefused(Refused):
    """What was to happen in a task may not happen as the task stands."""

    @property
    def task(self) -> str:
        """The task's id."""
        return self.facts.get("task", "")

    @property
    def step(self) -> str:
        """The step, where one is meant."""
        return self.facts.get("step", "")


class ActionRecorded(TaskRefused):
    """The action was recorded before, and is not done again. `event` is the number of the event with its result."""

    REASON = "ACTION_RECORDED"

    @property
    def event(self) -> int:
        """The number of the event that says how it ended."""
        return _count(self.facts.get("event", ""))

    @property
    def was_skipped(self) -> bool:
        """Whether it was recorded that nobody knows."""
        return self.facts.get("how", "") == "ACTION_SKIPPED"


class ActionInDoubt(TaskRefused):
    """The action was begun before, and nobody recorded how it ended: find out before it is begun again."""

    REASON = "ACTION_IN_DOUBT"

    @property
    def action_id(self) -> str:
        """The action's id."""
        return self.facts.get("action_id", "")

    @property
    def if_in_doubt(self) -> InDoubt:
        """What was declared when it began."""
        told = self.facts.get("if_in_doubt", "").lower()
        return next((policy for policy in InDoubt if policy == told), InDoubt.ASK)

    @property
    def event(self) -> int:
        """The number of the event that began it."""
        return _count(self.facts.get("event", ""))


class ActionNotStarted(TaskRefused):
    """What would end was not begun, or has ended already."""

    REASON = "ACTION_NOT_STARTED"


class StepNotHeld(TaskRefused):
    """What happens in a step is recorded by who holds it."""

    REASON = "STEP_NOT_HELD"


class TaskOver(TaskRefused):
    """The task is completed or cancelled."""

    REASON = "TASK_OVER"

    @property
    def status(self) -> str:
        """`COMPLETED` or `CANCELLED`."""
        return self.facts.get("status", "")


class NoStepReady(TaskRefused):
    """No step can be given to this worker now."""

    REASON = "NO_STEP_READY"

    @property
    def running(self) -> int:
        """How many steps others work on."""
        return _count(self.facts.get("running", ""))

    @property
    def waiting(self) -> int:
        """How many wait: for other steps, for an answer, for the end of a rest, for a lock."""
        return _count(self.facts.get("waiting", ""))

    @property
    def unable(self) -> int:
        """How many want labels that the worker does not offer."""
        return _count(self.facts.get("unable", ""))

    @property
    def dead(self) -> int:
        """How many have failed for good."""
        return _count(self.facts.get("dead", ""))


class NotOpen(TaskRefused):
    """There is no such constraint in force, or no such interrupt or subtask open."""

    REASON = "NOT_OPEN"


class SubtaskNotReady(TaskRefused):
    """Something of the subtask is left to do."""

    REASON = "SUBTASK_NOT_READY"

    @property
    def steps(self) -> int:
        """How many of its steps are neither done nor dead."""
        return _count(self.facts.get("steps", ""))

    @property
    def subtasks(self) -> int:
        """How many of its subtasks are open."""
        return _count(self.facts.get("subtasks", ""))


class StepNotDead(TaskRefused):
    """Only a dead step is revived."""

    REASON = "STEP_NOT_DEAD"


class ConfigChanged(TaskRefused):
    """The worker's configuration is not that of the step's last checkpoint, and the task refuses that."""

    REASON = "CONFIG_CHANGED"


class TaskFull(TaskRefused):
    """The task has as many of these as it may."""

    REASON = "TASK_FULL"


class TaskArchived(TaskRefused):
    """The task was archived, or is being archived at this moment; its id is not used again."""

    REASON = "TASK_ARCHIVED"

    @property
    def phase(self) -> str:
        """`preparing` (it may be there again in a moment), `archived` or `restoring`."""
        return self.facts.get("phase", "")

    @property
    def digest(self) -> str:
        """The archive's, from which the task can be brought back."""
        return self.facts.get("digest", "")


class TaskHeld(TaskRefused):
    """Somebody works on a step of the task."""

    REASON = "TASK_HELD"


class ArchiveMismatch(TaskRefused):
    """The archive is not of the task as it stands (export it again), or not the one that was made of it."""

    REASON = "ARCHIVE_MISMATCH"


class ArchiveInvalid(Refused):
    """A line of an archive was changed, left out, moved or repeated."""

    REASON = "ARCHIVE_INVALID"

    @property
    def line(self) -> int:
        """Its number in the archive."""
        return int(self.facts.get("line", "0"))


class ArchiveTooLarge(TaskRefused):
    """An entry of the task is larger than a line of an archive may be."""

    REASON = "ARCHIVE_TOO_LARGE"


class SourcePurged(Refused):
    """The source, or the user, was purged from the board, and nothing that comes from it is written any more."""

    REASON = "SOURCE_PURGED"

    @property
    def removal_id(self) -> str:
        """By which purge or erasure; for operators to look at."""
        return self.facts.get("removal", "")


class ReadScopePurged(Refused):
    """The client was given something that has been purged since, so nothing that it would write is written.

    The client does not begin anew by itself: what the agent has in its own context, in its prompt or in its variables, may
    hold what was purged. Drop that, connect anew, read again what you need, and then write.
    """

    REASON = "READ_SCOPE_PURGED"

    @property
    def session_id(self) -> str:
        """The session in whose read scope it was given."""
        return self.facts.get("session_id", "")


class PurgesFull(Refused):
    """The board has as many purges and erasures as it may have, or refuses as many sources."""

    REASON = "PURGES_FULL"


class ParentNotFound(Refused):
    """A state in `derived_from` is not there, is no longer kept, or may not be read. Nothing was written."""

    REASON = "PARENT_NOT_FOUND"


class RequestIdReused(Refused):
    """The request id belongs to a commit with other arguments. Nothing was written."""

    REASON = "REQUEST_ID_REUSED"


class RequestIdExpired(Refused):
    """The request id is older than the server remembers, or too far ahead of its time. Nothing was written."""

    REASON = "REQUEST_ID_EXPIRED"


class SessionLost(Refused):
    """The session ended, or never was; or nobody answered for so long that it may have ended. What it held is gone."""

    REASON = "SESSION_LOST"

    @property
    def session_id(self) -> str:
        """The session."""
        return self.facts.get("session_id", "")


class LockLost(Refused):
    """A lock is gone, or may be gone: lost, broken, over its longest hold, or released. Stop what you do under it.

    Raised by the server for a dead fence (nothing was written), and by this library as soon as it can no longer be sure.
    """

    REASON = "LOCK_LOST"

    @property
    def lock_id(self) -> str:
        """The lock."""
        return self.facts.get("lock_id", "")

    @property
    def cause(self) -> LossCause:
        """Why it is lost, as far as that is known."""
        told = self.facts.get("cause", "")
        return next((cause for cause in LossCause if cause == told), LossCause.UNKNOWN)

    @property
    def broken_by(self) -> str:
        """The agent that broke it, if that is how it was lost."""
        return self.facts.get("broken_by", "")

    @property
    def words(self) -> str:
        """That agent's reason."""
        return self.facts.get("words", "")


class LockRequired(Refused):
    """The region takes writes under a lock only, and no fence of the commit covers this path."""

    REASON = "LOCK_REQUIRED"


class LockShared(Refused):
    """The path is under a shared lock of the caller's own, which forbids writes to its holders too."""

    REASON = "LOCK_SHARED"


class NotHolder(Refused):
    """The fence, the session or the lock is somebody else's."""

    REASON = "NOT_HOLDER"


class LockOverlapsOwn(Refused):
    """The session holds or waits for something that overlaps this already. A lock is not taken twice."""

    REASON = "LOCK_OVERLAPS_OWN"


class TooManyLocks(Refused):
    """The session has as many locks and requests, or the board as many sessions or requests, as it may."""

    REASON = "TOO_MANY_LOCKS"


class TokenFromAnotherStore(HistoryLost):
    """A token or revision was given out by another store, or before a restore."""

    REASON = "TOKEN_FROM_ANOTHER_STORE"


class HistoryCompacted(HistoryLost):
    """The store no longer keeps the history that was asked for."""

    REASON = "HISTORY_COMPACTED"


class WatchGap(HistoryLost):
    """The store lost or may have lost a change."""

    REASON = "WATCH_GAP"


class TokenAheadOfStore(Refused):
    """A token is newer than anything the store has written."""

    REASON = "TOKEN_AHEAD_OF_STORE"


class ResponseTooLarge(Refused):
    """The answer would be too large. Ask for fewer entries."""

    REASON = "RESPONSE_TOO_LARGE"


class StoreFull(Refused):
    """The store has no room for what this would write, and a delete writes too. Reads still work."""

    REASON = "STORE_FULL"


class BoardFull(Refused):
    """The board takes about as much of the store as it may. Reads, deletes and releases still work."""

    REASON = "BOARD_FULL"


class TooManyRequests(Unavailable):
    """The server has as many calls in hand as it takes. Nothing was done."""

    REASON = "TOO_MANY_REQUESTS"


class PrincipalLimitReached(Unavailable):
    """This agent has as much in hand, or writes as fast, as one agent may. `facts` names `what` and the `limit`."""

    REASON = "PRINCIPAL_LIMIT_REACHED"


class StoreUnavailable(Unavailable):
    """The store does not answer or has no quorum. Nothing was written."""

    REASON = "STORE_UNAVAILABLE"


class ServerDraining(Unavailable):
    """The server is about to stop. Nothing was done."""

    REASON = "SERVER_DRAINING"


class WatchTooSlow(Unavailable):
    """The reader did not keep up. A watch of this library resumes by itself."""

    REASON = "WATCH_TOO_SLOW"


class DeadlineTooShort(DeadlineExceeded):
    """The call's deadline passed before anything was done."""

    REASON = "DEADLINE_TOO_SHORT"


class OutcomeUnknown(KokubanError):  # noqa: N818 - as above
    """Whether the commit holds is not known. Send it again with the same `request_id` to learn it."""

    REASON = "OUTCOME_UNKNOWN"


class StoreCorrupt(ServerFault):
    """A stored record cannot be read. The server's log names it."""

    REASON = "STORE_CORRUPT"


class InternalFault(ServerFault):
    """A fault of the server. Its log has the details under the fact `incident`."""

    REASON = "INTERNAL"


def _leaves(kind: type[KokubanError]) -> dict[str, type[KokubanError]]:
    own = {kind.REASON: kind} if "REASON" in vars(kind) and kind.REASON else {}
    for below in kind.__subclasses__():
        own |= _leaves(below)
    return own


BY_REASON: Mapping[str, type[KokubanError]] = _leaves(KokubanError)
"""The class of each reason."""

BY_CODE: Mapping[str, type[KokubanError]] = {
    "ABORTED": Conflict,
    "ALREADY_EXISTS": Conflict,
    "NOT_FOUND": NotFound,
    "INVALID_ARGUMENT": InvalidRequest,
    "UNAUTHENTICATED": AccessRefused,
    "PERMISSION_DENIED": AccessRefused,
    "FAILED_PRECONDITION": Refused,
    "OUT_OF_RANGE": Refused,
    "RESOURCE_EXHAUSTED": Refused,
    "UNIMPLEMENTED": Refused,
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNKNOWN": ServerFault,
    "INTERNAL": ServerFault,
    "DATA_LOSS": ServerFault,
}
"""The class of each status code, for answers whose reason is not known."""


def error_for(
    code: str,
    message: str,
    *,
    reason: str = "",
    facts: Mapping[str, str] | None = None,
    retry_after_s: float | None = None,
) -> KokubanError:
    """Give the error for an answer: by its reason if that is known, else by its status code."""
    kind = BY_REASON.get(reason) or BY_CODE.get(code, KokubanError)
    return kind(message, code=code, reason=reason, facts=facts, retry_after_s=retry_after_s)
