# Made by client/unasync.py from the asynchronous module of the same name. Do not edit.
"""Reading the audit log, page by page."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kokuban_client._wire import audit as audit_wire

if TYPE_CHECKING:
    from typing import Self

    from kokuban_client.sync._calls import Calls
    from kokuban_client.types import AuditRecord


class AuditRecords:
    """Records of the audit log in order of time, read page by page while they are iterated over. Iterate once."""

    def __init__(
        self, calls: Calls, wanted: audit_wire.AuditFilter, *, page_size: int, timeout_s: float | None
    ) -> None:
        self._calls = calls
        self._wanted = wanted
        self._page_size = page_size
        self._timeout_s = timeout_s
        self._records: deque[AuditRecord] = deque()
        self._page_token = ""
        self._read_all = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AuditRecord:
        while not self._records:
            if self._read_all:
                raise StopIteration
            self._next_page()
        return self._records.popleft()

    def _next_page(self) -> None:
        request = audit_wire.list_request(self._wanted, page_size=self._page_size, page_token=self._page_token)
        answer = self._calls.call(lambda link: link.admin.ListAuditRecords, request, timeout_s=self._timeout_s)
        self._records.extend(map(audit_wire.record, answer.records))
        self._page_token = answer.next_page_token
        self._read_all = not self._page_token
