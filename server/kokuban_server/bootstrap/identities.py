"""Who may call, as the settings say."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, NamedTuple

import structlog

from kokuban_server.bootstrap.stores import StartError
from kokuban_server.wire.identity import CredentialIdentity, DevelopmentIdentity, QuickIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kokuban_server.ports.clock import Clock
    from kokuban_server.settings import JwtSettings, Settings
    from kokuban_server.wire.identity import Identity

_log = structlog.get_logger()


class Callers(NamedTuple):
    """What says who calls, and what keeps it up to date."""

    identity: Identity
    follow: Callable[[], Coroutine[None, None, None]] | None = None
    """Runs until cancelled."""


async def open_callers(settings: Settings, clock: Clock) -> Callers:
    """Give what says who calls. Raises `StartError` where credentials cannot be read."""
    if settings.quickstart:
        return Callers(QuickIdentity(_quick_token(settings)))
    if settings.identity == "development":
        return Callers(DevelopmentIdentity())
    return await _credentials(settings, clock)


def _quick_token(settings: Settings) -> str:
    """Give the token of a quick start; one that is made now is printed, once, for whoever starts the server."""
    if settings.quick_token is not None:
        return settings.quick_token.get_secret_value()
    token = f"kk_{secrets.token_urlsafe(32)}"
    sys.stdout.write(f"token: {token}\n")
    sys.stdout.flush()
    return token


async def _credentials(settings: Settings, clock: Clock) -> Callers:
    # Imported here: only who uses credentials needs the libraries they stand on.
    from kokuban_server.adapters.credentials import CredentialBook, Registry, RegistryFile  # noqa: PLC0415 - see above
    from kokuban_server.adapters.credentials.certificates import read_certificate  # noqa: PLC0415 - see above
    from kokuban_server.adapters.credentials.jwt import JwtIssuer, key_source  # noqa: PLC0415 - see above

    async def issuer(of: JwtSettings) -> JwtIssuer:
        return await JwtIssuer.open(of.issuer, of.audience, key_source(of.keys), clock, _report, of.leeway_s)

    try:
        file = settings.principals_file
        registry = RegistryFile(file, clock, _report) if file is not None else Registry((), clock)
        book = CredentialBook(registry, [await issuer(one) for one in settings.jwt])
    except (OSError, ValueError) as error:
        raise StartError(f"cannot read credentials: {error}") from error
    by_certificate = settings.tls.client_ca_file is not None
    return Callers(CredentialIdentity(book, clock, read_certificate if by_certificate else None), book.follow)


def _report(fault: str) -> None:
    _log.error("credentials.unusable", fault=fault)
