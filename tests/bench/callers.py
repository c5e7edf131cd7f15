"""Callers with credentials: what a server needs to know them by, and unary commits over a connection of each."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from kokuban.v1 import admin_service_pb2, commit_pb2, policy_pb2
from kokuban_server.adapters.credentials import edit, parse_entry
from kokuban_server.adapters.credentials.development_authority import make_certificates, san_uri

from .measurement import Measurement, closed_loop
from .messages import BOARD, COMMIT, CREATE_BOARD, REGION, SET_POLICY, Puts

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENTS = tuple(f"agent-{number}" for number in range(8))
_TENANT = "acme"
_SCOPE = {"tenant": _TENANT, "roles": ["member", "operator"], "boards": [BOARD]}
_ISSUER = "https://issuer.example"
_AUDIENCE = "kokuban"
_TOKEN_S = 3_600


class Caller(TypedDict, total=False):
    """How an agent shows who it is; of itself it only says its name."""

    agent: str
    certificates: str
    """The folder that holds its certificate and key, and the authority's certificate."""
    token: str


class Known(NamedTuple):
    """Callers, and the settings of a server that knows them."""

    settings: dict[str, str]
    callers: list[Caller]


def known_by_name() -> Known:
    """Give callers that a server believes."""
    return Known({}, [Caller(agent=agent) for agent in AGENTS])


def known_by_certificate(folder: Path) -> Known:
    """Give callers with client certificates, for a server with mutual TLS."""
    make_certificates(folder, _TENANT, AGENTS)
    principals = folder / "principals.json"
    entries = [
        parse_entry({**_SCOPE, "name": agent, "agent": agent, "san_uri": san_uri(_TENANT, agent)}) for agent in AGENTS
    ]
    edit(principals, lambda _none: entries, may_make=True)
    settings = {
        "KOKUBAN_IDENTITY": "credentials",
        "KOKUBAN_PRINCIPALS_FILE": str(principals),
        "KOKUBAN_TLS__CERT_FILE": str(folder / "server.pem"),
        "KOKUBAN_TLS__KEY_FILE": str(folder / "server.key"),
        "KOKUBAN_TLS__CLIENT_CA_FILE": str(folder / "ca.pem"),
    }
    return Known(settings, [Caller(agent=agent, certificates=str(folder)) for agent in AGENTS])


def known_by_jwt(folder: Path) -> Known:
    """Give callers with JSON Web Tokens, for a server that listens in plain text."""
    key = ec.generate_private_key(ec.SECP256R1())
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [ECAlgorithm.to_jwk(key.public_key(), as_dict=True)]}), encoding="utf-8")
    issuer = {"issuer": _ISSUER, "audience": _AUDIENCE, "keys": str(keys)}
    settings = {"KOKUBAN_IDENTITY": "credentials", "KOKUBAN_JWT": json.dumps([issuer])}
    claims = {"iss": _ISSUER, "aud": _AUDIENCE, "exp": int(time.time()) + _TOKEN_S, "kokuban": _SCOPE}
    callers = [
        Caller(agent=agent, token=jwt.encode({**claims, "sub": agent}, key, algorithm="ES256")) for agent in AGENTS
    ]
    return Known(settings, callers)


class TeamCommits:
    """Agents that each have a connection of their own, and on it writers with one unary commit in flight each."""

    def __init__(
        self,
        _channel: grpc.aio.Channel,
        server: str,
        callers: Sequence[Caller],
        writers: int = 8,
        *,
        makes_board: bool = False,
    ) -> None:
        self._makes_board = makes_board
        self._agents = [_Agent(server, caller, writers) for caller in callers]

    async def prepare(self) -> None:
        """Make the board where the server makes none by itself, under a policy; connect, and create the entries."""
        if self._makes_board:
            await self._agents[0].make_board()
        for agent in self._agents:
            for writer in agent.writers:
                await agent.write(writer)

    async def run(self, operations: int) -> Measurement:
        """Write."""
        steps = [partial(agent.write, writer) for agent in self._agents for writer in agent.writers]
        return await closed_loop(steps, operations)


def _policy() -> policy_pb2.Policy:
    """Give a policy of many rules, of which one lets the callers write."""
    members = policy_pb2.Subjects(subjects=["role:member"])
    chiefs = policy_pb2.Subjects(subjects=["role:supervisor", *(f"agent:chief-{number}" for number in range(16))])
    rules = [policy_pb2.RegionRule(pattern=f"task:{number}", writers=chiefs) for number in range(30)]
    rules += [policy_pb2.RegionRule(pattern=REGION, readers=members, writers=members)]
    return policy_pb2.Policy(rules=[*rules, policy_pb2.RegionRule(pattern="shared:*", writers=chiefs)])


class _Agent:
    """One agent's connection and its writers."""

    def __init__(self, address: str, caller: Caller, writers: int) -> None:
        agent = caller["agent"]
        self.writers = [Puts([f"{agent}/writer_{number}"]) for number in range(writers)]
        self._metadata = (
            (("authorization", f"Bearer {caller['token']}"),) if "token" in caller else (("kokuban-agent", agent),)
        )
        options = (("grpc.use_local_subchannel_pool", 1),)  # else equal channels would share one connection
        if "certificates" in caller:
            folder = Path(caller["certificates"])
            authority, key, chain = (
                (folder / name).read_bytes() for name in ("ca.pem", f"{agent}.key", f"{agent}.pem")
            )
            credentials = grpc.ssl_channel_credentials(authority, key, chain)
            self._channel: Any = grpc.aio.secure_channel(address, credentials, options)  # bytes in, bytes out
        else:
            self._channel = grpc.aio.insecure_channel(address, options)
        self._commit = self._channel.unary_unary(COMMIT)

    async def make_board(self) -> None:
        made = admin_service_pb2.CreateBoardRequest(board=BOARD)
        await self._channel.unary_unary(CREATE_BOARD)(made.SerializeToString(), metadata=self._metadata)
        laid_down = admin_service_pb2.SetPolicyRequest(board=BOARD, policy=_policy())
        await self._channel.unary_unary(SET_POLICY)(laid_down.SerializeToString(), metadata=self._metadata)

    async def write(self, writer: Puts) -> None:
        raw = await self._commit(writer.next().SerializeToString(), metadata=self._metadata)
        writer.committed(commit_pb2.CommitResponse.FromString(raw).revision)
