"""Tasks are their events: how they stand can be made again from any state that was kept and the events behind it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokuban_server.core import limits
from kokuban_server.core.refusals import (
    InvalidRequest,
    NoStepReady,
    NotOpen,
    Refusal,
    StepNotDead,
    SubtaskNotReady,
    TaskFull,
    TaskOver,
)
from kokuban_server.core.subtasks import is_within, parent
from kokuban_server.core.task_planning import Ground, Worker, folded, judged, pick
from kokuban_server.core.task_progress import left_to_do, progress
from kokuban_server.core.tasks import (
    RECORDED,
    DeadReason,
    EventType,
    InDoubt,
    Interrupt,
    RecordedAction,
    StepStatus,
    StepTerms,
    TaskEvent,
    TaskState,
    TaskStatus,
    TokenUsage,
    after,
    event_path,
    is_reserved,
)
from kokuban_server.records.task_codec import decode_task, encode_event, encode_task, read_event

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ["a", "b", "s/c", "s/t/d"]
SUBTASKS = ["s", "s/t", "u"]


def on_terms(*given: Any) -> StepTerms:  # noqa: ANN401 - hypothesis would fill in what is not given
    return StepTerms(*given)


def wished(*given: Any, **more: Any) -> TaskEvent:  # noqa: ANN401 - as above
    return TaskEvent(*given, **more)


def terms() -> st.SearchStrategy[StepTerms]:
    return st.builds(
        on_terms,
        st.lists(st.sampled_from([*NAMES, *SUBTASKS]), unique=True, max_size=2).map(tuple),
        st.frozensets(st.sampled_from(["web", "gpu"])),
        st.integers(-2, 2),
        st.integers(1, 3),
        st.sampled_from([0, 50, 10**9]),
    )


def asked() -> st.SearchStrategy[TaskEvent]:
    """Events as agents ask for them, possible or not."""
    names, subjects = st.sampled_from(NAMES), st.sampled_from(["x", "y", "z"])
    usage = st.none() | st.builds(TokenUsage, st.integers(0, 9), st.integers(0, 9))
    actions = st.sampled_from([EventType.ACTION_STARTED, EventType.ACTION_STARTED, *RECORDED, EventType.ACTION_FAILED])
    ends = [EventType.STEP_COMPLETED, EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_YIELDED]
    of_subtasks = [EventType.SUBTASK_CHECKPOINT_SAVED, EventType.SUBTASK_RESULT, EventType.SUBTASK_LESSON]
    of_tasks = [EventType.CONSTRAINT_SET, EventType.CONSTRAINT_WITHDRAWN, EventType.INTERRUPT_ANSWERED]
    return st.one_of(
        st.builds(wished, st.just(EventType.STEP_ADDED), names, terms=terms()),
        st.builds(wished, actions, names, subjects, in_doubt=st.sampled_from(InDoubt), usage=usage),
        st.builds(wished, st.sampled_from(ends), names),
        st.builds(wished, st.just(EventType.STEP_DEAD), names, dead_reason=st.just(DeadReason.GIVEN_UP)),
        st.builds(wished, st.just(EventType.CHECKPOINT_SAVED), names, fingerprint=st.sampled_from(["", "v1"])),
        st.builds(wished, st.sampled_from(of_tasks), st.just(""), subjects),
        st.builds(wished, st.just(EventType.INTERRUPT_OPENED), st.just("") | names, subjects),
        st.builds(wished, st.just(EventType.NOTE), st.just("") | names, snapshot=st.sampled_from(["", "t"])),
        st.builds(wished, st.just(EventType.STEP_REVIVED), names, terms=st.just(StepTerms(attempts_max=2))),
        st.builds(wished, st.just(EventType.SUBTASK_OPENED), st.just("") | names, st.sampled_from(SUBTASKS)),
        st.builds(
            wished, st.sampled_from(of_subtasks), st.just(""), st.sampled_from(SUBTASKS), fingerprint=st.just("v2")
        ),
        st.builds(
            wished,
            st.just(EventType.SUBTASK_COMPLETED),
            st.just(""),
            st.sampled_from(SUBTASKS),
            notes_expire_ms=st.just(5),
        ),
        st.builds(wished, st.sampled_from([EventType.NOTE] * 9 + [EventType.TASK_CANCELLED])),
    )


class Claim:
    """Somebody asks for a step; the locks of some steps may be gone by then."""

    def __init__(self, labels: frozenset[str], lost: frozenset[str]) -> None:
        self.labels = labels
        self.lost = lost

    def __repr__(self) -> str:
        return f"Claim({set(self.labels)}, lost={set(self.lost)})"


def claims() -> st.SearchStrategy[Claim]:
    return st.builds(
        Claim, st.frozensets(st.sampled_from(["web", "gpu"])), st.frozensets(st.sampled_from(NAMES), max_size=1)
    )


class Attempt(NamedTuple):
    """Somebody is given a step, if there is one, and ends it."""

    end: EventType


def attempts() -> st.SearchStrategy[Attempt]:
    ends = [EventType.STEP_COMPLETED] * 3 + [EventType.STEP_DEAD] * 2 + [EventType.STEP_FAILED]
    return st.builds(Attempt, st.sampled_from(ends))


BEGUN: list[TaskEvent | Claim | Attempt] = [
    TaskEvent(EventType.STEP_ADDED, "s/c", terms=StepTerms(attempts_max=2)),
    TaskEvent(EventType.SUBTASK_OPENED, "", "s"),
    TaskEvent(EventType.STEP_ADDED, "a", terms=StepTerms(("s/c",))),
    TaskEvent(EventType.SUBTASK_OPENED, "", "s/t"),
    TaskEvent(EventType.STEP_ADDED, "s/t/d", terms=StepTerms()),
    TaskEvent(EventType.STEP_ADDED, "b", terms=StepTerms(("s/t",))),
    Claim(frozenset(), frozenset()),
]
"""How a run may begin, so that more of what is wished is possible."""


PAST = {EventType.STEP_COMPLETED, EventType.SUBTASK_COMPLETED}
"""What depends on a step or a subtask waits for this."""
ENDS_OF_ACTIONS = {EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED}
OF_WORKERS = ENDS_OF_ACTIONS | {
    EventType.CHECKPOINT_SAVED,
    EventType.ACTION_STARTED,
    EventType.STEP_FAILED,
    EventType.STEP_YIELDED,
}


class Run:
    """A task as a server keeps it, with what it would have refused left out."""

    def __init__(self) -> None:
        self.events: list[TaskEvent] = [judged(None, TaskEvent(EventType.TASK_CREATED), 1, "", self.ground())]
        self.state = after(None, self.events[0])
        self.recorded: dict[tuple[str, str], RecordedAction] = {}

    def ground(self) -> Ground:
        held = [] if not hasattr(self, "state") else [step.lock_id for step in self.state.steps.values()]
        recorded = getattr(self, "recorded", {})
        return Ground("t", frozenset(filter(None, held)), recorded, 1_000 + len(getattr(self, "events", ())) * 40)

    def ask(self, wish: TaskEvent | Claim | Attempt) -> None:
        number = len(self.events) + 1
        if isinstance(wish, Attempt):
            self.ask(Claim(frozenset({"web", "gpu"}), frozenset()))
            if self.events[-1].type is EventType.STEP_CLAIMED:
                self.ask(TaskEvent(wish.end, self.events[-1].step))
            return
        if isinstance(wish, TaskEvent):
            try:
                event = judged(self.state, self.meant(wish), number, "f", self.ground())
            except Refusal:
                return
            self.add(event)
            if event.type in RECORDED:
                self.recorded[event.step, event.subject] = RecordedAction(event.number, event.type)
            return
        running = {name for name, step in self.state.steps.items() if step.status is StepStatus.RUNNING}
        try:
            picked = pick(
                self.state,
                "t",
                Worker(wish.labels, "v1", f"lock-{number}"),
                running - wish.lost,
                number - 1,
                self.ground().now_ms,
            )
        except TaskOver:
            return
        if picked.step:
            chosen = self.state.steps[picked.step]
            ended = {event.subject or event.step for event in self.events if event.type in PAST}
            assert ended >= set(chosen.terms.depends_on)
            assert chosen.terms.labels <= wish.labels
            assert chosen.attempts < chosen.terms.attempts_max
            assert picked.step not in running - wish.lost
            assert not self.state.awaits_answer(picked.step)
        for event in picked.events:
            self.add(event)

    def finish(self) -> None:
        """Do what is left, as far as that goes."""
        for name in self.state.interrupts:
            self.ask(TaskEvent(EventType.INTERRUPT_ANSWERED, "", name))
        for _ in range(2):  # for what waits for a subtask too
            for _ in self.state.steps:
                self.ask(Attempt(EventType.STEP_COMPLETED))
            for name in sorted(self.state.subtasks, reverse=True):
                self.ask(TaskEvent(EventType.SUBTASK_COMPLETED, "", name, notes_expire_ms=5))

    def meant(self, wish: TaskEvent) -> TaskEvent:
        """Mean something that is there, if it is, with what is said of such alone: else hardly anything would be possible."""
        status = StepStatus.DEAD if wish.type is EventType.STEP_REVIVED else StepStatus.RUNNING
        fit = [name for name, step in self.state.steps.items() if step.status is status]
        if fit and wish.type in OF_WORKERS | {EventType.STEP_REVIVED}:
            wish = wish._replace(step=fit[0])
        known: Mapping[str, object] = self.state.constraints if wish.type is EventType.CONSTRAINT_WITHDRAWN else {}
        if wish.step in fit and wish.type in ENDS_OF_ACTIONS:
            known = self.state.steps[wish.step].actions
        return wish._replace(subject=next(iter(known))) if known else wish

    def add(self, event: TaskEvent) -> None:
        self.events.append(event)
        self.state = after(self.state, event)


def runs() -> st.SearchStrategy[Run]:
    def run(begun: int, wishes: list[TaskEvent | Claim | Attempt], *, is_finished: bool) -> Run:
        made = Run()
        for wish in [*BEGUN[:begun], *wishes]:
            made.ask(wish)
        if is_finished:
            made.finish()
        return made

    wishes = st.one_of(asked(), asked(), claims(), attempts(), attempts())
    begun = st.sampled_from([0, len(BEGUN), len(BEGUN)])
    return st.builds(run, begun, st.lists(wishes, min_size=10, max_size=60), is_finished=st.booleans())


def test_the_runs_of_these_tests_come_to_ends_of_all_kinds() -> None:
    """Else what is said of all runs would be said of hardly any."""
    met: set[EventType] = set()
    statuses: set[TaskStatus] = set()
    claimed_behind: set[str] = set()

    @settings(max_examples=120, database=None, derandomize=True)
    @given(runs())
    def look(run: Run) -> None:
        met.update(event.type for event in run.events)
        statuses.add(run.state.status)
        claimed = [step for step in run.state.steps.values() if step.claimed]
        claimed_behind.update(name for step in claimed for name in step.terms.depends_on)

    look()
    assert met >= {
        *(EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_DEAD, EventType.STEP_REVIVED),
        *(EventType.SUBTASK_RESULT, EventType.SUBTASK_LESSON, EventType.SUBTASK_CHECKPOINT_SAVED),
        *(EventType.SUBTASK_OPENED, EventType.SUBTASK_COMPLETED, EventType.ACTION_STARTED),
    }
    assert statuses == set(TaskStatus)
    assert claimed_behind >= {"s/c", "s/t"}


@given(runs())
def test_a_state_that_was_kept_and_the_events_behind_it_make_the_same_as_all_events(run: Run) -> None:
    """For every place in the log, through the stored form of both."""
    events = tuple(read_event(encode_event(event)) for event in run.events)
    assert events == tuple(run.events)
    for k in range(len(events) + 1):
        kept = folded(None, events[:k])
        again = None if kept is None else decode_task(b"", encode_task(kept))
        assert again == kept
        assert folded(again, events[k:]) == run.state


@given(runs())
def test_the_order_of_steps_is_kept_in_the_stored_form(run: Run) -> None:
    assert list(decode_task(b"", encode_task(run.state)).steps) == list(run.state.steps)


@given(runs())
def test_events_have_numbers_without_gaps_and_each_end_of_an_action_its_beginning(run: Run) -> None:
    assert [event.number for event in run.events] == list(range(1, len(run.events) + 1))
    open_actions: set[tuple[str, str]] = set()
    recorded: set[tuple[str, str]] = set()
    for event in run.events:
        name = (event.step, event.subject)
        if event.type is EventType.ACTION_STARTED:
            assert name not in recorded
            open_actions.add(name)
        elif event.type in {*RECORDED, EventType.ACTION_FAILED}:
            assert name in open_actions
            open_actions.discard(name)
            if event.type in RECORDED:
                recorded.add(name)
    assert open_actions == {(name, action) for name, step in run.state.steps.items() for action in step.actions}
    assert recorded == run.recorded.keys()


@given(runs())
def test_a_step_is_done_or_dead_until_somebody_revives_it(run: Run) -> None:
    ended: set[str] = set()
    state: TaskState | None = None
    for event in run.events:
        if event.type is EventType.STEP_REVIVED:
            ended.discard(event.step)
        if event.type is not EventType.NOTE and event.step and event.type is not EventType.INTERRUPT_ANSWERED:
            assert event.step not in ended, event
        state = after(state, event)
        ended |= {name for name, step in state.steps.items() if step.status in {StepStatus.DONE, StepStatus.DEAD}}
        for step in state.steps.values():
            assert 0 <= step.attempts <= step.terms.attempts_max
            assert bool(step.lock_id) == (step.status is StepStatus.RUNNING)


@given(runs())
def test_a_completed_subtask_stays_as_it_was_and_a_task_is_completed_when_everything_is(run: Run) -> None:
    state: TaskState | None = None
    for event in run.events:
        before, state = state, after(state, event)
        unfinished = {
            name for name, step in state.steps.items() if step.status not in {StepStatus.DONE, StepStatus.DEAD}
        }
        for name, subtask in state.subtasks.items():
            if subtask.completed:
                assert not any(is_within(step, name) for step in unfinished)
                assert all(one.completed for other, one in state.subtasks.items() if is_within(other, name))
        for name, subtask in (before.subtasks if before is not None else {}).items():
            assert not subtask.completed or state.subtasks[name] == subtask
        dead = [name for name, step in state.steps.items() if step.status is StepStatus.DEAD]
        is_left = (
            unfinished
            or any(not one.completed for one in state.subtasks.values())
            or any(not parent(state.subtasks, name) for name in dead)
        )
        if event.type in {EventType.STEP_COMPLETED, EventType.SUBTASK_COMPLETED}:
            assert (state.status is TaskStatus.COMPLETED) == (not is_left)
        else:
            assert state.status is not TaskStatus.COMPLETED


def links_of(state: TaskState) -> dict[str, set[str]]:
    """What each step and each subtask that is not past waits for, told by what is said of them."""
    done = {name for name, step in state.steps.items() if step.status is StepStatus.DONE}
    done |= {name for name, subtask in state.subtasks.items() if subtask.completed}
    links = {name: set(step.terms.depends_on) for name, step in state.steps.items()}
    names = [*state.steps, *state.subtasks]
    links |= {above: {name for name in names if name.startswith(f"{above}/")} for above in state.subtasks}
    return {name: behind - done for name, behind in links.items() if name not in done}


def is_circular(links: Mapping[str, set[str]]) -> bool:
    try:
        TopologicalSorter(links).prepare()
    except CycleError:
        return True
    return False


@given(runs(), terms())
def test_nothing_in_a_task_ever_waits_for_itself_and_no_step_is_refused_that_would_not(
    run: Run, more: StepTerms
) -> None:
    state: TaskState | None = None
    for event in run.events:
        state = after(state, event)
        assert not is_circular(links_of(state)), event
    assert state is not None
    for name in ("s/new", "s/t/new", "new"):
        is_known = state.steps.keys() | state.subtasks.keys() >= set(more.depends_on)
        closed = [above for above in SUBTASKS if is_within(name, above) and links_of(state).get(above) is None]
        if state.status is not TaskStatus.OPEN or not is_known or any(above in state.subtasks for above in closed):
            continue
        event = TaskEvent(EventType.STEP_ADDED, name, terms=more)
        try:
            judged(state, event, 99, "f", run.ground())
        except InvalidRequest as refused:
            assert refused.facts["field"] == "f.step.terms.depends_on"
            is_refused = True
        else:
            is_refused = False
        assert is_refused == is_circular(links_of(after(state, event._replace(number=99))))


@given(runs())
def test_what_is_left_to_do_for_a_part_is_all_that_it_waits_for(run: Run) -> None:
    """As one finds by following what waits for what, and who has to complete what."""
    links = links_of(run.state)
    for part in ("", *run.state.steps, *run.state.subtasks):
        behind = set(run.state.steps) & links.keys() if not part else {part} & links.keys()
        while True:
            more = behind.union(*(links.get(name, set()) for name in behind))
            if more == behind:
                break
            behind = more
        settling = {run.state.subtasks[name].step for name in behind & run.state.subtasks.keys()}
        steps = {name: run.state.steps[name].status for name in (behind | settling) & run.state.steps.keys()}
        expected = {
            name
            for name, status in steps.items()
            if status is StepStatus.RUNNING or (status is StepStatus.PENDING and name in behind)
        }
        assert left_to_do(run.state, part) == (expected if run.state.status is TaskStatus.OPEN else set())


@given(runs())
def test_the_progress_of_every_step_is_counted_once_by_what_it_is_a_part_of_and_by_all_around_that(run: Run) -> None:
    counts = progress(run.state)
    assert sum(one.own.total() for one in counts.values()) == len(run.state.steps)
    assert counts[""].total == Counter(step.status for step in run.state.steps.values())
    for name in run.state.subtasks:
        below = [step.status for step_name, step in run.state.steps.items() if step_name.startswith(f"{name}/")]
        assert counts[name].total == Counter(below)
        of_parts = [one for other, one in counts.items() if other and parent(run.state.subtasks, other) == name]
        assert counts[name].total == sum((one.total for one in of_parts), counts[name].own)


def with_steps(*names: str, **terms: object) -> TaskState:
    state = after(None, TaskEvent(EventType.TASK_CREATED, number=1))
    for number, name in enumerate(names, 2):
        new = StepTerms(**terms)  # type: ignore[arg-type]
        state = after(state, TaskEvent(EventType.STEP_ADDED, name, number=number, terms=new))
    return state


GROUND = Ground("t", frozenset(), {}, 0)


@pytest.mark.parametrize("name", ["a", "a/b", "x", "x/y/z"])
def test_a_step_lies_neither_above_nor_below_another(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        judged(with_steps("a", "x/y"), TaskEvent(EventType.STEP_ADDED, name), 4, "f", GROUND)
    assert refused.value.facts["field"] == "f.step.step"


@pytest.mark.parametrize("name", ["ab", "x/z", "x/yz"])
def test_siblings_are_other_steps(name: str) -> None:
    assert judged(with_steps("a", "x/y"), TaskEvent(EventType.STEP_ADDED, name), 4, "f", GROUND).number == 4


def test_a_step_depends_only_on_what_was_there_before_it() -> None:
    for other in ("b", "none"):
        with pytest.raises(Refusal) as refused:
            judged(with_steps("a"), TaskEvent(EventType.STEP_ADDED, "b", terms=StepTerms((other,))), 3, "f", GROUND)
        assert refused.value.facts["field"] == "f.step.terms.depends_on"


def with_subtask(state: TaskState, name: str, step: str = "") -> TaskState:
    return after(state, TaskEvent(EventType.SUBTASK_OPENED, step, name, 90))


def added(name: str, *depends_on: str) -> TaskEvent:
    return TaskEvent(EventType.STEP_ADDED, name, number=91, terms=StepTerms(depends_on))


@pytest.mark.parametrize("name", ["s/b", "s/t/b"])
@pytest.mark.parametrize("other", ["s", "behind", "further"])
def test_no_step_of_a_subtask_waits_for_it_be_it_through_others(name: str, other: str) -> None:
    state = with_subtask(with_subtask(with_steps("s/t/a"), "s"), "s/t")
    for event in (added("behind", "s/t/a", "s"), added("further", "behind")):
        state = after(state, judged(state, event, 91, "f", GROUND))
    with pytest.raises(InvalidRequest) as refused:
        judged(state, added(name, "s/t/a", other), 91, "f", GROUND)
    assert refused.value.facts["field"] == "f.step.terms.depends_on"


def test_a_step_of_a_subtask_waits_for_a_part_of_that_and_a_step_beside_it_for_the_whole() -> None:
    state = with_subtask(with_subtask(with_steps("s/t/a"), "s"), "s/t")
    for event in (added("s/b", "s/t"), added("c", "s", "s/b")):
        state = after(state, judged(state, event, 91, "f", GROUND))
    worker = Worker(frozenset(), "", "lock")
    for end in (
        TaskEvent(EventType.STEP_DEAD, "s/t/a", number=92, dead_reason=DeadReason.GIVEN_UP),
        TaskEvent(EventType.SUBTASK_COMPLETED, "", "s/t", 93),
        TaskEvent(EventType.STEP_COMPLETED, "s/b", number=94),
        TaskEvent(EventType.SUBTASK_COMPLETED, "", "s", 95),
    ):
        ready = pick(state, "t", worker, (), 95, 0).step
        assert ready == {"s/t/a": "s/t/a", "s/t": "", "s/b": "s/b", "s": ""}[end.subject or end.step]
        state = after(state, end)
    assert pick(state, "t", worker, (), 95, 0).step == "c"


@pytest.mark.parametrize("name", ["s", "s/t", "x"])
def test_a_subtask_is_opened_once_and_is_no_step_and_lies_below_none(name: str) -> None:
    state = with_subtask(with_steps("x", "s/t"), "s")
    with pytest.raises(Refusal) as refused:
        judged(state, TaskEvent(EventType.SUBTASK_OPENED, "", name), 91, "f", GROUND)
    assert refused.value.facts["field"] == "f.subtask"


def test_a_subtask_takes_in_what_lies_below_it_already() -> None:
    state = with_subtask(with_subtask(with_steps("s/t/a", "st/b"), "s/t"), "s")
    assert [parent(state.subtasks, name) for name in ("s/t/a", "s/t", "st/b", "s")] == ["s/t", "s", "", ""]
    with pytest.raises(SubtaskNotReady) as refused:
        judged(state, TaskEvent(EventType.SUBTASK_COMPLETED, "", "s"), 91, "f", GROUND)
    assert refused.value.facts == {
        "field": "f.subtask",
        "task": "t",
        "subtask": "s",
        "steps": "1",
        "subtasks": "1",
        "first": "s/t/a",
    }


@pytest.mark.parametrize("name", ["s", "s/t"])
def test_no_step_is_or_lies_above_a_subtask(name: str) -> None:
    state = with_subtask(with_steps("x"), "s/t")
    with pytest.raises(Refusal) as refused:
        judged(state, TaskEvent(EventType.STEP_ADDED, name, terms=StepTerms()), 91, "f", GROUND)
    assert refused.value.facts["field"] == "f.step.step"


def test_nothing_is_added_to_or_revived_in_what_is_completed() -> None:
    state = with_subtask(with_steps("s/t/a"), "s")
    state = after(state, TaskEvent(EventType.STEP_DEAD, "s/t/a", number=91, dead_reason=DeadReason.GIVEN_UP))
    closed = judged(state, TaskEvent(EventType.SUBTASK_COMPLETED, "", "s", notes_expire_ms=5), 92, "f", GROUND)
    state = dataclasses.replace(after(state, closed), status=TaskStatus.OPEN)
    for event in (
        TaskEvent(EventType.STEP_ADDED, "s/t/b", terms=StepTerms()),
        TaskEvent(EventType.STEP_REVIVED, "s/t/a", terms=StepTerms()),
        TaskEvent(EventType.SUBTASK_OPENED, "", "s/u"),
        TaskEvent(EventType.SUBTASK_LESSON, "", "s"),
        TaskEvent(EventType.SUBTASK_CHECKPOINT_SAVED, "", "s"),
        TaskEvent(EventType.SUBTASK_COMPLETED, "", "s"),
    ):
        with pytest.raises(NotOpen) as refused:
            judged(state, event, 93, "f", GROUND)
        assert (refused.value.facts["what"], refused.value.facts["id"]) == ("subtask", "s")


def test_a_dead_step_gets_attempts_beside_those_that_it_has_used() -> None:
    state = after(with_steps("a", attempts_max=2), TaskEvent(EventType.STEP_CLAIMED, "a", attempt=1, lock_id="l"))
    wish = TaskEvent(EventType.STEP_REVIVED, "a", terms=StepTerms(attempts_max=5))
    for name, status in (("a", "RUNNING"), ("b", "")):
        with pytest.raises(StepNotDead) as refused:
            judged(state, wish._replace(step=name), 4, "f", GROUND)
        assert refused.value.facts.get("status", "") == status
    state = after(state, TaskEvent(EventType.STEP_DEAD, "a", number=4, dead_reason=DeadReason.GIVEN_UP))
    revived = judged(state, wish, 5, "f", GROUND)
    assert revived.terms == StepTerms(attempts_max=6)
    step = after(state, revived).steps["a"]
    assert (step.status, step.attempts, step.dead_reason) == (StepStatus.PENDING, 1, DeadReason.NONE)


def test_rests_grow_to_a_day_and_not_further() -> None:
    state = with_steps("a", attempts_max=100, back_off_ms=3_600_000)
    ground = Ground("t", frozenset({"l"}), {}, 5)
    rests = []
    for attempt in range(1, 100):
        state = after(state, TaskEvent(EventType.STEP_CLAIMED, "a", attempt=attempt, lock_id="l"))
        failed = judged(state, TaskEvent(EventType.STEP_FAILED, "a"), 3, "f", ground)
        rests.append(failed.not_before_ms - 5)
        state = after(state, failed)
    assert rests[:6] == [3_600_000 * 2**n for n in range(5)] + [limits.STEP_BACK_OFF_MS_MAX]
    assert set(rests[5:]) == {limits.STEP_BACK_OFF_MS_MAX}


def test_only_the_last_64_answered_interrupts_are_kept_and_no_open_one_is_lost() -> None:
    state = with_steps()
    state = after(state, TaskEvent(EventType.INTERRUPT_OPENED, "", "open", number=2))
    for n in range(70):
        state = after(state, TaskEvent(EventType.INTERRUPT_OPENED, "", f"q{n}", number=10 + 2 * n))
        state = after(state, TaskEvent(EventType.INTERRUPT_ANSWERED, "", f"q{n}", number=11 + 2 * n))
    assert len(state.interrupts) == 65
    assert state.interrupts["open"] == Interrupt("", 2)
    assert "q5" not in state.interrupts
    assert "q6" in state.interrupts


def test_answered_interrupts_leave_room_for_open_ones() -> None:
    state = with_steps()
    for n in range(64):
        state = after(state, TaskEvent(EventType.INTERRUPT_OPENED, "", f"q{n}", number=n + 2))
    with pytest.raises(TaskFull):
        judged(state, TaskEvent(EventType.INTERRUPT_OPENED, "", "more"), 99, "f", GROUND)
    state = after(state, TaskEvent(EventType.INTERRUPT_ANSWERED, "", "q0", number=98))
    judged(state, TaskEvent(EventType.INTERRUPT_OPENED, "", "more"), 99, "f", GROUND)


def test_a_task_without_steps_stays_open_and_one_that_gains_a_step_with_its_last_completion_too() -> None:
    state = with_steps("a")
    assert with_steps().status is TaskStatus.OPEN
    done = TaskEvent(EventType.STEP_COMPLETED, "a", number=4)
    assert after(state, done).status is TaskStatus.COMPLETED
    grown = after(state, TaskEvent(EventType.STEP_ADDED, "b", number=3))
    assert after(grown, done).status is TaskStatus.OPEN


def test_a_note_changes_nothing() -> None:
    state = with_steps("a")
    assert after(state, TaskEvent(EventType.NOTE, "a", number=3)) is state


def test_nothing_to_give_says_what_stands_in_the_way() -> None:
    state = with_steps("done", "dead", "running", "lost")
    worker = Worker(frozenset(), "", "l")
    steps = dict(state.steps)
    for name, status in (("done", StepStatus.DONE), ("dead", StepStatus.DEAD), ("running", StepStatus.RUNNING)):
        steps[name] = dataclasses.replace(steps[name], status=status)
    steps["lost"] = dataclasses.replace(steps["lost"], status=StepStatus.RUNNING, attempts=3)
    picked = pick(dataclasses.replace(state, steps=steps), "t", worker, {"running"}, 5, 0)
    assert isinstance(picked.refusal, NoStepReady)
    assert picked.refusal.facts == {"task": "t", "running": "1", "waiting": "0", "unable": "0", "dead": "2"}
    assert [(event.step, event.type, event.number) for event in picked.events] == [("lost", EventType.STEP_DEAD, 6)]


def test_paths_of_events_are_in_the_order_of_their_numbers_and_reserved() -> None:
    paths = [event_path(number) for number in (1, 9, 10, 99, 10**11)]
    assert paths == sorted(paths)
    assert all(map(is_reserved, paths))
    assert not is_reserved(".tasks")
    assert not is_reserved("x/.task")
