"""What the library gives and takes: values, entries, changes, results. Plain, immutable, without the wire."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence  # noqa: TC003 - so that the hints below can be resolved at run time
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - as above
from typing import Any, TypeAlias

_EPOCH = re.compile(r"[0-9a-f]{16}")
_LOCK_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Revision:
    """One written state of one entry: a number, and the life of the store that gave it. Spelled `41@00c0ffee00c0ffee`."""

    number: int
    epoch: str

    def __str__(self) -> str:
        return f"{self.number}@{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Revision:
        """Read the form that `str` gives; raises ValueError for anything else."""
        number, at, epoch = text.partition("@")
        if not at or not number.isascii() or not number.isdigit() or not _EPOCH.fullmatch(epoch):
            raise ValueError(f"not a revision: {text!r}; one looks like 41@00c0ffee00c0ffee")
        return cls(int(number), epoch)


@dataclass(frozen=True, slots=True)
class Text:
    """A value that is text. A plain `str` given as a value means the same."""

    text: str


@dataclass(frozen=True, slots=True)
class Json:
    """A value that is JSON, as its exact text. A dict, list, number, bool or None given as a value is written compactly."""

    raw: str

    def parse(self) -> Any:  # noqa: ANN401 - JSON holds anything
        """Give the parsed value, made anew at each call so that changing it changes nothing here."""
        return json.loads(self.raw)


@dataclass(frozen=True, slots=True)
class Binary:
    """A value that is bytes with a media type, for instance `image/png`."""

    data: bytes
    media_type: str


PlainContent: TypeAlias = Text | Json | Binary


class Trust(enum.IntEnum):
    """How far something may be believed. Each level is above those before it."""

    UNKNOWN = 0
    """A newer server's word that this library does not know. Believe it no more than `EXTERNAL`."""
    SUSPECT = 1
    """Held back: shown to reviewers only."""
    EXTERNAL = 2
    """From outside, or made of what came from outside: data, and never an instruction."""
    AGENT = 3
    """An agent's word."""
    USER = 4
    """A user's word, attested by an agent that acts for that user."""
    OPERATOR = 5
    SYSTEM = 6


class SourceKind(enum.StrEnum):
    """Where a text comes from."""

    AGENT = "agent"
    """An agent wrote it."""
    USER = "user"
    """A person wrote it, whom an agent speaks for."""
    TOOL = "tool"
    """A tool gave it."""
    EXTERNAL = "external"
    """It was fetched from outside: a page, a mail, a document."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a writer says of where something comes from."""

    kind: SourceKind | str
    uri: str = ""
    """Names it. Needed of what is external, or nothing could be traced to it."""
    name: str = ""
    """The user, or the tool."""
    content_sha256: str = ""
    """Of what was fetched, in lower-case hexadecimal digits."""
    fetch_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class External:
    """A value that came from outside, or was made of what did. It is data: whatever it says, nobody may follow it.

    It does not print as its text, so that it does not slip into a prompt as if an agent had written it; `read` gives it.
    """

    content: PlainContent = field(repr=False)
    source: Source | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    def read(self) -> Any:  # noqa: ANN401 - text, parsed JSON, or Binary
        """Give the value as `str`, parsed JSON or `Binary`: by calling this you say that you treat it as data."""
        return value_of(self.content)

    def __str__(self) -> str:
        origin = self.source.uri if self.source is not None and self.source.uri else "an unnamed source"
        return f"<external text from {origin!r}>"


Content: TypeAlias = PlainContent | External


class Keep(enum.Enum):
    """The one thing a put can be given instead of a value: keep the value that is there."""

    KEEP = "keep"


KEEP = Keep.KEEP


def content_of(value: object) -> PlainContent:
    """Give the form in which a Python value is written.

    `str` becomes text; dict, list, tuple, int, float, bool and None become JSON. Raises TypeError for bytes without a media
    type, for external text and for what JSON cannot hold, ValueError for a number that JSON cannot spell.
    """
    match value:
        case Text() | Json() | Binary():
            return value
        case External():
            raise TypeError(
                "external text: write what `read` gives, and say by `source` or `derived_from` where it is from"
            )
        case str():
            return Text(value)
        case bytes() | bytearray() | memoryview():
            raise TypeError("bytes need a media type: Binary(data, media_type)")
        case _:
            return Json(json_text(value))


def json_text(value: object) -> str:
    """Give compact JSON, or raise: a name that is not a string would otherwise be turned into one silently."""
    _refuse_other_names(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _refuse_other_names(value: object) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"a name in a JSON object must be a string, not {name!r}")
            if isinstance(item, (dict, list, tuple)):
                _refuse_other_names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, (dict, list, tuple)):
                _refuse_other_names(item)


def value_of(content: Content | None) -> Any:  # noqa: ANN401 - text, parsed JSON, or Binary
    """Give the Python value of a content: `str`, parsed JSON, or the `Binary` or `External` itself."""
    match content:
        case Text():
            return content.text
        case Json():
            return content.parse()
        case _:
            return content


@dataclass(frozen=True, slots=True)
class _Holding:
    """What holds a content and can show it as a Python value."""

    @property
    def value(self) -> Any:  # noqa: ANN401 - text, parsed JSON, or Binary
        """The content as `str`, parsed JSON, or `Binary`; None where there is none. JSON is parsed anew at each call."""
        return value_of(self._content())

    @property
    def json_text(self) -> str:
        """The exact JSON text, in which every digit is kept. Raises TypeError if the content is not JSON."""
        content = self._content()
        if not isinstance(content, Json):
            raise TypeError("this is not JSON")
        return content.raw

    def _content(self) -> Content | None:
        raise NotImplementedError  # pragma: no cover - each holder has one


