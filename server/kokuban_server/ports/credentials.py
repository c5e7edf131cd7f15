"""Credentials: what proves who is calling."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.core.access import Principal


class Certificate(NamedTuple):
    """What a client's certificate says, whose chain has been verified."""

    san_uris: tuple[str, ...]
    """The URIs among its subject alternative names."""
    expires_ms: int


class Credentials(Protocol):
    """Knows whom a credential belongs to. Never tells which of several things is wrong with one."""

    def by_token(self, token: str) -> Principal:
        """Give the principal of a bearer token. The same token gives the same object for as long as it says the same.

        Raises `Unauthenticated`: `CREDENTIAL_INVALID`, or `CREDENTIAL_EXPIRED` for one that was good.
        """
        ...

    def by_certificate(self, certificate: Certificate) -> Principal:
        """Give the principal of a certificate; as `by_token`."""
        ...

    def stands(self, principal: Principal) -> bool:
        """Say whether the credential still gives what it gave: it was neither revoked nor changed. Expiry is apart."""
        ...

    def present(self, principal: Principal) -> Principal | None:
        """Give what a principal's credential gives now, be it of before a restart; nothing if it is not good any more.

        It may give other rights than it gave, or belong to another agent. Expiry is apart.
        """
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Have something called whenever credentials may have changed."""
        ...
