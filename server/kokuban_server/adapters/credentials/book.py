"""All the credentials that a server accepts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.credentials.registry import TOKEN_PREFIX, Registry, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kokuban_server.adapters.credentials.jwt import JwtIssuer
    from kokuban_server.core.access import Principal
    from kokuban_server.ports.credentials import Certificate

TOKEN_CHARACTERS_MAX: Final = 8_192
REFRESH_S: Final = 1.0


class CredentialBook:
    """The registry's tokens and certificates, and the JWTs of the issuers; implements the port `Credentials`."""

    def __init__(self, registry: Registry, issuers: Sequence[JwtIssuer] = ()) -> None:
        """Put the credentials together. Raises ValueError where two issuers have the same name."""
        self._registry = registry
        self._issuers = {issuer.name: issuer for issuer in issuers}
        if len(self._issuers) < len(issuers):
            raise ValueError("two JWT issuers have the same name")

    def by_token(self, token: str) -> Principal:
        """Give the principal of a bearer token. Raises `Unauthenticated`."""
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
            raise invalid()
        if token.startswith(TOKEN_PREFIX):
            return self._registry.by_token(token)
        for issuer in self._issuers.values():  # each says at once whether a token claims to be its own
            if issuer.is_meant(token):
                return issuer.by_token(token)
        raise invalid()

    def by_certificate(self, certificate: Certificate) -> Principal:
        """Give the principal of a certificate. Raises `Unauthenticated`."""
        return self._registry.by_certificate(certificate)

    def stands(self, principal: Principal) -> bool:
        """Say whether the principal's credential still gives what it gave."""
        return self._registry.stands(principal) or any(issuer.stands(principal) for issuer in self._issuers.values())

    def present(self, principal: Principal) -> Principal | None:
        """Give what the principal's credential gives now; nothing if it is not good any more."""
        if any(issuer.stands(principal) for issuer in self._issuers.values()):
            return principal  # what a JWT grants is signed
        return self._registry.present(principal)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Have something called whenever credentials may have changed."""
        self._registry.subscribe(on_change)
        for issuer in self._issuers.values():
            issuer.subscribe(on_change)

    async def refresh(self) -> None:
        """Read again what has changed. What cannot be used is reported and changes nothing."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._registry.refresh())
            for issuer in self._issuers.values():
                group.create_task(issuer.refresh())

    async def follow(self, interval_s: float = REFRESH_S) -> None:
        """Keep up with files and addresses until cancelled. None waits for another: an address may take its time."""
        sources: list[Registry | JwtIssuer] = [self._registry, *self._issuers.values()]
        async with asyncio.TaskGroup() as group:
            for source in sources:
                group.create_task(_follow(source, interval_s))


async def _follow(source: Registry | JwtIssuer, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await source.refresh()