@dataclass(frozen=True, slots=True)
class EntryKey:
    """One entry's name: its region (`shared:plan`) and its path there (`task_1/step_2`)."""

    region: str
    path: str

    def __str__(self) -> str:
        return f"{self.region}/{self.path}"


class RedactionKind(enum.StrEnum):
    """What is at stake with what was found."""

    SECRET = "secret"  # noqa: S105 - a kind of secret is none
    """Whoever has it can do something: a key, a token, a password."""
    PERSONAL = "personal"
    """It says who somebody is, or how they are reached or paid."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class RedactionHandling(enum.StrEnum):
    """What becomes of secrets, or of personal data, that somebody writes."""

    MASK = "mask"
    REFUSE = "refuse"
    KEEP = "keep"
    OFF = "off"
    ENCRYPT = "encrypt"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class WrittenRedaction:
    """What was found of one type in one text of a commit, and what became of it. The value, no answer says."""

    field: str
    """Where it stands in the request: `mutations[0].put.value.text`."""
    mutation: int | None
    """The place of the mutation that holds it; None for what belongs to the whole commit, such as its reason."""
    type: str
    """What it is: `github-token`, `email`."""
    kind: RedactionKind
    handling: RedactionHandling
    """It was masked or encrypted, or is kept."""
    count: int
    spans: tuple[tuple[int, int], ...]
    """Where the first of them stand in the text as it was sent, as slices of it."""


@dataclass(frozen=True, slots=True)
class Label:
    """How far a state may be believed, and why."""

    trust: Trust
    source: Source | None = None
    """What its writer declared; of external text it is with the value."""
    derived_from: tuple[tuple[EntryKey, Revision], ...] = ()
    """The states that its writer says it was made of."""
    tracked: bool = False
    """It was written in a read scope that had been given external text."""
    extends_previous: bool = False
    """It holds a part of the state before it."""
    endorsed_by: str = ""
    """Who raised its trust."""
    screened_by: str = ""
    """The rules by which it was screened before it was written."""
    suspicious: bool = False
    """Screening found something, short of what goes into quarantine."""
    holds: frozenset[RedactionKind] = frozenset()
    """The kinds of sensitive content that were found in it when it was written, and that the board's policy keeps."""
    unsearched: bool = False
    """It may hold more, encoded deeper than was looked at."""


@dataclass(frozen=True, slots=True)
class Entry(_Holding):
    """A value at a path, with what is known about it."""

    region: str
    path: str
    revision: Revision
    create_revision: int
    sequence: int
    content: Content | None
    create_time: datetime
    update_time: datetime
    expire_time: datetime | None
    author: str
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    token: str = ""
    """The state that this entry was read at. Empty for an entry that came by a watch, which has a token of its own."""
    label: Label | None = None
    """How far it may be believed; None for what is deleted or expired."""
    withheld: bool = False
    """It is trusted less than was asked for, so its content is not shown."""

    @property
    def key(self) -> EntryKey:
        """The entry's name."""
        return EntryKey(self.region, self.path)

    def _content(self) -> Content | None:
        return self.content


class ChangeType(enum.StrEnum):
    """What a change did to its entry."""

    PUT = "put"
    DELETED = "deleted"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class Act:
    """Who did something, and why."""

    agent: str
    request_id: str
    reason: str
    traceparent: str
    unconditional: bool


@dataclass(frozen=True, slots=True)
class RevealedText:
    """What became of what is encrypted in one text of an entry."""

    field: str
    """Where it stands: `value`, or `metadata[NAME]`."""
    opened: int
    unknown_keys: int
    """Encrypted with a key that the server has not."""
    unopened: int
    """Copied from another region or board, or changed."""


@dataclass(frozen=True, slots=True)
class Revealed:
    """An entry with what is encrypted in it opened. Not printed: what is opened is for its reader alone."""

    entry: Entry = field(repr=False)
    texts: tuple[RevealedText, ...]
    """Those in which something is encrypted."""


@dataclass(frozen=True, slots=True)
class EntryChange:
    """One state in an entry's history, as a watch and a history tell it."""

    type: ChangeType
    entry: Entry
    previous_revision: int
    acts: tuple[Act, ...]


@dataclass(frozen=True, slots=True)
class MutationResult(_Holding):
    """What became of one mutation. Content is there for those that compute one (`increment` and its kin)."""

    sequence: int
    content: Content | None
    trust: Trust = Trust.UNKNOWN
    """Of what was written; unknown for a delete."""

    def _content(self) -> Content | None:
        return self.content


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The commit holds, durably. `revision` is the state of every entry that it wrote."""

    token: str
    revision: Revision
    commit_time: datetime
    replayed: bool
    request_id: str
    results: tuple[MutationResult, ...]
    redactions: tuple[WrittenRedaction, ...] = ()
    """What was masked in what was sent, or is sensitive and kept."""
    unsearched_fields: tuple[str, ...] = ()
    """Texts that are encoded deeper than is looked at, and kept all the same."""


@dataclass(frozen=True, slots=True)
class Written(_Holding):
    """One entry was written (or deleted). Give `revision` back as `at` to write on top of exactly this state."""

    region: str
    path: str
    revision: Revision
    sequence: int
    content: Content | None
    """What was written, or what the server computed. None for a delete, for a put that kept the value, for a put of whose
    value something was masked, and for a computed value that a replay can no longer tell."""
    commit_time: datetime
    replayed: bool
    request_id: str
    token: str
    trust: Trust = Trust.UNKNOWN
    """Of what was written; unknown for a delete."""
    redactions: tuple[WrittenRedaction, ...] = ()
    """What was masked in what was sent, or is sensitive and kept."""

    def _content(self) -> Content | None:
        return self.content


@dataclass(frozen=True, slots=True)
class Batch:
    """Several entries in one consistent cut: those that are there, and the keys of those that are not."""

    entries: tuple[Entry, ...]
    missing: tuple[EntryKey, ...]
    token: str


class BoardState(enum.StrEnum):
    """Whether a board is there."""

    LIVE = "live"
    DELETED = "deleted"
    """It was deleted, and what it held is being removed."""
    PURGED = "purged"
    """It was deleted, and nothing of it is left."""
    UNKNOWN = "unknown"
    """A state that this client does not know."""


@dataclass(frozen=True, slots=True)
class PurgeReceipt:
    """What was removed of a deleted board, in records, and when nothing was left."""

    entries: int
    revisions: int
    locks: int
    time: datetime | None
    conflicts: int = 0
    """Records of conflicts, two of each."""


@dataclass(frozen=True, slots=True)
class BoardInfo:
    """A board as it is administered."""

    id: str
    create_time: datetime | None
    creator: str
    state: BoardState = BoardState.LIVE
    policy_number: int = 0
    """Which policy holds; 0 if there is none."""
    delete_time: datetime | None = None
    deleter: str = ""
    delete_reason: str = ""
    receipt: PurgeReceipt | None = None


class LockRequirement(enum.StrEnum):
    """What a region asks of writes."""

    IF_LOCKED = "if_locked"
    """A write to a locked path needs the lock's fence."""
    REQUIRED = "required"
    """Every write needs the fence of a lock that covers its path."""
    OFF = "off"
    """Locks are advice."""


