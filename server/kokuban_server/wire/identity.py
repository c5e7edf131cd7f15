"""Who is calling: credentials to principals. Only the development identity so far; the others join here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kokuban_server.core.access import Principal, Role
from kokuban_server.core.names import parse_agent
from kokuban_server.core.refusals import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterable

AGENT_HEADER = "kokuban-agent"
ROLES_HEADER = "kokuban-roles"
DEVELOPMENT_TENANT = "dev"

_ROLES = {role.value: role for role in Role}


class Identity(Protocol):
    """Gives the principal of a call."""

    def __call__(self, metadata: Iterable[tuple[str, str | bytes]]) -> Principal:
        """Give the principal that the call's metadata proves. Raises `Unauthenticated`."""
        ...


class DevelopmentIdentity:
    """Believes what the headers `kokuban-agent` and `kokuban-roles` say. For loopback only."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | bytes, str | bytes], Principal] = {}

    def __call__(self, metadata: Iterable[tuple[str, str | bytes]]) -> Principal:
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

    def _principal(self, agent: str | bytes, roles: str | bytes) -> Principal:
        if not isinstance(agent, str) or not isinstance(roles, str) or parse_agent(agent) is None:
            raise Unauthenticated(
                "CREDENTIAL_INVALID", f"{AGENT_HEADER} is 1 to 128 printable ASCII characters without spaces"
            )
        named = [name.strip() for name in roles.split(",")]
        if not all(name in _ROLES for name in named):
            raise Unauthenticated("CREDENTIAL_INVALID", f"{ROLES_HEADER} names roles, with commas: {', '.join(_ROLES)}")
        return Principal(DEVELOPMENT_TENANT, agent, frozenset(_ROLES[name] for name in named), is_development=True)


_KNOWN_MAX = 4096
