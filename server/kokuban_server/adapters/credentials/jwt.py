"""JWTs of one issuer: verified once, remembered until they expire or their key goes."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

import jwt

from kokuban_server.adapters.credentials.jwt_keys import KeysRefused, key_source
from kokuban_server.adapters.credentials.registry import expired, invalid
from kokuban_server.adapters.credentials.scope import SCOPE_FIELDS, FieldRefused, agent_id, read_scope, refuse_unknown
from kokuban_server.adapters.files import Rereading

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.adapters.credentials.jwt_keys import KeySource, VerifyKey
    from kokuban_server.adapters.credentials.scope import Scope
    from kokuban_server.core.access import Principal
    from kokuban_server.ports.clock import Clock

__all__ = ["JwtIssuer", "KeysRefused", "key_source"]

REMEMBERED_MAX: Final = 4_096
"""Verified tokens."""
LEEWAY_S: Final = 30.0
CLAIM: Final = "kokuban"
"""The object with tenant, roles, boards, users, conversations and tasks, as in the registry."""

_TIME_S_MAX: Final = 253_402_300_799  # the end of the year 9999
_PARTS: Final = 3


class JwtIssuer:
    """Who may issue JWTs, for whom, with which keys. RS256, ES256 and EdDSA only."""

    def __init__(
        self,
        name: str,
        audience: str,
        keys: KeySource,
        clock: Clock,
        report: Callable[[str], None],
        leeway_s: float = LEEWAY_S,
    ) -> None:
        """Describe the issuer: `name` is what its tokens say in `iss`. It accepts nothing before `refresh` found keys."""
        self.name = name
        self._audience = audience
        self._source = keys
        self._clock = clock
        self._leeway_s = leeway_s
        self._rereading = Rereading(
            keys.read_if_changed, KeysRefused, lambda fault: report(f"{fault}; the keys from before stay in force")
        )
        self._keys: tuple[VerifyKey, ...] = ()
        self._remembered: dict[bytes, Principal] = {}
        self._subscribers: list[Callable[[], None]] = []

    @classmethod
    async def open(
        cls,
        name: str,
        audience: str,
        keys: KeySource,
        clock: Clock,
        report: Callable[[str], None],
        leeway_s: float = LEEWAY_S,
    ) -> JwtIssuer:
        """Give the issuer with its keys read. Raises `KeysRefused`."""
        issuer = cls(name, audience, keys, clock, report, leeway_s)
        issuer._use(await keys.read_if_changed() or ())
        return issuer

    async def refresh(self) -> None:
        """Read the keys again if they may have changed; those that cannot be used change nothing and are reported once."""
        keys = await self._rereading.read()
        if keys is not None:
            self._use(keys)

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Have something called whenever the keys changed."""
        self._subscribers.append(on_change)

    def is_meant(self, token: str) -> bool:
        """Say whether a token is known, or claims, before anything is verified, to be this issuer's."""
        if _digest(token) in self._remembered:
            return True
        payload = _part(token, 1)
        return payload is not None and payload.get("iss") == self.name

    def by_token(self, token: str) -> Principal:
        """Give the principal of a token. Raises `Unauthenticated`."""
        digest = _digest(token)
        principal = self._remembered.get(digest)
        if principal is None:
            principal = self._verified(token, digest)
            self._remember(digest, principal)
        if self._clock.now_ms() >= principal.expires_ms:
            raise expired()
        return principal

    def stands(self, principal: Principal) -> bool:
        """Say whether the principal came from this issuer and the key that verified it is still there."""
        prefix = f"jwt:{self.name}#"
        if not principal.credential.startswith(prefix):
            return False
        thumbprint = principal.credential.removeprefix(prefix).partition(".")[0]
        return any(key.thumbprint == thumbprint for key in self._keys)

    def _use(self, keys: tuple[VerifyKey, ...]) -> None:
        if keys == self._keys:
            return
        self._keys = keys
        # What a key that is gone has verified is forgotten; the rest stays the same object.
        self._remembered = {digest: one for digest, one in self._remembered.items() if self.stands(one)}
        for on_change in self._subscribers:
            on_change()

    def _remember(self, digest: bytes, principal: Principal) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            now_ms = self._clock.now_ms()
            self._remembered = {one: kept for one, kept in self._remembered.items() if kept.expires_ms > now_ms}
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]  # the oldest
        self._remembered[digest] = principal

    def _verified(self, token: str, digest: bytes) -> Principal:
        claims, key = self._signed(token)
        try:
            agent = agent_id(claims, "sub")
            scope = _scope(claims)
            expires_ms = int((_time_s(claims, "exp") + self._leeway_s) * 1000)
            begins_ms = (_time_s(claims, "nbf") - self._leeway_s) * 1000 if "nbf" in claims else 0
        except FieldRefused:
            raise invalid() from None
        if self._clock.now_ms() < begins_ms:
            raise invalid()
        return scope.principal(agent, expires_ms, f"jwt:{self.name}#{key.thumbprint}.{digest.hex()[:16]}")

    def _signed(self, token: str) -> tuple[dict[str, Any], VerifyKey]:
        """Give the claims that one of the keys has signed, for this issuer and audience, and the key."""
        header = _part(token, 0)
        if header is None or "crit" in header or "b64" in header:  # none of the extensions is understood here
            raise invalid()
        key_id = header.get("kid")
        named = [key for key in self._keys if key_id is None or key.id is None or key.id == key_id]
        if not named:
            self._source.want()
        for key in named:
            if key.algorithm != header.get("alg"):
                continue
            try:
                claims = jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],  # the key's, whatever the token says
                    issuer=self.name,
                    audience=self._audience,
                    # Times are judged against the server's clock, by the caller.
                    options={
                        "require": ["exp", "iss", "aud", "sub"],
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                    },
                )
            except (jwt.PyJWTError, ValueError, TypeError):
                continue
            return claims, key
        raise invalid()


def _digest(token: str) -> bytes:
    """Give what a token is remembered by; the token itself is kept nowhere."""
    return hashlib.sha256(token.encode()).digest()


def _part(token: str, number: int) -> dict[str, Any] | None:
    """Give the header (0) or the payload (1) of a token, unverified; nothing if it is none."""
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[number] + "=" * (-len(parts[number]) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _scope(claims: dict[str, Any]) -> Scope:
    fields = claims.get(CLAIM)
    if not isinstance(fields, dict):
        raise FieldRefused(f"{CLAIM}: is not an object")
    refuse_unknown(fields, SCOPE_FIELDS)
    return read_scope(fields)


def _time_s(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    # JSON as Python reads it has NaN and Infinity, which no comparison would ever end.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _TIME_S_MAX:
        raise FieldRefused(f"{name}: is not a time")
    return value
