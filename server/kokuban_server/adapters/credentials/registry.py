"""The registry: who holds which token or certificate. Its text is JSON; tokens stand in it as SHA-256 only.

A token holds 32 random bytes, which nobody guesses: a plain hash keeps it as safe as a slow one would, and costs a call
microseconds. Look-ups go by the hash, so how long one takes says nothing about any token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.credentials.scope import (
    SCOPE_FIELDS,
    FieldRefused,
    Scope,
    agent_id,
    read_scope,
    refuse_unknown,
    scope_fields,
    shown,
    text,
)
from kokuban_server.core.refusals import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from kokuban_server.core.access import Principal
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.credentials import Certificate

TOKEN_PREFIX: Final = "kk_"  # noqa: S105 - what tokens begin with is no secret
ENTRIES_MAX: Final = 100_000
SAN_URI_BYTES_MAX: Final = 2_048

_FIELDS = SCOPE_FIELDS | {"name", "agent", "token_sha256", "san_uri", "expires"}
_SHA256 = re.compile("[0-9a-f]{64}")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[\x21-\x7e]+")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)")
_CERTIFICATES_REMEMBERED_MAX = 16
"""Certificates of one entry that are in use at once: the old and the new one while it is changed, on each machine."""


class RegistryRefused(ValueError):  # noqa: N818 - a refusal is an answer, not an error of ours
    """A registry cannot be used; the text names the entry and the field, and never holds a secret."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One principal, with a token or a certificate or both."""

    name: str
    agent: str
    scope: Scope
    token_sha256: str = ""
    san_uri: str = ""
    expires_ms: int = 0
    """0 for never."""


