"""Stages of what many calls do together.

Calls that arrive together are begun together (`wire.gathering`). Were each then done from beginning to end, it would find the
processor's caches full of what the one before it did last, and take several times as long as if it were done again at once. So
each stops where one kind of work ends and the next begins, until the others have come there too. Among 64 writers a commit
takes an eighth less of the loop's thread; a call that is alone only loses a turn of the loop for each stage, some microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator


class _NextStage:
    """Awaited, it lets everything else go on that can, and comes back at the event loop's next turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


NEXT_STAGE: Final = _NextStage()
"""Awaited between two stages. Nothing may rest on what was looked at before it: other calls go on meanwhile."""
