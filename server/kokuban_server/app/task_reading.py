"""How tasks stand, what has happened in them, and from where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.archived import refuse_archived
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.app.reads import UNSAID, AskAtLeast, AskStrong
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Verb
from kokuban_server.core.names import EntryKey
from kokuban_server.core.refusals import NotFound
from kokuban_server.core.revision import encode_token
from kokuban_server.core.subtasks import Subtask, parent
from kokuban_server.core.tasks import EVENTS_PATH, StepStatus, event_path
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.task_codec import decode_log, decode_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.reads import Found, Listing, Reads, Trusting
    from kokuban_server.core.access import Principal
    from kokuban_server.core.names import Region
    from kokuban_server.core.tasks import TaskState
    from kokuban_server.ports.board_store import BoardStore, Record


_NO_SUBTASK = Subtask(0)


class Standing(NamedTuple):
    """How a task stands."""

    region: Region
    state: TaskState
    last_event: int
    held: frozenset[str] = frozenset()
    """The locks of its steps that are held."""


class Resuming(NamedTuple):
    """From where to go on with a step."""

    start: Found | None
    """The event that says what to do."""
    checkpoint: Found | None
    after_event: int
    events: Sequence[Found]
    more: bool
    state: TaskState
    subtask: Found | None
    """The event that opened the nearest subtask that the step lies in."""
    subtask_checkpoint: Found | None


class TaskReading:
    """Answers what is asked of tasks. Their events are entries, and are read like any others."""

    def __init__(self, store: BoardStore, access: Access, reads: Reads) -> None:
        self._store = store
        self._access = access
        self._reads = reads

    async def get(self, principal: Principal, board: str, region: Region, deadline: float) -> tuple[Standing, int]:
        """Give how a task stands, and the revision at which it was read. Raises `NotFound`."""
        await self._access.enter(principal, board, deadline)
        try:
            opened = self._access.open(principal, board, region, Verb.READ)
        except NotFound:  # takes as long as one that is not there
            await self._store.read([keys.NOWHERE] * 3, STRONG, left_s(deadline))
            raise
        named = [keys.TASK_LOG + opened.prefix, keys.TASK + opened.prefix, keys.TASK_ARCHIVE + opened.prefix]
        cut = await self._store.read(named, STRONG, left_s(deadline))
        log, task, archived = cut.records
        refuse_archived([archived], writes=False)
        if log is None or task is None:
            raise NotFound
        state = decode_task(task.key, task.value)
        held = await self._held(keys.board_prefix(principal.tenant, board), state, deadline)
        await self._access.show(principal, [opened], deadline)
        return Standing(region, state, decode_log(log.key, log.value), held), cut.revision

    async def _held(self, board: bytes, state: TaskState, deadline: float) -> frozenset[str]:
        locks = [step.lock_id for step in state.steps.values() if step.status is StepStatus.RUNNING]
        if not locks:
            return frozenset()
        named = [keys.on_board(keys.LOCK, board, lock) for lock in locks]
        found = (await self._store.read(named, STRONG, left_s(deadline))).records
        return frozenset(lock for lock, record in zip(locks, found, strict=True) if record is not None)

    async def list_tasks(
        self, principal: Principal, board: str, page_size: int, token: str, deadline: float
    ) -> tuple[list[Standing], str, int]:
        """Give a page of the tasks that the caller may read, the next page's token, and the revision."""
        await self._access.enter(principal, board, deadline)
        prefix = keys.tasks(principal.tenant, board)
        after = read_page_token(token, prefix, prefix)
        found: list[tuple[OpenRegion, Record]] = []
        budget = limits.PAGE_BYTES_MAX
        revision = 0
        more = True
        while more and len(found) <= page_size and budget > 0:
            page = await self._store.scan(
                prefix, after, limits.PAGE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, left_s(deadline)
            )
            revision = revision or page.revision
            for record in page.records:
                after = record.key
                opened = self._access.readable(principal, board, keys.parse_task(record.key))
                if opened is not None:
                    found.append((opened, record))
                    budget -= len(record.value)
                if len(found) > page_size or budget <= 0:
                    break
            else:
                more = page.more
        shown = found[:page_size]
        opened_regions = [opened for opened, _ in shown]
        named = [keys.TASK_LOG + opened.prefix for opened in opened_regions]
        logs = (await self._store.read(named or [keys.NOWHERE], STRONG, left_s(deadline))).records
        await self._access.show(principal, opened_regions, deadline)
        standings = [
            Standing(opened.region, decode_task(record.key, record.value), decode_log(log.key, log.value))
            for (opened, record), log in zip(shown, logs, strict=False)
            if log is not None
        ]
        # A token names what was shown last, and never what may not be read.
        next_token = page_token(shown[-1][1].key, prefix, prefix) if shown and (more or len(found) > page_size) else ""
        return standings, next_token, revision

    async def list_events(
        self,
        principal: Principal,
        board: str,
        region: Region,
        after_event: int,
        page_size: int,
        token: str,
        deadline: float,
        trusting: Trusting = UNSAID,
    ) -> Listing:
        """Give a page of a task's events behind one. Raises `NotFound`."""
        if not token:
            region_prefix = keys.region_prefix(principal.tenant, board, region)
            prefix = keys.heads(region_prefix, EVENTS_PATH)
            token = page_token(keys.head(region_prefix, event_path(after_event)), prefix, prefix)
        listing = await self._reads.list_entries(
            principal, board, region, EVENTS_PATH, page_size, token, AskStrong(), deadline, trusting
        )
        if not listing.found and not after_event:
            raise NotFound
        return listing

    async def resuming(
        self, principal: Principal, board: str, region: Region, name: str, at: int, session_id: str, deadline: float
    ) -> Resuming:
        """Give from where to go on with a step, as it was at a revision or later.

        External data is shown only where it is asked for by name: `list_events` does.
        """
        standing, _ = await self.get(principal, board, region, deadline)
        step = standing.state.steps[name]
        subtask = standing.state.subtasks.get(parent(standing.state.subtasks, name), _NO_SUBTASK)
        numbers = (step.added, step.checkpoint, subtask.opened, subtask.checkpoint)
        wanted = [EntryKey(region, event_path(number)) for number in numbers if number]
        freshness = AskAtLeast(encode_token(self._store.epoch, at))
        trusting = UNSAID._replace(session_id=session_id)
        entries = await self._reads.batch_get(principal, board, wanted, freshness, deadline, trusting)
        found = {one.key.path: one for one in entries.found}
        checkpoint = found.get(event_path(step.checkpoint))
        after_event = step.checkpoint if checkpoint is not None and not checkpoint.withheld else step.added
        page = await self.list_events(
            principal, board, region, after_event, limits.RESUME_EVENTS_ENTRIES_MAX, "", deadline, trusting
        )
        kept = _within(page.found, limits.RESUME_EVENTS_BYTES_MAX)
        return Resuming(
            found.get(event_path(step.added)),
            checkpoint,
            after_event,
            kept,
            bool(page.next_page_token) or len(kept) < len(page.found),
            standing.state,
            found.get(event_path(subtask.opened)),
            found.get(event_path(subtask.checkpoint)),
        )


def _within(events: Sequence[Found], bytes_max: int) -> list[Found]:
    """Give the first events whose values fit, and at least one."""
    kept: list[Found] = []
    left = bytes_max
    for one in events:
        value = one.record.value
        left -= 0 if value is None else value.size_bytes
        if left < 0 and kept:
            break
        kept.append(one)
    return kept
