"""An authority of one's own, to try mutual TLS with: its keys lie in a folder, so it is for a developer's machine only."""

from __future__ import annotations

import ipaddress
import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAYS: Final = 90
_SKEW = timedelta(minutes=5)
"""How far the clocks of those who check may be behind."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_OWN_NAMES = frozenset({"ca", "server"})


class CertificatesRefused(ValueError):  # noqa: N818 - a refusal is an answer, not an error of ours
    """The certificates cannot be made; the text says why."""


class _Issued(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def san_uri(tenant: str, agent: str) -> str:
    """Give the URI by which an agent's certificate names it."""
    return f"spiffe://{tenant}/agent/{agent}"


def make_certificates(folder: Path, tenant: str, agents: Sequence[str]) -> None:
    """Make an authority, a server's certificate for this machine, and a client's for each agent.

    Writes `NAME.pem` and `NAME.key` for `ca`, `server` and each agent, readable by their owner alone. Raises
    `CertificatesRefused`; a file that exists is never overwritten, and then none is written.
    """
    for agent in agents:
        if not _FILE_NAME.fullmatch(agent) or agent.lower() in _OWN_NAMES:
            raise CertificatesRefused(
                f"{agent!r} cannot name a file here: 1 to 64 of A-Z, a-z, 0-9, '_', '-' and '.'; neither ca nor server"
            )
    if len({agent.lower() for agent in agents}) < len(agents):
        raise CertificatesRefused("two agents have the same name")
    authority = _authority()
    made = {"ca": authority, "server": _server(authority)}
    made |= {agent: _client(authority, agent, san_uri(tenant, agent)) for agent in agents}
    _write(folder, made)


def _authority() -> _Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("Kokuban development authority")
    usage = {"key_cert_sign": True, "crl_sign": True}
    builder = (
        _dated(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _Issued(builder.sign(key, hashes.SHA256()), key)


def _server(authority: _Issued) -> _Issued:
    names = (
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    )
    return _leaf(authority, "localhost", names, ExtendedKeyUsageOID.SERVER_AUTH)


def _client(authority: _Issued, agent: str, uri: str) -> _Issued:
    return _leaf(authority, agent, (x509.UniformResourceIdentifier(uri),), ExtendedKeyUsageOID.CLIENT_AUTH)


def _leaf(
    authority: _Issued, common_name: str, names: Sequence[x509.GeneralName], purpose: x509.ObjectIdentifier
) -> _Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _dated(_named(common_name), authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage({"digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _Issued(builder.sign(authority.key, hashes.SHA256()), key)


def _dated(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(allowed: dict[str, bool]) -> x509.KeyUsage:
    nothing = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(**{**nothing, **allowed})


def _write(folder: Path, made: dict[str, _Issued]) -> None:
    files: dict[Path, bytes] = {}
    for name, (certificate, key) in made.items():
        files[folder / f"{name}.pem"] = certificate.public_bytes(Encoding.PEM)
        files[folder / f"{name}.key"] = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in files:
            if file.exists() or file.is_symlink():
                raise CertificatesRefused(f"{file} exists; nothing is overwritten")
        for file, content in files.items():
            # Made so, not changed to it: there is no moment at which others could read a key.
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as opened:
                opened.write(content)
    except OSError as error:
        raise CertificatesRefused(f"cannot write into {folder}: {error.strerror or error}") from None