def new_token() -> str:
    """Give a token that nobody has yet."""
    return TOKEN_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def token_sha256(token: str) -> str:
    """Give what the registry holds of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def parse_time(value: str) -> int:
    """Give an RFC 3339 time in milliseconds of Unix time. Raises ValueError."""
    if not _RFC3339.fullmatch(value):
        raise ValueError(f"{value[:64]!r} is not an RFC 3339 time with its zone, as 2030-01-31T12:00:00Z")
    milliseconds = int(datetime.fromisoformat(value.upper()).timestamp() * 1000)
    if milliseconds <= 0:  # 0 would mean never
        raise ValueError(f"{value!r} is before 1970")
    return milliseconds


def time_text(milliseconds: int) -> str:
    """Give a time in the form that `parse_time` reads."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_registry(content: str) -> tuple[Entry, ...]:
    """Give the entries of a registry's text. Raises `RegistryRefused`."""
    try:
        document = json.loads(content, object_pairs_hook=_object)
    except FieldRefused as refused:
        raise RegistryRefused(str(refused)) from None
    except (ValueError, RecursionError) as error:
        raise RegistryRefused(f"is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("principals"), list):
        raise RegistryRefused('is not {"principals": [...]}')
    try:
        refuse_unknown(document, {"principals"})
    except FieldRefused as refused:
        raise RegistryRefused(str(refused)) from None
    return checked([parse_entry(fields, number) for number, fields in enumerate(document["principals"])])


def checked(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Give the entries, of which no two share a name or a credential. Raises `RegistryRefused`."""
    entries = tuple(entries)
    if len(entries) > ENTRIES_MAX:
        raise RegistryRefused(f"has more than {ENTRIES_MAX} principals")
    seen: set[Hashable] = set()
    for entry in entries:
        for kind, value in (("name", entry.name), ("token_sha256", entry.token_sha256), ("san_uri", entry.san_uri)):
            if value and (kind, value) in seen:
                raise RegistryRefused(f"principal {entry.name!r}: {kind}: stands there twice")
            seen.add((kind, value))
    return entries


def render_registry(entries: Iterable[Entry]) -> str:
    """Give the text that `parse_registry` reads."""
    principals = []
    for entry in entries:
        fields: dict[str, object] = {"name": entry.name, "agent": entry.agent, **scope_fields(entry.scope)}
        if entry.token_sha256:
            fields["token_sha256"] = entry.token_sha256
        if entry.san_uri:
            fields["san_uri"] = entry.san_uri
        if entry.expires_ms:
            fields["expires"] = time_text(entry.expires_ms)
        principals.append(fields)
    return json.dumps({"principals": principals}, indent=2) + "\n"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FieldRefused(f"{shown(twice)}: stands twice in one object")
    return fields


def parse_entry(fields: object, number: int | None = None) -> Entry:
    """Give the entry of an object with the registry's fields, the file's `number` or a new one.

    Raises `RegistryRefused`.
    """
    place = "the principal" if number is None else f"principals[{number}]"
    if not isinstance(fields, dict):
        raise RegistryRefused(f"{place}: is not an object")
    try:
        name = agent_id(fields, "name")
        place = f"principal {name!r}"
        refuse_unknown(fields, _FIELDS)
        return _entry(name, fields)
    except FieldRefused as refused:
        raise RegistryRefused(f"{place}: {refused}") from None


def _entry(name: str, fields: dict[str, object]) -> Entry:
    digest = text(fields, "token_sha256") if "token_sha256" in fields else ""
    if digest and not _SHA256.fullmatch(digest):
        raise FieldRefused("token_sha256: is not 64 lower-case hexadecimal digits")
    san_uri = text(fields, "san_uri") if "san_uri" in fields else ""
    if san_uri and (len(san_uri) > SAN_URI_BYTES_MAX or not _URI.fullmatch(san_uri)):
        raise FieldRefused("san_uri: is not a URI, as spiffe://TENANT/agent/NAME")
    if not digest and not san_uri:
        raise FieldRefused("token_sha256: there is neither a token nor a certificate (san_uri)")
    expires_ms = 0
    if "expires" in fields:
        try:
            expires_ms = parse_time(text(fields, "expires"))
        except FieldRefused:
            raise
        except ValueError as error:
            raise FieldRefused(f"expires: {error}") from None
    return Entry(name, agent_id(fields, "agent"), read_scope(fields), digest, san_uri, expires_ms)


@dataclass(slots=True)
class _Held:
    """An entry in force, and the principals it gave: one object each, for as long as it says the same."""

    entry: Entry
    by_token: Principal
    by_certificate: dict[int, Principal] = field(default_factory=dict)
    """By when the certificate expires."""


class Registry:
    """Entries in force. Those that a newer registry leaves as they were keep their principals."""

    def __init__(self, entries: Iterable[Entry], clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._by_digest: dict[str, _Held] = {}
        self._by_uri: dict[str, _Held] = {}
        self._by_credential: dict[str, _Held] = {}
        self._subscribers: list[Callable[[], None]] = []
        self.replace(entries)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Put these entries in force instead of those before. Raises `RegistryRefused`, and then nothing has changed."""
        held: dict[str, _Held] = {}
        for entry in checked(entries):
            before = self._held.get(entry.name)
            held[entry.name] = before if before is not None and before.entry == entry else _hold(entry)
        has_changed = list(held.values()) != list(self._held.values())
        self._held = held
        self._by_digest = {one.entry.token_sha256: one for one in held.values() if one.entry.token_sha256}
        self._by_uri = {one.entry.san_uri: one for one in held.values() if one.entry.san_uri}
        tokens = {_token_name(one.entry): one for one in self._by_digest.values()}
        self._by_credential = tokens | {_certificate_name(one.entry): one for one in self._by_uri.values()}
        if has_changed:
            for on_change in self._subscribers:
                on_change()

    async def refresh(self) -> None:
        """Read again what may have changed: nothing, for entries that come from no file."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Have something called whenever entries changed."""
        self._subscribers.append(on_change)

    def by_token(self, token: str) -> Principal:
        """Give the principal of a token. Raises `Unauthenticated`."""
        held = self._by_digest.get(token_sha256(token))
        if held is None:
            raise invalid()
        return self._unless_expired(held.by_token)

    def by_certificate(self, certificate: Certificate) -> Principal:
        """Give the principal of a certificate; one whose names belong to two principals is refused.

        Raises `Unauthenticated`.
        """
        named = {uri: self._by_uri[uri] for uri in certificate.san_uris if uri in self._by_uri}
        if len(named) != 1:
            raise invalid()
        (held,) = named.values()
        principal = held.by_certificate.get(certificate.expires_ms)
        if principal is None:
            if len(held.by_certificate) >= _CERTIFICATES_REMEMBERED_MAX:
                held.by_certificate.clear()
            principal = _by_certificate(held.entry, certificate.expires_ms)
            held.by_certificate[certificate.expires_ms] = principal
        return self._unless_expired(principal)

    def present(self, principal: Principal) -> Principal | None:
        """Give what the credential that this principal names gives now; nothing if there is none of that name."""
        held = self._by_credential.get(principal.credential)
        if held is None:
            return None
        if principal.credential == held.by_token.credential:
            return held.by_token
        return _by_certificate(held.entry, principal.expires_ms)

    def stands(self, principal: Principal) -> bool:
        """Say whether the entry that gave this principal still says the same."""
        present = self.present(principal)
        if present is None or principal.credential.startswith("token:"):
            return present is principal
        # Certificates of one entry differ in when they expire, so the principal is none that is kept for good.
        return _granted(present) == _granted(principal)

    def _unless_expired(self, principal: Principal) -> Principal:
        if principal.expires_ms and self._clock.now_ms() >= principal.expires_ms:
            raise expired()
        return principal


def invalid() -> Unauthenticated:
    """Give the one refusal for everything that is wrong with a credential: which of them it was is nobody's business."""
    return Unauthenticated("CREDENTIAL_INVALID", "the credential is not one that this server accepts")


def expired() -> Unauthenticated:
    """Give the refusal for a credential that was good."""
    return Unauthenticated("CREDENTIAL_EXPIRED", "the credential has expired")


def _hold(entry: Entry) -> _Held:
    return _Held(entry, entry.scope.principal(entry.agent, entry.expires_ms, _token_name(entry)))


def _by_certificate(entry: Entry, certificate_expires_ms: int) -> Principal:
    expires_ms = min((one for one in (entry.expires_ms, certificate_expires_ms) if one), default=0)
    return entry.scope.principal(entry.agent, expires_ms, _certificate_name(entry))


def _token_name(entry: Entry) -> str:
    """Name an entry's token. A part of its hash tells it from an earlier token of the same name."""
    return f"token:{entry.name}#{entry.token_sha256[:16]}"


def _certificate_name(entry: Entry) -> str:
    return f"certificate:{entry.name}#{entry.san_uri}"


def _granted(principal: Principal) -> Hashable:
    return (
        principal.tenant,
        principal.agent,
        principal.roles,
        principal.boards,
        principal.users,
        principal.conversations,
        principal.tasks,
        principal.trust_ceiling,
        principal.browses,
        principal.expires_ms,
    )
