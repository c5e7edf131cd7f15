"""Where the call that is being answered came from, for whoever has to write it down.

The wire sets it for each call. It is looked at only when something is recorded, so that other calls pay next to nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from kokuban_server.core.audit import Origin

if TYPE_CHECKING:
    from collections.abc import Callable


def _nowhere() -> Origin:
    return Origin()


ORIGIN: ContextVar[Callable[[], Origin]] = ContextVar("kokuban-origin", default=_nowhere)
"""Gives the origin of the call at hand; without one, that of nothing."""