@dataclass(frozen=True, slots=True)
class RegionRule:
    """What a policy says of a region (`shared:plan`) or of all of a kind (`task:*`). What is None is not said.

    Readers, writers, lockers and revealers (to whom what is encrypted there is opened) are lists of `anyone`, `acting` (to whom
    the region's id belongs), `role:ROLE`, `agent:ID`.
    """

    pattern: str
    readers: Sequence[str] | None = None
    writers: Sequence[str] | None = None
    lockers: Sequence[str] | None = None
    allows_unconditional: bool | None = None
    lock_requirement: LockRequirement | str | None = None
    history_revisions_max: int | None = None
    history_age_max_s: float | None = None
    default_ttl_s: float | None = None
    read_floor: Trust | None = None
    taint_mode: TaintMode | str | None = None
    allows_lowering: bool | None = None
    screening: ScreeningProfile | str | None = None
    secrets: RedactionHandling | str | None = None
    personal_data: RedactionHandling | str | None = None
    stale_screening: StaleScreening | str | None = None
    without_verdict: WithoutVerdict | str | None = None
    revealers: Sequence[str] | None = None


class WithoutVerdict(enum.StrEnum):
    """What becomes of a commit whose texts would have to be screened while nothing is."""

    REFUSE = "refuse"
    HOLD = "hold"


class StaleScreening(enum.StrEnum):
    """What becomes of what older rules have let in, until the rules of now have judged it."""

    RETURN = "return"
    WITHHOLD = "withhold"


class ScreeningProfile(enum.StrEnum):
    """What screening looks at in a region, or of what a tool gives."""

    FULL = "full"
    OFF = "off"


class TaintMode(enum.StrEnum):
    """How read scopes count in a region."""

    OFF = "off"
    TRACK = "track"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a board's operators lay down, as a whole."""

    rules: Sequence[RegionRule] = ()
    administrators: Sequence[str] | None = None
    """Which operators may change it; None for all of them."""
    tools: Mapping[str, Trust] = field(default_factory=dict, hash=False)
    """The most that what a tool gives may be trusted, by its name."""
    tool_screening: Mapping[str, ScreeningProfile | str] = field(default_factory=dict, hash=False)
    """What is said of the screening of what a tool gives, by its name; each is one of `tools`."""
    secrets: RedactionHandling | str | None = None
    """What becomes of secrets that are written; None for what holds anyway: they are masked."""
    personal_data: RedactionHandling | str | None = None
    """Likewise of personal data: it is kept, and the entry's label says so."""
    unsearched: RedactionHandling | str | None = None
    """What becomes of texts that are encoded deeper than is looked at: they are refused."""
    tool_stale_screening: Mapping[str, StaleScreening | str] = field(default_factory=dict, hash=False)
    """What is said of what a tool gave and older rules have let in, by its name; each is one of `tools`."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Which policy of a board it is."""

    number: int
    """Counts the board's policies; 0 while there is none."""
    time: datetime | None
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class BoardPolicy:
    """A board's policy, and which it is."""

    policy: Policy
    version: PolicyVersion


class Verb(enum.StrEnum):
    """What a caller wants to do in a region."""

    READ = "read"
    WRITE = "write"
    LOCK = "lock"
    REVEAL = "reveal"
    """See what is encrypted there."""


class Decision(enum.StrEnum):
    """What becomes of a request."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    """The region may be read, but not this."""
    NOT_READABLE = "not_readable"
    """The region is not there for the caller."""
    UNKNOWN = "unknown"
    """A decision that this client does not know."""


@dataclass(frozen=True, slots=True)
class Access:
    """What would become of a request of one's own, and why."""

    decision: Decision
    rule: str
    """The pattern of the policy's rule that decides; empty where it is what holds without a policy, or is not told."""
    subject: str
    """As what one is let in; empty where one is not."""
    policy_number: int


@dataclass(frozen=True, slots=True)
class Status:
    """How a server and its store are."""

    server_version: str
    store_kind: str
    store_version: str
    token: str
    revision: Revision
    compacted_revision: int
    store_time: datetime | None
    size_bytes: int
    size_bytes_max: int
    """0 if the store has no limit."""
    leader: str
    rescreening: Rescreening | None = None
    """How far the server's screening rules have come; for operators, once they have begun."""


