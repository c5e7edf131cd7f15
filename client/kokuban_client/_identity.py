"""Where a client calls and as whom, fixed for the client's life; only a token's file may change what it holds."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from kokuban_client._channel_options import is_loopback
from kokuban_client._credentials import Headers, Metadata, Tls, TokenFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADDRESS_DEFAULT = "127.0.0.1:7420"

FilePath: TypeAlias = str | os.PathLike[str]

_AGENT = re.compile(r"[\x21-\x7e]{1,128}")
_ROLES = re.compile(r"[a-z]+")
_SERVER_NAME = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_WHO = ("KOKUBAN_AGENT", "KOKUBAN_TOKEN", "KOKUBAN_TOKEN_FILE", "KOKUBAN_CERT_FILE", "KOKUBAN_KEY_FILE")


@dataclass(frozen=True, slots=True)
class Identity:
    """An address, what says or proves who calls, and how the connection is secured.

    `agent` is the development identity's name, and empty where a credential says who calls: only the server knows it then.
    """

    VARIABLES: ClassVar[tuple[str, ...]] = (
        *_WHO,
        "KOKUBAN_ADDRESS",
        "KOKUBAN_ROLES",
        "KOKUBAN_CA_FILE",
        "KOKUBAN_SERVER_NAME",
    )

    address: str
    agent: str
    tls: Tls | None
    variables: Mapping[str, str] = field(repr=False)
    """The variables by which another process calls as this one does. The token is among them, where there is one."""
    _headers: Headers | TokenFile = field(repr=False)

    @property
    def metadata(self) -> Metadata:
        """The headers to call with now. The same object until a token's file changes."""
        return self._headers.metadata

    def is_callers(self, environment: Mapping[str, str]) -> bool:
        """Say whether a process with these variables would call as the same caller."""
        return all(self.variables.get(name, "") == environment.get(name, "") for name in _WHO)

    @classmethod
    def of(
        cls,
        address: str | None,
        agent: str | None,
        roles: Sequence[str] | None,
        environment: Mapping[str, str] = os.environ,
        *,
        token: str | None = None,
        token_file: FilePath | None = None,
        ca_file: FilePath | None = None,
        cert_file: FilePath | None = None,
        key_file: FilePath | None = None,
        server_name: str | None = None,
    ) -> Identity:
        """Give the identity, filled up from the environment.

        Where agent or roles are given, the environment's credentials are not looked at, and to this machine itself neither
        is its authority. Where a credential is given, the environment's agent and roles are not.
        Raises ValueError if nobody is named, a name cannot travel in a header, a file is not what it should be, or two of
        them contradict each other; TypeError if roles is one text.
        """
        if isinstance(roles, str):
            raise TypeError('roles is a list of words, for instance ["member", "operator"]')
        told = _Told(
            address=address or environment.get("KOKUBAN_ADDRESS") or ADDRESS_DEFAULT,
            agent=agent or None,
            roles=roles,
            token=token,
            token_file=_text(token_file),
            cert_file=_text(cert_file),
            key_file=_text(key_file),
            ca_file=_text(ca_file),
            server_name=server_name,
        )
        told.expect_one_kind("agent and roles are the development identity's; a token or a certificate says who calls")
        told.fill(environment)
        told.expect_one_kind(
            "KOKUBAN_AGENT and KOKUBAN_ROLES are the development identity's; unset them where a token or a certificate says"
            " who calls"
        )
        return told.identity()


