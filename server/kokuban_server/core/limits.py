"""Every bound of the API, with its unit in the name. Each is documented in the proto and has a test at it and one over."""

from __future__ import annotations

from typing import Final

# Names.
BOARD_ID_BYTES_MAX: Final = 63
AGENT_ID_BYTES_MAX: Final = 128
REGION_ID_BYTES_MAX: Final = 256
PATH_BYTES_MAX: Final = 1024
PATH_SEGMENTS_MAX: Final = 16

# Values. A commit's values stand twice in the store (head and history), and etcd takes requests of 1.5 MiB.
VALUE_BYTES_MAX: Final = 512 * 1024
COMMIT_BYTES_MAX: Final = 640 * 1024
CHANGE_SET_BYTES_MAX: Final = 1_400_000
"""What one commit may take in the store's request, keys and copies included; below etcd's 1.5 MiB."""
JSON_DEPTH_MAX: Final = 32
MEDIA_TYPE_BYTES_MAX: Final = 255
METADATA_PAIRS_MAX: Final = 64
METADATA_KEY_BYTES_MAX: Final = 128
METADATA_VALUE_BYTES_MAX: Final = 1024
REASON_BYTES_MAX: Final = 1024
LIST_ITEMS_MAX: Final = 256
EXPIRY_MS_MIN: Final = 1_000
EXPIRY_MS_MAX: Final = 3_650 * 24 * 3_600 * 1_000

# Commits.
MUTATIONS_MAX: Final = 32
PRECONDITIONS_MAX: Final = 32
STORE_OPERATIONS_MAX: Final = 100
"""Puts and deletes in one change set; also guards. etcd takes 128 less what the batch around it uses. A full commit needs
97: for each of 32 mutations a head, a history record and a reminder, and one operation record; clean-ups that would go
beyond are left to the sweeper."""
FOLD_MUTATIONS_MAX: Final = 32
PLAN_ATTEMPTS_MAX: Final = 16
STREAM_COMMITS_IN_FLIGHT_MAX: Final = 256
REQUEST_ID_WINDOW_MS: Final = 3_600 * 1_000
REQUEST_ID_AHEAD_MS_MAX: Final = 5 * 60 * 1_000

# Sessions and locks.
SESSION_TTL_MS_MIN: Final = 2_000
SESSION_TTL_MS_MAX: Final = 3_600 * 1_000
SESSION_LABEL_BYTES_MAX: Final = 256
SESSIONS_ENTRIES_MAX: Final = 10_000
"""Sessions of one board."""
SESSION_PAGE_ENTRIES_MAX: Final = 100
LOCK_TARGETS_MAX: Final = 16
LOCK_PURPOSE_BYTES_MAX: Final = 512
LOCK_WAIT_MS_MAX: Final = 3_600 * 1_000
LOCK_HOLD_MS_MIN: Final = 1_000
LOCK_HOLD_MS_MAX: Final = 24 * 3_600 * 1_000
LOCK_DELAY_MS_DEFAULT: Final = 1_000
LOCK_DELAY_MS_MAX: Final = 60 * 1_000
LOCKS_OF_SESSION_ENTRIES_MAX: Final = 1_024
"""Locks and waits of one session."""
WAITS_ENTRIES_MAX: Final = 1_024
"""Requests that wait on one board."""
LOCKS_SHOWN_ENTRIES_MAX: Final = 16
CLAIM_CANDIDATES_ENTRIES_MAX: Final = 64
CYCLE_ENTRIES_MAX: Final = 16
FENCES_ENTRIES_MAX: Final = 16
WAIT_ADOPTED_S_MAX: Final = 10.0
"""For how long a request keeps its place in the queue after the server of its stream has stopped."""
LOCKS_MEASURED_ENTRIES_MAX: Final = 65_536
"""Locks whose holds one server measures at the same time."""
LOCKS_BROKEN_ENTRIES_MAX: Final = 64
"""Broken locks of one board whose breakers a server remembers when their markers are gone."""
WAIT_NEWS_S_MIN: Final = 1.0

# Reads.
BATCH_KEYS_MAX: Final = 100
PAGE_ENTRIES_DEFAULT: Final = 100
PAGE_ENTRIES_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
PAGE_TOKEN_BYTES_MAX: Final = 8 * 1024

# Watches.
WATCH_TARGETS_MAX: Final = 16
WATCH_BUFFER_EVENTS_MAX: Final = 8_192
WATCH_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
WATCH_MESSAGE_BYTES_MAX: Final = 1024 * 1024

# Boards and their policies.
POLICY_RULES_ENTRIES_MAX: Final = 64
POLICY_SUBJECTS_ENTRIES_MAX: Final = 64
POLICY_TOOLS_ENTRIES_MAX: Final = 64
POLICY_BYTES_MAX: Final = 64 * 1024
POLICY_HISTORY_REVISIONS_MAX: Final = 1_000
POLICY_HISTORY_AGE_MS_MIN: Final = 60 * 1_000
BOARDS_KNOWN_ENTRIES_MAX: Final = 65_536
"""Boards that one server remembers; it reads what it has forgotten again."""

