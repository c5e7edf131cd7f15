"""A store in memory, and a mirror of its locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.system import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@pytest.fixture
async def store() -> AsyncGenerator[MemoryStore, None]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()
