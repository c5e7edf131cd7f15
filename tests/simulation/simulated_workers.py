"""Simulated workers of tasks: they claim steps, act, record, die at any await, and go on where others died."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kokuban_server.app.commits import CommitRequest, Committed
from kokuban_server.app.lock_guards import FenceGiven
from kokuban_server.app.task_claims import Claimed, ClaimRequest
from kokuban_server.core import keys
from kokuban_server.core.commit import Increment, RecordEvent
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.locks import Fence
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.refusals import (
    ActionInDoubt,
    ActionRecorded,
    AlreadyExists,
    Contended,
    LockLost,
    NoStepReady,
    NotHolder,
    Refusal,
    SessionLost,
    StepNotHeld,
    TaskOver,
)
from kokuban_server.core.tasks import EVENTS_PATH, EventType, InDoubt, StepTerms, TaskEvent
from tests.simulation.simulated_agents import TENANT
from tests.simulation.simulated_replica import BOARD, ConnectionLost
from tests.simulation.simulated_sessions import UNSETTLED, LockScene, Session, SessionKeeper
from tests.simulation.task_journal import Claim, Effect, Fate, Recording

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kokuban_server.core.commit import Mutation
    from tests.simulation.simulated_replica import SimulatedReplica
    from tests.simulation.task_journal import TaskJournal

DOOMED = "doomed"
"""The task whose first step every worker dies of."""
DOOMED_ATTEMPTS_MAX = 3
TASKS: dict[str, dict[str, StepTerms]] = {
    "t1": {
        "a": StepTerms(attempts_max=100),
        "b": StepTerms(attempts_max=100, priority=1),
        "c": StepTerms(("a", "b"), attempts_max=100),
        "d": StepTerms(attempts_max=100, back_off_ms=500),
        "e": StepTerms(("c", "d"), attempts_max=100),
        "f": StepTerms(("c",), attempts_max=100),
    },
    "t2": {
        "a": StepTerms(attempts_max=100, back_off_ms=10),
        **{name: StepTerms((before,), attempts_max=100) for before, name in pairwise("abcdef")},
    },
    DOOMED: {
        "a": StepTerms(attempts_max=DOOMED_ATTEMPTS_MAX),
        "b": StepTerms(("a",)),
    },
}
COUNT = "work/count"
"""An entry that is counted up in the commit that completes a step."""
ACTIONS = {"again": InDoubt.RETRY, "or-not": InDoubt.SKIP, "once": InDoubt.ASK}
_SENT_AT_MOST = 6
_DAY_MS = 24 * 3_600_000
_T = TypeVar("_T")


class TaskScene(LockScene, Protocol):
    """What a worker finds around it."""

    @property
    def tasks(self) -> TaskJournal: ...

    @property
    def mortality(self) -> float:
        """How often a worker dies at an await."""
        ...

    def left(self) -> list[str]:
        """Give the tasks in which there is something to do."""
        ...


class Died(Exception):  # noqa: N818 - what has happened
    """The worker is gone, wherever it was."""


class StepLost(Exception):  # noqa: N818 - as above
    """The step is not the worker's any more."""


class Recorder(SessionKeeper):
    """Records events of tasks, and sends each commit again until something is known of it."""

    def __init__(self, world: TaskScene, name: str) -> None:
        super().__init__(world, name)
        self.scene = world
        self.mortality = 0.0

    async def call(self, replica: SimulatedReplica, work: Coroutine[Any, Any, _T]) -> _T | Refusal | None:
        """Have a server do something; nothing if there was no answer. The caller may die before, in or after it."""
        dies = self.random.random() < self.mortality
        try:
            return await replica.call(work, self.name_call(), self.random.uniform(0, 0.15) if dies else 3.0)
        except ConnectionLost:
            self.say(f"{replica.name}: lost")
            return None
        except Refusal as refusal:
            self.told(f"{replica.name}: {refusal!r}")
            self.scene.tasks.refused.add(type(refusal).__name__)
            return refusal
        finally:
            if dies:
                self.say("dies")
                raise Died

    async def record(
        self, task: str, *events: TaskEvent, held: Claimed | None = None, beside: Mutation | None = None
    ) -> Committed | Refusal:
        """Commit some events; give the answer, or the refusal that settles it. Dies if nobody says."""
        region = parse_region(f"task:{task}")
        mutations: list[tuple[EntryKey, Mutation, int]] = [
            (EntryKey(region, EVENTS_PATH), RecordEvent(event, Value(Form.TEXT, self.name), {}, "append_event"), place)
            for place, event in enumerate(events)
        ]
        if beside is not None:
            mutations.append((EntryKey(region, COUNT), beside, len(mutations)))
        fences: tuple[FenceGiven, ...] = ()
        if held is not None:
            granted = held.granted
            fence = Fence(granted.lock_id, granted.revision, self.world.store.epoch)
            fences = (FenceGiven("fences[0]", fence),)
        sent = self.sent()
        digest = self.world.replicas[0].request_ids.digest(repr((mutations, fences)).encode())
        request = CommitRequest(BOARD, sent.request_id, sent.time_ms, digest, (), tuple(mutations), "", "", "", fences)
        recording = self.scene.tasks.recordings[sent.request_id] = Recording(self.name, request)
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            answer = await self.call(replica, replica.commits.commit(self.principal, request, self.deadline()))
            if isinstance(answer, Committed):
                self.told(f"{sent.request_id} at {replica.name}: {answer.revision}")
                recording.fate = Fate.ACKNOWLEDGED
                return answer
            if answer is not None and not isinstance(answer, (*UNSETTLED, Contended)):
                recording.fate = Fate.REFUSED
                return answer
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
        raise Died


