"""One server process: put together, started, drained."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import logging
import secrets
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import structlog

from kokuban_server.adapters.screening import ProcessScreener
from kokuban_server.adapters.system import SystemClock
from kokuban_server.app.access import Access
from kokuban_server.app.administration import Administration
from kokuban_server.app.archive_reading import ArchiveReading
from kokuban_server.app.archive_work import ArchiveWork
from kokuban_server.app.archives import Archives
from kokuban_server.app.audit import AuditLog
from kokuban_server.app.audit_reading import AuditReading
from kokuban_server.app.board_administration import BoardAdministration
from kokuban_server.app.board_census import BoardCensus
from kokuban_server.app.board_sizes import BoardSizes
from kokuban_server.app.boards import Boards
from kokuban_server.app.commits import Commits
from kokuban_server.app.conflict_reading import ConflictReading
from kokuban_server.app.conflicts import ConflictLog
from kokuban_server.app.current import Gate
from kokuban_server.app.doctor import Doctor
from kokuban_server.app.endorsements import Endorsements
from kokuban_server.app.gauges import Gauges
from kokuban_server.app.heads import Heads
from kokuban_server.app.held_locks import HeldLocks
from kokuban_server.app.judged_states import JudgedStates
from kokuban_server.app.lineage import Lineages
from kokuban_server.app.lock_guards import LockGuards
from kokuban_server.app.lock_mirror import LockMirror
from kokuban_server.app.lock_requests import LockRequests
from kokuban_server.app.lock_upkeep import LockUpkeep
from kokuban_server.app.measured_store import MeasuredStore
from kokuban_server.app.measures import Measures
from kokuban_server.app.mirrored_store import MirroredStore
from kokuban_server.app.observed_screener import ObservedScreener
from kokuban_server.app.pending_commits import PendingCommits
from kokuban_server.app.presence import Presence
from kokuban_server.app.provenance_trace import ProvenanceTrace
from kokuban_server.app.quarantine_review import QuarantineReview
from kokuban_server.app.quarantine_shelf import QuarantineShelf
from kokuban_server.app.read_scopes import ReadScopes
from kokuban_server.app.reads import Reads
from kokuban_server.app.recorded_calls import RecordedCommits, RecordedLocks, RecordedTaskWaits
from kokuban_server.app.redactions import Redactions, without_secrets
from kokuban_server.app.removal_work import RemovalUpkeep
from kokuban_server.app.removals import Removals
from kokuban_server.app.request_ids import RequestIds
from kokuban_server.app.rescreening import Rescreening
from kokuban_server.app.revealing import Revealing
from kokuban_server.app.screenings import Screenings
from kokuban_server.app.sealing import Sealing
from kokuban_server.app.sessions import Sessions
from kokuban_server.app.store_time import StoreTime
from kokuban_server.app.task_claims import TaskClaims
from kokuban_server.app.task_reading import TaskReading
from kokuban_server.app.task_waits import TaskWaits
from kokuban_server.app.task_writing import TaskWriting
from kokuban_server.app.upkeep import OPERATIONS_SLACK_MS, Upkeep
from kokuban_server.app.watches import Watches
from kokuban_server.app.word_screening import WordScreening
from kokuban_server.app.write_screening import WriteScreening
from kokuban_server.bootstrap.encryption import open_encryption
from kokuban_server.bootstrap.identities import open_callers
from kokuban_server.bootstrap.stores import StartError, open_store
from kokuban_server.bootstrap.telemetry import open_metrics, open_push, open_tracer
from kokuban_server.bootstrap.tls import server_credentials
from kokuban_server.core import keys
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.names import parse_board
from kokuban_server.core.refusals import Refusal
from kokuban_server.core.screening.phrases import PhrasesInvalidError, parse_phrases
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.ports.tracing import TRACED
from kokuban_server.wire.audit_services import AuditMethods
from kokuban_server.wire.board_administration import BoardMethods
from kokuban_server.wire.conflict_services import ConflictService
from kokuban_server.wire.examination_services import ExaminationMethods
from kokuban_server.wire.identity import DevelopmentIdentity
from kokuban_server.wire.lock_services import LockService, SessionService
from kokuban_server.wire.redacting import RedactedCommits, Redactor
from kokuban_server.wire.server import WireServer
from kokuban_server.wire.services import AdminService, BoardService
from kokuban_server.wire.task_services import TaskService
from kokuban_server.wire.trust_services import TrustService
from kokuban_server.wire.usage import PrincipalLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kokuban_server.bootstrap.encryption import Encryption
    from kokuban_server.bootstrap.identities import Callers
    from kokuban_server.ports.board_store import BoardStore
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.tracing import Tracer
    from kokuban_server.settings import Settings
    from kokuban_server.wire.rpc import Method

_START_S = 30.0
_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Local variables hold what agents wrote, which no log may."""
_log = structlog.get_logger()


