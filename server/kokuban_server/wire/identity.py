"""Who is calling: what a call carries to a principal."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kokuban_server.core.access import Principal, Role
from kokuban_server.core.names import parse_agent
from kokuban_server.core.refusals import Unauthenticated

if TYPE_CHECKING:
    from kokuban_server.core.refusals import Refusal
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.credentials import Certificate, Credentials

Peer: TypeAlias = Callable[[], Mapping[str, Iterable[bytes]]]
"""What a connection has proved, as grpc tells it."""

AGENT_HEADER = "kokuban-agent"
ROLES_HEADER = "kokuban-roles"
DEVELOPMENT_TENANT = "dev"

_ROLES = {role.value: role for role in Role}


class Identity(Protocol):
    """Gives the principal of a call."""

    def __call__(self, metadata: Iterable[tuple[str, str | bytes]], peer: Peer) -> Principal:
        """Give the principal that the call proves. Raises `Unauthenticated`.

        `peer` gives what the connection has proved: of a verified client certificate its PEM text.
        """
        ...

    def fault(self, principal: Principal) -> Refusal | None:
        """Give why a principal that was given before would be refused now, or nothing."""
        ...

    def present(self, principal: Principal) -> Principal:
        """Give a principal, be it of before a restart, as it is now. Raises `Unauthenticated` for one that is none any more."""
        ...


class DevelopmentIdentity:
    """Believes what the headers `kokuban-agent` and `kokuban-roles` say. For loopback only."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | bytes, str | bytes], Principal] = {}

    def __call__(self, metadata: Iterable[tuple[str, str | bytes]], peer: Peer) -> Principal:  # noqa: ARG002 - none on loopback
        """Give the principal that the headers name. A header that stands twice is refused, not chosen from."""
        agent: str | bytes | None = None
        roles: str | bytes | None = None
        for name, value in metadata:
            if name == AGENT_HEADER:
                if agent is not None:
                    raise Unauthenticated("CREDENTIAL_INVALID", f"{AGENT_HEADER} stands more than once")
                agent = value
            elif name == ROLES_HEADER:
                if roles is not None:
                    raise Unauthenticated("CREDENTIAL_INVALID", f"{ROLES_HEADER} stands more than once")
                roles = value
        if agent is None:
            raise Unauthenticated("CREDENTIAL_REQUIRED", f"the header {AGENT_HEADER} says which agent calls")
        roles = Role.MEMBER.value if roles is None else roles
        known = self._known.get((agent, roles))
        if known is None:
            known = self._principal(agent, roles)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[agent, roles] = known
        return known

    def fault(self, principal: Principal) -> Refusal | None:  # noqa: ARG002 - all are believed
        """Give nothing: headers do not end."""
        return None

    def present(self, principal: Principal) -> Principal:
        """Give the principal: it is believed."""
        return principal

    def _principal(self, agent: str | bytes, roles: str | bytes) -> Principal:
        if not isinstance(agent, str) or not isinstance(roles, str) or parse_agent(agent) is None:
            raise Unauthenticated(
                "CREDENTIAL_INVALID", f"{AGENT_HEADER} is 1 to 128 printable ASCII characters without spaces"
            )
        named = [name.strip() for name in roles.split(",")]
        if not all(name in _ROLES for name in named):
            raise Unauthenticated("CREDENTIAL_INVALID", f"{ROLES_HEADER} names roles, with commas: {', '.join(_ROLES)}")
        return Principal(DEVELOPMENT_TENANT, agent, frozenset(_ROLES[name] for name in named), is_development=True)


