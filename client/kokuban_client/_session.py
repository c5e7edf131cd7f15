"""The tokens of what a client wrote, so that it can read its own writes. One store for one client, never shared."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kokuban_client.types import Revision


class SessionTokens:
    """The newest token of each board that the client wrote to. Safe to use from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._newest: dict[str, tuple[Revision, str]] = {}

    def wrote(self, board: str, revision: Revision, token: str) -> None:
        """Carry a commit's token, unless a later commit's is carried already. Answers may arrive out of order."""
        with self._mutex:
            known = self._newest.get(board)
            if known is None or known[0].epoch != revision.epoch or known[0].number < revision.number:
                self._newest[board] = (revision, token)

    def carried(self, board: str) -> str:
        """Give the token to read at, or an empty text if nothing was written."""
        with self._mutex:
            known = self._newest.get(board)
            return known[1] if known else ""

    def drop(self, board: str, token: str) -> None:
        """Forget a token that the store does not know any more, unless a newer one has taken its place."""
        with self._mutex:
            known = self._newest.get(board)
            if known is not None and known[1] == token:
                del self._newest[board]