@dataclass(frozen=True, slots=True)
class Rescreening:
    """How far screening rules have come with judging the entries, of the whole store, that older rules let in."""

    rule_set: str
    begin_time: datetime
    waiting: int
    """How many are left, about."""
    kept: int
    lowered: int
    withheld: int
    """How many are shown to reviewers only, since."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One act, or one attempt that was refused: who, what, when, why, from where."""

    chain: str
    sequence: int
    """Counts the chain's records from 1 without a gap."""
    record_time: datetime
    act_time: datetime
    act: str
    """For instance `lock.break`; `access.refused` for a refused attempt."""
    method: str
    """The API's method; empty for what no call asked for."""
    agent: str
    credential: str
    roles: tuple[str, ...]
    peer: str
    """The address at the other end of the connection."""
    board: str
    target: str
    reason: str
    outcome: str
    """`done`; `begun` for what is recorded before it is done; or the reason of the refusal."""
    traceparent: str
    suppressed: int
    """How many refused attempts of the agent left no record since its record before."""
    previous_hash: str
    hash: str
    """The SHA-256 of `body`."""
    body: bytes
    """A serialised `kokuban.store.v1.AuditBody` that says all of the above."""


class AuditFaultKind(enum.StrEnum):
    """What is wrong with an audit log."""

    MISSING = "missing"
    """Records are not there, but later ones of their chain are."""
    EDITED = "edited"
    """A record is not what was written."""
    REORDERED = "reordered"
    """A record stands at another place than it says itself."""
    CUT = "cut"
    """The end of a chain is not there."""
    ADDED = "added"
    """Something stands there that no server has written."""
    ANCHOR_BROKEN = "anchor broken"
    """An anchor is missing or was edited; or the one that the caller kept is not there."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class StoreFindingKind(enum.StrEnum):
    """What is wrong with a record of the store."""

    UNREADABLE = "unreadable"
    """Its key or its content cannot be read."""
    UNKNOWN_RECORD = "unknown record"
    """It is of no kind that the server knows."""
    ORPHANED = "orphaned"
    """What it belongs to is not there."""
    UNLEASED = "unleased"
    """It should end with a lease, and has none that lives."""
    INCOMPLETE = "incomplete"
    """A record that was written with it is missing."""
    OVERDUE = "overdue"
    """Background work should have dealt with it long ago."""
    IMPOSSIBLE = "impossible"
    """It is of a time or a state that the store has not reached."""
    AUDIT_BROKEN = "audit broken"
    """The audit log is not as it was written."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class StoreFindingOutcome(enum.StrEnum):
    """What became of a finding."""

    FOUND = "found"
    """It can be repaired, which was not asked for."""
    REPAIRED = "repaired"
    NOT_REPAIRABLE = "not repairable"
    CHANGED = "changed"
    """Somebody wrote it meanwhile, so it was left alone."""
    STORE_FULL = "store full"
    """There was no room for what is missing."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """A record of the store with which something is wrong."""

    kind: StoreFindingKind
    record_class: str
    board: str
    """Empty for what is of no board."""
    record: str
    """Which it is: a name, or a digest of its key, which the server's log has as well."""
    detail: str
    outcome: StoreFindingOutcome


@dataclass(frozen=True, slots=True)
class ExaminedPage:
    """What was found among some records of one kind."""

    record_class: str
    examined_count: int
    findings: tuple[StoreFinding, ...]
    token: str


@dataclass(frozen=True, slots=True)
class AuditFault:
    """One thing that is wrong with an audit log."""

    kind: AuditFaultKind
    chain: str
    """Empty for anchors, and where none is known."""
    sequence: int
    count: int
    """How many records or anchors in a row it is about."""


@dataclass(frozen=True, slots=True)
class AuditChain:
    """One server's part of an audit log."""

    id: str
    newest_sequence: int
    newest_time: datetime | None
    newest_hash: str
    anchored_sequence: int
    """Of the newest record that an anchor names."""


@dataclass(frozen=True, slots=True)
class AuditAnchor:
    """What the ends of chains were at a time. Its hash is worth keeping elsewhere."""

    sequence: int
    anchor_time: datetime
    hash: str


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What was found of an audit log."""

    record_count: int
    anchor_count: int
    chain_count: int
    chains: tuple[AuditChain, ...]
    """Those with the newest records, at most 1,000."""
    newest_anchor: AuditAnchor | None
    fault_count: int
    """0 if the log is as it was written."""
    faults: tuple[AuditFault, ...]
    """The first of them, at most 100."""
    token: str


class ConflictKind(enum.StrEnum):
    """What lost."""

    COMMIT = "commit"
    LOCK = "lock"
    """A request for a lock."""
    UNKNOWN = "unknown"
    """A kind that this client does not know."""


class ConflictOutcome(enum.StrEnum):
    """What became of what the loser wanted."""

    OPEN = "open"
    """Nothing is known of it yet."""
    WON = "won"
    """A retry stands."""
    MERGED = "merged"
    """A retry stands that was written on top of what the loser had lost to."""
    LOST_AGAIN = "lost again"
    """The retry lost as well; that is a conflict of its own."""
    GAVE_UP = "gave up"
    """Nobody came again within 10 minutes."""
    UNKNOWN = "unknown"
    """An outcome that this client does not know."""


@dataclass(frozen=True, slots=True)
class ConflictParty:
    """One side of a conflict. What is not known, or not for the reader, is empty."""

    agent: str
    session_id: str
    request_id: str
    traceparent: str
    """The W3C trace context in which it acted."""
    act_time: datetime | None
    """When the winner wrote, locked or began to wait; when the loser was refused."""
    purpose: str
    """What for, in its own words: text from another agent."""

    @property
    def trace_id(self) -> str:
        """The trace in which it acted; empty if it was in none."""
        parts = self.traceparent.split("-")
        return parts[1] if len(parts) > 1 else ""


@dataclass(frozen=True, slots=True)
class ConflictRecord:
    """A request that lost against somebody else's."""

    id: str
    """The same for one request, however often it is sent."""
    conflict_time: datetime
    kind: ConflictKind
    reason: str
    """As in the errors: `REVISION_MISMATCH`, `LOCKED_BY_OTHER` and so on."""
    region: str
    path: str
    expected: Revision | None
    """What the loser had read."""
    actual: Revision | None
    """What it lost to."""
    loser: ConflictParty
    winner: ConflictParty | None
    """None if nobody was there, nobody knows who, or it is not for the reader."""
    lock_id: str
    retry_of: str
    lost_bytes: int
    waited_s: float
    outcome: ConflictOutcome
    outcome_time: datetime | None
    outcome_request_id: str


