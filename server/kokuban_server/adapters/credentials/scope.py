"""What a credential lets its holder be and do, read from JSON: the same fields in the registry and in JWTs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kokuban_server.core.access import EVERYBODY, NOBODY, Grants, Principal, Role
from kokuban_server.core.names import parse_agent, parse_board, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

GRANTS_MAX: Final = 1_024
"""Boards, users, conversations or tasks that one credential names."""
SCOPE_FIELDS: Final = frozenset(
    {"tenant", "roles", "boards", "users", "conversations", "tasks", "trust_ceiling", "browses"}
)

_ROLES = {role.value: role for role in Role}
_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_CEILINGS = {trust.name.lower(): trust for trust in Trust if trust is not Trust.SUSPECT}
_ALL = "*"


class FieldRefused(ValueError):  # noqa: N818 - a refusal is an answer, not an error of ours
    """A field cannot be used; the text names it and never holds a secret."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a credential grants, beside the agent's name."""

    tenant: str
    roles: frozenset[Role]
    boards: Grants
    users: Grants = NOBODY
    conversations: Grants = NOBODY
    tasks: Grants = NOBODY
    trust_ceiling: Trust = Trust.SYSTEM
    """The most that what the agent writes, or endorses, may be trusted."""
    browses: bool = False
    """What the agent does not say the source of comes from outside."""

    def principal(self, agent: str, expires_ms: int, credential: str) -> Principal:
        """Give the agent with this scope as a principal."""
        return Principal(
            self.tenant,
            agent,
            self.roles,
            boards=self.boards,
            users=self.users,
            conversations=self.conversations,
            tasks=self.tasks,
            expires_ms=expires_ms,
            credential=credential,
            trust_ceiling=self.trust_ceiling,
            browses=self.browses,
        )


def read_scope(fields: Mapping[str, object]) -> Scope:
    """Give the scope of these fields. Raises `FieldRefused`.

    Tenant, roles and boards must be there; whom the agent may act for is nobody unless it says so.
    """
    tenant = text(fields, "tenant")
    if not _TENANT.fullmatch(tenant):
        raise FieldRefused("tenant: is 1 to 63 of a-z, 0-9 and inner hyphens")
    roles = _texts(fields, "roles")
    if not roles:
        raise FieldRefused("roles: names none")
    for role in roles:
        if role not in _ROLES:
            raise FieldRefused(f"roles: {role[:64]!r} is not one of {', '.join(_ROLES)}")
    if "boards" not in fields:
        raise FieldRefused("boards: is missing")
    return Scope(
        tenant,
        frozenset(_ROLES[role] for role in roles),
        _grants(fields, "boards"),
        _grants(fields, "users"),
        _grants(fields, "conversations"),
        _grants(fields, "tasks"),
        _ceiling(fields),
        _flag(fields, "browses"),
    )


def scope_fields(scope: Scope) -> dict[str, object]:
    """Give the fields that `read_scope` reads; those that grant nothing are left out."""
    fields: dict[str, object] = {"tenant": scope.tenant, "roles": sorted(scope.roles), "boards": _named(scope.boards)}
    for name, grants in (("users", scope.users), ("conversations", scope.conversations), ("tasks", scope.tasks)):
        if grants != NOBODY:
            fields[name] = _named(grants)
    if scope.trust_ceiling is not Trust.SYSTEM:
        fields["trust_ceiling"] = scope.trust_ceiling.name.lower()
    if scope.browses:
        fields["browses"] = True
    return fields


def refuse_unknown(fields: Mapping[str, object], known: Collection[str]) -> None:
    """Raise `FieldRefused` for a field that means nothing here: what was meant by it would silently not hold."""
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise FieldRefused(f"{shown(unknown[0])}: is not a field")


def shown(name: str) -> str:
    """Give a field's name as it may stand in an error text, whatever somebody has written there."""
    return ascii(name[:64])[1:-1]


def text(fields: Mapping[str, object], name: str) -> str:
    """Give a text that must be there. Raises `FieldRefused`."""
    if name not in fields:
        raise FieldRefused(f"{name}: is missing")
    value = fields[name]
    if not isinstance(value, str) or not value:
        raise FieldRefused(f"{name}: is not a text")
    return value


def agent_id(fields: Mapping[str, object], name: str) -> str:
    """Give an agent's id. Raises `FieldRefused`."""
    value = parse_agent(text(fields, name))
    if value is None:
        raise FieldRefused(f"{name}: is not 1 to 128 printable ASCII characters without spaces")
    return value


def _ceiling(fields: Mapping[str, object]) -> Trust:
    if "trust_ceiling" not in fields:
        return Trust.SYSTEM
    name = text(fields, "trust_ceiling")
    if name not in _CEILINGS:
        raise FieldRefused(f"trust_ceiling: {name[:64]!r} is not one of {', '.join(_CEILINGS)}")
    return _CEILINGS[name]


def _flag(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise FieldRefused(f"{name}: is neither true nor false")
    return value


def _texts(fields: Mapping[str, object], name: str) -> list[str]:
    if name not in fields:
        raise FieldRefused(f"{name}: is missing")
    values = fields[name]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FieldRefused(f"{name}: is not a list of texts")
    return values


def _grants(fields: Mapping[str, object], name: str) -> Grants:
    """Give whom or what a field grants: everything for `"*"`, what a list names, nothing where it is missing."""
    if name not in fields:
        return NOBODY
    if fields[name] == _ALL:
        return EVERYBODY
    if not isinstance(fields[name], list):
        raise FieldRefused(f'{name}: is neither a list of texts nor "*"')
    ids = _texts(fields, name)
    if len(ids) > GRANTS_MAX:
        raise FieldRefused(f"{name}: names more than {GRANTS_MAX}")
    for one in ids:
        if one == _ALL:
            raise FieldRefused(f'{name}: "*" stands alone, not in a list')
        try:
            # As the board's own names are read, so that no other spelling of a name is ever granted.
            parse_board(one) if name == "boards" else parse_region(f"{name[:-1]}:{one}")
        except InvalidRequest as refusal:
            raise FieldRefused(f"{name}: {one[:64]!r}: {refusal.detail}") from None
    return Grants(frozenset(ids))


def _named(grants: Grants) -> str | list[str]:
    return _ALL if grants.is_all else sorted(grants.ids)
