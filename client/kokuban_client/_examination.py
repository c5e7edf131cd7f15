"""Examining the store, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client._wire import examination as examination_wire

if TYPE_CHECKING:
    from typing import Self

    from kokuban_client._calls import Calls
    from kokuban_client.types import ExaminedPage


class Examination:
    """The pages of an examination, made while they are iterated over. Iterate once."""

    def __init__(self, calls: Calls, *, repair: bool, timeout_s: float | None) -> None:
        self._calls = calls
        self._repair = repair
        self._timeout_s = timeout_s
        self._page_token = ""
        self._read_all = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ExaminedPage:
        if self._read_all:
            raise StopAsyncIteration
        request = examination_wire.request(self._page_token, repair=self._repair)
        answer = await self._calls.call(lambda link: link.admin.ExamineStore, request, timeout_s=self._timeout_s)
        self._page_token = answer.next_page_token
        self._read_all = not self._page_token
        return examination_wire.page(answer)