# History and what the sweeper keeps.
HISTORY_REVISIONS_MAX: Final = 64
HISTORY_AGE_MS_MAX: Final = 30 * 24 * 3_600 * 1_000
TOMBSTONE_MS: Final = 7 * 24 * 3_600 * 1_000
STORE_HISTORY_MS: Final = 3_600 * 1_000

# The examination of the store.
STORE_EXAMINED_ENTRIES_MAX: Final = 500
"""Records that are looked at for one page."""

# The audit log.
AUDIT_BATCH_ENTRIES_MAX: Final = 64
"""Records of one chain that are written in one commit."""
AUDIT_NOTES_ENTRIES_MAX: Final = 1_024
"""Refused attempts of all tenants that wait to be written."""
AUDIT_PRINCIPALS_ENTRIES_MAX: Final = 1_024
"""Principals whose refused attempts are counted apart."""
AUDIT_REFUSED_BURST_ENTRIES_MAX: Final = 10
AUDIT_REFUSED_INTERVAL_MS: Final = 10_000
"""A principal's refused attempts that are recorded: a burst, then one in each interval. Likewise for a whole server."""
AUDIT_REFUSED_SERVER_BURST_ENTRIES_MAX: Final = 200
AUDIT_REFUSED_SERVER_INTERVAL_MS: Final = 100
AUDIT_ANCHOR_CHAINS_ENTRIES_MAX: Final = 64
AUDIT_EXAMINED_ENTRIES_MAX: Final = 10_000
"""Records that are looked at for one page."""
AUDIT_FAULTS_ENTRIES_MAX: Final = 100
AUDIT_CHAINS_SHOWN_ENTRIES_MAX: Final = 1_000

# Labels and read scopes.
DERIVED_FROM_ENTRIES_MAX: Final = 64
SOURCE_URI_BYTES_MAX: Final = 2_048
SOURCE_NAME_BYTES_MAX: Final = 256
READ_SCOPE_ENTRIES_MAX: Final = 256
"""Low-trust states that one read scope may be given."""
READ_SCOPES_KNOWN_ENTRIES_MAX: Final = 4_096
"""Read scopes that one server remembers; it reads what it has forgotten again."""

# Provenance, purges and erasures.
TRACE_DEPTH_MAX: Final = 32
TRACE_ENTRIES_DEFAULT: Final = 100
TRACE_ENTRIES_MAX: Final = 1_000
URI_PATTERN_STARS_TIMES_MAX: Final = 8
REMOVALS_ENTRIES_MAX: Final = 1_000
"""Purges and erasures of one board, those that are done among them."""
REMOVAL_PLAN_MS: Final = 24 * 3_600 * 1_000
REMOVAL_FINDINGS_ENTRIES_MAX: Final = 1_000
BARS_ENTRIES_MAX: Final = 256
"""Sources that one board refuses. They stand in the board's record: a URI of the longest, 256 times, is half of what fits."""
REMOVAL_PAGE_ENTRIES_MAX: Final = 100

# Quarantine.
QUARANTINE_MS: Final = 30 * 24 * 3_600 * 1_000
QUARANTINE_ENTRIES_MAX: Final = 1_000
QUARANTINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one board: when as many or as much wait, no more are kept."""
QUARANTINE_PAGE_ENTRIES_MAX: Final = 100
QUARANTINE_FINDINGS_ENTRIES_MAX: Final = 16

# Tasks.
TASK_NAME_BYTES_MAX: Final = 128
"""Ids of steps, actions, constraints and interrupts, labels, and what tells a configuration."""
TASK_STEPS_ENTRIES_MAX: Final = 256
TASK_STEPS_AT_ONCE_ENTRIES_MAX: Final = 30
"""Steps that a task is created with; and answers that are given at once."""
TASK_CONSTRAINTS_ENTRIES_MAX: Final = 64
TASK_INTERRUPTS_ENTRIES_MAX: Final = 64
"""Those that are open; and those that were answered and are still told."""
TASK_WAIT_MS_MIN: Final = 1_000
TASK_SUBTASKS_ENTRIES_MAX: Final = 64
SUBTASK_FINDINGS_ENTRIES_MAX: Final = 16
"""Results of one subtask; and its lessons."""
SUBTASK_NOTES_MS_DEFAULT: Final = 7 * 24 * 3_600 * 1_000
"""For how long the working notes of a subtask outlive it."""
STEP_DEPENDENCIES_ENTRIES_MAX: Final = 32
STEP_LABELS_ENTRIES_MAX: Final = 16
STEP_PRIORITY_POINTS_MAX: Final = 1_000
STEP_ATTEMPTS_DEFAULT: Final = 3
STEP_ATTEMPTS_MAX: Final = 100
STEP_BACK_OFF_MS_MAX: Final = 24 * 3_600 * 1_000
STEP_ACTIONS_ENTRIES_MAX: Final = 64
"""Actions of one step that were begun and not ended."""
WORKER_LABELS_ENTRIES_MAX: Final = 64
EVENT_ERROR_BYTES_MAX: Final = 1_024
RESUME_EVENTS_ENTRIES_MAX: Final = 100
RESUME_EVENTS_BYTES_MAX: Final = 1024 * 1024
TASK_PAGE_ENTRIES_MAX: Final = 100
ARCHIVE_LINE_BYTES_MAX: Final = 1_000_000
"""Of a task's archive: it fits a request."""
ARCHIVE_LINES_ENTRIES_MAX: Final = 1_000
"""Lines of one part of a restore."""

