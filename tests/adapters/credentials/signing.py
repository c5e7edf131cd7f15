"""Keys of an issuer in tests, and tokens signed with them, right and wrong."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.adapters.credentials.turned_clock import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

ISSUER = "https://issuer.example/realm"
AUDIENCE = "kokuban-board"
NOW_S = NOW_MS // 1000
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Key(NamedTuple):
    """A private key, with the algorithm it signs with and its name."""

    private: PrivateKey
    algorithm: str
    id: str

    @property
    def jwk(self) -> dict[str, Any]:
        public = self.private.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            fields = RSAAlgorithm.to_jwk(public, as_dict=True)
        elif isinstance(public, ec.EllipticCurvePublicKey):
            fields = ECAlgorithm.to_jwk(public, as_dict=True)
        else:
            fields = OKPAlgorithm.to_jwk(public, as_dict=True)
        return {**fields, "kid": self.id}

    @property
    def pem(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


RSA = Key(rsa.generate_private_key(65_537, 2_048), "RS256", "rsa-1")
EC = Key(ec.generate_private_key(ec.SECP256R1()), "ES256", "ec-1")
ED = Key(ed25519.Ed25519PrivateKey.generate(), "EdDSA", "ed-1")


def jwks(*keys: Key | dict[str, Any]) -> bytes:
    return json.dumps({"keys": [key.jwk if isinstance(key, Key) else key for key in keys]}).encode()


def claims(**changed: object) -> dict[str, Any]:
    """A token's right claims; `None` leaves one out."""
    whole: dict[str, object] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "planner-1",
        "exp": NOW_S + 600,
        "kokuban": {"tenant": "acme", "roles": ["member"], "boards": ["main"], "users": ["u-1"], "tasks": "*"},
        **changed,
    }
    return {name: value for name, value in whole.items() if value is not None}


def signed(key: Key, what: Mapping[str, Any], **header: object) -> str:
    given = {"kid": key.id, **header}
    return jwt.encode(
        dict(what), key.private, algorithm=key.algorithm, headers={n: v for n, v in given.items() if v is not None}
    )


def part(what: object) -> str:
    text = what if isinstance(what, bytes) else json.dumps(what).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")
