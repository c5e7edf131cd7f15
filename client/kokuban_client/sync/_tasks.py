# Made by client/unasync.py from the asynchronous module of the same name. Do not edit.
"""Steps of tasks: claimed, worked on under their lock, ended; with actions that are done once."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec

from kokuban_client import _wire
from kokuban_client._lease import clock_s
from kokuban_client._wire import locks as lock_wire
from kokuban_client._wire import tasks as wire
from kokuban_client._wire.labels import provenance
from kokuban_client.errors import ActionInDoubt, ActionRecorded, KokubanError, NotDone
from kokuban_client.sync import _channel
from kokuban_client.sync._calls import Attempts
from kokuban_client.sync._locks import Hold
from kokuban_client.types import EventType, External, InDoubt, content_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Protocol

    from kokuban_client.errors import LockLost
    from kokuban_client.sync._calls import Calls
    from kokuban_client.sync._sessions import Session, Sessions
    from kokuban_client.types import Fence, ResumeState, Source, TaskEvent, TaskStep

    class Recorder(Protocol):
        """What commits the mutations of a step."""

        def __call__(
            self, mutations: list[_wire.Mutation], *, fences: tuple[Hold, ...] = (), released: tuple[Fence, ...] = ()
        ) -> None:
            """Commit them."""


_Arguments = ParamSpec("_Arguments")

_ERROR_CHARACTERS_MAX = 250
"""Of what is told of an exception: 1,024 bytes in any script."""


class StepHold(Hold):
    """A step of a task that is one's own: `with` claims it, holds its lock while the block runs, and ends it.

    A block that is left without a word gives the step back, and one that is left by an exception has failed. If the lock is
    lost meanwhile, that goes as for any lock; and whatever of the step is recorded after that is refused.
    """

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        board: str,
        request: wire.ClaimNextStepRequest,
        record: Recorder,
        event: Callable[[str, int], TaskEvent],
        *,
        session: Session | None,
        hold_max_s: float | None,
        on_lost: Callable[[LockLost], object] | None,
        timeout_s: float | None,
    ) -> None:
        super().__init__(
            sessions, calls, board, session=session, hold_max_s=hold_max_s, on_lost=on_lost, timeout_s=timeout_s
        )
        self._request = request
        self._record = record
        self._event = event
        self._claimed: wire.ClaimNextStepResponse | None = None

    @property
    def task(self) -> str:
        """The task's id."""
        return self._request.task

    @property
    def name(self) -> str:
        """The step's id; raises RuntimeError before it is claimed."""
        return self._given.step.step

    @property
    def step(self) -> TaskStep:
        """The step as it was claimed; raises RuntimeError before that."""
        return wire.step(self._given.step)

    @property
    def resume(self) -> ResumeState:
        """From where to go on; raises RuntimeError before the step is claimed."""
        return wire.resume_state(self._given.resume)

    @property
    def input(self) -> Any:  # noqa: ANN401 - text, parsed JSON, Binary, or External
        """What to do; None if that was removed or is withheld."""
        return _value(self.resume.input)

    @property
    def state(self) -> Any:  # noqa: ANN401 - as above
        """What the last checkpoint says; None if there is none."""
        return _value(self.resume.checkpoint)

    @property
    def _given(self) -> wire.ClaimNextStepResponse:
        if self._claimed is None:
            raise RuntimeError("the step is not claimed yet: use with")
        return self._claimed

    # Actions.

    def run(
        self,
        name: str,
        act: Callable[[], object],
        *,
        action_id: str = "",
        if_in_doubt: InDoubt | str = InDoubt.ASK,
        source: Source | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the action gives
        """Do something once, whoever works on the step and however often it is begun again; give its result.

        The intent is recorded before and the result after it. What was recorded is not done again: its recorded result is
        given. What was begun and not recorded is done again if `if_in_doubt` said so when it was begun (`retry`), passed over
        (`skip`; gives None), or raises ActionInDoubt (`ask`): find out, `settle` it, and run it again.

        `action_id` is unique in the step and says what the action is for (`mail:order-17`); else it is the name. The result is
        any value that an entry can hold; `source` says where it comes from. An action that raises NotDone has not happened and
        may be begun again; after any other exception that is not known. If the lock was lost while the intent was recorded, it
        is not done, and LockLost is raised.
        """
        action, policy = action_id or name, InDoubt(if_in_doubt)
        try:
            self._happened(EventType.ACTION_STARTED, action, name, if_in_doubt=policy)
        except ActionRecorded as recorded:
            return None if recorded.was_skipped else self._result(recorded.event)
        except ActionInDoubt as doubt:
            if doubt.if_in_doubt is not InDoubt.SKIP:
                raise
            self._happened(EventType.ACTION_SKIPPED, action)
            return None
        self.check()  # the answer may have come so late that somebody else goes on by now
        try:
            result = content_of(_channel.settled(act()))
        except NotDone as failed:
            self._happened(EventType.ACTION_FAILED, action, error=_told(failed))
            raise
        self._happened(EventType.ACTION_DONE, action, result, source=source)
        return value_of(result)

    def action(
        self,
        name: str,
        *,
        action_id: Callable[..., str] | None = None,
        if_in_doubt: InDoubt | str = InDoubt.ASK,
        source: Source | None = None,
    ) -> Callable[[Callable[_Arguments, object]], Callable[_Arguments, Any]]:
        """Give a decorator that makes each call of a function an action, as `run` does it.

        `action_id` makes the action's id of the call's arguments (`lambda order: f"mail:{order}"`). Without it the id is the
        name, so that all calls are one and the same action: a function that takes arguments is refused then, by TypeError.
        """

        def decorated(act: Callable[_Arguments, object]) -> Callable[_Arguments, Any]:
            if action_id is None and inspect.signature(act).parameters:
                raise TypeError("a function that takes arguments needs an action_id that is made of them")

            @functools.wraps(act)
            def once(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> Any:  # noqa: ANN401 - as of `run`
                return self.run(
                    name,
                    functools.partial(act, *arguments, **named),
                    action_id="" if action_id is None else action_id(*arguments, **named),
                    if_in_doubt=if_in_doubt,
                    source=source,
                )

            return once

        return decorated

    def settle(self, action_id: str, *, happened: bool, result: object = None) -> None:
        """Record how an action ended that was in doubt: that it has happened, with its result, or that it has not."""
        if happened:
            self._happened(EventType.ACTION_DONE, action_id, result)
        else:
            self._happened(EventType.ACTION_FAILED, action_id)

    def _happened(
        self,
        kind: EventType,
        action: str,
        data: object = "",
        *,
        if_in_doubt: InDoubt | None = None,
        error: str = "",
        source: Source | None = None,
    ) -> None:
        mutation = wire.event(
            kind,
            self.task,
            step=self.name,
            subject=action,
            data=data,
            if_in_doubt=if_in_doubt,
            error=error,
            provenance=provenance(source, ()),
        )
        self._record([mutation], fences=(self,))

    def _result(self, number: int) -> Any:  # noqa: ANN401 - whatever was recorded
        value = _value(self._event(self.task, number))
        return value.read() if isinstance(value, External) else value

    # What else happens in a step.

    def note(self, data: object, *, name: str = "") -> None:
        """Record something that happened."""
        mutation = wire.event(EventType.NOTE, self.task, step=self.name, data=data, name=name)
        self._record([mutation], fences=(self,))

    def checkpoint(self, state: object, *, config_fingerprint: str = "") -> None:
        """Record a state from which somebody else could go on."""
        mutation = wire.checkpoint(self.task, self.name, state, config_fingerprint)
        self._record([mutation], fences=(self,))

    def ask(self, interrupt_id: str, question: object) -> None:
        """Ask something that somebody has to answer. The step is given to nobody before that: `give_back` it."""
        mutation = wire.event(
            EventType.INTERRUPT_OPENED, self.task, step=self.name, subject=interrupt_id, data=question
        )
        self._record([mutation], fences=(self,))

    # Its end.

    def complete(self, result: object = "") -> None:
        """End the step, with its result, and release its lock in the same act."""
        self._end("DONE", result=result)

    def fail(self, error: str, *, for_good: bool = False) -> None:
        """Say that the attempt has failed; `for_good` if no further one has a point."""
        self._end("GIVEN_UP" if for_good else "FAILED", error=error)

    def give_back(self) -> None:
        """Give the step back as it is. No attempt is used."""
        self._end("YIELDED")

    def _end(self, outcome: str, *, result: object = "", error: str = "") -> None:
        self.check()
        mutation = wire.complete(self.task, self.name, outcome, result=result, error=error)
        self._record([mutation, _wire.release_lock(self.fence)], released=(self.fence,))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_held and (error is None or isinstance(error, Exception)):
            with contextlib.suppress(KokubanError):  # then its lock goes, and with it an attempt
                (self.give_back() if error is None else self.fail(_told(error)))
        super().__exit__(kind, error, trace)

    # Claiming.

    def _obtain(self, session: Session) -> tuple[lock_wire.LockGranted, float]:
        self._request.session_id = session.id
        attempts, begun_s = Attempts(), clock_s()
        try:
            answer, _ = self._calls.write(
                lambda link: link.tasks.ClaimNextStep, self._under, timeout_s=self._timeout_s, attempts=attempts
            )
        except BaseException as failure:
            if not isinstance(failure, KokubanError) or attempts.in_doubt:
                self._withdraw_later()
            raise
        self._claimed = answer
        return answer.granted, attempts.first_sent_s or begun_s

    def _under(self, request_id: str) -> wire.ClaimNextStepRequest:
        self._request_id = self._request.request_id = request_id
        return self._request

    def _ask_again(self, request_id: str, timeout_s: float) -> Fence:
        answer, _ = self._calls.write(
            lambda link: link.tasks.ClaimNextStep, self._under, request_id=request_id, timeout_s=timeout_s
        )
        return lock_wire.fence(answer.granted.fence)


def _value(event: TaskEvent | None) -> Any:  # noqa: ANN401 - text, parsed JSON, Binary, or External
    return None if event is None or event.entry.content is None else event.entry.value


def _told(error: BaseException) -> str:
    """Give what is told of an exception."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return words[:_ERROR_CHARACTERS_MAX]
