"""JWTs: only what a known key signed, for this issuer and audience, with all its claims, for as long as it says."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import jwt as pyjwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm

from kokuban_server.adapters.credentials import CredentialBook, Registry
from kokuban_server.adapters.credentials.jwt import REMEMBERED_MAX, JwtIssuer, key_source
from kokuban_server.adapters.credentials.jwt_keys import (
    FETCH_AGAIN_S,
    FETCH_INTERVAL_S,
    KeyFile,
    KeysRefused,
    KeyUrl,
    parse_keys,
)
from kokuban_server.core.access import EVERYBODY, NOBODY, Grants, Role
from kokuban_server.core.refusals import Unauthenticated
from tests.adapters.credentials.signing import (
    AUDIENCE,
    EC,
    ED,
    ISSUER,
    NOW_S,
    RSA,
    Key,
    claims,
    jwks,
    part,
    signed,
)
from tests.adapters.credentials.turned_clock import NOW_MS, TurnedClock

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kokuban_server.adapters.credentials.jwt_keys import KeySource, VerifyKey

LEEWAY_S = 30


class Issued:
    """A book with one issuer, its clock, and what was reported and changed."""

    def __init__(self, issuer: JwtIssuer, clock: TurnedClock, reported: list[str]) -> None:
        self.issuer = issuer
        self.clock = clock
        self.reported = reported
        self.changes = 0
        self.book = CredentialBook(Registry((), clock), [issuer])
        self.book.subscribe(self._changed)

    @classmethod
    async def open(cls, keys: KeySource) -> Issued:
        clock, reported = TurnedClock(), list[str]()
        issuer = await JwtIssuer.open(ISSUER, AUDIENCE, keys, clock, reported.append, LEEWAY_S)
        return cls(issuer, clock, reported)

    def _changed(self) -> None:
        self.changes += 1

    def refused(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as told:
            self.book.by_token(token)
        assert token not in told.value.detail
        return told.value.reason


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(RSA, EC, ED))
    return path


@pytest.fixture
async def issued(file: Path) -> Issued:
    return await Issued.open(KeyFile(file))


@pytest.mark.parametrize("key", [RSA, EC, ED], ids=lambda key: key.algorithm)
async def test_a_right_token_gives_its_principal_and_the_same_object_each_time(issued: Issued, key: Key) -> None:
    token = signed(key, claims())
    principal = issued.book.by_token(token)
    assert (principal.tenant, principal.agent, list(principal.roles)) == ("acme", "planner-1", [Role.MEMBER])
    assert (principal.boards, principal.users) == (Grants(frozenset({"main"})), Grants(frozenset({"u-1"})))
    assert (principal.conversations, principal.tasks) == (NOBODY, EVERYBODY)
    assert principal.expires_ms == (NOW_S + 600 + LEEWAY_S) * 1000
    assert not principal.is_development
    assert issued.book.by_token(token) is principal
    assert issued.book.stands(principal)
    assert token not in principal.credential
    assert not any(piece in principal.credential for piece in token.split("."))


@pytest.mark.parametrize("key", [RSA, EC, ED], ids=lambda key: key.algorithm)
async def test_a_key_without_a_name_in_pem_verifies_too(tmp_path: Path, key: Key) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(RSA.pem + EC.pem + ED.pem)
    issued = await Issued.open(key_source(str(path)))
    assert issued.book.by_token(signed(key, claims())).agent == "planner-1"
    assert issued.book.by_token(signed(key, claims(), kid=None)).agent == "planner-1"


async def test_one_of_several_audiences_is_enough(issued: Issued) -> None:
    assert issued.book.by_token(signed(EC, claims(aud=["other", AUDIENCE]))).agent == "planner-1"


OTHER = Key(ec.generate_private_key(ec.SECP256R1()), "ES256", EC.id)


def with_secret(secret: bytes, algorithm: str = "HS256") -> str:
    """A token signed with a secret that everybody knows: a public key."""
    text = f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims())}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def with_payload(payload: bytes) -> str:
    header = part({"alg": "ES256", "kid": EC.id})
    return f"{header}.{part(payload)}.{part(b'0' * 64)}"


def changed_after_signing() -> str:
    header, _, signature = signed(EC, claims()).split(".")
    return f"{header}.{part(claims(sub='somebody-else'))}.{signature}"


def other_algorithm() -> str:
    """A token that a known key did sign, but that names the algorithm of another."""
    text = f"{part({'alg': 'RS256', 'kid': EC.id})}.{part(claims())}"
    assert isinstance(EC.private, ec.EllipticCurvePrivateKey)
    signature = ECAlgorithm(ECAlgorithm.SHA256).sign(text.encode(), EC.private)
    return f"{text}.{part(signature)}"


def without_algorithm(algorithm: str) -> str:
    return f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims())}."


WRONG: dict[str, Callable[[], str]] = {
    "another's key": lambda: signed(OTHER, claims()),
    "changed": changed_after_signing,
    "no signature": lambda: signed(EC, claims()).rpartition(".")[0] + ".",
    "two parts": lambda: signed(EC, claims()).rpartition(".")[0],
    "four parts": lambda: signed(EC, claims()) + ".x",
    "alg none": lambda: without_algorithm("none"),
    "alg None": lambda: without_algorithm("None"),
    "HS256 with the PEM of a public key": lambda: with_secret(RSA.pem),
    "HS256 with the bare PEM": lambda: with_secret(RSA.pem.strip()),
    "HS256 with the JWKS": lambda: with_secret(jwks(RSA, EC, ED)),
    "HS256 with nothing": lambda: with_secret(b""),
    "the algorithm of another key": other_algorithm,
    "RS512": lambda: pyjwt.encode(claims(), RSA.private, algorithm="RS512", headers={"kid": RSA.id}),
    "PS256": lambda: pyjwt.encode(claims(), RSA.private, algorithm="PS256", headers={"kid": RSA.id}),
    "an unknown key": lambda: signed(EC, claims(), kid="ec-2"),
    "the name of another key": lambda: signed(EC, claims(), kid=RSA.id),
    "an extension": lambda: signed(EC, claims(), crit=["b64"]),
    "another issuer": lambda: signed(EC, claims(iss="https://other.example")),
    "a part of the issuer": lambda: signed(EC, claims(iss="https://issuer.example")),
    "no issuer": lambda: signed(EC, claims(iss=None)),
    "another audience": lambda: signed(EC, claims(aud="kokuban")),
    "no audience": lambda: signed(EC, claims(aud=None)),
    "audiences without ours": lambda: signed(EC, claims(aud=["a", "b"])),
    "no expiry": lambda: signed(EC, claims(exp=None)),
    "expiry a text": lambda: signed(EC, claims(exp="never")),
    "expiry true": lambda: signed(EC, claims(exp=True)),
    "expiry NaN": lambda: signed(EC, claims(exp=float("nan"))),
    "expiry infinite": lambda: signed(EC, claims(exp=float("inf"))),
    "expiry beyond all years": lambda: signed(EC, claims(exp=10**400)),
    "no subject": lambda: signed(EC, claims(sub=None)),
    "subject empty": lambda: signed(EC, claims(sub="")),
    "subject with a space": lambda: signed(EC, claims(sub="a b")),
    "no claim of ours": lambda: signed(EC, claims(kokuban=None)),
    "our claim a text": lambda: signed(EC, claims(kokuban="acme")),
    "no tenant": lambda: signed(EC, claims(kokuban={"roles": ["member"], "boards": "*"})),
    "no roles": lambda: signed(EC, claims(kokuban={"tenant": "acme", "boards": "*"})),
    "no boards": lambda: signed(EC, claims(kokuban={"tenant": "acme", "roles": ["member"]})),
    "tenant with a slash": lambda: signed(EC, claims(kokuban={"tenant": "a/b", "roles": ["member"], "boards": "*"})),
    "unknown role": lambda: signed(EC, claims(kokuban={"tenant": "acme", "roles": ["root"], "boards": "*"})),
    "unknown field": lambda: signed(
        EC, claims(kokuban={"tenant": "acme", "roles": ["member"], "boards": "*", "is_development": True})
    ),
    "not yet": lambda: signed(EC, claims(nbf=NOW_S + LEEWAY_S + 1)),
    "begins at a text": lambda: signed(EC, claims(nbf="now")),
    "no JSON": lambda: with_payload(b"{"),
    "a list": lambda: with_payload(b"[]"),
    "deep": lambda: with_payload(b"[" * 5_000),
    "no base64": lambda: "!.!.!",
    "empty": lambda: "",
    "too long": lambda: signed(EC, claims(more="x" * 10_000)),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_token_is_refused_and_not_told_why(issued: Issued, wrong: str) -> None:
    token = WRONG[wrong]()
    texts = []
    for _ in range(2):  # nor is it remembered
        with pytest.raises(Unauthenticated) as told:
            issued.book.by_token(token)
        texts.append((told.value.reason, told.value.detail))
    with pytest.raises(Unauthenticated) as of_nothing:
        issued.book.by_token("")
    assert set(texts) == {("CREDENTIAL_INVALID", of_nothing.value.detail)}


async def test_a_token_is_good_until_its_expiry_and_the_leeway_also_when_remembered(issued: Issued) -> None:
    token = signed(EC, claims())
    issued.clock.ms = (NOW_S + 600 + LEEWAY_S) * 1000 - 1
    issued.book.by_token(token)
    issued.clock.ms += 1
    assert issued.refused(token) == "CREDENTIAL_EXPIRED"
    assert issued.refused(signed(EC, claims(exp=NOW_S))) == "CREDENTIAL_EXPIRED"
    # Of one that was never good, nothing else is told because it is old.
    assert issued.refused(signed(OTHER, claims(exp=NOW_S))) == "CREDENTIAL_INVALID"
    assert issued.refused(signed(EC, claims(exp=NOW_S, aud="other"))) == "CREDENTIAL_INVALID"


async def test_a_token_is_good_from_its_beginning_less_the_leeway(issued: Issued) -> None:
    assert issued.book.by_token(signed(EC, claims(nbf=NOW_S + LEEWAY_S))).agent == "planner-1"


async def test_a_token_is_verified_once_and_at_most_so_many_are_remembered(
    issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = 0
    decode = pyjwt.decode

    def counted(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the library's own
        nonlocal verified
        verified += 1
        return decode(*arguments, **named)

    monkeypatch.setattr(pyjwt, "decode", counted)
    monkeypatch.setattr("kokuban_server.adapters.credentials.jwt.REMEMBERED_MAX", 8)
    assert REMEMBERED_MAX == 4_096
    tokens = [signed(ED, claims(exp=NOW_S + 100 + number)) for number in range(12)]
    for token in tokens:
        issued.book.by_token(token)
        issued.book.by_token(token)
    assert verified == 12
    assert len(issued.issuer._remembered) == 8  # no outside sign of it but memory
    principal = issued.book.by_token(tokens[0])  # was forgotten for a newer one
    assert verified == 13
    assert issued.book.stands(principal)
    issued.clock.ms = NOW_MS + (100 + 8 + LEEWAY_S) * 1000  # all but the last three are over
    issued.book.by_token(signed(ED, claims()))
    assert len(issued.issuer._remembered) == 4


async def test_keys_change_with_the_file_and_tokens_of_a_key_that_is_gone_stand_no_more(
    file: Path, issued: Issued
) -> None:
    old, kept = signed(EC, claims()), signed(RSA, claims())
    gone, stays = issued.book.by_token(old), issued.book.by_token(kept)
    next_key = Key(OTHER.private, "ES256", "ec-2")
    new = signed(next_key, claims())
    assert issued.refused(new) == "CREDENTIAL_INVALID"
    await issued.book.refresh()
    assert issued.changes == 0
    replace(file, jwks(RSA, next_key))
    await issued.book.refresh()
    assert issued.changes == 1
    assert issued.book.by_token(new).agent == "planner-1"
    assert issued.refused(old) == "CREDENTIAL_INVALID"
    assert (issued.book.stands(gone), issued.book.stands(stays)) == (False, True)
    assert (issued.book.present(gone), issued.book.present(stays)) == (None, stays)
    assert issued.book.by_token(kept) is stays


def replace(file: Path, content: bytes) -> None:
    new = file.with_name("new")
    new.write_bytes(content)
    new.replace(file)


async def test_broken_new_keys_keep_the_old_ones_and_are_reported_once(file: Path, issued: Issued) -> None:
    principal = issued.book.by_token(signed(EC, claims()))
    for content in (b"", b"{", b'{"keys": []}'):
        issued.reported.clear()
        replace(file, content)
        for _ in range(3):
            await issued.book.refresh()
        assert len(issued.reported) == 1
        assert str(file) in issued.reported[0]
        assert issued.book.stands(principal)
        assert issued.book.by_token(signed(ED, claims())).agent == "planner-1"
    assert issued.changes == 0


async def test_each_of_several_issuers_has_its_own_keys(file: Path, tmp_path: Path) -> None:
    other_file = tmp_path / "other.pem"
    other_file.write_bytes(OTHER.pem)
    clock, reported = TurnedClock(), list[str]()
    name = "https://other.example"
    issuers = [
        await JwtIssuer.open(ISSUER, AUDIENCE, KeyFile(file), clock, reported.append),
        await JwtIssuer.open(name, AUDIENCE, KeyFile(other_file), clock, reported.append),
    ]
    book = CredentialBook(Registry((), clock), issuers)
    mine, others = book.by_token(signed(EC, claims())), book.by_token(signed(OTHER, claims(iss=name)))
    assert mine is not others
    assert [issuer.stands(one) for issuer in issuers for one in (mine, others)] == [True, False, False, True]
    for token in (signed(OTHER, claims()), signed(EC, claims(iss=name))):
        with pytest.raises(Unauthenticated):
            book.by_token(token)
    with pytest.raises(ValueError, match="same name"):
        CredentialBook(Registry((), clock), [issuers[0], issuers[0]])


def private_pem(key: Key) -> bytes:
    return key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


SHORT = Key(rsa.generate_private_key(65_537, 1_024), "RS256", "short")  # noqa: S505 - as weak as may not be accepted
P384 = Key(ec.generate_private_key(ec.SECP384R1()), "ES384", "p384")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no public key"),
        (b"no keys", "no public key"),
        (b"{", "not JSON"),
        (b"{}", "not a JWKS"),
        (b'{"keys": {}}', "not a JWKS"),
        (b'{"keys": ["a"]}', "not a JWKS"),
        (b'{"keys": []}', "no public key"),
        (jwks({"kty": "oct", "k": part(b"secret"), "kid": "s"}), "no public key"),
        (jwks(SHORT), "no public key"),
        (SHORT.pem, "no public key"),
        (jwks(P384), "no public key"),
        (jwks({**RSA.jwk, "use": "enc"}), "no public key"),
        (jwks({**RSA.jwk, "alg": "RS512"}), "no public key"),
        (jwks({**RSA.jwk, "n": 1}), "no public key"),
        (jwks({**RSA.jwk, "e": None}, {"kty": "EC", "crv": []}, {"kty": {}}, {"kty": "OKP", "x": 1}), "no public key"),
        (jwks({**EC.jwk, "d": "AA"}), "private key"),
        (private_pem(EC), "private key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not PEM"),
        (RSA.pem * 65, "more than 64"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_by_name(content: bytes, told: str) -> None:
    with pytest.raises(KeysRefused) as error:
        parse_keys(content, "keys.json")
    assert str(error.value).startswith("keys.json: ")
    assert told in str(error.value)


def test_keys_for_other_uses_stand_beside_ours() -> None:
    found = parse_keys(jwks({"kty": "oct", "k": "AA"}, P384, {**RSA.jwk, "use": "enc"}, SHORT, ED), "keys.json")
    assert [(key.id, key.algorithm) for key in found] == [(ED.id, "EdDSA")]


async def test_a_key_file_that_is_not_there_or_too_large_is_refused_by_name(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b" " * (256 * 1024 + 1))
    for path in (tmp_path / "none", large):
        with pytest.raises(KeysRefused, match=str(path)):
            await Issued.open(KeyFile(path))


class KeyServer:
    """An address that keys are read from: says what it is told to, and counts."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.asked = 0
        self.status = 200
        self.content = jwks(EC)
        served = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked += 1
                self.send_response(served.status)
                if served.status == 302:
                    self.send_header("Location", "/elsewhere")
                    served.status = 200
                self.send_header("Content-Length", str(len(served.content)))
                self.end_headers()
                self.wfile.write(served.content)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