class Server:
    """One server process: a store, the use cases over it, and the wire in front."""

    def __init__(
        self,
        settings: Settings,
        store: BoardStore,
        clock: Clock,
        digest_key: bytes,
        callers: Callers | None = None,
        tracer: Tracer | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        window_ms = settings.request_id_window_s * 1000
        measures, store = _measured(settings, store)
        identity = callers.identity if callers is not None else DevelopmentIdentity()
        server_id = secrets.token_hex(8)
        time = StoreTime(store, clock)
        self._boards = boards = Boards(store)
        request_ids = RequestIds(time, digest_key, window_ms)
        self._audit = audit = AuditLog(
            store,
            time,
            server_id,
            _report,
            request_ids.digest,
            anchor_interval_s=settings.audit_anchor_interval_s,
            mask=partial(without_secrets, request_ids.digest),
        )
        access = Access(store, boards, clock, frozenset(map(parse_board, settings.boards)), audit)
        self._settings, self._store = settings, store
        self._mirror = LockMirror(store)
        self._presence = Presence(store, time, server_id)
        mirrored = MirroredStore(store, self._mirror)
        self._lock_requests = LockRequests(mirrored, access, time, request_ids, self._presence)
        self._task_waits = TaskWaits(mirrored, access, time, self._presence)
        self._sessions = Sessions(mirrored, access, time, request_ids)
        self._screenings = screenings = _screenings(settings, access, measures)
        self._judged = judged = JudgedStates(screenings, store.epoch)
        self._watches = Watches(store, access, time, judged, settings.bookmark_interval_s)
        boards.followers |= dict.fromkeys((self._watches.stir, self._lock_requests.stir))
        self._upkeep = Upkeep(
            store,
            boards,
            time,
            server_id,
            _report,
            interval_s=settings.upkeep_interval_s,
            request_id_window_ms=window_ms,
            store_history_ms=settings.store_history_s * 1000,
            conflicts_max=settings.conflicts_max,
        )
        self._lock_upkeep = LockUpkeep(store, time, self._mirror, _report, server_id, self._lock_requests.keeps)
        heads = Heads(settings.cache_bytes_max)
        self._sizes = self._census = None
        if settings.board_bytes_max:
            self._sizes = BoardSizes(store, settings.board_bytes_max, settings.board_census_interval_s)
            self._census = BoardCensus(store, server_id, _report, settings.board_census_interval_s)
        self._removal_upkeep = RemovalUpkeep(store, boards, time, server_id, _report, settings.upkeep_interval_s)
        scopes = ReadScopes(mirrored, access)
        lineages = Lineages(store, access, heads, scopes)
        self._rescreening = Rescreening(
            store, boards, time, screenings, judged, server_id, _report, settings.upkeep_interval_s
        )
        shelf, tasks, words = QuarantineShelf(store), TaskWriting(), WordScreening(screenings, scopes)
        commits = Commits(
            store,
            access,
            heads,
            time,
            request_ids,
            LockGuards(self._mirror, access, time),
            self._mirror,
            lineages,
            audit,
            WriteScreening(screenings),
            shelf,
            tasks,
            self._sizes,
        )
        sealing = Sealing(encryption and encryption.sealer, request_ids.digest)
        self._redactions = Redactions(ProcessScreener(), sealing)
        redactor = Redactor(access, self._redactions, request_ids.digest)
        self._pending = PendingCommits(
            store,
            screenings,
            commits,
            audit,
            redactor.kept,
            identity.present,
            server_id,
            _report,
            settings.upkeep_interval_s,
        )
        reads = Reads(store, access, time, scopes, judged)
        self._conflicts = conflicts = ConflictLog(store, boards, time, request_ids, _report)
        self._gauges = Gauges(
            store, self._mirror, self._watches, conflicts, self._sessions, screenings, judged, time, measures, _report
        )
        self._metrics = open_metrics(settings.metrics_listen, measures, self._gauges.read)
        self._push = open_push(settings.metrics_endpoint, measures, self._gauges.read, server_id)
        redacted = RedactedCommits(RecordedCommits(commits, conflicts, self._mirror, measures), access, redactor)
        recorded_locks = RecordedLocks(self._lock_requests, conflicts, self._mirror, measures)
        epoch, of_tasks = store.epoch, TaskReading(store, access, reads)
        self._wire = WireServer(
            {
                "BoardService": BoardService(
                    redacted,
                    reads,
                    self._watches,
                    Gate(store, access, time),
                    time,
                    request_ids,
                    epoch,
                ).methods,
                "SessionService": SessionService(self._sessions, redactor, words, request_ids, epoch).methods,
                "LockService": LockService(
                    recorded_locks,
                    HeldLocks(mirrored, access, time, self._lock_requests, audit),
                    redactor,
                    words,
                    request_ids,
                    epoch,
                ).methods,
                "TaskService": TaskService(
                    redacted,
                    TaskClaims(mirrored, access, time, request_ids, tasks, of_tasks, self._sizes),
                    RecordedTaskWaits(self._task_waits, recorded_locks),
                    of_tasks,
                    Archives(
                        store,
                        access,
                        time,
                        request_ids,
                        audit,
                        ArchiveReading(store),
                        ArchiveWork(store),
                        self._sizes,
                    ),
                    redactor,
                    words,
                    request_ids,
                    epoch,
                ).methods,
                "ConflictService": ConflictService(
                    ConflictReading(store, access, time, settings.bookmark_interval_s), epoch
                ).methods,
                "AdminService": {
                    **AdminService(
                        Administration(store, access, importlib.metadata.version("kokuban"), audit, judged)
                    ).methods,
                    **BoardMethods(BoardAdministration(store, access, boards, clock, audit, sealing), redactor).methods,
                    **_bookkeeping(store, access, audit, window_ms, request_ids.digest),
                },
                "TrustService": TrustService(
                    screenings,
                    Endorsements(commits, access),
                    QuarantineReview(store, access, time, shelf, commits, audit, redactor.kept),
                    ProvenanceTrace(store, access),
                    Removals(store, access, time, audit, request_ids.digest, self._removal_upkeep),
                    Revealing(access, reads, sealing, audit),
                    redactor,
                    request_ids,
                    epoch,
                ).methods,
            },
            identity,
            self._drain_streams,
            unary_max=settings.unary_calls_max,
            streams_max=settings.streams_max,
            principal_limits=PrincipalLimits(
                settings.principal_calls_max,
                settings.principal_streams_max,
                settings.principal_writes_per_s_max,
                settings.principal_writes_burst_max,
            ),
            with_reflection=settings.reflection,
            tracer=tracer,
            measures=measures,
        )
        self.metrics_port = 0
        """Where metrics are asked for, if they are."""
        self._encryption, self._tracer, self._follow = (
            encryption,
            tracer,
            callers.follow if callers is not None else None,
        )
        self._background: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, settings: Settings) -> Server:
        """Open the store and put the server together."""
        _check_phrases(settings)
        clock = SystemClock()
        callers, encryption = await open_callers(settings, clock), open_encryption(settings.encryption_keys_file)
        store = await open_store(settings, clock)
        digest_key = await _digest_key(store)
        return cls(settings, store, clock, digest_key, callers, open_tracer(settings.tracing, digest_key), encryption)

    async def start(self) -> int:
        """Listen and begin the background work; give the port."""
        port = await self._wire.start(self._settings.listen, server_credentials(self._settings.tls))
        self._background = [
            asyncio.create_task(self._upkeep.run(), name="upkeep"),
            asyncio.create_task(self._removal_upkeep.run(), name="removals"),
            asyncio.create_task(self._rescreening.run(), name="rescreening"),
            asyncio.create_task(self._pending.run(), name="pending-commits"),
            asyncio.create_task(self._lock_upkeep.run(), name="lock-upkeep"),
            asyncio.create_task(self._audit.run(), name="audit"),
            asyncio.create_task(self._conflicts.run(), name="conflicts"),
        ]
        if self._metrics is not None:
            self.metrics_port = await self._metrics.start(self._settings.metrics_listen)
        if self._push is not None:
            self._background.append(asyncio.create_task(_kept_going(self._push.run, "metrics"), name="metrics"))
        if self._metrics is not None or self._push is not None:
            self._background.append(asyncio.create_task(self._gauges.follow(), name="gauges"))
        if self._sizes is not None and self._census is not None:
            self._background += [
                asyncio.create_task(_kept_going(self._sizes.follow, "board sizes"), name="board-sizes"),
                asyncio.create_task(self._census.run(), name="board-census"),
            ]
        if self._follow is not None:
            self._background += [
                asyncio.create_task(_kept_going(self._follow, "credentials"), name="credentials"),
                asyncio.create_task(_kept_going(self._wire.watch_credentials, "stale streams"), name="stale-streams"),
            ]
        if self._encryption is not None:
            work = _kept_going(self._encryption.follow, "encryption keys")
            self._background.append(asyncio.create_task(work, name="encryption-keys"))
        return port

    def _drain_streams(self) -> None:
        self._watches.drain()
        self._sessions.draining.set()
        self._lock_requests.drain()

    async def stop(self) -> None:
        """Drain, then let go of everything."""
        await self._wire.drain(self._settings.drain_grace_s)
        for task in self._background:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._screenings.close()
        await self._redactions.close()
        await self._conflicts.close()
        await self._audit.close()
        await self._lock_requests.close()
        await self._task_waits.close()
        await self._presence.end()
        await self._mirror.close()
        await self._watches.close()
        await self._boards.close()
        await self._store.close()
        if self._metrics is not None:
            await self._metrics.close()
        if self._tracer is not None:
            await self._tracer.close()