@dataclass(frozen=True, slots=True)
class ConflictSummary:
    """Where conflicts are, between whom, how often, and what they cost."""

    count: int
    oldest_time: datetime | None
    newest_time: datetime | None
    per_hour: float
    paths: tuple[tuple[EntryKey, int], ...]
    """The places with the most, and how many."""
    pairs: tuple[tuple[str, str, int], ...]
    """Loser, winner (empty where that is not known) and how often."""
    reasons: tuple[tuple[str, int], ...]
    outcomes: tuple[tuple[ConflictOutcome, int], ...]
    lost_bytes: int
    waited_s: float
    token: str


class Freshness(enum.StrEnum):
    """How fresh a read must be, where no token is needed to say it."""

    STRONG = "strong"
    """Everything that was committed before the request was sent."""
    SESSION = "session"
    """At least everything that this client has written to the board."""
    LOCAL = "local"
    """Whatever the server has at hand; may be stale."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A state at least as fresh as a token."""

    token: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Exactly the state that a token names, while the store keeps it."""

    token: str


Consistency: TypeAlias = Freshness | AtLeast | Snapshot


class WatchStart(enum.Enum):
    """Where a watch begins, if not after a token."""

    NOW = "now"
    SNAPSHOT = "snapshot"


NOW = WatchStart.NOW
SNAPSHOT = WatchStart.SNAPSHOT


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """An entry that was there when the watch began."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class SnapshotComplete:
    """Everything that was there has been given; what follows is changes."""

    token: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing is outstanding up to this token. Given only when bookmarks are asked for."""

    token: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget what this watch has told so far: a new snapshot follows. `cause` is the reason why."""

    cause: str


WatchItem: TypeAlias = EntryChange | SnapshotEntry | SnapshotComplete | Bookmark | Reset


class LockMode(enum.StrEnum):
    """What a lock permits."""

    EXCLUSIVE = "exclusive"
    """Its holder may write under it, and nobody else."""
    SHARED = "shared"
    """Nobody may write under it, its holder neither; other shared locks may stand beside it."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class LockScope(enum.StrEnum):
    """How much of a path a lock takes."""

    ENTRY = "entry"
    """The entry at the path and nothing else."""
    SUBTREE = "subtree"
    """The entry at the path and everything below it."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class LockState(enum.StrEnum):
    """Where a lock stands."""

    HELD = "held"
    """Its session lives and holds it."""
    LOST = "lost"
    """Its holder lost it without a release; its targets stay closed until its lock delay is over."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class SessionState(enum.StrEnum):
    """How a session is, as far as its own client can tell."""

    LIVE = "live"
    """It was renewed not long ago."""
    IN_JEOPARDY = "in jeopardy"
    """Two thirds of its time have passed without an answered renewal, or a server said so. It may be lost soon."""
    LOST = "lost"
    """Its time is over without an answered renewal, or a server said so. What it held is lost, and it never comes back."""
    CLOSED = "closed"
    """It was closed, or not opened yet."""


class LossCause(enum.StrEnum):
    """Why a lock was lost, as the fact `cause` of `LockLost` tells it."""

    SESSION_LOST = "session_lost"
    """Its session was lost, or may have been: nobody answered for too long."""
    SESSION_CLOSED = "session_closed"
    """Its session was closed while the lock was in use."""
    HELD_TOO_LONG = "held_too_long"
    """Its longest hold is over."""
    BROKEN = "broken"
    """Somebody with the right to broke it."""
    REFUSED = "refused"
    """A server did not know its fence any more."""
    UNKNOWN = "unknown"
    """Nobody says why."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The proof of a grant, which goes with every write under the lock. Spelled `LOCK_ID:REVISION@EPOCH`."""

    lock_id: str
    revision: int
    epoch: str

    def __str__(self) -> str:
        return f"{self.lock_id}:{self.revision}@{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Read the form that `str` gives; raises ValueError for anything else."""
        lock_id, colon, grant = text.partition(":")
        try:
            revision = Revision.parse(grant)
        except ValueError:
            colon = ""
        if not colon or not _LOCK_ID.fullmatch(lock_id):
            raise ValueError(f"not a fence: {text!r}; one looks like {'0' * 32}:41@00c0ffee00c0ffee")
        return cls(lock_id, revision.number, revision.epoch)


@dataclass(frozen=True, slots=True)
class LockTarget:
    """A part of a board that a lock takes. An empty path takes the whole region."""

    region: str
    path: str = ""
    scope: LockScope = LockScope.SUBTREE

    def __str__(self) -> str:
        place = f"{self.region}/{self.path}" if self.path else self.region
        return place if self.scope is LockScope.ENTRY else f"{place}/**"


@dataclass(frozen=True, slots=True)
class Lock:
    """A session's leased right over some paths of a board, as everybody is told of it."""

    id: str
    session_id: str
    agent: str
    mode: LockMode
    targets: tuple[LockTarget, ...]
    """Those that the caller may read."""
    purpose: str
    """The holder's words. Empty where the caller may not read all of the lock's regions."""
    grant_time: datetime
    end_time: datetime | None
    """When it ends at the latest, renewed or not."""
    lock_delay_s: float
    state: LockState
    fence_revision: int
    traceparent: str