@pytest.fixture
def served() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


class Seconds:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


async def test_keys_at_an_address_are_asked_for_now_and_then_and_soon_for_a_key_that_is_not_known(
    served: KeyServer,
) -> None:
    seconds = Seconds()
    issued = await Issued.open(KeyUrl(served.url, now_s=seconds))
    issued.book.by_token(signed(EC, claims()))
    await issued.book.refresh()
    assert served.asked == 1
    seconds.s = FETCH_INTERVAL_S
    await issued.book.refresh()
    assert (served.asked, issued.changes) == (2, 0)
    served.content = jwks(EC, ED)
    for again in range(1, 4):  # one look-up, however many tokens name what is not known
        assert issued.refused(signed(ED, claims(sub=f"agent-{again}"))) == "CREDENTIAL_INVALID"
        await issued.book.refresh()
    assert served.asked == 2
    seconds.s += FETCH_AGAIN_S
    await issued.book.refresh()
    assert (served.asked, issued.changes) == (3, 1)
    assert issued.book.by_token(signed(ED, claims())).agent == "planner-1"
    seconds.s += FETCH_AGAIN_S
    await issued.book.refresh()
    assert served.asked == 3


@pytest.mark.parametrize(("status", "content"), [(500, jwks(EC)), (302, jwks(EC)), (200, b"{"), (200, b" " * 300_000)])
async def test_an_address_that_fails_keeps_the_keys_is_reported_once_and_asked_again_soon(
    served: KeyServer, status: int, content: bytes
) -> None:
    seconds = Seconds()
    issued = await Issued.open(KeyUrl(served.url, now_s=seconds))
    principal = issued.book.by_token(signed(EC, claims()))
    seconds.s = FETCH_INTERVAL_S
    served.content = content
    for _ in range(2):
        served.status = status
        await issued.book.refresh()
        seconds.s += FETCH_AGAIN_S
    assert served.asked == 3
    assert len(issued.reported) == 1
    assert served.url in issued.reported[0]
    assert issued.book.stands(principal)
    served.status, served.content = 200, jwks(ED)
    await issued.book.refresh()
    assert issued.book.by_token(signed(ED, claims())).agent == "planner-1"
    assert not issued.book.stands(principal)


