"""What cannot be used is reported once, until it is another or was mended."""

from __future__ import annotations

import pytest

from kokuban_server.adapters.files import Rereading


class Source:
    """Something that is read, and what was reported of it."""

    def __init__(self) -> None:
        self.next: str | Exception | None = None
        self.reported: list[str] = []
        self.rereading = Rereading(self._read, (OSError, KeyError), self.reported.append)

    async def _read(self) -> str | None:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next

    async def read(self, found: str | Exception | None) -> str | None:
        self.next = found
        return await self.rereading.read()


async def test_what_is_as_it_was_or_cannot_be_used_gives_nothing() -> None:
    source = Source()
    assert [await source.read(found) for found in ("a", None, OSError("gone"), "b")] == ["a", None, None, "b"]


async def test_a_fault_is_reported_again_after_another_or_where_it_was_mended() -> None:
    source = Source()
    for found, reports in (
        (OSError("gone"), 1),
        (OSError("gone"), 1),
        (None, 1),  # nothing has changed, so nothing is mended
        (OSError("gone"), 1),
        (KeyError("k1"), 2),
        (OSError("gone"), 3),
        ("mended", 3),
        (OSError("gone"), 4),
    ):
        await source.read(found)
        assert len(source.reported) == reports
    assert source.reported[0] == "gone"


async def test_what_is_no_fault_of_what_is_read_is_raised() -> None:
    source = Source()
    with pytest.raises(ZeroDivisionError):
        await source.read(ZeroDivisionError())
    assert source.reported == []
