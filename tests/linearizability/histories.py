"""Makes histories whose verdict is known: good ones from a sequential run, bad ones by one change to a good one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.linearizability.checker import (
    NOTHING,
    REFUSED,
    UNKNOWN,
    Add,
    Call,
    Create,
    Overwrite,
    Read,
    Remove,
    Replace,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tests.linearizability.checker import Act


def register_history(seed: int, calls: int, clients: int, unknown: float = 0.0) -> list[Call]:
    """Give a good history of one register: calls act at an instant each, between a start before and an end after it."""
    draw = random.Random(seed)
    history: list[Call] = []
    free_at = [0.0] * clients
    state: Hashable = NOTHING
    seen: list[Hashable] = ["never written"]
    for number in range(calls):
        instant = float(number)
        client = min(range(clients), key=lambda place: free_at[place])
        start = draw.uniform(min(free_at[client], instant), instant)
        end = instant + draw.expovariate(1 / clients)
        value = f"v{number}"
        before = state if draw.random() < 0.6 and state is not NOTHING else draw.choice(seen)
        acts: list[Act] = [Read(), Read(), Create(value), Replace(before, value), Overwrite(value), Remove(before)]
        act = draw.choice(acts)
        answer: Hashable
        answer, state = _run(act, state)
        if draw.random() < unknown:
            answer = UNKNOWN
        elif end > free_at[client]:
            free_at[client] = end
        if state is not NOTHING and state not in seen:
            seen.append(state)
        history.append(Call("register", start, end, act, answer))
    return history


def _run(act: Act, state: Hashable) -> tuple[Hashable, Hashable]:
    """Give answer and next state of one act, alone."""
    if isinstance(act, Read):
        return state, state
    if isinstance(act, Overwrite):
        return None, act.value
    if isinstance(act, Create):
        return (None, act.value) if state is NOTHING else (REFUSED, state)
    assert isinstance(act, Replace | Remove)
    if state is NOTHING or state != act.before:
        return REFUSED, state
    return None, act.value if isinstance(act, Replace) else NOTHING


def counter_history(seed: int, calls: int, clients: int, unknown: float = 0.0) -> list[Call]:
    """Give a good history of one counter."""
    draw = random.Random(seed)
    history: list[Call] = []
    free_at = [0.0] * clients
    total: int | None = None
    for number in range(calls):
        instant = float(number)
        client = min(range(clients), key=lambda place: free_at[place])
        start = draw.uniform(min(free_at[client], instant), instant)
        end = instant + draw.expovariate(1 / clients)
        free_at[client] = max(free_at[client], end)
        if draw.random() < 0.4:
            history.append(Call("counter", start, end, Read(), total))
            continue
        amount = draw.randint(1, 100)
        applied = draw.random() >= unknown / 2
        total = (total or 0) + amount if applied else total
        lost = not applied or draw.random() < unknown / 2
        history.append(Call("counter", start, end, Add(amount), UNKNOWN if lost else total))
    return history


def with_stale_read(history: list[Call], draw: random.Random) -> list[Call]:
    """Add a read of a value that was replaced before the read began."""
    late = max(call.end for call in history) + 1
    old = draw.choice([call for call in history if isinstance(call.act, Overwrite) and call.answer is None])
    assert isinstance(old.act, Overwrite)
    fresh = Call(old.key, late, late + 1, Overwrite("fresh"), None)
    return [*history, fresh, Call(old.key, late + 2, late + 3, Read(), old.act.value)]


def with_lost_update(history: list[Call], draw: random.Random) -> list[Call]:
    """Have two writers replace the same state, both with success."""
    late = max(call.end for call in history) + 1
    key = history[0].key
    both = [Call(key, late + 2 + n, late + 5 + draw.random(), Replace("base", f"by {n}"), None) for n in range(2)]
    return [*history, Call(key, late, late + 1, Overwrite("base"), None), *both]


def with_value_from_nowhere(history: list[Call], draw: random.Random) -> list[Call]:
    """Change what one read saw to what nobody wrote."""
    reads = [place for place, call in enumerate(history) if isinstance(call.act, Read) and call.answer is not UNKNOWN]
    place = draw.choice(reads)
    return [*history[:place], history[place]._replace(answer="from nowhere"), *history[place + 1 :]]


def with_reads_going_back(history: list[Call], draw: random.Random) -> list[Call]:
    """Have a reader see a write, and a later one not see it yet, while the write is under way all the time."""
    late = max(call.end for call in history) + 1
    key = history[0].key
    return [
        *history,
        Call(key, late, late + 1, Overwrite("old"), None),
        Call(key, late + 2, late + 9, Overwrite("new"), draw.choice([None, UNKNOWN])),
        Call(key, late + 3, late + 4, Read(), "new"),
        Call(key, late + 5, late + 6, Read(), "old"),
    ]


def with_revived_entry(history: list[Call], draw: random.Random) -> list[Call]:
    """Have a writer succeed on a state that was deleted and made anew with another value in between."""
    late = max(call.end for call in history) + 1
    key = history[0].key
    return [
        *history,
        Call(key, late, late + 1, Overwrite("first life"), None),
        Call(key, late + 2, late + 3, Remove("first life"), None),
        Call(key, late + 4, late + 5, Create("second life"), None),
        Call(key, late + 6, late + 7 + draw.random(), Replace("first life", "zombie"), None),
    ]


def with_double_increment(history: list[Call], draw: random.Random) -> list[Call]:
    """Have one acknowledged addition count twice in the end."""
    amounts = [call.act.amount for call in history if isinstance(call.act, Add) and call.answer is not UNKNOWN]
    end = max(call.end for call in history) + 1
    return [*history, Call(history[0].key, end, end + 1, Read(), sum(amounts) + draw.choice(amounts))]


def with_forgotten_increment(history: list[Call], draw: random.Random) -> list[Call]:
    """Have one acknowledged addition be gone in the end."""
    amounts = [call.act.amount for call in history if isinstance(call.act, Add) and call.answer is not UNKNOWN]
    end = max(call.end for call in history) + 1
    return [*history, Call(history[0].key, end, end + 1, Read(), sum(amounts) - draw.choice(amounts))]
