"""Waiting for facts that nobody announces, within a bound."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_client import Session, sync


async def until(fact: Callable[[], Awaitable[bool]], bound_s: float = 20.0) -> None:
    """Come back when a fact holds that is asked of a server; fail if it does not in time."""
    async with asyncio.timeout(bound_s):
        while not await fact():  # noqa: ASYNC110 - a server sets no event for tests
            await asyncio.sleep(0.02)


async def hears(session: Session | sync.Session) -> bool:
    """Say whether the session's stream of renewals is open, so that from now on it is told why a lock is lost."""
    return session._hears_since_s < math.inf
