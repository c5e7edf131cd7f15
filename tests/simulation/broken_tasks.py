"""Tasks that are wrong in one way each, to see that the simulation notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app import task_claims, task_writing
from kokuban_server.app.task_writing import Looked, TaskWriting
from kokuban_server.core import keys, task_planning
from kokuban_server.core.change_set import Absent
from tests.simulation.broken_locks import BROKEN as BROKEN_LOCKS
from tests.simulation.simulated_replica import SOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kokuban_server.core.task_planning import Picked
    from kokuban_server.ports.board_store import Record
    from tests.simulation.simulated_replica import Parts


class _ForgetsActions(TaskWriting):
    """Begins again what was recorded."""

    def read(self, named: Sequence[bytes], records: Sequence[Record | None]) -> Looked:
        return super().read(named, records)._replace(actions={})

    def plan(self, *given: Any) -> task_writing.Happening:  # noqa: ANN401 - those of the original
        planned = super().plan(*given)
        left = [one for one in planned.guards if not (isinstance(one, Absent) and one.key.startswith(keys.TASK_ACTION))]
        return planned._replace(guards=left)


def _pick_uncounted(*given: Any) -> Picked:  # noqa: ANN401 - those of the original
    """Give a step again under the attempt that was lost."""
    picked = _sound_pick(*given)
    events = tuple([event._replace(attempt=max(1, event.attempt - 1)) for event in picked.events])
    return picked._replace(events=events)


def _chance_for_ever(*given: Any) -> Any:  # noqa: ANN401 - as above
    """Give a step once more whose last attempt was lost."""
    chance = _sound_chance(*given)
    return task_planning._Chance.READY if chance is task_planning._Chance.LOST else chance


_sound_pick = task_planning.pick
_sound_chance = task_planning._chance


class Broken(NamedTuple):
    """A way to be wrong, and a word of what the simulation says of it."""

    what: str
    symptom: str
    parts: Parts = SOUND
    patch: tuple[object, str, Callable[..., object]] | None = None


BROKEN = (
    Broken("recorded actions are forgotten", "repeats what was recorded", SOUND._replace(task_writing=_ForgetsActions)),
    Broken("steps are given whose lock is held", "two winners", patch=(task_claims, "_closed", lambda *_: set())),
    Broken("attempts that were lost are not counted", "counted wrong", patch=(task_claims, "pick", _pick_uncounted)),
    Broken(
        "a last attempt is followed by another", "counted wrong", patch=(task_planning, "_chance", _chance_for_ever)
    ),
    Broken("a step's end leaves its lock", "leaves its lock", patch=(task_writing, "_lock_of", lambda *_: [])),
    Broken("fences are not compared inside the write", "does not hold the step", BROKEN_LOCKS[0].parts),
)
