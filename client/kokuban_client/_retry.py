"""When to try again, how long to wait, and when to stop. Pure: clocks and chance are given."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kokuban_client import errors

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `first_s` up to `most_s`, each cut at random so that losers do not return together."""

    first_s: float
    most_s: float

    def delay_s(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Give the wait after this many failures in a row, between nothing and the doubled bound."""
        return min(self.most_s, self.first_s * math.ldexp(1.0, min(failures - 1, 60))) * chance()


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of a monotonic clock by which an act must be done."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: float, now_s: float) -> Deadline:
        """Give the instant this long after now; raises ValueError unless the time is above 0."""
        if not timeout_s > 0:
            raise ValueError("timeout must be above 0 seconds")
        return cls(now_s + timeout_s)

    def left_s(self, now_s: float) -> float:
        """Give the time that is left, which is not above 0 when it has passed."""
        return self.at_s - now_s

    def later_by(self, seconds: float) -> Deadline:
        """Give the instant that much later, for time that was not ours to spend."""
        return Deadline(self.at_s + seconds)


_CALLS = Backoff(first_s=0.05, most_s=2.0)
CONFLICTS = Backoff(first_s=0.004, most_s=0.5)
"""Between attempts of an update that lost."""


_FAULTS_MAX = 3
_BROKEN_CONNECTION = frozenset({"UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED", "DEADLINE_EXCEEDED"})


def leaves_doubt(error: errors.KokubanError) -> bool:
    """Say whether a commit that was answered so may hold all the same.

    So does everything that a broken connection can end a call with, when it carries no reason of the server's.
    """
    return isinstance(error, errors.OutcomeUnknown) or (
        not error.reason and error.code in _BROKEN_CONNECTION and not isinstance(error, errors.Unreachable)
    )


def may_repeat(error: errors.KokubanError, failures: int) -> bool:
    """Say whether the same request, with the same request id, may be sent again after so many failures in a row.

    Yes where nothing was done or where the request id makes the repeat harmless. Never after a conflict of revisions: what
    was believed is wrong, and only the writer can believe something else.
    """
    match error:
        case errors.DeadlineExceeded() | errors.ClientClosed() | errors.Unreachable():
            return False
        case errors.Unavailable() | errors.OutcomeUnknown() | errors.Contended():
            return True
        case errors.ServerFault():
            # A connection that is cut may show as a fault without a reason, but so does a fault that will not go away.
            return not error.reason and failures < _FAULTS_MAX
        case _:
            return False


def delay_s(error: errors.KokubanError, failures: int, chance: Callable[[], float] = random.random) -> float:
    """Give the wait before the next attempt: at least what the server asked for, plus a random part."""
    return (error.retry_after_s or 0.0) + _CALLS.delay_s(failures, chance)