class Worker(Recorder):
    """Works on whatever step it is given."""

    async def work(self) -> None:
        """Work until there is nothing left to do; who dies is followed by another of the name."""
        while left := self.scene.left():
            self.mortality = self.scene.mortality
            try:
                await self._live(self.random.choice(left))
            except Died:
                self.scene.tasks.deaths += 1
                await self.abandon()
            except StepLost:
                self.say("step lost")
            await asyncio.sleep(self.random.expovariate(4))
        await self.close()

    async def _live(self, task: str) -> None:
        session = self.session
        if session is None or session.is_lost:
            await self.abandon()
            session = await self.open()
            if session is None:
                return
        claimed = await self._claim(session, task)
        if claimed is None:
            return
        if task == DOOMED:
            self.mortality = 0.4
        await self._take(session, task, claimed)
        if task == DOOMED:
            raise Died

    async def _claim(self, session: Session, task: str) -> Claimed | None:
        sent = self.sent()
        region = parse_region(f"task:{task}")
        lock_delay_ms = self.random.choice((0, 300, 1_000))
        digest = self.world.replicas[0].request_ids.digest(repr((sent, session.id, task)).encode())
        request = ClaimRequest(
            *(BOARD, session.id, sent.request_id, sent.time_ms, digest, region, frozenset(), "to work on it"),
            *(_DAY_MS, lock_delay_ms, "", ""),
        )
        claim = self.scene.tasks.claims[sent.request_id] = Claim(self.name, task)
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            wanted = set(self.scene.tasks.wanted[task])
            answer = await self.call(replica, replica.task_claims.claim(self.principal, request, self.deadline()))
            if isinstance(answer, Claimed):
                self.told(f"{sent.request_id} at {replica.name}: {answer.step} at {answer.granted.revision}")
                claim.answers.append(answer)
                if missed := wanted & self.scene.tasks.wanted[task] - answer.state.constraints.keys():
                    self.problem(f"{sent.request_id} was not told of {missed}")
                self._judge_resuming(answer)
                return answer
            if answer is not None and not isinstance(answer, (*UNSETTLED, Contended)):
                if not isinstance(answer, (NoStepReady, TaskOver, SessionLost, LockLost)):
                    self.problem(f"{request} was refused with {answer!r}")
                return None
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
        raise Died

    def _judge_resuming(self, claimed: Claimed) -> None:
        """Check that the events behind the checkpoint are told without a gap, and that it is the last one."""
        step, resuming = claimed.state.steps[claimed.step], claimed.resuming
        numbers = [int(found.key.path.rpartition("/")[2]) for found in resuming.events]
        if resuming.after_event != (step.checkpoint or step.added):
            self.problem(f"{claimed.step} would go on from {resuming.after_event}, its state is {step}")
        if numbers != list(range(resuming.after_event + 1, resuming.after_event + 1 + len(numbers))):
            self.problem(f"{claimed.step} is told of {numbers} behind {resuming.after_event}")

    async def _take(self, session: Session, task: str, claimed: Claimed) -> None:
        """Do what there is to do in a step, and end it: most often because it is done."""
        step = claimed.step
        for action, in_doubt in ACTIONS.items():
            await self._act(session, task, claimed, action, in_doubt)
            if self.random.random() < 0.5:
                note = TaskEvent(EventType.NOTE, step)
                await self._must(task, claimed, TaskEvent(EventType.CHECKPOINT_SAVED, step), note)
            if self.random.random() < 0.04:  # busy with something for longer than its session lives
                session.awake.clear()
                await asyncio.sleep(session.ttl_s * 2)
                session.awake.set()
            await asyncio.sleep(self.random.expovariate(20))
        if task == DOOMED:
            return
        ends = (EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_YIELDED)
        (how,) = self.random.choices(ends, (8, 1, 1))
        count = Increment(1) if how is EventType.STEP_COMPLETED else None
        answer = await self.record(task, TaskEvent(how, step), held=claimed, beside=count)
        if isinstance(answer, Refusal):
            self._lose(answer)

    async def _must(self, task: str, claimed: Claimed, *events: TaskEvent) -> None:
        answer = await self.record(task, *events, held=claimed)
        if isinstance(answer, Refusal):
            self._lose(answer)

    def _lose(self, refusal: Refusal) -> None:
        """Give the step up if it was lost; anything else has no business there."""
        if not isinstance(refusal, (LockLost, SessionLost, StepNotHeld, NotHolder)):
            self.problem(f"a worker was refused with {refusal!r}")
        raise StepLost

    async def _act(self, session: Session, task: str, claimed: Claimed, action: str, in_doubt: InDoubt) -> None:
        """Do something once: its intent recorded before, its result behind it; as the client library does."""
        step = claimed.step
        for _ in range(3):
            begun = await self.record(
                task, TaskEvent(EventType.ACTION_STARTED, step, action, in_doubt=in_doubt), held=claimed
            )
            if isinstance(begun, ActionRecorded):
                return
            if isinstance(begun, ActionInDoubt):
                ended = EventType.ACTION_SKIPPED
                if in_doubt is InDoubt.ASK:
                    happened = any(one[:3] == (task, step, action) for one in self.scene.tasks.effects)
                    ended = EventType.ACTION_DONE if happened else EventType.ACTION_FAILED
                await self._must(task, claimed, TaskEvent(ended, step, action))
                continue
            if isinstance(begun, Refusal):
                self._lose(begun)
            if session.is_lost:
                raise StepLost
            if self.random.random() < self.mortality:
                raise Died
            if self.random.random() < 0.1:  # it certainly has not happened
                await self._must(task, claimed, TaskEvent(EventType.ACTION_FAILED, step, action))
                continue
            self._cause(task, claimed, action, in_doubt)
            if self.random.random() < self.mortality:
                raise Died
            await self._must(task, claimed, TaskEvent(EventType.ACTION_DONE, step, action))
            return

    def _cause(self, task: str, claimed: Claimed, action: str, in_doubt: InDoubt) -> None:
        store, granted = self.world.store, claimed.granted
        lock = store.now_at(keys.on_board(keys.LOCK, keys.board_prefix(TENANT, BOARD), granted.lock_id))
        is_held = lock is not None and lock.create_revision == granted.revision
        self.scene.tasks.effects.append(Effect(task, claimed.step, action, in_doubt, store.present, is_held))
        self.say(f"causes {task} {claimed.step} {action}")


