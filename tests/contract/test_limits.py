"""Every bound of the API stands in the .proto files with the number that the server keeps."""

from __future__ import annotations

import re

import pytest

from kokuban_server.core import limits

DAY_MS = 24 * 3_600 * 1_000

# The limit, where it is told, and in which words. A limit may be told in several places: none may be forgotten.
TOLD = [
    ("BOARD_ID_BYTES_MAX", 1, "BoardService", "1 to {} of a-z, 0-9 and inner hyphens"),
    ("AGENT_ID_BYTES_MAX", 1, "BoardService", "1 to {} printable ASCII characters"),
    ("REGION_ID_BYTES_MAX", 1, "EntryKey.region", "1 to {} bytes"),
    ("PATH_BYTES_MAX", 1, "EntryKey.path", "1 to {} bytes"),
    ("PATH_BYTES_MAX", 1, "ErrorReason.ERROR_REASON_PATH_TOO_LONG", "longer than {} bytes"),
    ("PATH_SEGMENTS_MAX", 1, "EntryKey.path", "1 to {} segments"),
    ("PATH_SEGMENTS_MAX", 1, "ErrorReason.ERROR_REASON_PATH_TOO_DEEP", "more than {} segments"),
    ("VALUE_BYTES_MAX", 1, "Value", "At most {:,} bytes"),
    ("VALUE_BYTES_MAX", 1024, "Value", "({} KiB)"),
    ("VALUE_BYTES_MAX", 1, "ErrorReason.ERROR_REASON_VALUE_TOO_LARGE", "larger than {:,} bytes"),
    ("VALUE_BYTES_MAX", 1, "ErrorReason.ERROR_REASON_VALUE_FULL", "larger than {:,} bytes"),
    ("COMMIT_BYTES_MAX", 1, "CommitRequest.mutations", "at most {:,} bytes"),
    ("COMMIT_BYTES_MAX", 1024, "CommitRequest.mutations", "({} KiB)"),
    ("COMMIT_BYTES_MAX", 1, "ErrorReason.ERROR_REASON_COMMIT_TOO_LARGE", "larger than {:,} bytes"),
    ("CHANGE_SET_BYTES_MAX", 1, "ErrorReason.ERROR_REASON_COMMIT_TOO_LARGE", "larger than {:,}"),
    ("JSON_DEPTH_MAX", 1, "Value.json", "at most {} levels deep"),
    ("JSON_DEPTH_MAX", 1, "ErrorReason.ERROR_REASON_JSON_TOO_DEEP", "deeper than {} levels"),
    ("JSON_DEPTH_MAX", 1, "ErrorReason.ERROR_REASON_VALUE_FULL", "deeper than {} levels"),
    ("MEDIA_TYPE_BYTES_MAX", 1, "BinaryValue.media_type", "1 to {} printable ASCII characters"),
    ("METADATA_PAIRS_MAX", 1, "Entry.metadata", "at most {} pairs"),
    ("METADATA_PAIRS_MAX", 1, "Put.metadata", "at most {} pairs"),
    ("METADATA_PAIRS_MAX", 1, "ErrorReason.ERROR_REASON_METADATA_INVALID", "more than {} metadata pairs"),
    ("METADATA_PAIRS_MAX", 1, "ErrorReason.ERROR_REASON_VALUE_FULL", "more than {} pairs"),
    ("METADATA_KEY_BYTES_MAX", 1, "Put.metadata", "keys of 1 to {} bytes"),
    ("METADATA_VALUE_BYTES_MAX", 1, "Put.metadata", "values up to {} bytes"),
    ("REASON_BYTES_MAX", 1, "CommitRequest.reason", "At most {} bytes"),
    ("LIST_ITEMS_MAX", 1, "AppendToList.items", "1 to {}"),
    ("LIST_ITEMS_MAX", 1, "AddToSet.items", "1 to {}"),
    ("EXPIRY_MS_MIN", 1000, "Put.ttl", "{} second to"),
    ("EXPIRY_MS_MIN", 1000, "ErrorReason.ERROR_REASON_EXPIRY_INVALID", "nearer than {} second"),
    ("EXPIRY_MS_MAX", DAY_MS, "Put.ttl", "to {:,} days"),
    ("EXPIRY_MS_MAX", DAY_MS, "Put.expire_time", "at most {:,} days"),
    ("EXPIRY_MS_MAX", DAY_MS, "ErrorReason.ERROR_REASON_EXPIRY_INVALID", "further than {:,} days"),
    ("MUTATIONS_MAX", 1, "CommitRequest.mutations", "1 to {}"),
    ("POLICY_RULES_ENTRIES_MAX", 1, "Policy.rules", "up to {}"),
    ("POLICY_SUBJECTS_ENTRIES_MAX", 1, "Subjects.subjects", "up to {} of"),
    ("POLICY_BYTES_MAX", 1024, "Policy", "At most {} KiB"),
    ("POLICY_HISTORY_REVISIONS_MAX", 1, "RegionRule.history_revisions_max", "1 to {:,}"),
    ("POLICY_HISTORY_AGE_MS_MIN", 60_000, "RegionRule.history_age_max", "{} minute to"),
    ("EXPIRY_MS_MAX", DAY_MS, "RegionRule.history_age_max", "to {:,} days"),
    ("EXPIRY_MS_MAX", DAY_MS, "RegionRule.default_ttl", "to {:,} days"),
    ("EXPIRY_MS_MIN", 1000, "RegionRule.default_ttl", "{} second to"),
    ("REASON_BYTES_MAX", 1, "SetPolicyRequest.reason", "Up to {} bytes"),
    ("REASON_BYTES_MAX", 1, "DeleteBoardRequest.reason", "Up to {} bytes"),
    ("PRECONDITIONS_MAX", 1, "CommitRequest.preconditions", "at most {}"),
    ("PLAN_ATTEMPTS_MAX", 1, "ErrorReason.ERROR_REASON_CONTENDED", "`attempts` = `{}`"),
    ("STREAM_COMMITS_IN_FLIGHT_MAX", 1, "CommitStreamRequest.commit", "At most {}"),
    ("REQUEST_ID_WINDOW_MS", 3_600_000, "CommitRequest.request_id", "({} hour by default)"),
    ("REQUEST_ID_AHEAD_MS_MAX", 60_000, "CommitRequest.request_id", "more than {} minutes ahead"),
    ("BATCH_KEYS_MAX", 1, "BatchGetEntriesRequest.keys", "1 to {} entries"),
    ("PAGE_ENTRIES_DEFAULT", 1, "ListEntriesRequest.page_size", "0 means {}."),
    ("PAGE_ENTRIES_DEFAULT", 1, "ListRevisionsRequest.page_size", "0 means {}."),
    ("PAGE_ENTRIES_MAX", 1, "ListEntriesRequest.page_size", "up to {}"),
    ("PAGE_ENTRIES_MAX", 1, "ListRevisionsRequest.page_size", "up to {}"),
    ("PAGE_BYTES_MAX", 1024 * 1024, "ListEntriesRequest.page_size", "before {} MiB"),
    ("PAGE_BYTES_MAX", 1024 * 1024, "ListRevisionsRequest.page_size", "before {} MiB"),
    ("PAGE_BYTES_MAX", 1024 * 1024, "BatchGetEntriesResponse.entries", "larger than {} MiB"),
    ("PAGE_BYTES_MAX", 1024 * 1024, "ErrorReason.ERROR_REASON_RESPONSE_TOO_LARGE", "larger than {} MiB"),
    ("PAGE_BYTES_MAX", 1, "ErrorReason.ERROR_REASON_RESPONSE_TOO_LARGE", "`limit` = `{}`"),
    ("WATCH_TARGETS_MAX", 1, "WatchRequest.targets", "1 to {}"),
    ("REQUEST_BYTES_MAX", 1024 * 1024, "BoardService", "at most {} MiB"),
    ("DEADLINE_S_DEFAULT", 1, "BoardService", "{:.0f} seconds"),
    ("DEADLINE_S_MAX", 1, "BoardService", "{:.0f} seconds"),
    ("HISTORY_REVISIONS_MAX", 1, "BoardService.ListRevisions", "{} states"),
    ("HISTORY_AGE_MS_MAX", DAY_MS, "BoardService.ListRevisions", "{} days"),
    ("TOMBSTONE_MS", DAY_MS, "Delete", "{} days"),
    ("STORE_HISTORY_MS", 3_600_000, "BoardService.Watch", "{} hour"),
    ("WATCH_BUFFER_EVENTS_MAX", 1, "BoardService.Watch", "{:,} changes"),
    ("WATCH_BUFFER_BYTES_MAX", 1024 * 1024, "BoardService.Watch", "{} MiB"),
    ("SESSION_TTL_MS_MIN", 1000, "OpenSessionRequest.ttl", "{} seconds to"),
    ("SESSION_TTL_MS_MAX", 3_600_000, "OpenSessionRequest.ttl", "to {} hour"),
    ("SESSION_LABEL_BYTES_MAX", 1, "Session.label", "At most {} bytes"),
    ("SESSION_LABEL_BYTES_MAX", 1, "OpenSessionRequest.label", "At most {} bytes"),
    ("SESSIONS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TOO_MANY_LOCKS", "{} sessions"),
    ("SESSION_PAGE_ENTRIES_MAX", 1, "ListSessionsRequest.page_size", "up to {}"),
    ("LOCK_TARGETS_MAX", 1, "AcquireLockRequest.targets", "1 to {}"),
    ("LOCK_PURPOSE_BYTES_MAX", 1, "AcquireLockRequest.purpose", "1 to {} bytes"),
    ("LOCK_PURPOSE_BYTES_MAX", 1, "ClaimEntryRequest.purpose", "1 to {} bytes"),
    ("LOCK_WAIT_MS_MAX", 3_600_000, "AcquireLockRequest.wait", "up to {} hour"),
    ("LOCK_HOLD_MS_MIN", 1000, "AcquireLockRequest.hold_max", "{} second to"),
    ("LOCK_HOLD_MS_MAX", 3_600_000, "AcquireLockRequest.hold_max", "to {} hours"),
    ("LOCK_DELAY_MS_DEFAULT", 1000, "AcquireLockRequest.lock_delay", "Not given: {} second"),
    ("LOCK_DELAY_MS_MAX", 1000, "AcquireLockRequest.lock_delay", "0 to {} seconds"),
    ("LOCKS_OF_SESSION_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TOO_MANY_LOCKS", "The session has {} locks"),
    ("WAITS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TOO_MANY_LOCKS", "the board {} requests that wait"),
    ("LOCKS_SHOWN_ENTRIES_MAX", 1, "LockQueued.held_by", "at most {}"),
    ("CLAIM_CANDIDATES_ENTRIES_MAX", 1, "ClaimEntryRequest.candidates", "1 to {}"),
    ("CYCLE_ENTRIES_MAX", 1, "DeadlockCycle.edges", "At most {}"),
    ("FENCES_ENTRIES_MAX", 1, "CommitRequest.fences", "at most {}"),
    ("FENCES_ENTRIES_MAX", 1, "CheckCurrentRequest.fences", "at most {}"),
    ("BATCH_KEYS_MAX", 1, "CheckCurrentRequest.entries", "at most {}"),
    ("WAIT_ADOPTED_S_MAX", 1, "LockService.AcquireLock", "within {:.0f} seconds"),
    ("PAGE_ENTRIES_MAX", 1, "ListLocksRequest.page_size", "up to {}"),
    ("PAGE_ENTRIES_DEFAULT", 1, "ListLocksRequest.page_size", "0 means {}."),
    ("REASON_BYTES_MAX", 1, "BreakLockRequest.reason", "1 to {} bytes"),
    ("AUDIT_REFUSED_BURST_ENTRIES_MAX", 1, "AuditRecord.suppressed", "a burst of {}"),
    ("AUDIT_REFUSED_INTERVAL_MS", 1000, "AuditRecord.suppressed", "one in {} seconds"),
    ("AUDIT_REFUSED_SERVER_BURST_ENTRIES_MAX", 1, "AuditRecord.suppressed", "of a server {},"),
    ("AUDIT_EXAMINED_ENTRIES_MAX", 1, "ListAuditRecordsRequest.page_size", "{:,} records were looked at"),
    ("PAGE_ENTRIES_MAX", 1, "ListAuditRecordsRequest.page_size", "up to {}"),
    ("PAGE_ENTRIES_DEFAULT", 1, "ListAuditRecordsRequest.page_size", "0 means {}."),
    ("PAGE_BYTES_MAX", 1024 * 1024, "ListAuditRecordsRequest.page_size", "before {} MiB"),
    ("STORE_EXAMINED_ENTRIES_MAX", 1, "ExamineStoreResponse", "up to {} of them"),
    ("AUDIT_FAULTS_ENTRIES_MAX", 1, "VerifyAuditResponse.faults", "at most {}"),
    ("CONFLICTS_ENTRIES_MAX", 1, "ConflictService", "newest {:,} are kept"),
    ("CONFLICT_AGE_MS_MAX", DAY_MS, "ConflictService", "at most {} days"),
    ("CONFLICTS_WAITING_ENTRIES_MAX", 1, "ConflictService", "more than {:,} of a server"),
    ("CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX", 1, "ConflictService", "or {} of one agent"),
    ("CONFLICT_GIVEN_UP_MS", 60_000, "ConflictOutcome.CONFLICT_OUTCOME_GAVE_UP", "within {} minutes"),
    ("CONFLICT_SUMMARY_ENTRIES_DEFAULT", 1, "SummarizeConflictsRequest.top", "0 means {}."),
    ("CONFLICT_SUMMARY_ENTRIES_MAX", 1, "SummarizeConflictsRequest.top", "up to {}"),
    ("PAGE_ENTRIES_MAX", 1, "ListConflictsRequest.page_size", "up to {}"),
    ("PAGE_ENTRIES_DEFAULT", 1, "ListConflictsRequest.page_size", "0 means {}."),
    ("SCREENED_TEXT_BYTES_MAX", 1, "ScreenTextRequest.text", "At most {:,} bytes"),
    ("SCREENED_TEXT_BYTES_MAX", 1024, "ScreenTextRequest.text", "({} KiB)"),
    ("SOURCE_URI_BYTES_MAX", 1, "DeclaredSource.uri", "Up to {} bytes"),
    ("SOURCE_NAME_BYTES_MAX", 1, "DeclaredSource.name", "Up to {} bytes"),
    ("SOURCE_NAME_BYTES_MAX", 1, "ToolRule.name", "1 to {} bytes"),
    ("DERIVED_FROM_ENTRIES_MAX", 1, "Provenance.derived_from", "at most {},"),
    ("READ_SCOPE_ENTRIES_MAX", 1, "GetEntryRequest.session", "more than {} such states"),
    ("READ_SCOPE_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_READ_SCOPE_FULL", "`limit` = `{}`"),
    ("POLICY_TOOLS_ENTRIES_MAX", 1, "Policy.tools", "up to {},"),
    ("REASON_BYTES_MAX", 1, "EndorseRequest.reason", "Up to {} bytes"),
    ("REASON_BYTES_MAX", 1, "ReviewQuarantineRequest.reason", "Up to {} bytes"),
    ("QUARANTINE_MS", DAY_MS, "QuarantinedCommit.expire_time", "{} days later"),
    ("QUARANTINE_PAGE_ENTRIES_MAX", 1, "ListQuarantineRequest.page_size", "up to {}"),
    ("QUARANTINE_PAGE_ENTRIES_MAX", 1, "ReviewQuarantineRequest.ids", "1 to {}"),
    ("QUARANTINE_FINDINGS_ENTRIES_MAX", 1, "QuarantinedCommit.findings", "at most {}"),
    ("QUARANTINE_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_CONTENT_REFUSED", "{:,} commits"),
    ("QUARANTINE_BYTES_MAX", 1024 * 1024, "ErrorReason.ERROR_REASON_CONTENT_REFUSED", "{} MiB"),
    ("SCREENED_FINDINGS_ENTRIES_MAX", 1, "ScreenTextResponse.findings", "at most {}"),
    ("SCREENED_EXCERPT_CHARACTERS_MAX", 1, "ScreeningFinding.excerpt", "at most {} characters"),
    ("SCREENED_VIEWS_SHOWN_ENTRIES_MAX", 1, "ScreenTextResponse.views", "at most {}"),
    ("SCREENED_VIEW_SHOWN_CHARACTERS_MAX", 1, "TextView.text", "at most {:,} characters"),
    ("CLASSIFIED_SEGMENT_CHARACTERS_MAX", 1, "TrustService.ScreenText", "parts of {:,} characters"),
    ("SCREENINGS_WAITING_ENTRIES_MAX", 1, "TrustService.ScreenText", "if {} wait"),
    ("SCREENINGS_OF_PRINCIPAL_ENTRIES_MAX", 1, "TrustService.ScreenText", "{} of the caller's agent wait"),
    ("TRACE_DEPTH_MAX", 1, "TraceProvenanceRequest.max_depth", "up to {}"),
    ("TRACE_DEPTH_MAX", 1, "TraceProvenanceRequest.max_depth", "0 means {}."),
    ("TRACE_ENTRIES_MAX", 1, "TraceProvenanceRequest.max_states", "up to {:,}"),
    ("TRACE_ENTRIES_DEFAULT", 1, "TraceProvenanceRequest.max_states", "0 means {}."),
    ("URI_PATTERN_STARS_TIMES_MAX", 1, "SourceSelector.uri_pattern", "up to {} times"),
    ("REMOVALS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_PURGES_FULL", "{:,} purges"),
    ("BARS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_PURGES_FULL", "{} sources"),
    ("BARS_ENTRIES_MAX", 1, "PurgeSourceRequest.allows_reingest", "up to {} sources"),
    ("REMOVAL_PLAN_MS", 3_600_000, "RemovalState.REMOVAL_STATE_PLANNED", "{} hours"),
    ("REMOVAL_FINDINGS_ENTRIES_MAX", 1, "RemovalPlan.findings", "at most {:,}"),
    ("REMOVAL_PAGE_ENTRIES_MAX", 1, "ListRemovalsRequest.page_size", "up to {}"),
    ("REASON_BYTES_MAX", 1, "PurgeSourceRequest.reason", "Up to {} bytes"),
    ("REASON_BYTES_MAX", 1, "EraseSubjectRequest.reason", "Up to {} bytes"),
    ("SCREENED_TEXT_BYTES_MAX", 1, "RedactTextRequest.text", "At most {:,} bytes"),
    ("PROMPT_PER_SOURCE_ENTRIES_MAX", 1, "PromptOptions.per_source_max", "1 to {},"),
    ("PROMPT_PER_SOURCE_ENTRIES_DEFAULT", 1, "PromptOptions.per_source_max", "0 means {}."),
    ("PAGE_BYTES_MAX", 1024 * 1024, "ListEntriesRequest.prompt", "larger than {} MiB"),
    ("PAGE_BYTES_MAX", 1024 * 1024, "BatchGetEntriesRequest.prompt", "larger than {} MiB"),
    ("ENCRYPTED_TEXTS_ENTRIES_MAX", 1, "RedactionHandling.REDACTION_HANDLING_ENCRYPT", "at most {:,} are encrypted"),
    ("REDACTED_DEPTH_MAX", 1, "TrustService.RedactText", "to a depth of {}"),
    ("REDACTED_FINDINGS_SHOWN_ENTRIES_MAX", 1, "RedactTextResponse.findings", "at most {}"),
    ("REDACTED_FINDINGS_SHOWN_ENTRIES_MAX", 1, "Redaction.spans", "at most {}"),
    ("AUDIT_CHAINS_SHOWN_ENTRIES_MAX", 1, "VerifyAuditResponse.chains", "at most {:,}"),
    ("STORE_OPERATIONS_MAX", 1, "CommitRequest.mutations", "at most {} operations"),
    ("TASK_NAME_BYTES_MAX", 1, "NewStep.step", "up to {} bytes"),
    ("TASK_NAME_BYTES_MAX", 1, "AppendEvent.id", "1 to {} of letters"),
    ("TASK_NAME_BYTES_MAX", 1, "AppendEvent.name", "At most {} bytes"),
    ("TASK_NAME_BYTES_MAX", 1, "AppendEvent.snapshot", "At most {} bytes"),
    ("TASK_NAME_BYTES_MAX", 1, "SaveCheckpoint.config_fingerprint", "At most {} of letters"),
    ("TASK_STEPS_ENTRIES_MAX", 1, "Task.steps", "at most {}"),
    ("TASK_STEPS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TASK_FULL", "{} steps"),
    ("TASK_STEPS_AT_ONCE_ENTRIES_MAX", 1, "CreateTaskRequest.steps", "at most {}"),
    ("TASK_STEPS_AT_ONCE_ENTRIES_MAX", 1, "ResumeTaskRequest.answers", "1 to {}"),
    ("TASK_CONSTRAINTS_ENTRIES_MAX", 1, "Task.constraints", "at most {}"),
    ("TASK_CONSTRAINTS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TASK_FULL", "{} constraints"),
    ("TASK_INTERRUPTS_ENTRIES_MAX", 1, "Task.interrupts", "at most {}, and the last {} that were answered"),
    ("TASK_INTERRUPTS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TASK_FULL", "{} open interrupts"),
    ("TASK_SUBTASKS_ENTRIES_MAX", 1, "Task.subtasks", "at most {}"),
    ("TASK_WAIT_MS_MIN", 1_000, "WaitForTaskRequest.wait", "{} second to"),
    ("LOCK_WAIT_MS_MAX", 3_600_000, "WaitForTaskRequest.wait", "to {} hour"),
    ("TASK_SUBTASKS_ENTRIES_MAX", 1, "OpenSubtask.subtask", "at most {}"),
    ("TASK_SUBTASKS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TASK_FULL", "{} subtasks"),
    ("TASK_NAME_BYTES_MAX", 1, "OpenSubtask.subtask", "up to {} bytes"),
    ("SUBTASK_FINDINGS_ENTRIES_MAX", 1, "AppendEvent.subtask", "at most {} of each"),
    ("SUBTASK_FINDINGS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TASK_FULL", "{0} results and {0} lessons"),
    ("SUBTASK_NOTES_MS_DEFAULT", 24 * 3_600_000, "CompleteSubtask.notes_ttl", "Not given: {} days"),
    ("EXPIRY_MS_MIN", 1_000, "CompleteSubtask.notes_ttl", "{} second to"),
    ("EXPIRY_MS_MAX", 24 * 3_600_000, "CompleteSubtask.notes_ttl", "to {:,} days"),
    ("STEP_ATTEMPTS_MAX", 1, "ReviveStep.attempts", "1 to {}"),
    ("STEP_ATTEMPTS_DEFAULT", 1, "ReviveStep.attempts", "0 means {}"),
    ("REASON_BYTES_MAX", 1, "ReviveStep.reason", "1 to {} bytes"),
    ("STEP_DEPENDENCIES_ENTRIES_MAX", 1, "StepTerms.depends_on", "at most {}"),
    ("STEP_LABELS_ENTRIES_MAX", 1, "StepTerms.labels", "at most {}"),
    ("STEP_PRIORITY_POINTS_MAX", 1, "StepTerms.priority", "-{0:,} to {0:,}"),
    ("STEP_ATTEMPTS_DEFAULT", 1, "StepTerms.attempts_max", "0 means {}"),
    ("STEP_ATTEMPTS_MAX", 1, "StepTerms.attempts_max", "1 to {}"),
    ("STEP_BACK_OFF_MS_MAX", 3_600_000, "StepTerms.back_off", "up to {} hours"),
    ("STEP_ACTIONS_ENTRIES_MAX", 1, "Step.open_actions", "at most {}"),
    ("STEP_ACTIONS_ENTRIES_MAX", 1, "ErrorReason.ERROR_REASON_TASK_FULL", "{} open actions"),
    ("WORKER_LABELS_ENTRIES_MAX", 1, "ClaimNextStepRequest.labels", "at most {}"),
    ("EVENT_ERROR_BYTES_MAX", 1, "AppendEvent.error", "At most {} bytes"),
    ("EVENT_ERROR_BYTES_MAX", 1, "CompleteStep.error", "At most {} bytes"),
    ("REASON_BYTES_MAX", 1, "CancelTask.reason", "At most {} bytes"),
    ("LOCK_PURPOSE_BYTES_MAX", 1, "ClaimNextStepRequest.purpose", "1 to {} bytes"),
    ("RESUME_EVENTS_ENTRIES_MAX", 1, "ResumeState.events", "up to {} and"),
    ("RESUME_EVENTS_BYTES_MAX", 1024 * 1024, "ResumeState.events", "{} MiB"),
    ("TASK_PAGE_ENTRIES_MAX", 1, "ListTasksRequest.page_size", "up to {}"),
    ("PAGE_ENTRIES_MAX", 1, "ListEventsRequest.page_size", "up to {}"),
    ("PAGE_BYTES_MAX", 1024 * 1024, "ExportTaskResponse.lines", "up to {} MiB"),
    ("ARCHIVE_LINE_BYTES_MAX", 1, "ExportTaskResponse.lines", "at most {} bytes"),
    ("ARCHIVE_LINES_ENTRIES_MAX", 1, "RestoreTaskRequest.lines", "at most {}"),
    ("PAGE_ENTRIES_DEFAULT", 1, "ListEventsRequest.page_size", "0 means {}."),
]

