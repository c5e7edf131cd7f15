from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kokuban_client
from kokuban_client import _audit, _board, _conflicts, _examination, _sessions, _watch, errors, prompts, sync, types

PUBLIC = {
    "Access", "ActionInDoubt", "ActionRecorded", "AlreadyExists", "AtLeast", "AuditAnchor", "AuditChain",
    "AuditFault", "AuditFaultKind", "AuditRecord", "AuditRecords", "AuditVerdict", "Binary", "Board", "BoardInfo",
    "BoardPolicy", "BoardState", "Bookmark", "ChangeType", "Claim", "ClaimedStep", "Client", "CommitResult",
    "Conflict", "ConflictKind", "ConflictOutcome", "ConflictParty", "ConflictRecord", "ConflictSummary",
    "ConflictWatch", "Conflicts", "ContentPending", "ContentQuarantined", "ContentSensitive", "Currency", "DeadReason",
    "Deadlock",
    "Decision", "Entry", "EntryChange", "EntryKey", "ErasureStatus", "EventType", "Examination", "ExaminedPage",
    "External", "Fence", "FindingSeverity", "Freshness", "HeldLock", "HistoryLost", "InDoubt", "Interrupt", "Json",
    "KEEP", "KokubanError", "Label", "Listing", "Lock", "LockConflict", "LockListing", "LockLost", "LockMode",
    "LockRequirement", "LockScope", "LockState", "LockTarget", "LockWait", "LockedByOther", "LossCause", "NOW",
    "NewStep", "NoStepReady", "NotDone", "NotFound", "NotOpen", "OpenAction", "OutcomeUnknown", "Policy",
    "PolicyChanged", "PolicyVersion", "Presence", "ProvenanceDirection", "ProvenanceLink", "ProvenanceState",
    "ProvenanceTrace", "PurgeReceipt", "QuarantineState", "QuarantinedCommit", "Queued", "ReadScopePurged",
    "Redaction", "RedactionFinding", "RedactionHandling", "RedactionKind", "Refused", "RegionRule", "Removal",
    "RemovalFate", "RemovalFinding", "RemovalPlan", "RemovalState", "Rescreening", "Reset", "ResumeState", "Revealed",
    "RevealedText", "Review", "Revision",
    "RevisionMismatch", "SNAPSHOT", "Screening", "ScreeningFinding", "ScreeningProfile", "ScreeningVerdict",
    "Session", "SessionInfo", "SessionLost", "SessionState", "Snapshot", "SnapshotComplete", "SnapshotEntry",
    "Source", "SourceKind", "SourcePurged", "SourceSelector", "StaleScreening", "Status", "StepCounts",
    "StepNotDead", "StepStatus",
    "StoreFinding", "StoreFindingKind", "StoreFindingOutcome", "StoreReceipt", "Subtask", "SubtaskNotReady",
    "SubtaskStatus", "TaintMode", "Task", "TaskArchived", "TaskEvent", "TaskOver", "TaskPart",
    "TaskStatus", "TaskStep", "Text", "TextView", "Transaction", "Trust", "TrustTooLow", "Unavailable", "Verb",
    "WaitEdge", "Watch", "Withheld", "WithoutVerdict", "Written", "WrittenRedaction", "connect", "render_for_prompt",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(kokuban_client.__all__) == PUBLIC


def test_every_public_name_is_there_and_is_the_one_of_its_home() -> None:
    homes = [
        vars(module) for module in (types, errors, _watch, _sessions, _audit, _conflicts, _examination, _board, prompts)
    ]
    for name in PUBLIC:
        assert getattr(kokuban_client, name) is next(home[name] for home in homes if name in home)


def test_the_client_for_threads_has_the_same_methods_under_plain_names() -> None:
    for name in (
        "AuditRecords", "Client", "Board", "Conflicts", "ConflictWatch", "Examination", "Listing", "Transaction", "Watch",
        "Session", "HeldLock", "Claim", "ClaimedStep",
    ):  # fmt: skip
        ours = {method for method in dir(getattr(kokuban_client, name)) if not method.startswith("_")}
        theirs = {method for method in dir(getattr(sync, name)) if not method.startswith("_")}
        assert {"close" if method == "aclose" else method for method in ours} == theirs


def test_the_client_for_threads_is_made_from_the_one_that_stands() -> None:
    script = Path(kokuban_client.__file__).parent.parent / "unasync.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_importing_the_package_loads_neither_grpc_nor_protobuf() -> None:
    code = "import sys, kokuban_client; print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'google', 'kokuban')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