def _screenings(settings: Settings, access: Access, measures: Measures | None) -> Screenings:
    return Screenings(access, ObservedScreener(ProcessScreener(settings.screening_phrases_file), measures))


def _check_phrases(settings: Settings) -> None:
    """Raise `StartError` for phrases that could not be looked for: nothing from outside could be written."""
    phrases_file = settings.screening_phrases_file
    if phrases_file is not None:
        try:
            parse_phrases(phrases_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, PhrasesInvalidError) as fault:
            raise StartError(f"screening_phrases_file: {fault}") from fault


def _bookkeeping(
    store: BoardStore, access: Access, audit: AuditLog, window_ms: int, digest: Callable[[bytes], bytes]
) -> dict[str, Method]:
    """Give the methods that judge what is stored."""
    reading = AuditReading(store, access)
    doctor = Doctor(store, access, audit, reading, window_ms + OPERATIONS_SLACK_MS, digest)
    return {**AuditMethods(reading).methods, **ExaminationMethods(doctor).methods}


def _measured(settings: Settings, store: BoardStore) -> tuple[Measures | None, BoardStore]:
    """Give what is counted and the store as it is counted; nothing and the store as it is where nobody asks for metrics."""
    if not settings.metrics_listen and not settings.metrics_endpoint:
        return None, store
    measures = Measures()
    measures.batches = store.batches
    return measures, MeasuredStore(store, measures)


