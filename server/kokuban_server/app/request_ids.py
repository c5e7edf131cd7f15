"""Request ids: what makes a request happen once, and for how long."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from kokuban_server.core import limits
from kokuban_server.core.refusals import RequestIdExpired

if TYPE_CHECKING:
    from kokuban_server.app.store_time import StoreTime


class RequestIds:
    """Says which ids can still be told from a repeat, and what a request's arguments are compared by."""

    def __init__(self, time: StoreTime, digest_key: bytes, window_ms: int = limits.REQUEST_ID_WINDOW_MS) -> None:
        self._time = time
        self._digest_key = digest_key
        self._window_ms = window_ms

    def digest(self, arguments: bytes) -> bytes:
        """Give the keyed digest of a request's arguments, which says nothing about them to who has not the key."""
        return blake2b(arguments, digest_size=16, key=self._digest_key).digest()

    def check(self, request_id: str, id_time_ms: int) -> None:
        """Raise `RequestIdExpired` for an id that is outside the window by this server's clock."""
        now_ms = self._time.now_ms()
        if not now_ms - self._window_ms < id_time_ms <= now_ms + limits.REQUEST_ID_AHEAD_MS_MAX:
            raise self._expired(request_id)

    def check_at(self, request_id: str, id_time_ms: int, store_time_ms: int) -> None:
        """Raise `RequestIdExpired` for an id that is too old by store time."""
        if self.end_ms(id_time_ms) <= store_time_ms:
            raise self._expired(request_id)

    def end_ms(self, id_time_ms: int) -> int:
        """Give the store time from which on an id is too old."""
        return id_time_ms + self._window_ms

    def _expired(self, request_id: str) -> RequestIdExpired:
        return RequestIdExpired(request_id, self._window_ms // 1000, self._time.now_ms())