async def test_an_https_address_is_believed_only_with_a_certificate_that_the_authority_vouches_for(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = server_context(authority)
    server = KeyServer(context)
    try:
        issued = await Issued.open(KeyUrl(server.url, ca_file))
        assert issued.book.by_token(signed(EC, claims())).agent == "planner-1"
        with pytest.raises(KeysRefused, match="cannot be read"):
            await Issued.open(KeyUrl(server.url))
    finally:
        server.close()


def server_context(authority: trustme.CA) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - only here more than a type

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",
        "http://127.0.0.1.issuer.example/keys",
        "ftp://127.0.0.1/keys",
        "file:///etc/passwd",
        "https://",
        "https://user:password@issuer.example/keys",
        "https://[/keys",
        "https://issuer.example:port/keys",
    ],
)
def test_an_address_that_is_not_https_is_refused_and_http_is_for_this_machine(url: str) -> None:
    with pytest.raises(KeysRefused) as error:
        key_source(url)
    assert "password" not in str(error.value)


class SlowKeys:
    """An address that answered once, and then takes for ever."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self._was_read = False

    async def read_if_changed(self) -> tuple[VerifyKey, ...] | None:
        if self._was_read:
            self.is_asked.set()
            await asyncio.Event().wait()
        self._was_read = True
        return parse_keys(jwks(EC), "slow")

    def want(self) -> None:
        return


async def test_a_slow_address_does_not_keep_a_changed_file_waiting(file: Path) -> None:
    clock, reported = TurnedClock(), list[str]()
    slow = SlowKeys()
    issuers = [
        await JwtIssuer.open("slow", AUDIENCE, slow, clock, reported.append),
        await JwtIssuer.open(ISSUER, AUDIENCE, KeyFile(file), clock, reported.append),
    ]
    book = CredentialBook(Registry((), clock), issuers)
    principal = book.by_token(signed(EC, claims()))
    has_changed = asyncio.Event()
    book.subscribe(has_changed.set)
    following = asyncio.create_task(book.follow(0.01))
    try:
        await asyncio.wait_for(slow.is_asked.wait(), 30)
        replace(file, jwks(ED))
        await asyncio.wait_for(has_changed.wait(), 30)
        assert not book.stands(principal)
    finally:
        following.cancel()
        await asyncio.wait([following])
    assert reported == []
