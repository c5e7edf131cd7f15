"""The public keys of a JWT issuer, from a file or an address."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import time
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from kokuban_server.adapters.files import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse

KEYS_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 64
RSA_BITS_MIN: Final = 2_048
FETCH_S: Final = 10.0
FETCH_INTERVAL_S: Final = 300.0
FETCH_AGAIN_S: Final = 10.0
"""How soon an address is asked again after a failure, or for a key that a token names and nobody knows."""

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_BY_KIND: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class KeysRefused(ValueError):  # noqa: N818 - a refusal is an answer, not an error of ours
    """An issuer's keys cannot be used; the text says where they come from and why."""


@dataclass(frozen=True, slots=True)
class VerifyKey:
    """A public key with the one algorithm that it verifies: which one a token asks for decides nothing."""

    id: str | None
    algorithm: str
    key: PublicKey
    thumbprint: str


class KeySource(Protocol):
    """Where an issuer's keys come from."""

    async def read_if_changed(self) -> tuple[VerifyKey, ...] | None:
        """Give the keys if they may be others than last time, else nothing. Raises `KeysRefused`."""
        ...

    def want(self) -> None:
        """Say that a token names a key that is not known."""
        ...


class KeyFile:
    """Keys in a file: PEM (public keys or certificates, one after another) or a JWKS."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, KEYS_BYTES_MAX)

    async def read_if_changed(self) -> tuple[VerifyKey, ...] | None:
        """Give the keys of a file that has changed. Raises `KeysRefused`."""
        return await asyncio.to_thread(self._read_if_changed)

    def _read_if_changed(self) -> tuple[VerifyKey, ...] | None:
        try:
            content = self._file.read_if_changed()
        except OSError as error:
            raise KeysRefused(f"{self._file.path} cannot be read: {error.strerror or error}") from None
        return None if content is None else parse_keys(content, str(self._file.path))

    def want(self) -> None:
        """Do nothing: the file is looked at anyway."""


class KeyUrl:
    """Keys at an address: a JWKS over https, or over http from this machine."""

    def __init__(self, url: str, ca_file: Path | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        """Name the address; `ca_file` is an authority to check it against instead of the system's.

        Raises `KeysRefused`.
        """
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port
        except ValueError:
            host = None
        if not host or parts.username is not None:
            raise KeysRefused("the address of the keys is not https://HOST/...")
        if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
            raise KeysRefused(f"{url} is not https; http is for this machine alone")
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise KeysRefused(f"{ca_file} cannot be used: {error}") from None
        self._url = url
        self._now_s = now_s
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            _NoRedirects(),
            *([urllib.request.ProxyHandler({})] if host in _LOOPBACK else []),
        )
        self._asked_s: float | None = None
        self._due_s = 0.0
        self._content = b""

    async def read_if_changed(self) -> tuple[VerifyKey, ...] | None:
        """Ask the address when it is time to. Raises `KeysRefused`."""
        now_s = self._now_s()
        if self._asked_s is not None and now_s < self._due_s:
            return None
        self._asked_s = now_s
        self._due_s = now_s + FETCH_AGAIN_S
        content = await asyncio.to_thread(self._fetch)
        keys = parse_keys(content, self._url)
        self._due_s = now_s + FETCH_INTERVAL_S
        if content == self._content:
            return None
        self._content = content
        return keys

    def want(self) -> None:
        """Ask soon, but not for each token that names a key that does not exist."""
        if self._asked_s is not None:
            self._due_s = min(self._due_s, self._asked_s + FETCH_AGAIN_S)

    def _fetch(self) -> bytes:
        try:
            with self._opener.open(self._url, timeout=FETCH_S) as answer:
                return _bounded(answer)
        except (OSError, HTTPException, ValueError) as error:
            raise KeysRefused(f"{self._url} cannot be read: {error}") from None


def _bounded(answer: HTTPResponse) -> bytes:
    """Give what an address says, up to a size and a time. Raises OSError."""
    ends_s = time.monotonic() + FETCH_S
    content = b""
    while piece := answer.read1(64 * 1024):
        content += piece
        if len(content) > KEYS_BYTES_MAX:
            raise OSError(f"has more than {KEYS_BYTES_MAX} bytes")
        if time.monotonic() > ends_s:  # the socket's own bound is for each piece
            raise OSError(f"takes more than {FETCH_S:g} s")
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Has an answer that points elsewhere refused: keys come from the address that was set, or not at all."""

    def redirect_request(self, *_: object) -> None:
        return None


def key_source(place: str) -> KeySource:
    """Give the keys of a file, or of an address where the text has a scheme. Raises `KeysRefused`."""
    return KeyUrl(place) if "://" in place else KeyFile(Path(place))


def parse_keys(content: bytes, place: str) -> tuple[VerifyKey, ...]:
    """Give the keys that verify RS256, ES256 or EdDSA; those for other uses are left out.

    Raises `KeysRefused` where none is left, and for a private key, which has no business here.
    """
    try:
        keys = _from_jwks(content) if content.lstrip()[:1] == b"{" else _from_pem(content)
    except KeysRefused as refused:
        raise KeysRefused(f"{place}: {refused}") from None
    if not keys:
        raise KeysRefused(f"{place}: has no public key for RS256 (2,048 bits or more), ES256 or EdDSA (Ed25519)")
    if len(keys) > KEYS_MAX:
        raise KeysRefused(f"{place}: has more than {KEYS_MAX} keys")
    return keys


def _from_jwks(content: bytes) -> tuple[VerifyKey, ...]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise KeysRefused("is not JSON") from None
    listed = document.get("keys")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise KeysRefused('is not a JWKS, {"keys": [...]}')
    keys = []
    for fields in listed:
        read = _BY_KIND.get(str(fields.get("kty")))
        if read is None or fields.get("use", "sig") != "sig":
            continue
        if "d" in fields:
            raise KeysRefused("holds a private key")
        try:
            key = read(fields)
        except Exception:  # noqa: BLE001, S112 - whatever is wrong with one key of many, the others count
            continue
        key_id = fields.get("kid")
        found = _verify_key(key, key_id if isinstance(key_id, str) else None)
        if found is not None and fields.get("alg", found.algorithm) == found.algorithm:
            keys.append(found)
    return tuple(keys)


def _from_pem(content: bytes) -> tuple[VerifyKey, ...]:
    if b"PRIVATE KEY" in content:
        raise KeysRefused("holds a private key")
    keys = []
    for block in content.split(b"-----BEGIN ")[1:]:
        pem = b"-----BEGIN " + block
        try:
            is_certificate = block.startswith(b"CERTIFICATE-----")
            key = x509.load_pem_x509_certificate(pem).public_key() if is_certificate else load_pem_public_key(pem)
        except Exception:  # noqa: BLE001 - the library's own kinds of error are many
            raise KeysRefused("is not PEM with public keys") from None
        found = _verify_key(key, None)
        if found is not None:
            keys.append(found)
    return tuple(keys)


def _verify_key(key: object, key_id: str | None) -> VerifyKey | None:
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        return VerifyKey(key_id, "RS256", key, _thumbprint(key))
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return VerifyKey(key_id, "ES256", key, _thumbprint(key))
    if isinstance(key, Ed25519PublicKey):
        return VerifyKey(key_id, "EdDSA", key, _thumbprint(key))
    return None


def _thumbprint(key: PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()[:16]