@dataclass(frozen=True, slots=True)
class LockWait:
    """A request that waits in the queue."""

    session_id: str
    agent: str
    mode: LockMode
    targets: tuple[LockTarget, ...]
    purpose: str
    start_time: datetime
    lock_id: str
    """What the lock's id will be."""


@dataclass(frozen=True, slots=True)
class LockListing:
    """Who holds and who waits for what."""

    locks: tuple[Lock, ...]
    waits: tuple[LockWait, ...]
    token: str


@dataclass(frozen=True, slots=True)
class Queued:
    """Where a request for a lock stands in the queue."""

    ahead: int
    """How many requests that conflict with it stand before it."""
    held_by: tuple[Lock, ...]


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """One step of a deadlock: an agent, and what it waits for. Empty where the caller may not know of it."""

    agent: str
    session_id: str
    waits_for: tuple[LockTarget, ...]
    purpose: str


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """An agent's session on a board, as everybody is told of it."""

    id: str
    agent: str
    label: str
    open_time: datetime
    ttl_s: float
    heartbeat_age_s: float | None
    """How long ago it was renewed, where that is told."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A session, what it holds, and what it waits for."""

    session: SessionInfo
    holds: tuple[Lock, ...]
    waits: tuple[LockWait, ...]


@dataclass(frozen=True, slots=True)
class LostLock:
    """A lock that ended without being released though its session lives."""

    lock_id: str
    cause: LossCause
    broken_by: str
    words: str
    """What who broke it said."""


@dataclass(frozen=True, slots=True)
class Currency:
    """Whether what a caller believes still holds."""

    current: bool
    """Every entry is still in the state that was given, and every fence is alive."""
    stale_entries: tuple[EntryKey, ...]
    lost_fences: tuple[Fence, ...]
    token: str


class ScreeningVerdict(enum.StrEnum):
    """What screening proposes for a text."""

    ADMIT = "admit"
    """It is what its source is."""
    ADMIT_AS_DATA = "admit as data"
    """It is data, and never an instruction."""
    QUARANTINE = "quarantine"
    """A reviewer should see it before anybody else does."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know. Not `ADMIT`."""


class FindingSeverity(enum.StrEnum):
    """How sure it is that what was found is not meant for people to read."""

    NOTE = "note"
    """It explains, and changes nothing."""
    SUSPICIOUS = "suspicious"
    """It could be an order, or a text about orders."""
    GRAVE = "grave"
    """It is an order that was hidden or encoded, or several signs of one side by side."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class ScreeningFinding:
    """One thing that screening found."""

    rule: str
    severity: FindingSeverity
    view: str
    """In which reading of the text: `plain` as it stands, else how it was made, as in `base64+unescaped`."""
    span: tuple[int, int] | None
    """Where it stands in the text, as a slice of it, where that is known."""
    excerpt: str


class QuarantineState(enum.StrEnum):
    """What became of a commit in quarantine."""

    WAITING = "waiting"
    RELEASED = "released"
    REJECTED = "rejected"
    PENDING = "pending"
    """It was not screened yet."""
    UNKNOWN = "unknown"
    """There is none that the caller may know of; or a newer server's word."""


@dataclass(frozen=True, slots=True)
class QuarantinedCommit:
    """A commit that screening held back."""

    id: str
    agent: str
    create_time: datetime
    expire_time: datetime
    """When it is removed, whatever becomes of it."""
    keys: tuple[EntryKey, ...]
    source: Source | None
    findings: tuple[ScreeningFinding, ...]
    rule_set: str
    state: QuarantineState
    reviewer: str
    review_reason: str
    texts: tuple[External | None, ...] = field(default=(), repr=False)
    """What it would write, if that was asked for: to be looked at by people."""


@dataclass(frozen=True, slots=True)
class Review:
    """What became of a commit that was reviewed."""

    id: str
    state: QuarantineState
    refusal: str
    """Why it was not released, as an error's `reason`; empty if it was."""
    revision: Revision | None


@dataclass(frozen=True, slots=True)
class TextView:
    """Another reading of a text, in which something was found. For people to see, not for a model."""

    name: str
    text: str
    truncated: bool


@dataclass(frozen=True, slots=True)
class Screening:
    """What screening finds in a text."""

    verdict: ScreeningVerdict
    findings: tuple[ScreeningFinding, ...]
    """The gravest first."""
    views: tuple[TextView, ...]
    rule_set: str
    """By which rules it was judged."""
    token: str


@dataclass(frozen=True, slots=True)
class RedactionFinding:
    """Where a secret or personal data was found. What it is, no answer says."""

    type: str
    """What it is: `github-token`, `email`."""
    kind: RedactionKind
    view: str
    """In which reading of the text: `plain` as it stands, else how it was made, as in `base64+unescaped`."""
    span: tuple[int, int]
    """Where it stands in the text, as a slice of it; of what is encoded, the whole of its code."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What secrets and personal data a text holds, and the text without them."""

    text: str
    """With `[redacted:TYPE:DIGEST]` in the place of each. Digests of two answers say nothing of each other."""
    findings: tuple[RedactionFinding, ...]
    """The first of what was found, in the order in which they begin; all of it is masked."""
    finding_count: int
    incomplete: bool
    """The text is encoded deeper, or in more ways, than is looked at."""
    rule_set: str
    """By which rules it was searched."""
    token: str


class ProvenanceDirection(enum.StrEnum):
    """Which way a trace goes."""

    ANCESTORS = "ancestors"
    """To what a state was made of."""
    DESCENDANTS = "descendants"
    """To what was made of it."""


