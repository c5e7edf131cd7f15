"""The label of a write: as the least trusted of all that goes into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.core.trust import OWN_WORD, UNDECLARED, Label, Parent, Source, SourceKind, Trust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kokuban_server.core.access import Principal


def source_ceiling(source: Source, principal: Principal, tools: Mapping[str, Trust]) -> Trust:
    """Give the most that what comes from a source may be trusted, whoever writes it.

    An agent's word is `AGENT`; a user's `USER` where the principal may act for that user; a tool's what the policy says;
    everything else `EXTERNAL`.
    """
    kind = source.kind
    if kind is SourceKind.UNDECLARED:
        return Trust.EXTERNAL if principal.browses else Trust.AGENT
    if kind is SourceKind.AGENT:
        return Trust.AGENT
    if kind is SourceKind.USER:
        attests = source.name and (principal.is_development or principal.users.includes(source.name))
        return Trust.USER if attests else Trust.AGENT
    return tools.get(source.name, Trust.EXTERNAL) if kind is SourceKind.TOOL else Trust.EXTERNAL


def label_of(
    source: Source,
    parents: tuple[Parent, ...],
    trusts: Iterable[Trust],
    principal: Principal,
    tools: Mapping[str, Trust],
    read_scope: str,
    scope_size: int = 0,
) -> Label:
    """Give the label of what a principal writes: `trusts` are those of the parents and of all that its read scope was given."""
    trust = min(principal.trust_ceiling, source_ceiling(source, principal, tools), *trusts)
    if trust is Trust.AGENT and source is UNDECLARED and not parents and not read_scope:
        return OWN_WORD
    return Label(trust, source, parents, read_scope, scope_size=scope_size)