@dataclass(slots=True, repr=False)
class _Told:
    """What a caller and the environment have said, on its way to an identity."""

    address: str
    agent: str | None
    roles: Sequence[str] | None
    token: str | None
    token_file: str | None
    cert_file: str | None
    key_file: str | None
    ca_file: str | None
    server_name: str | None

    @property
    def _is_development(self) -> bool:
        return self.agent is not None or self.roles is not None

    @property
    def _has_credential(self) -> bool:
        return any(one is not None for one in (self.token, self.token_file, self.cert_file, self.key_file))

    def expect_one_kind(self, otherwise: str) -> None:
        """Raise ValueError if both kinds of identity are told."""
        if self._is_development and self._has_credential:
            raise ValueError(otherwise)

    def fill(self, environment: Mapping[str, str]) -> None:
        """Take what is not told from the environment."""
        development, credential = self._is_development, self._has_credential
        if not credential:
            self.agent = self.agent or environment.get("KOKUBAN_AGENT") or None
            if self.roles is None and (words := environment.get("KOKUBAN_ROLES", "").replace(",", " ").split()):
                self.roles = words
        if not development:
            if self.token is None and self.token_file is None:
                self.token = environment.get("KOKUBAN_TOKEN") or None
                self.token_file = environment.get("KOKUBAN_TOKEN_FILE") or None
            if self.cert_file is None and self.key_file is None:
                self.cert_file = environment.get("KOKUBAN_CERT_FILE") or None
                self.key_file = environment.get("KOKUBAN_KEY_FILE") or None
        # A server of one's own, for a test or a demonstration, speaks no TLS and is nobody else's.
        if not (development and is_loopback(self.address)):
            self.ca_file = self.ca_file or environment.get("KOKUBAN_CA_FILE") or None
            self.server_name = self.server_name or environment.get("KOKUBAN_SERVER_NAME") or None

    def identity(self) -> Identity:
        """Give the identity; raises ValueError as `Identity.of` says."""
        tls = self._tls()
        headers = self._credential_headers() if self._has_credential else self._development_headers()
        if tls is None and (self.token is not None or self.token_file is not None) and not is_loopback(self.address):
            raise ValueError(
                f"a token would travel in plain text to {self.address}: ca_file=… (KOKUBAN_CA_FILE) turns TLS on"
            )
        return Identity(self.address, self.agent or "", tls, self._variables(), headers)

    def _tls(self) -> Tls | None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if self.ca_file is None:
            for name in ("cert_file", "server_name"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs ca_file, which says whose servers to trust and turns TLS on")
            return None
        if self.server_name is not None and not _SERVER_NAME.fullmatch(self.server_name):
            raise ValueError("server_name is the name in the server's certificate, without a port")
        return Tls.read(self.ca_file, self.cert_file, self.key_file, self.server_name)

    def _credential_headers(self) -> Headers | TokenFile:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file: give one of them")
        if self.token_file is not None:
            return TokenFile(self.token_file)
        return Headers(()) if self.token is None else Headers.of_token(self.token)

    def _development_headers(self) -> Headers:
        if self.agent is None:
            raise ValueError(
                "say who calls: agent=…, token=…, token_file=…, or cert_file=… and key_file=…; or set KOKUBAN_AGENT,"
                " KOKUBAN_TOKEN, KOKUBAN_TOKEN_FILE, or KOKUBAN_CERT_FILE and KOKUBAN_KEY_FILE"
            )
        if not _AGENT.fullmatch(self.agent):
            raise ValueError("an agent's id is 1 to 128 printable ASCII characters without spaces")
        for role in self.roles or ():
            if not _ROLES.fullmatch(role):
                raise ValueError(f"not a role: {role!r}")
        roles = [("kokuban-roles", ",".join(self.roles))] if self.roles else []
        return Headers((("kokuban-agent", self.agent), *roles))

    def _variables(self) -> dict[str, str]:
        names = ("address", "agent", "token", "token_file", "cert_file", "key_file", "ca_file", "server_name")
        said = {f"KOKUBAN_{name.upper()}": text for name in names if (text := getattr(self, name)) is not None}
        return {**said, **({"KOKUBAN_ROLES": ",".join(self.roles)} if self.roles else {})}


def _text(path: FilePath | None) -> str | None:
    return None if path is None else os.fspath(path)