async def _kept_going(work: Callable[[], Awaitable[None]], job: str) -> None:
    """Run something until cancelled, again after a fault: a revoked credential must not stay good because of one."""
    while True:
        try:
            await work()
        except Exception as fault:  # noqa: BLE001 - a supervisor
            _log.error("background.failed", job=job, exc_info=fault)
        await asyncio.sleep(1.0)


def _report(job: str, fault: Exception) -> None:
    _log.warning("upkeep.failed", job=job, fault=str(fault))


async def _digest_key(store: BoardStore) -> bytes:
    """Give the store's secret, with which all its servers make the digests of requests; the first server makes it."""
    while True:
        record = (await store.read([keys.SECRET], STRONG, _START_S)).records[0]
        if record is not None:
            return record.value
        with contextlib.suppress(CommitRefused):  # another server was first: read its
            put = Put(keys.SECRET, secrets.token_bytes(32))
            await store.commit(ChangeSet((Absent(keys.SECRET),), (put,)), _START_S)


async def serve(settings: Settings, port_file: Path | None) -> None:
    """Run a server until SIGTERM or SIGINT, then drain it. A second signal ends it at once."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_exit, stopping)
    _calm_the_collector()
    try:
        server = await Server.open(settings)
        port = await server.start()
    except (OSError, Refusal) as error:
        raise StartError(f"cannot start on {settings.store}: {error}") from error
    host = settings.listen.rpartition(":")[0]
    if settings.identity == "development" and not settings.quickstart:
        _log.warning(
            "identity.development",
            note="callers are believed by their header kokuban-agent; loopback only",
            tenant="dev",
        )
    _log.info("server.listening", address=f"{host}:{port}", store=settings.store)
    if port_file is not None:
        partial = port_file.with_name(f"{port_file.name}.partial")
        partial.write_text(f"{port}\n", encoding="utf-8")
        partial.replace(port_file)
    await stopping.wait()
    _log.info("server.draining", grace_s=settings.drain_grace_s)
    await server.stop()
    _log.info("server.stopped")


def _calm_the_collector() -> None:
    """Have Python's cycle collector look seldom and not at what stays for good.

    A commit makes some hundred short-lived objects and no cycles. With Python's own thresholds the collector takes a tenth
    of the loop's time, most of it going again and again over modules and caches.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


def _stop_or_exit(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        sys.exit(1)
    stopping.set()


def _add_trace(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Say which trace a line belongs to, if it is of a call that is recorded."""
    span = TRACED.get()
    traceparent = "" if span is None else span.traceparent
    if traceparent:
        event["trace_id"], event["span_id"] = traceparent.split("-")[1:3]
    return event


def configure_logging(settings: Settings) -> None:
    """Send structured lines to standard error: text on a terminal, JSON elsewhere. Never a payload."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    rendered: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if text
        else [structlog.processors.ExceptionRenderer(_TRACEBACKS), structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _add_trace,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
