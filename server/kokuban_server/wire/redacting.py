"""Requests without what is secret or personal in them, as their board's policy says: before anything else sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import commit_pb2, trust_pb2
from kokuban_server.app.redactions import (
    NOTHING,
    FirstLooks,
    RedactedOtherwiseError,
    holdings,
    terms_for,
)
from kokuban_server.core.access import Verb
from kokuban_server.core.refusals import Refusal
from kokuban_server.core.sensitive import strictest
from kokuban_server.wire import encode
from kokuban_server.wire.decode import commit_request, decode_again
from kokuban_server.wire.fields import parse_message
from kokuban_server.wire.free_texts import put_back, texts_of, words_of
from kokuban_server.wire.policies import HANDLINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

    from kokuban_server.app.access import Access
    from kokuban_server.app.boards import Board
    from kokuban_server.app.commits import CommitRequest, Committed
    from kokuban_server.app.recorded_calls import RecordedCommits
    from kokuban_server.app.redactions import FreeText, Redacted, Redactions
    from kokuban_server.core.access import Principal
    from kokuban_server.core.names import Region
    from kokuban_server.core.sensitive import Terms


class Redactor:
    """Masks messages before they are acted upon."""

    def __init__(self, access: Access, redactions: Redactions, digest: Callable[[bytes], bytes]) -> None:
        self._access = access
        self._redactions = redactions
        self._digest = digest
        self._looks = FirstLooks()

    async def mask(
        self, principal: Principal, message: Message, board_id: str, regions: Iterable[Region], deadline: float
    ) -> bool:
        """Mask what a request says about locks, sessions or the board; say whether anything is masked.

        `regions` are those that it names. Raises `ContentSensitive`, `ContentUnsearched`, `ScreeningUnavailable` and
        `DeadlineTooShort`; and for regions that are not the caller's, what tells nothing of what holds there.
        """
        board = await self._access.look(principal, board_id, deadline)
        named = tuple(dict.fromkeys(regions))
        terms = terms_for(board, named)
        if terms.is_off or await self._looks.hold_nothing(words_of(message)):
            return False
        texts = texts_of(message)
        redacted = await self._redactions.redact(board, texts, lambda _: terms, deadline)
        if redacted.refusal is not None:
            if board is not None:
                for region in named:
                    self._access.open_under(board, principal, region, Verb.READ)
            raise redacted.refusal
        for place, text in redacted.texts.items():
            put_back(texts[place], text)
        return bool(redacted.texts)

    async def commit(
        self, board: Board, message: commit_pb2.CommitRequest, request: CommitRequest, deadline: float
    ) -> tuple[CommitRequest, Redacted]:
        """Give a commit as it may be kept, and what became of its texts. Its digest stays that of what was sent.

        What it is to be refused for is told by its holdings: it may have been committed before there was a reason. Raises
        `InvalidRequest` for what is too large now, and as `mask`.
        """
        policy = board.policy
        terms = {key.region: policy.redaction_in(key.region) for key, _, _ in request.mutations}
        common = strictest(terms.values()) if policy.rules and terms else policy.redaction
        if common.is_off or await self._looks.hold_nothing(words_of(message)):
            return request.holding(holdings(board, NOTHING, terms)), NOTHING

        def region_of(text: FreeText) -> Region | None:
            return next((key.region for key, _, place in request.mutations if place == text.mutation), None)

        def terms_of(text: FreeText) -> Terms:
            region = region_of(text)
            return common if region is None else terms[region]

        texts = texts_of(message)
        redacted = await self._redactions.redact(board, texts, terms_of, deadline, region_of)
        if redacted.texts:
            for place, masked in redacted.texts.items():
                put_back(texts[place], masked)
            digest, traceparent = request.digest, request.traceparent
            request = commit_request(message, self._digest, traceparent)._replace(digest=digest)
            for place in redacted.texts:  # as it was sent: other terms may come to hold
                put_back(texts[place], texts[place].text)
        return request.holding(holdings(board, redacted, terms)), redacted

    async def kept(self, principal: Principal, raw: bytes, deadline: float) -> CommitRequest:
        """Give a commit that was kept, as it may be written under what holds now. Raises as `commit`."""
        request = decode_again(self._digest, raw)
        board = await self._access.enter(principal, request.board, deadline)
        message = parse_message(commit_pb2.CommitRequest, raw)
        return (await self.commit(board, message, request, deadline))[0]


class RedactedCommits:
    """`RecordedCommits`, redacted before: neither a conflict nor anything else has a part of what is not kept."""

    def __init__(self, commits: RecordedCommits, access: Access, redactor: Redactor) -> None:
        self._commits = commits
        self._access = access
        self._redactor = redactor

    async def commit(
        self, principal: Principal, message: commit_pb2.CommitRequest, request: CommitRequest, deadline: float
    ) -> tuple[Committed, Redacted]:
        """Apply a commit as `Commits.commit` does, and say what became of its texts."""
        while True:
            try:
                board = await self._access.enter(principal, request.board, deadline)
                ready, redacted = await self._redactor.commit(board, message, request, deadline)
            except Refusal as refusal:
                self._commits.count(request, refusal.reason)
                raise
            try:
                return await self._commits.commit(principal, ready, deadline), redacted
            except RedactedOtherwiseError:
                continue


def redactions(redacted: Redacted) -> list[trust_pb2.Redaction]:
    """Give the messages of what was masked or kept."""
    return [
        trust_pb2.Redaction(
            field=one.field,
            mutation=one.mutation,
            type=one.type,
            kind=encode.KINDS[one.kind],
            handling=HANDLINGS[one.handling],
            count=one.times,
            spans=[trust_pb2.TextSpan(start=start, end=end) for start, end in one.spans],
        )
        for one in redacted.found
    ]