class QuickIdentity:
    """Whoever shows the one token of this server, under the name it gives itself: `TOKEN` or `TOKEN.AGENT`. For first steps."""

    def __init__(self, token: str) -> None:
        self._digest = hashlib.sha256(token.encode()).digest()
        self._known: dict[str, Principal] = {}

    def __call__(self, metadata: Iterable[tuple[str, str | bytes]], peer: Peer) -> Principal:  # noqa: ARG002 - the token is all
        """Give the principal that the token's holder says it is, with every role that an agent team needs."""
        shown = _bearer(metadata)
        if shown is None:
            raise Unauthenticated("CREDENTIAL_REQUIRED", "the token that the server printed at its start")
        token, _, agent = shown.partition(".")
        if not hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._digest):
            raise Unauthenticated("CREDENTIAL_INVALID", "not the token of this server")
        agent = parse_agent(agent or "quickstart") or ""
        if not agent:
            raise Unauthenticated("CREDENTIAL_INVALID", "an agent's id is 1 to 128 printable ASCII characters")
        known = self._known.get(agent)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[agent] = Principal(DEVELOPMENT_TENANT, agent, _QUICK_ROLES, is_development=True)
        return known

    def fault(self, principal: Principal) -> Refusal | None:  # noqa: ARG002 - the token is good for as long as the server
        """Give nothing: the token ends with the server."""
        return None

    def present(self, principal: Principal) -> Principal:
        """Give the principal: the server's next token is for the same team."""
        return principal


_QUICK_ROLES = frozenset({Role.MEMBER, Role.SUPERVISOR, Role.OPERATOR})


class CredentialIdentity:
    """Asks the credentials whom a bearer token or a client certificate belongs to.

    `read_certificate` reads the PEM text of a client certificate; without it only tokens count.
    """

    def __init__(
        self,
        credentials: Credentials,
        clock: Clock,
        read_certificate: Callable[[bytes], Certificate] | None = None,
    ) -> None:
        self._read_certificate = read_certificate
        self._credentials = credentials
        self._clock = clock
        self._certificates: dict[bytes, Certificate] = {}

    def __call__(self, metadata: Iterable[tuple[str, str | bytes]], peer: Peer) -> Principal:
        """Give the principal of the call's token, of its certificate, or of both if they agree."""
        token = _bearer(metadata)
        certified = self._certified(peer)
        principal = self._credentials.by_token(token) if token is not None else certified
        if principal is None:
            raise Unauthenticated("CREDENTIAL_REQUIRED", "a bearer token or a client certificate says who calls")
        if certified is not None and (certified.tenant, certified.agent) != (principal.tenant, principal.agent):
            raise Unauthenticated("CREDENTIAL_INVALID", "the token and the certificate name different principals")
        return principal

    def fault(self, principal: Principal) -> Refusal | None:
        """Give why the credential is no longer good: its time is over, or it was revoked or changed."""
        if not self._credentials.stands(principal):
            return Unauthenticated("CREDENTIAL_INVALID", _REVOKED)
        if 0 < principal.expires_ms <= self._clock.now_ms():
            return Unauthenticated("CREDENTIAL_EXPIRED", _OVER)
        return None

    def present(self, principal: Principal) -> Principal:
        """Give the principal with the rights that its credential gives now, if that is still the same agent's."""
        present = self._credentials.present(principal)
        if present is None or (present.tenant, present.agent) != (principal.tenant, principal.agent):
            raise Unauthenticated("CREDENTIAL_INVALID", _REVOKED)
        if 0 < present.expires_ms <= self._clock.now_ms():
            raise Unauthenticated("CREDENTIAL_EXPIRED", _OVER)
        return present

    def _certified(self, peer: Peer) -> Principal | None:
        read = self._read_certificate
        pem = next(iter(peer().get("x509_pem_cert", ())), None) if read is not None else None
        if read is None or pem is None:
            return None
        certificate = self._certificates.get(pem)
        if certificate is None:
            certificate = read(pem)
            if len(self._certificates) >= _KNOWN_MAX:
                self._certificates.clear()
            self._certificates[pem] = certificate
        if certificate.expires_ms <= self._clock.now_ms():  # a connection outlives the certificate that opened it
            raise Unauthenticated("CREDENTIAL_EXPIRED", "the certificate's time is over")
        return self._credentials.by_certificate(certificate)


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Give the bearer token of a call, if it has one. A header that stands twice is refused, not chosen from."""
    found: str | None = None
    for name, value in metadata:
        if name != "authorization":
            continue
        scheme, _, token = value.partition(" ") if isinstance(value, str) else ("", "", "")
        if found is not None or scheme.lower() != "bearer" or not token:
            raise Unauthenticated("CREDENTIAL_INVALID", "the header authorization is one `Bearer TOKEN`")
        found = token
    return found


_KNOWN_MAX = 4096
_REVOKED = "the credential was revoked or changed"
_OVER = "the credential's time is over"