class User(Recorder):
    """Begins the tasks, and says what it wants of them while others work on them."""

    async def begin(self) -> None:
        """Create every task, with its steps."""
        for task, steps in TASKS.items():
            self.scene.tasks.wanted[task] = set()
            added = [TaskEvent(EventType.STEP_ADDED, name, terms=terms) for name, terms in steps.items()]
            answer: Committed | Refusal | None = None
            while answer is None:
                with contextlib.suppress(Died):  # nobody says whether it stands: the next try does
                    answer = await self.record(task, TaskEvent(EventType.TASK_CREATED), *added)
            if isinstance(answer, Refusal) and not isinstance(answer, AlreadyExists):
                self.problem(f"a new task is refused with {answer!r}")

    async def speak(self) -> None:
        """Want things, and want them no more, as long as there is something to do."""
        said = 0
        while left := self.scene.left():
            task = self.random.choice(left)
            wanted = self.scene.tasks.wanted[task]
            if wanted and self.random.random() < 0.4:
                name = self.random.choice(sorted(wanted))
                wanted.discard(name)  # from here on it may be gone
                await self._say(task, TaskEvent(EventType.CONSTRAINT_WITHDRAWN, subject=name))
            elif len(wanted) < 10:
                said += 1
                name = f"wish-{said}"
                if await self._say(task, TaskEvent(EventType.CONSTRAINT_SET, subject=name)):
                    wanted.add(name)
            await asyncio.sleep(self.random.expovariate(1))

    async def _say(self, task: str, event: TaskEvent) -> bool:
        try:
            answer = await self.record(task, event)
        except Died:  # nobody says whether it stands
            return False
        if isinstance(answer, Refusal) and not isinstance(answer, TaskOver):
            self.problem(f"{event} was refused with {answer!r}")
        return isinstance(answer, Committed)