class ProvenanceLink(enum.StrEnum):
    """How a state came of another."""

    ASKED = "asked"
    """It is the state that was asked about."""
    DECLARED = "declared"
    """Its writer said so, in `derived_from`."""
    READ_SCOPE = "read scope"
    """The session that wrote it had been given the other."""
    EXTENDS = "extends"
    """It changed the other without replacing all of it, or endorsed it."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class ProvenanceState:
    """A state of an entry that a trace met."""

    key: EntryKey
    revision: Revision | None
    """None where that is not known any more."""
    link: ProvenanceLink
    """How it is tied to the state that it was met from."""
    met_from: int
    """The place of that state in the trace; of the first, its own."""
    depth: int
    """How many steps away from the first it is."""
    trust: Trust
    """`UNKNOWN` where it is not kept any more."""
    source: Source | None
    agent: str
    """Who wrote it, or an empty text where that is not known any more."""
    kept: bool
    """It is still there, present or in the history."""
    present: bool
    """It is the entry's present state."""


@dataclass(frozen=True, slots=True)
class ProvenanceTrace:
    """What a state was made of, or what was made of it, as far as the caller may read it."""

    states: tuple[ProvenanceState, ...]
    """The nearest first; the very first is the one that was asked about."""
    truncated: bool
    """There is more, further away or beyond what was asked for."""
    token: str


@dataclass(frozen=True, slots=True)
class SourceSelector:
    """Which states come from a source. All that is given must hold, and something must be."""

    uri: str = ""
    """The URI that was declared, exactly."""
    uri_pattern: str = ""
    """A pattern of such URIs, in which `*` stands for any run of characters."""
    content_sha256: str = ""
    """The digest that was declared, in lower-case hexadecimal digits."""
    agent: str = ""
    """Who wrote it."""
    session: str = ""
    """The session that was named when it was written."""
    begin: datetime | None = None
    """The earliest time at which it was written."""
    end: datetime | None = None
    """It was written before then."""


class RemovalState(enum.StrEnum):
    """How far a purge or an erasure has come."""

    PLANNED = "planned"
    """Nothing was removed. It can be begun for 24 hours."""
    RUNNING = "running"
    DONE = "done"
    """It is done, and was checked."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class ErasureStatus(enum.StrEnum):
    """What became of what one store held."""

    ERASED = "erased"
    """It was looked for again, and nothing is left."""
    KEPT = "kept"
    """It stays, for the reason given."""
    PENDING_COMPACTION = "pending compaction"
    """It cannot be read any more, and its bytes go when the store's history is compacted."""
    UNSUPPORTED = "unsupported"
    """It cannot be removed there."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class StoreReceipt:
    """What became of what one store held."""

    store: str
    """`entries`, `history`, `quarantine` and so on."""
    status: ErasureStatus
    count: int
    """How many records."""
    revision: Revision | None
    """Up to where the store's history must be compacted, if it is pending."""
    note: str
    """Why, in words."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A purge of a source, or the erasure of a person."""

    id: str
    """Names it; the plan to begin it by."""
    state: RemovalState
    selector: SourceSelector | None
    """What is purged; None of an erasure."""
    user: str
    """Whom an erasure is of. Empty of a purge, and when it is done."""
    reason: str
    allows_reingest: bool
    """What comes from there may be written again."""
    author: str
    """Who planned it."""
    create_time: datetime
    starter: str
    """Who began it."""
    start_time: datetime | None
    end_time: datetime | None
    receipts: tuple[StoreReceipt, ...]
    """What became of it store by store, when it is done."""


class RemovalFate(enum.StrEnum):
    """What would become of a state."""

    REMOVED = "removed"
    """It goes; if it is the entry's present state, the entry is deleted."""
    ATTESTED = "attested"
    """Another source has given the same, so the entry keeps its value, on that one's word."""
    UNDECIDED = "undecided"
    """It stays, and it cannot be said whether it should: it holds parts of states whose origin is not known any more."""
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class RemovalFinding:
    """What would become of one state."""

    key: EntryKey
    revision: Revision
    fate: RemovalFate
    present: bool
    """It is the entry's present state."""


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """What a purge or an erasure would remove. Nothing is removed before it is begun."""

    removal: Removal
    findings: tuple[RemovalFinding, ...]
    """Of the states that the caller may read, at most 1,000. The counts are of all."""
    removed_count: int
    """States that would go."""
    deleted_count: int
    """Entries that would be deleted."""
    attested_count: int
    """Entries that would keep their value."""
    undecided_count: int
    """States of which it cannot be said."""
    quarantined_count: int
    """Commits in quarantine that would go."""
    session_count: int
    """Sessions that could not write any more under what they were given."""
    other_boards: tuple[str, ...]
    """Other boards that the caller may enter, with something derived from it. A purge there removes that."""

    @property
    def id(self) -> str:
        """What it is begun by."""
        return self.removal.id


