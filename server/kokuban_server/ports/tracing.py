"""Spans of what the server does, for those who follow a request through many programs.

Nothing here ever waits, fails or decides anything: without a tracer there are no spans, and everything else is the same.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.core.conflicts import Conflict


class Span(Protocol):
    """One piece of work. One that is not sampled is there all the same, and costs next to nothing."""

    @property
    def traceparent(self) -> str:
        """Its W3C trace context, by which others can refer to it; empty while it is not recorded."""
        ...

    def note_conflict(self, conflict: Conflict) -> None:
        """Say that the work lost against somebody else's, with a link to the winner's span.

        Where conflicts are always recorded, a span that was not sampled is recorded from now on, from its beginning.
        """
        ...

    def begin_wait(self, holder: str) -> Span:
        """Begin a part of it that waits for a lock; `holder` is the trace context of who holds it, or empty."""
        ...

    def begin_batch(self, members: Sequence[Span | None]) -> Span:
        """Begin a span of its own for a batch that the store is sent, linked to the spans of its members."""
        ...

    def begin_screening(self, asked: str) -> Span:
        """Begin a part of it in which a text is judged; `asked` is what for, in a word."""
        ...

    def note_verdict(self, verdict: str) -> None:
        """Say what came of judging a text, in a word."""
        ...

    def end(self, code: str = "OK") -> None:
        """End it, with the name of a status code."""
        ...


class Tracer(Protocol):
    """Begins spans."""

    def begin_rpc(self, method: str, parent: str) -> Span:
        """Begin the span of a call to a method, `package.Service.Method`, that came with this trace context, or none."""
        ...

    async def close(self) -> None:
        """Give away what is recorded, if somebody takes it soon."""
        ...


TRACED: ContextVar[Span | None] = ContextVar("kokuban-span", default=None)
"""The span of the call at hand, if calls are traced."""