# Bounds of the server's own work: no request can be refused for them, so no client can act on them.
INSIDE = {
    "BOARDS_KNOWN_ENTRIES_MAX",
    "READ_SCOPES_KNOWN_ENTRIES_MAX",
    "LOCKS_MEASURED_ENTRIES_MAX",  # holds of more locks are not measured
    "LOCKS_BROKEN_ENTRIES_MAX",  # of others it is not known who broke them: the heir is told, or nobody
    "SCREENED_TOGETHER_TEXTS_ENTRIES_MAX",  # what was written before these is not looked at with the next
    "SCREENED_TOGETHER_CHARACTERS_MAX",
    "SCREENED_TOGETHER_AGENTS_ENTRIES_MAX",
    "FOLD_MUTATIONS_MAX",  # more are folded in several writes
    "PAGE_TOKEN_BYTES_MAX",  # above what any page token of ours has; another is PAGE_TOKEN_INVALID anyway
    "WATCH_MESSAGE_BYTES_MAX",  # changes are spread over several messages
    "AUDIT_BATCH_ENTRIES_MAX",  # more are written in several commits
    "AUDIT_NOTES_ENTRIES_MAX",  # what finds no room is counted as suppressed
    "AUDIT_PRINCIPALS_ENTRIES_MAX",  # others' suppressed attempts are counted for their tenant
    "AUDIT_ANCHOR_CHAINS_ENTRIES_MAX",  # more are named by several anchors
    "AUDIT_REFUSED_SERVER_INTERVAL_MS",  # told as its inverse: "10 in a second"
    "CONFLICT_BATCH_ENTRIES_MAX",  # more are written after it
    "WAIT_NEWS_S_MIN",  # how often a stream that waits has news: "at most once a second"
    "PHRASES_ENTRIES_MAX",  # of an operator's file: deploy/README.md
    "PHRASE_CHARACTERS_MAX",
    "ENCRYPTION_KEYS_ENTRIES_MAX",
    "ENCRYPTION_KEYS_BYTES_MAX",
    "SCREENED_DEPTH_MAX",  # what lies beyond these is found to be beyond them
    "SCREENED_VIEWS_ENTRIES_MAX",
    "SCREENED_TIMES_MAX",
    "SCREENED_CHARACTERS_MIN",
    "REDACTED_TIMES_MAX",  # likewise: `incomplete`
    "REDACTED_CHARACTERS_MIN",
    "REDACTED_AT_ONCE_CHARACTERS_MAX",  # longer texts are searched elsewhere
    "REDACTED_HINTED_CHARACTERS_MAX",
    "REDACTED_REPEATED_ENTRIES_MAX",  # more are masked where words tell what they are
    "CLASSIFIED_STEP_CHARACTERS_MAX",  # how far parts overlap
    "CLASSIFIED_SEGMENTS_KEPT_ENTRIES_MAX",  # what is not kept is classified again
    "SCREENING_S_MAX",  # above what any text takes
    "STATUS_METADATA_VALUE_BYTES_MAX",  # above what any fact of ours has
}


