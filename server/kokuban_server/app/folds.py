"""Acts on one key that arrive while one of them is on its way, and are done as one."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kokuban_server.app.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.core.audit import Origin

_Act = TypeVar("_Act")
_Answer = TypeVar("_Answer")


class _Member(NamedTuple, Generic[_Act, _Answer]):
    """An act that waits."""

    name: bytes
    act: _Act
    answer: asyncio.Future[_Answer]
    origin: Callable[[], Origin]
    """Of the call that it is of, for what is recorded of it: acts are done in a task of their own."""


@dataclass(slots=True)
class _Fold(Generic[_Act, _Answer]):
    """What waits for one key, and the task that sees to it."""

    waiting: deque[_Member[_Act, _Answer]] = field(default_factory=deque)
    runner: asyncio.Task[None] | None = None


class Folds(Generic[_Act, _Answer]):
    """Does some acts together, and each alone where that fails."""

    def __init__(
        self,
        together: Callable[[list[_Act]], Awaitable[list[_Answer] | None]],
        alone: Callable[[_Act], Awaitable[_Answer]],
        acts_max: int,
    ) -> None:
        """Take how several acts are done as one, with nothing where they cannot be, and how one is done."""
        self._together = together
        self._alone = alone
        self._acts_max = acts_max
        self._folds: dict[bytes, _Fold[_Act, _Answer]] = {}

    async def join(self, key: bytes, name: bytes, act: _Act) -> _Answer:
        """Have the act done with others on its key, though never with one of the same name; give its own answer."""
        fold = self._folds.get(key)
        if fold is None:
            fold = self._folds[key] = _Fold()
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        fold.waiting.append(_Member(name, act, answer, ORIGIN.get()))
        if fold.runner is None:
            fold.runner = asyncio.create_task(self._run(key, fold), name="fold")
        return await answer

    async def _run(self, key: bytes, fold: _Fold[_Act, _Answer]) -> None:
        waiting = fold.waiting
        try:
            while waiting:
                members: dict[bytes, _Member[_Act, _Answer]] = {}
                while waiting and len(members) < self._acts_max and waiting[0].name not in members:
                    member = waiting.popleft()
                    if not member.answer.done():
                        members[member.name] = member
                if members:
                    await self._do(list(members.values()))
        finally:
            del self._folds[key]

    async def _do(self, members: list[_Member[_Act, _Answer]]) -> None:
        done: list[_Answer] | None = None
        if len(members) > 1:
            ORIGIN.set(members[0].origin)  # it is looked at for all
            try:
                done = await self._together([member.act for member in members])
            except Exception:  # noqa: BLE001 - of one member; whose, and whether it is a replay, shows when each is alone
                done = None
        for index, (_, act, answer, origin) in enumerate(members):
            ORIGIN.set(origin)
            try:
                own = await self._alone(act) if done is None else done[index]
            except Exception as error:  # noqa: BLE001 - each caller hears of its own
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(own)
