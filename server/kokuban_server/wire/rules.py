"""How each method of the API is authorised."""

from __future__ import annotations

from typing import Final, NamedTuple

from kokuban_server.core.access import Role, Verb


class Rule(NamedTuple):
    """What a method asks of its caller, beside a credential that is good and a board that there is for it."""

    roles: frozenset[Role] = frozenset()
    """Of these the caller has one. Empty: any."""
    verb: Verb | None = None
    """What it does in the regions that its request names: `Access` opens each of them for that."""
    finds: bool = False
    """It opens for reading the regions of what it finds, and shows what of it the caller may read."""
    own: str = ""
    """What it names must be the caller's own, judged by the agent: a session, a lock."""


_OPERATOR = frozenset({Role.OPERATOR})
_BREAKERS = frozenset({Role.SUPERVISOR, Role.OPERATOR})
_BOOKKEEPERS = frozenset({Role.AUDITOR, Role.OPERATOR})
_ENDORSERS = frozenset({Role.SUPERVISOR, Role.OPERATOR, Role.SYSTEM})
_OVERSEERS = frozenset({Role.OPERATOR, Role.SUPERVISOR, Role.AUDITOR})

RULES: Final[dict[str, Rule]] = {
    "kokuban.v1.BoardService.Commit": Rule(verb=Verb.WRITE),
    "kokuban.v1.BoardService.CommitStream": Rule(verb=Verb.WRITE),
    "kokuban.v1.BoardService.GetEntry": Rule(verb=Verb.READ),
    "kokuban.v1.BoardService.BatchGetEntries": Rule(verb=Verb.READ),
    "kokuban.v1.BoardService.ListEntries": Rule(verb=Verb.READ),
    "kokuban.v1.BoardService.ListRevisions": Rule(verb=Verb.READ),
    "kokuban.v1.BoardService.Watch": Rule(verb=Verb.READ),
    "kokuban.v1.BoardService.CheckCurrent": Rule(verb=Verb.READ, own="lock"),
    "kokuban.v1.SessionService.OpenSession": Rule(),
    "kokuban.v1.SessionService.KeepAlive": Rule(own="session"),
    "kokuban.v1.SessionService.CloseSession": Rule(own="session"),
    "kokuban.v1.SessionService.ListSessions": Rule(finds=True),
    "kokuban.v1.LockService.AcquireLock": Rule(verb=Verb.LOCK, own="session"),
    "kokuban.v1.LockService.ClaimEntry": Rule(verb=Verb.LOCK, own="session"),
    "kokuban.v1.LockService.DowngradeLock": Rule(own="lock"),
    "kokuban.v1.LockService.ReleaseLock": Rule(own="lock"),
    "kokuban.v1.LockService.ListLocks": Rule(verb=Verb.READ),
    "kokuban.v1.LockService.BreakLock": Rule(roles=_BREAKERS, finds=True),
    "kokuban.v1.TaskService.CreateTask": Rule(verb=Verb.WRITE),
    "kokuban.v1.TaskService.GetTask": Rule(verb=Verb.READ),
    "kokuban.v1.TaskService.ListTasks": Rule(finds=True),
    "kokuban.v1.TaskService.ListEvents": Rule(verb=Verb.READ),
    "kokuban.v1.TaskService.ClaimNextStep": Rule(verb=Verb.LOCK, own="session"),
    "kokuban.v1.TaskService.WaitForTask": Rule(verb=Verb.READ, own="session"),
    "kokuban.v1.TaskService.ResumeTask": Rule(verb=Verb.WRITE),
    "kokuban.v1.TaskService.CancelTask": Rule(verb=Verb.WRITE),
    "kokuban.v1.TaskService.ExportTask": Rule(verb=Verb.WRITE),
    "kokuban.v1.TaskService.ArchiveTask": Rule(verb=Verb.WRITE),
    "kokuban.v1.TaskService.RestoreTask": Rule(verb=Verb.WRITE),
    "kokuban.v1.ConflictService.ListConflicts": Rule(verb=Verb.READ, finds=True),
    "kokuban.v1.ConflictService.WatchConflicts": Rule(verb=Verb.READ, finds=True),
    "kokuban.v1.ConflictService.SummarizeConflicts": Rule(verb=Verb.READ, finds=True),
    "kokuban.v1.AdminService.GetStatus": Rule(),
    "kokuban.v1.AdminService.CreateBoard": Rule(roles=_OPERATOR),
    "kokuban.v1.AdminService.GetBoard": Rule(),
    "kokuban.v1.AdminService.ListBoards": Rule(),
    "kokuban.v1.AdminService.DeleteBoard": Rule(roles=_OPERATOR),
    "kokuban.v1.AdminService.GetPolicy": Rule(roles=_OVERSEERS),
    "kokuban.v1.AdminService.SetPolicy": Rule(roles=_OPERATOR),
    "kokuban.v1.AdminService.ExplainAccess": Rule(),
    "kokuban.v1.AdminService.Compact": Rule(roles=_OPERATOR),
    "kokuban.v1.AdminService.ListAuditRecords": Rule(roles=_BOOKKEEPERS),
    "kokuban.v1.AdminService.VerifyAudit": Rule(roles=_BOOKKEEPERS),
    "kokuban.v1.AdminService.ExamineStore": Rule(roles=_OPERATOR),
    "kokuban.v1.TrustService.Endorse": Rule(roles=_ENDORSERS, verb=Verb.WRITE),
    "kokuban.v1.TrustService.ListQuarantine": Rule(roles=_ENDORSERS, finds=True),
    "kokuban.v1.TrustService.ReviewQuarantine": Rule(roles=_ENDORSERS, finds=True),
    "kokuban.v1.TrustService.ScreenText": Rule(),
    "kokuban.v1.TrustService.RedactText": Rule(),
    "kokuban.v1.TrustService.RevealEntry": Rule(verb=Verb.REVEAL),
    "kokuban.v1.TrustService.TraceProvenance": Rule(verb=Verb.READ),
    "kokuban.v1.TrustService.PurgeSource": Rule(roles=_OPERATOR),
    "kokuban.v1.TrustService.EraseSubject": Rule(roles=_OPERATOR),
    "kokuban.v1.TrustService.GetRemoval": Rule(roles=_OPERATOR),
    "kokuban.v1.TrustService.ListRemovals": Rule(roles=_OPERATOR),
}
"""A method without a row here does not start. The use cases keep to the rules; tests/wire/test_credentials.py holds every
method of the API against its row."""
