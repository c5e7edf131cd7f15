"""What proves who calls: tokens and certificates, read from files and checked before anything is sent.

None of it ever shows: a secret's `repr` hides it, and no error's text or cause holds what a file held.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from typing import Self

Metadata: TypeAlias = tuple[tuple[str, str], ...]

TOKEN_BYTES_MAX = 7168
"""grpc may refuse more than 8 KiB of headers, and there are others."""

# What a header may carry as a bearer token; anything else would be refused on the way, with its text in the error.
_TOKEN = re.compile(rf"(?=.{{1,{TOKEN_BYTES_MAX}}}\Z)[A-Za-z0-9._~+/-]+=*")
_TOKEN_RULE = (
    f"is no token: 1 to {TOKEN_BYTES_MAX} letters, digits and - . _ ~ + /, with = only at the end,"
    " and no `Bearer` before it"
)


class Secret(str):
    """A text that goes out with calls and is not shown where a stack's variables are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(hidden)'"


class Headers:
    """Headers that stay the same."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    @classmethod
    def of_token(cls, token: str) -> Self:
        """Give the headers of a token; raises ValueError if it is none."""
        return cls(_bearer("token", token))


class TokenFile:
    """A file that holds a token. It is read again when it changes, so that a rotated token is taken up.

    Where the changed file is missing or holds no token, as halfway through a rotation, the last one is kept.
    """

    def __init__(self, path: str) -> None:
        """Read it for the first time; raises ValueError if it cannot be read or holds no token."""
        self._path = path
        try:
            text, state = self._read()
        except OSError as error:
            raise ValueError(f"token_file {path}: {error.strerror}") from error
        self._newest = (state, _bearer(f"token_file {path}", text))

    @property
    def metadata(self) -> Metadata:
        """The headers by which to call now: the same object for as long as the token is the same."""
        known, headers = self._newest
        try:
            if known is None or _state(os.stat(self._path)) == known:  # noqa: PTH116 - asked before every call
                return headers
            text, state = self._read()
            newest = _bearer("", text)
        except (OSError, ValueError):
            return headers
        self._newest = (state, headers if newest == headers else newest)
        return self._newest[1]

    def _read(self) -> tuple[str, tuple[int, ...] | None]:
        with Path(self._path).open("rb") as file:
            told = os.fstat(file.fileno())
            text = file.read(TOKEN_BYTES_MAX + 256).decode("ascii", errors="replace").strip()
        # A pipe gives what it holds once.
        return text, _state(told) if stat.S_ISREG(told.st_mode) else None


def _state(told: os.stat_result) -> tuple[int, ...]:
    return (told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns)


def _bearer(where: str, token: str) -> Metadata:
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{where} {_TOKEN_RULE}")
    return (("authorization", Secret(f"Bearer {token}")),)


@dataclass(frozen=True, slots=True)
class Tls:
    """What a connection over TLS trusts and shows."""

    authority: bytes = field(repr=False)
    certificate: bytes | None = field(repr=False, default=None)
    key: bytes | None = field(repr=False, default=None)
    server_name: str | None = None

    @classmethod
    def read(cls, ca_file: str, cert_file: str | None, key_file: str | None, server_name: str | None) -> Self:
        """Read the files; raises ValueError if one cannot be read or is not what it should be.

        They are checked here because grpc would tell a file of the wrong kind as a server that cannot be reached.
        """
        authority = _bytes_of("ca_file", ca_file)
        certificate = None if cert_file is None else _bytes_of("cert_file", cert_file)
        key = None if key_file is None else _bytes_of("key_file", key_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ValueError):
            raise ValueError(f"ca_file {ca_file}: holds no certificate in PEM") from None
        if cert_file is not None:
            try:
                context.load_cert_chain(cert_file, key_file, password=lambda: "")
            except (OSError, ValueError):
                raise ValueError(
                    f"cert_file {cert_file}, key_file {key_file}: not a certificate and its own key, unencrypted, in PEM"
                ) from None
        return cls(authority, certificate, key, server_name)


def _bytes_of(what: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{what} {path}: {error.strerror}") from error