# The log of conflicts.
CONFLICTS_ENTRIES_MAX: Final = 5_000
"""Of one board; the oldest go first."""
CONFLICT_AGE_MS_MAX: Final = 7 * 24 * 3_600 * 1_000
CONFLICT_GIVEN_UP_MS: Final = 10 * 60 * 1_000
"""After so long without a retry the loser is taken to have given up."""
CONFLICTS_WAITING_ENTRIES_MAX: Final = 1_024
"""Conflicts that wait to be written; what finds no room is only counted."""
CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX: Final = 128
"""Of those, of one agent."""
CONFLICT_BATCH_ENTRIES_MAX: Final = 64
"""Conflicts that are written at once."""
CONFLICT_SUMMARY_ENTRIES_DEFAULT: Final = 10
CONFLICT_SUMMARY_ENTRIES_MAX: Final = 100

# Screening.
SCREENED_TOGETHER_TEXTS_ENTRIES_MAX: Final = 4
SCREENED_TOGETHER_CHARACTERS_MAX: Final = 500
"""What one agent has written last from outside that is looked at with the next: so many texts, the end of each."""
SCREENED_TOGETHER_AGENTS_ENTRIES_MAX: Final = 1_024
SCREENED_TEXT_BYTES_MAX: Final = VALUE_BYTES_MAX
SCREENED_DEPTH_MAX: Final = 3
"""Encodings within encodings."""
SCREENED_VIEWS_ENTRIES_MAX: Final = 64
SCREENED_TIMES_MAX: Final = 24
SCREENED_CHARACTERS_MIN: Final = 64 * 1024
"""Of all views of one text together: so many times its own characters, and so many besides."""
SCREENED_FINDINGS_ENTRIES_MAX: Final = 64
SCREENED_EXCERPT_CHARACTERS_MAX: Final = 200
SCREENED_VIEWS_SHOWN_ENTRIES_MAX: Final = 16
SCREENED_VIEW_SHOWN_CHARACTERS_MAX: Final = 2_000
SCREENINGS_WAITING_ENTRIES_MAX: Final = 64
SCREENINGS_OF_PRINCIPAL_ENTRIES_MAX: Final = 16
"""Texts that wait to be screened by one server, and of them one agent's."""
SCREENING_S_MAX: Final = 60.0
"""The largest text from outside takes about 15 seconds of a processor that does nothing else."""
PROMPT_PER_SOURCE_ENTRIES_DEFAULT: Final = 3
PROMPT_PER_SOURCE_ENTRIES_MAX: Final = 100
"""Of one source in a part of a prompt."""
PHRASES_ENTRIES_MAX: Final = 1_000
PHRASE_CHARACTERS_MAX: Final = 256
"""What an operator has looked for besides: so many phrases, each so long."""
CLASSIFIED_SEGMENT_CHARACTERS_MAX: Final = 6_000
CLASSIFIED_STEP_CHARACTERS_MAX: Final = 5_500
"""Of the parts that are classified one by one; each has the last 500 characters of the one before."""
CLASSIFIED_SEGMENTS_KEPT_ENTRIES_MAX: Final = 4_096
"""Whose scores are kept, so that the same part is not classified again."""

# Redaction.
REDACTED_DEPTH_MAX: Final = 3
"""Encodings within encodings."""
REDACTED_TIMES_MAX: Final = 16
REDACTED_CHARACTERS_MIN: Final = 64 * 1024
"""Of all readings of one text together: so many times its own characters, and so many besides."""
REDACTED_FINDINGS_SHOWN_ENTRIES_MAX: Final = 64
"""Of what was found; masked is all of it."""
REDACTED_AT_ONCE_CHARACTERS_MAX: Final = 1_024
"""Of all texts of a request, each with 8 more, that are searched where the request is: takes some 3 ms at worst."""
REDACTED_HINTED_CHARACTERS_MAX: Final = 32 * 1024
"""Of all texts that are looked at there for whether another process has to search them: takes 0.5 ms, 5 at worst. A full
commit of texts of 512 bytes is half of it."""
ENCRYPTED_TEXTS_ENTRIES_MAX: Final = 1_024
"""Of one text: takes some 6 ms, beside finding them."""
ENCRYPTION_KEYS_ENTRIES_MAX: Final = 64
ENCRYPTION_KEYS_BYTES_MAX: Final = 64 * 1024
"""Of the file that holds them."""
REDACTED_REPEATED_ENTRIES_MAX: Final = 32
"""Secrets told by the words around them that are looked for again where no words tell them."""

# Messages and calls.
REQUEST_BYTES_MAX: Final = 1024 * 1024
STATUS_METADATA_VALUE_BYTES_MAX: Final = 1024
DEADLINE_S_DEFAULT: Final = 30.0
DEADLINE_S_MAX: Final = 300.0
