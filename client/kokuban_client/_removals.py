"""What a state came of, and removing what came of a source or a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client import _channel
from kokuban_client._retry import Deadline
from kokuban_client._wire import removals as wire
from kokuban_client.errors import DeadlineExceeded
from kokuban_client.types import ProvenanceDirection, RemovalState

if TYPE_CHECKING:
    from kokuban_client._calls import Calls
    from kokuban_client.types import ProvenanceTrace, Removal, RemovalPlan, Revision, SourceSelector

_FIRST_LOOK_AFTER_S = 0.02
_LOOK_EVERY_S_MAX = 1.0


class Removals:
    """The part of a board by which provenance is traced, and sources and persons are removed."""

    def __init__(self, calls: Calls, board: str) -> None:
        self._calls = calls
        self._board = board

    async def trace_provenance(
        self,
        region: str,
        path: str,
        *,
        direction: ProvenanceDirection | str,
        at: Revision | None = None,
        max_depth: int = 0,
        max_states: int = 0,
        timeout_s: float | None = None,
    ) -> ProvenanceTrace:
        """Say what an entry's state was made of (`"ancestors"`), or what was made of it (`"descendants"`).

        The present state, or the one `at` a revision; raises NotFound if it is not kept. At most `max_depth` steps away (32)
        and `max_states` states (100, up to 1,000): `truncated` says that there is more. What the caller may not read is left
        out without a word.
        """
        request = wire.trace_request(
            self._board,
            region,
            path,
            at=at,
            direction=ProvenanceDirection(direction),
            max_depth=max_depth,
            max_states=max_states,
        )
        answer = await self._calls.call(lambda link: link.trust.TraceProvenance, request, timeout_s=timeout_s)
        return wire.trace(answer)

    async def purge_source(
        self, source: SourceSelector, *, reason: str, allows_reingest: bool = False, timeout_s: float | None = None
    ) -> RemovalPlan:
        """Plan to remove what came from a source with everything derived from it, and say what that would remove.

        Nothing is removed: `purge` begins it by the plan's id, within 24 hours. From then on what comes from the source is
        refused with SourcePurged, unless `allows_reingest`, or unless it is told by neither URI nor digest or only for a
        session or a time. For operators that are among the policy's administrators.
        """
        request = wire.purge_plan_request(self._board, source, reason=reason, allows_reingest=allows_reingest)
        answer = await self._calls.call(lambda link: link.trust.PurgeSource, request, timeout_s=timeout_s)
        return wire.plan(answer)

    async def purge(self, plan: str, *, timeout_s: float | None = None) -> Removal:
        """Begin the purge of that plan; raises NotFound if there is none, or not any more. Asking again is safe.

        It is done in the background while others work: `wait_for_removal` tells when it is. Sessions that were given
        something of it cannot write under that any more; see `errors.ReadScopePurged`.
        """
        request = wire.purge_request(self._board, plan)
        answer = await self._calls.call(lambda link: link.trust.PurgeSource, request, timeout_s=timeout_s)
        return wire.removal(answer.removal)

    async def erase_subject(
        self, user: str, *, reason: str, allows_reingest: bool = False, timeout_s: float | None = None
    ) -> RemovalPlan:
        """Plan to remove what is kept of a person, and say what that would remove. Nothing is removed: `erase` begins it.

        That is the region `user:ID`, what is declared to come from that user, and all that was derived from either; not what
        names the person elsewhere. The `reason` should not. Else as `purge_source`.
        """
        request = wire.erasure_plan_request(self._board, user, reason=reason, allows_reingest=allows_reingest)
        answer = await self._calls.call(lambda link: link.trust.EraseSubject, request, timeout_s=timeout_s)
        return wire.plan(answer)

    async def erase(self, plan: str, *, timeout_s: float | None = None) -> Removal:
        """Begin the erasure of that plan, as `purge` does."""
        request = wire.erasure_request(self._board, plan)
        answer = await self._calls.call(lambda link: link.trust.EraseSubject, request, timeout_s=timeout_s)
        return wire.removal(answer.removal)

    async def get_removal(self, removal: str, *, timeout_s: float | None = None) -> Removal:
        """Say how far a purge or an erasure has come; raises NotFound if there is none of that id. For operators."""
        request = wire.get_request(self._board, removal)
        answer = await self._calls.call(lambda link: link.trust.GetRemoval, request, timeout_s=timeout_s)
        return wire.removal(answer.removal)

    async def wait_for_removal(self, removal: str, *, timeout_s: float = 300.0) -> Removal:
        """Wait until a purge or an erasure is done, and give it with its receipts.

        Raises DeadlineExceeded when the time is over, and it goes on all the same; ValueError if it was not begun, for that
        would be a wait without end.
        """
        deadline = Deadline.after(timeout_s, _channel.now_s())
        pause_s = _FIRST_LOOK_AFTER_S
        while True:
            left_s = deadline.left_s(_channel.now_s())
            told = await self.get_removal(removal, timeout_s=max(left_s, pause_s))
            if told.state is RemovalState.PLANNED:
                raise ValueError(f"{removal} is a plan: begin it first")
            if told.state is RemovalState.DONE:
                return told
            if deadline.left_s(_channel.now_s()) <= pause_s:
                raise DeadlineExceeded(f"{removal} is not done after {timeout_s} s", code="DEADLINE_EXCEEDED")
            await _channel.pause(pause_s)
            pause_s = min(pause_s * 2, _LOOK_EVERY_S_MAX)

    async def removals(self, *, timeout_s: float | None = None) -> tuple[Removal, ...]:
        """Give the board's purges and erasures, the newest first; `timeout_s` is for each page. For operators."""
        found: list[Removal] = []
        page_token = ""
        while True:
            request = wire.list_request(self._board, page_token=page_token)
            answer = await self._calls.call(lambda link: link.trust.ListRemovals, request, timeout_s=timeout_s)
            found += map(wire.removal, answer.removals)
            page_token = answer.next_page_token
            if not page_token:
                return tuple(found)
