"""Tasks in the state that a request about them needs, so that what it says is taken and not refused for the task's sake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kokuban.v1 import commit_pb2, entry_pb2, task_pb2, task_service_pb2
from tests.wire.calls import of_source
from tests.wire.task_calls import (
    ASKED,
    LESSON,
    NOTE,
    STARTED,
    WANTED,
    Tasks,
    checkpoint,
    complete,
    complete_subtask,
    happened,
    new_step,
    open_subtask,
    revive,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from kokuban.v1 import lock_pb2
    from tests.wire.calls import Agent

_USES_MAX: Final = 30
"""Of one task: it takes only so many steps, open actions, constraints and questions."""
_BY_HOLDER: Final = {"append_event", "save_checkpoint", "complete_step", "open_subtask"}
OF_TASKS: Final = {"create_task", "add_step", "cancel_task", "complete_subtask", "revive_step", *_BY_HOLDER}
_ENDS: Final = {"complete_step", "complete_subtask"}
"""After these a task does not serve any more."""


def mutations_of_tasks() -> Iterator[commit_pb2.Mutation]:
    """Give mutations of each kind that concerns tasks, with everything filled in that can hold a text."""
    source = of_source("TOOL", "https://a.example", "grep")
    value = entry_pb2.Value(text="x")
    made = task_pb2.CreateTask(task="x", goal=value, provenance=source)
    yield commit_pb2.Mutation(create_task=made)
    terms = task_pb2.StepTerms(depends_on=["s"], labels=["writes"])
    step = task_pb2.NewStep(step="later", terms=terms, input=value, provenance=source)
    yield commit_pb2.Mutation(add_step=task_pb2.AddStep(task="x", step=step))
    known: dict[str, Any] = {"snapshot": "SwEjRWeJq83vAAAAAAAAAAH_", "error": "e", "provenance": source}
    yield happened("x", NOTE, step="s", data="x", name="n", **known)
    yield happened("x", STARTED, "a", "s", "x", **known)
    yield happened("x", WANTED, "a", data="x")
    yield happened("x", ASKED, "a", "s", "x")
    yield checkpoint("x", "s", "x", "f1")
    yield complete("x", "s", error="e", result=value)
    yield open_subtask("x", "later", step="s")
    yield happened("x", LESSON, data="x", name="n", subtask="sub", provenance=source)
    yield checkpoint("x", "", "x", "f1", subtask="sub")
    yield complete_subtask("x", "sub")
    yield revive("x", "s")
    yield commit_pb2.Mutation(cancel_task=task_pb2.CancelTask(task="x", reason="because"))


class Grounds:
    """Makes the tasks that requests are to be about."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._tasks: Tasks | None = None
        self._count = 0
        self._fence: lock_pb2.Fence | None = None
        self._left = 0
        self.names: list[str] = []
        """The tasks in whose step something was said."""

    async def prepare(self, message: Message, tried: str) -> None:
        """Have a request be about a task that takes it; the field that is tried, `Message.field`, is left as it is."""
        self._count += 1
        request: Any = message
        if isinstance(message, task_service_pb2.CreateTaskRequest):
            _say(request.task, "task", self._name(), tried)
        elif isinstance(message, task_service_pb2.CancelTaskRequest):
            _say(request.task, "task", await self._new(), tried)
        elif isinstance(message, task_service_pb2.ResumeTaskRequest):
            task = await self._new()
            await (await self._calls()).record(None, happened(task, ASKED, "a", data="what?"))
            _say(request, "task", task, tried)
        elif isinstance(message, task_service_pb2.ClaimNextStepRequest):
            _say(request, "task", await self._new(), tried)
            _say(request, "session_id", (await self._calls()).session, tried)
        else:
            commit = getattr(request, "commit", request)
            for mutation in getattr(commit, "mutations", ()):
                if mutation.WhichOneof("kind") in OF_TASKS:
                    await self._prepare_mutation(commit, mutation, tried)

    async def _prepare_mutation(self, commit: Any, mutation: commit_pb2.Mutation, tried: str) -> None:  # noqa: ANN401 - a commit
        kind = mutation.WhichOneof("kind")
        body = getattr(mutation, str(kind))
        if kind == "create_task":
            _say(body, "task", self._name(), tried)
            return
        if kind == "cancel_task":
            _say(body, "task", await self._new(), tried)
            return
        if kind == "revive_step":
            _say(body, "task", await self._dead(), tried)
            return
        if not self._left:
            await self.hold()
        self._left -= 1
        _say(body, "task", self.names[-1], tried)
        if kind == "add_step":
            _say(body.step, "step", f"later-{self._count}", tried)
        elif kind == "append_event" and body.id:
            _say(body, "id", f"a-{self._count}", tried)
        elif kind == "open_subtask":
            _say(body, "subtask", f"later-{self._count}", tried)
        if kind in _BY_HOLDER and body.step:
            assert self._fence is not None
            commit.fences.append(self._fence)
        if kind in _ENDS:
            self._left = 0

    def _name(self) -> str:
        return f"ground-{self._count}-{len(self.names)}"

    async def _new(self) -> str:
        """Make a task with a step that nobody has claimed; give its name."""
        name = self._name()
        await (await self._calls()).create(name, new_step("s", labels=["writes"]))
        return name

    async def hold(self) -> None:
        """Make a task with a subtask, and hold its step."""
        name = await self._new()
        calls = await self._calls()
        self._fence = (await calls.claim(name, "writes")).granted.fence
        await calls.record(None, open_subtask(name, "sub"))
        self._left = _USES_MAX
        self.names.append(name)

    async def _dead(self) -> str:
        """Make a task whose step is dead; give its name."""
        name = await self._new()
        calls = await self._calls()
        fence = (await calls.claim(name, "writes")).granted.fence
        await calls.record(fence, complete(name, "s", "GIVEN_UP"))
        return name

    async def _calls(self) -> Tasks:
        if self._tasks is None or not self._left:
            self._tasks = Tasks(self._agent, await self._agent.session())
        return self._tasks


def _say(message: Any, field: str, text: str, tried: str) -> None:  # noqa: ANN401 - any message
    if tried != f"{message.DESCRIPTOR.name}.{field}":
        setattr(message, field, text)