class TaskStatus(enum.StrEnum):
    """How a task stands."""

    OPEN = "open"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class StepStatus(enum.StrEnum):
    """How a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    """Somebody has claimed it; whether it is held is told apart."""
    DONE = "done"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class SubtaskStatus(enum.StrEnum):
    """How a subtask stands."""

    OPEN = "open"
    COMPLETED = "completed"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class EventType(enum.StrEnum):
    """What happened in a task."""

    TASK_CREATED = "task_created"
    STEP_ADDED = "step_added"
    STEP_CLAIMED = "step_claimed"
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    STEP_DEAD = "step_dead"
    STEP_YIELDED = "step_yielded"
    CHECKPOINT_SAVED = "checkpoint_saved"
    ACTION_STARTED = "action_started"
    ACTION_DONE = "action_done"
    ACTION_FAILED = "action_failed"
    ACTION_SKIPPED = "action_skipped"
    CONSTRAINT_SET = "constraint_set"
    CONSTRAINT_WITHDRAWN = "constraint_withdrawn"
    INTERRUPT_OPENED = "interrupt_opened"
    INTERRUPT_ANSWERED = "interrupt_answered"
    TASK_CANCELLED = "task_cancelled"
    NOTE = "note"
    SUBTASK_OPENED = "subtask_opened"
    SUBTASK_CHECKPOINT_SAVED = "subtask_checkpoint_saved"
    SUBTASK_RESULT = "subtask_result"
    SUBTASK_LESSON = "subtask_lesson"
    SUBTASK_COMPLETED = "subtask_completed"
    STEP_REVIVED = "step_revived"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


class InDoubt(enum.StrEnum):
    """What is to be done about an action that was begun and of which nobody recorded how it ended."""

    RETRY = "retry"
    """Do it again: for what does no harm when it happens twice."""
    ASK = "ask"
    """Somebody has to find out whether it has happened."""
    SKIP = "skip"
    """Leave it, whether it has happened or not."""


class DeadReason(enum.StrEnum):
    """Why a step is dead."""

    ATTEMPTS_USED = "attempts_used"
    GIVEN_UP = "given_up"
    WORKER_LOST = "worker_lost"
    UNKNOWN = "unknown"
    """A newer server's word that this library does not know."""


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step that is to be added to a task."""

    name: str
    """Unique in the task: a path such as `sub_02/step_05`, none above or below another's; what lies below a subtask is its."""
    input: object
    """What to do, as any value."""
    depends_on: tuple[str, ...] = ()
    """Steps that must be done before, and subtasks that must be completed, each there earlier."""
    labels: tuple[str, ...] = ()
    """What a worker must be able to do."""
    priority: int = 0
    attempts_max: int = 3
    back_off_s: float = 0.0
    """The rest after the first failed attempt; twice as long after each further one."""


@dataclass(frozen=True, slots=True)
class OpenAction:
    """An action that was begun and of which nobody recorded how it ended."""

    id: str
    event: int
    """The number of the event that began it."""
    attempt: int
    if_in_doubt: InDoubt


@dataclass(frozen=True, slots=True)
class TaskStep:
    """How a step stands. What agents said of it stands in the task's events; where a number of one is 0 there is none."""

    name: str
    status: StepStatus
    attempts: int
    attempts_max: int
    depends_on: tuple[str, ...]
    labels: tuple[str, ...]
    priority: int
    held: bool
    """Its lock was held when it was read. One that is running and not held has lost its worker."""
    retry_time: datetime | None
    added_event: int
    claimed_event: int
    checkpoint_event: int
    ended_event: int
    config_fingerprint: str
    dead_reason: DeadReason | None
    open_actions: tuple[OpenAction, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that somebody has to answer, or has answered."""

    id: str
    step: str
    opened_event: int
    answered_event: int
    """0 while it is open."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """How many steps stand how."""

    pending: int
    running: int
    done: int
    dead: int

    @property
    def total(self) -> int:
        """How many there are."""
        return self.pending + self.running + self.done + self.dead


@dataclass(frozen=True, slots=True)
class Subtask:
    """How a subtask stands. What agents said of it stands in the task's events; where a number of one is 0 there is none."""

    name: str
    """Its path."""
    parent: str
    """The subtask that it is a part of, or empty."""
    status: SubtaskStatus
    step: str
    """The step for which it was opened, or empty."""
    opened_event: int
    checkpoint_event: int
    config_fingerprint: str
    completed_event: int
    """Of its summary."""
    result_events: tuple[int, ...]
    lesson_events: tuple[int, ...]
    notes_expire_time: datetime | None
    """When its working notes end, once it is completed."""
    own_steps: StepCounts
    """Without those of subtasks of it."""
    all_steps: StepCounts


@dataclass(frozen=True, slots=True)
class Task:
    """How a task stands."""

    id: str
    status: TaskStatus
    steps: tuple[TaskStep, ...]
    constraints: Mapping[str, int]
    """Those in force: the numbers of their events by their ids."""
    interrupts: tuple[Interrupt, ...]
    last_event: int
    subtasks: tuple[Subtask, ...]
    """Those of subtasks too, in the order in which they were opened."""
    own_steps: StepCounts
    """Without those of subtasks."""
    all_steps: StepCounts


@dataclass(frozen=True, slots=True)
class TaskPart:
    """How what was waited for stands: a step, a subtask, or a task."""

    over: bool
    """Nothing more will happen in it, unless somebody revives a dead step."""
    task_status: TaskStatus
    step_status: StepStatus | None
    """Of a step."""
    subtask_status: SubtaskStatus | None
    """Of a subtask."""
    ended_event: int
    """Of the end of a step or subtask; else 0."""


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that happened in a task."""

    number: int
    type: EventType
    step: str
    id: str
    """The action, constraint, interrupt or subtask."""
    attempt: int
    snapshot: str
    config_fingerprint: str
    input_tokens: int
    output_tokens: int
    entry: Entry
    """Where it lies: its data as the value, with label, author and time; `error` and `name` in the metadata."""
    if_in_doubt: InDoubt | None = None
    """What was declared for an action that begins; nothing for other events."""


@dataclass(frozen=True, slots=True)
class ResumeState:
    """From where to go on with a step."""

    input: TaskEvent | None
    """What to do. Nothing if it was removed."""
    checkpoint: TaskEvent | None
    """The last one, if there is one."""
    after_event: int
    events: tuple[TaskEvent, ...]
    """The first events after that number, also those of other steps."""
    more: bool
    """There are further ones."""
    constraints: Mapping[str, int]
    interrupts: tuple[Interrupt, ...]
    config_changed: bool
    """The configuration is not that of the checkpoint."""
    subtask: TaskEvent | None
    """The goal of the nearest subtask that the step lies in, if there is one."""
    subtask_checkpoint: TaskEvent | None
    """That subtask's last one."""
