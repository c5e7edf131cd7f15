"""What a policy can say of secrets and of personal data."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What is at stake."""

    SECRET = 1
    """Whoever has it can do something: a key, a token, a password."""
    PERSONAL = 2
    """It says who somebody is, or how they are reached or paid."""


class Handling(Enum):
    """What becomes of what is found."""

    MASK = 1
    """A mask stands in its place."""
    REFUSE = 2
    """The text is not taken."""
    KEEP = 3
    """It stays as it is, and is told, so that a label can say so."""


class Terms(NamedTuple):
    """How each kind is handled."""

    secret: Handling = Handling.MASK
    personal: Handling = Handling.KEEP

    def of(self, kind: Kind) -> Handling:
        """Give what becomes of a kind."""
        return self.secret if kind is Kind.SECRET else self.personal
