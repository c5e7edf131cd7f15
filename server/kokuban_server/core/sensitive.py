"""What a policy can say of secrets and of personal data."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    OFF = 4
    """It is not looked for."""
    ENCRYPT = 5
    """What some readers can have opened stands in its place."""


_STRICTNESS: Final = (Handling.OFF, Handling.KEEP, Handling.ENCRYPT, Handling.MASK, Handling.REFUSE)


class Terms(NamedTuple):
    """How each kind is handled."""

    secret: Handling = Handling.MASK
    personal: Handling = Handling.KEEP
    unsearched: Handling = Handling.REFUSE
    """What becomes of a text that is encoded deeper than is looked at: `REFUSE` or `KEEP`."""

    @property
    def is_off(self) -> bool:
        """Whether nothing is looked for."""
        return self.secret is self.personal is Handling.OFF

    @property
    def encrypts(self) -> bool:
        """Whether anything is encrypted."""
        return self.secret is Handling.ENCRYPT or self.personal is Handling.ENCRYPT

    @property
    def masking(self) -> Terms:
        """The same for a text that cannot be encrypted: a mask stands for what would be."""
        mask, encrypt = Handling.MASK, Handling.ENCRYPT
        secret, personal = (mask if each is encrypt else each for each in (self.secret, self.personal))
        return self._replace(secret=secret, personal=personal)

    def of(self, kind: Kind) -> Handling:
        """Give what becomes of a kind."""
        return self.secret if kind is Kind.SECRET else self.personal


STANDARD: Final = Terms()
"""What holds without a policy."""


def strictest(terms: Iterable[Terms]) -> Terms:
    """Give what is as strict as each of several, of each kind."""
    secret, personal, unsearched = (max(each, key=_STRICTNESS.index) for each in zip(*terms, strict=True))
    return Terms(secret, personal, unsearched)
