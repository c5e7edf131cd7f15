"""Compaction: rows that nobody may ask for any more are removed, a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.sqlite.rows import last_id

if TYPE_CHECKING:
    import sqlite3

    from kokuban_server.adapters.sqlite.database import State

_ROWS_PER_STEP: Final = 500
_BYTES_PER_STEP: Final = 1024 * 1024
"""How many rows one transaction walks over, and how much it removes, but for one value: commits wait while it runs."""

# A row says which one it superseded, so compaction walks the log once, in its order, and never searches.
_STEP_END: Final = """
    SELECT max(id) FROM (
        SELECT step.id, coalesce(sum(length(old.value)) OVER (
            ORDER BY step.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS bytes_before
        FROM (SELECT id, previous_id FROM log WHERE id > ? AND id <= ? ORDER BY id LIMIT ?) AS step
        LEFT JOIN log AS old ON old.id = step.previous_id
    ) WHERE bytes_before < ?
"""
_SUPERSEDED: Final = (
    "DELETE FROM log WHERE id IN (SELECT previous_id FROM log WHERE id > ? AND id <= ? AND previous_id > 0)"
)
_REMOVALS: Final = "DELETE FROM log WHERE id > ? AND id <= ? AND create_revision = 0"


def step(connection: sqlite3.Connection, state: State) -> State:
    """Take the next step inside the transaction that is open; give the state after it."""
    goal = last_id(state.compacted_revision)
    (end,) = connection.execute(_STEP_END, (state.walked_id, goal, _ROWS_PER_STEP, _BYTES_PER_STEP)).fetchone()
    span = (state.walked_id, goal if end is None else end)
    connection.execute(_SUPERSEDED, span)
    connection.execute(_REMOVALS, span)
    return state._replace(walked_id=span[1])


def is_done(state: State) -> bool:
    """Say whether everything below the floor is removed."""
    return state.walked_id >= last_id(state.compacted_revision)