@pytest.mark.parametrize(("limit", "unit", "place", "words"), TOLD)
def test_a_limit_is_told_with_the_number_that_is_kept(
    comments: dict[str, str], limit: str, unit: int, place: str, words: str
) -> None:
    value = getattr(limits, limit)
    assert value % unit == 0, "told in a unit that does not divide it"
    told = value // unit
    assert words.format(*[told] * max(1, words.count("{}"))) in comments[place]


def test_every_limit_is_told_or_is_nobodys_business() -> None:
    named = {name for name in vars(limits) if re.fullmatch(r"[A-Z][A-Z0-9_]*", name)}
    told = {limit for limit, *_ in TOLD}
    assert named == told | INSIDE
    assert not told & INSIDE


def test_a_limit_has_its_unit_or_what_it_counts_in_its_name() -> None:
    for name, value in vars(limits).items():
        if name.isupper():
            assert re.search(
                r"_(?:BYTES|MS|S)(?:_|$)"
                r"|(?:SEGMENTS|DEPTH|PAIRS|ITEMS|MUTATIONS|PRECONDITIONS|OPERATIONS|ATTEMPTS|FLIGHT|KEYS|ENTRIES|TARGETS"
                r"|EVENTS|REVISIONS|CHARACTERS|TIMES|POINTS)(?:_MAX|_DEFAULT|_MIN)$",
                name,
            ), name
            assert value > 0, name
