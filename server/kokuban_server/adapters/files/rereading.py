"""What is read again and again, by those who go on with what was read before where it cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_T = TypeVar("_T")


class Rereading(Generic[_T]):
    """Reads something that others change, and reports a fault once, however often it is met."""

    def __init__(
        self,
        read_if_changed: Callable[[], Awaitable[_T | None]],
        faults: type[Exception] | tuple[type[Exception], ...],
        report: Callable[[str], None],
    ) -> None:
        """Say how it is read: nothing is given where it is as it was. `faults` is what is raised where it cannot be used."""
        self._read_if_changed = read_if_changed
        self._faults = faults
        self._report = report
        self._reported = ""

    async def read(self) -> _T | None:
        """Give what there is now if it may be another than last time and can be used, else nothing."""
        try:
            found = await self._read_if_changed()
        except self._faults as fault:
            if str(fault) != self._reported:
                self._reported = str(fault)
                self._report(self._reported)
            return None
        if found is not None:
            self._reported = ""  # the same fault after one that was mended is news
        return found
