"""Who is in a leak run, and what each may see: said a second time, apart from the server's own rules."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

LOOK_ALIKES = (
    "task_1",
    "task_10",
    "task_1_",
    "task_",
    "task",
    "TASK_1",
    "t\u0430sk_1",  # Cyrillic a
    "\uff54ask_1",  # full-width t
    "task_\u0661",  # Arabic digit 1
    "task_1\u00e9",  # composed
    "task_1\u0338",  # with an overlay that composes with nothing
    "task_1%",
    "task_%",
    "task_1*",
    "task_?",
    "[task_1]",
    "task_1\\",
    "task_1:",
    "task_1.",
    "task_1 ",
    "task_1\u00ff",
    "task_1\uffff",
    "task_1\U0010ffff",
)
"""Ids that a careless comparison, pattern or range would take for one another."""

REFUSED = ("task_1\x00", "task_1/x", "task_1e\u0301", "task_1\n", "task_1\u2028", "x" * 257, "")
"""Ids that no region has: refused for everybody alike, as bad input."""

KINDS_WITH_GRANTS = ("user", "conversation", "task")
TENANTS = ("acme", "acme-1")
BOARDS = {"acme": ("main", "main-1", "main-10", "theirs"), "acme-1": ("main", "main-1", "main-10")}
SHARED = ("plan", "plan0", "Plan", "pl\u0430n", *LOOK_ALIKES[:4])
_AGENTS = ("a", "a1", "a10", "A", "a_", "a%")
_MARK_BYTES = 6


class Place(NamedTuple):
    """A region on its board. The tenant's region is on the board ``, and the global one belongs to the tenant `` as well.

    A region `` stands for whatever all of a board may see.
    """

    tenant: str
    board: str
    region: str


class Secret(NamedTuple):
    """Who may see something: those who may read one, or all, of these places."""

    places: frozenset[Place]
    all_of_them: bool = False


@dataclass(eq=False)
class Principal:
    """Somebody who calls."""

    tenant: str
    agent: str
    roles: frozenset[str]
    boards: frozenset[str] | None
    """None for all."""
    grants: Mapping[str, frozenset[str]]
    """Ids of users, conversations and tasks, by kind."""
    token: str = field(default_factory=lambda: f"kk_{secrets.token_urlsafe(32)}")
    sessions: dict[str, str] = field(default_factory=dict)
    """Its session on each board."""

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.agent}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    @property
    def only_reads(self) -> bool:
        return self.roles == {"auditor"}

    def enters(self, board: str) -> bool:
        return board in BOARDS[self.tenant] and (self.boards is None or board in self.boards)

    def reads(self, place: Place) -> bool:
        """Say whether this principal may read a place, whichever board or tenant it names."""
        tenant, board, region = place
        kind, _, name = region.partition(":")
        if kind == "global":
            return True
        if tenant != self.tenant:
            return False
        if kind == "tenant":
            return True
        if not self.enters(board):
            return False
        if kind == "agent":
            return name == self.agent
        return kind in {"shared", ""} or name in self.grants[kind]

    def writes(self, place: Place) -> bool:
        kind = place.region.partition(":")[0]
        if not self.reads(place) or self.only_reads:
            return False
        if kind == "tenant":
            return "operator" in self.roles
        return "system" in self.roles if kind == "global" else bool(kind)

    def sees(self, secret: Secret, board: str | None = None) -> bool:
        """Say whether this principal may be shown something; in an answer about a board, only what is on that board."""
        shown = (
            self.reads(place) and (board is None or place.board in {board, ""} or not place.tenant)
            for place in secret.places
        )
        return all(shown) if secret.all_of_them else any(shown)

    @property
    def entry(self) -> dict[str, object]:
        """This principal as the file of principals holds it."""
        grants = {f"{kind}s": sorted(ids) for kind, ids in self.grants.items() if ids}
        return {
            "name": f"{self.tenant}-{self.agent.encode().hex()}",
            "tenant": self.tenant,
            "agent": self.agent,
            "roles": sorted(self.roles),
            "boards": "*" if self.boards is None else sorted(self.boards),
            "token_sha256": hashlib.sha256(self.token.encode()).hexdigest(),
            **grants,
        }


class Cast:
    """Everybody, every place, and the marks of what is written where."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.principals = [one for tenant in TENANTS for one in _team(tenant, draw)]
        self._salt = draw.randbytes(8)
        self._secrets: dict[str, Secret] = {}
        self._marks: dict[Secret, str] = {}
        self.places = self._places()

    def _places(self) -> list[Place]:
        regions = [f"shared:{name}" for name in SHARED]
        regions += [f"{kind}:{name}" for kind in KINDS_WITH_GRANTS for name in LOOK_ALIKES]
        regions += [f"agent:{one.agent}" for one in self.principals if one.tenant == TENANTS[0]]
        places = [Place(tenant, board, region) for tenant in TENANTS for board in BOARDS[tenant] for region in regions]
        return [*places, *(Place(tenant, "", "tenant") for tenant in TENANTS), Place("", "", "global")]

    def mark(self, *places: Place, all_of_them: bool = False) -> str:
        """Give the text by which something written there is known again, wherever it turns up."""
        secret = Secret(frozenset(places), all_of_them and len(places) > 1)
        found = self._marks.get(secret)
        if found is None:
            text = repr((sorted(secret.places), secret.all_of_them)).encode()
            found = f"mk{hashlib.blake2b(text, digest_size=_MARK_BYTES, key=self._salt).hexdigest()}km"
            self._marks[secret], self._secrets[found] = found, secret
        return found

    def secret(self, mark: str) -> Secret | None:
        return self._secrets.get(mark)

    def write_principals(self, path: Path) -> None:
        """Write the file that a server knows everybody by."""
        content = json.dumps({"principals": [one.entry for one in self.principals]}, ensure_ascii=False)
        path.write_text(content, encoding="utf-8")
        path.chmod(0o600)


def _team(tenant: str, draw: random.Random) -> Iterable[Principal]:
    """Give a tenant's agents; each look-alike belongs to one of them, and some to a second one."""
    owned: dict[str, dict[str, set[str]]] = {agent: {kind: set() for kind in KINDS_WITH_GRANTS} for agent in _AGENTS}
    for kind in KINDS_WITH_GRANTS:
        for name in LOOK_ALIKES:
            for agent in draw.sample(_AGENTS, 2 if draw.random() < 0.2 else 1):
                owned[agent][kind].add(name)
    boards = (frozenset({"main", "theirs"}), frozenset({"main", "main-1"}), frozenset({"main", "main-10"}))
    for number, agent in enumerate(_AGENTS):
        yield Principal(tenant, agent, frozenset({"member"}), boards[number % len(boards)], _frozen(owned[agent]))
    nothing: dict[str, set[str]] = {kind: set() for kind in KINDS_WITH_GRANTS}
    yield Principal(tenant, "chief", frozenset({"member", "supervisor", "operator"}), None, _frozen(nothing))
    yield Principal(tenant, "breaker", frozenset({"member", "supervisor"}), boards[0], _frozen(nothing))
    some: dict[str, set[str]] = {kind: set(draw.sample(LOOK_ALIKES, 3)) for kind in KINDS_WITH_GRANTS}
    yield Principal(tenant, "auditor", frozenset({"auditor"}), boards[1], _frozen(some))
    yield Principal(tenant, "system", frozenset({"member", "system"}), boards[0], _frozen(nothing))


def _frozen(grants: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {kind: frozenset(ids) for kind, ids in grants.items()}
