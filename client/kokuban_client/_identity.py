"""Where a client calls and as whom, fixed for the client's life."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADDRESS_DEFAULT = "127.0.0.1:7420"

_AGENT = re.compile(r"[\x21-\x7e]{1,128}")
_ROLES = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Identity:
    """An address, and the headers that say who calls."""

    address: str
    agent: str
    metadata: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls,
        address: str | None,
        agent: str | None,
        roles: Sequence[str] | None,
        environment: Mapping[str, str] = os.environ,
    ) -> Identity:
        """Give the identity, filled up from `KOKUBAN_ADDRESS`, `KOKUBAN_AGENT` and `KOKUBAN_ROLES`.

        Raises ValueError if no agent is named or a name cannot travel in a header.
        """
        address = address or environment.get("KOKUBAN_ADDRESS") or ADDRESS_DEFAULT
        agent = agent or environment.get("KOKUBAN_AGENT") or ""
        if not agent:
            raise ValueError("say who calls: agent=…, or set KOKUBAN_AGENT")
        if not _AGENT.fullmatch(agent):
            raise ValueError("an agent's id is 1 to 128 printable ASCII characters without spaces")
        if isinstance(roles, str):
            raise TypeError('roles is a list of words, for instance ["member", "operator"]')
        if roles is None:
            told = environment.get("KOKUBAN_ROLES", "")
            roles = [role.strip() for role in told.split(",") if role.strip()]
        for role in roles:
            if not _ROLES.fullmatch(role):
                raise ValueError(f"not a role: {role!r}")
        headers = [("kokuban-agent", agent)]
        if roles:
            headers.append(("kokuban-roles", ",".join(roles)))
        return cls(address, agent, tuple(headers))
