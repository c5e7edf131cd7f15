"""TLS for callers: who has no certificate of the right authority gets no answer, and certificates are changed under load."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kokuban.v1 import admin_service_pb2
from tests.wire.calls import refusal_of
from tests.wire.test_credentials import Book, bearer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

STATUS = "/kokuban.v1.AdminService/GetStatus"
WRITER = "spiffe://acme/agent/writer"


class Place:
    """The files of a server that wants client certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.others = trustme.CA()
        self.book = Book(folder / "principals.json")
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.renew_server(self.authority)

    def renew_server(self, authority: trustme.CA) -> None:
        """Put another certificate in the place of the server's, as an operator does: by renaming."""
        made = authority.issue_cert("localhost", "127.0.0.1")
        for name, blob in (("server.key", made.private_key_pem), ("server.pem", made.cert_chain_pems[0])):
            blob.write_to_path(self.folder / f"{name}.new")
            (self.folder / f"{name}.new").replace(self.folder / name)

    @property
    def settings(self) -> dict[str, Any]:
        names = {"cert_file": "server.pem", "key_file": "server.key", "client_ca_file": "ca.pem"}
        return {
            "identity": "credentials",
            "principals_file": self.book.path,
            "tls": {field: self.folder / name for field, name in names.items()},
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.book.give("writer", token_sha256=None, san_uri=WRITER)
    return made


@pytest.fixture
async def server(start: Started, place: Place) -> Running:
    return await start(**place.settings)


async def ask(
    server: Running,
    trusted: trustme.CA,
    shown: Shown | None = None,
    metadata: list[tuple[str, str]] | None = None,
) -> str:
    """Call once over a connection of its own; give `answered`, the reason of a refusal, or `no connection`."""
    credentials = grpc.ssl_channel_credentials(
        trusted.cert_pem.bytes(),
        shown.key if shown is not None else None,
        shown.chain if shown is not None else None,
    )
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials, options=options) as channel:
        return await _ask(channel, metadata)


async def _ask(channel: Any, metadata: list[tuple[str, str]] | None = None) -> str:  # noqa: ANN401 - bytes in, bytes out
    try:
        await channel.unary_unary(STATUS)(
            admin_service_pb2.GetStatusRequest().SerializeToString(), metadata=metadata, timeout=10
        )
    except grpc.aio.AioRpcError as error:
        return refusal_of(error).reason or ("no connection" if error.code() is grpc.StatusCode.UNAVAILABLE else "")
    return "answered"


class Shown(NamedTuple):
    """What a client shows."""

    key: bytes
    chain: bytes


def certificate(authority: trustme.CA, uri: str, begin: dt.datetime | None = None) -> Shown:
    """Issue a certificate of two years for a URI, from now on or from another time."""
    key = ec.generate_private_key(ec.SECP256R1())
    begin = begin or dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signer: Any = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "agent")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=730))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Shown(secret, made.public_bytes(encoding))


async def test_a_certificate_of_the_authority_says_who_calls(server: Running, place: Place) -> None:
    assert await ask(server, place.authority, certificate(place.authority, WRITER)) == "answered"


async def test_without_a_certificate_of_the_authority_there_is_no_connection(server: Running, place: Place) -> None:
    """None, another authority's, an expired one, and no TLS at all."""
    expired = certificate(place.authority, WRITER, dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    assert await ask(server, place.authority) == "no connection"
    assert await ask(server, place.authority, certificate(place.others, WRITER)) == "no connection"
    assert await ask(server, place.authority, expired) == "no connection"
    assert await _ask(server.agent.channel) == "no connection"


async def test_a_connection_that_outlives_its_certificate_is_refused(
    server: Running, place: Place, clock: SettableClock
) -> None:
    clock.pass_ms(3 * 365 * 24 * 3_600_000)
    assert await ask(server, place.authority, certificate(place.authority, WRITER)) == "CREDENTIAL_EXPIRED"


async def test_a_client_does_not_talk_to_a_server_of_another_authority(server: Running, place: Place) -> None:
    assert await ask(server, place.others, certificate(place.authority, WRITER)) == "no connection"


async def test_a_certificate_that_names_nobody_is_refused(server: Running, place: Place) -> None:
    for uri in ("spiffe://acme/agent/writer2", "spiffe://acme/agent/WRITER", "spiffe://other/agent/writer"):
        assert await ask(server, place.authority, certificate(place.authority, uri)) == "CREDENTIAL_INVALID"


async def test_a_token_beside_a_certificate_must_name_the_same_agent(start: Started, place: Place) -> None:
    own = place.book.give("own", agent="writer")
    foreign = place.book.give("foreign", agent="somebody")
    server = await start(**place.settings)
    shown = certificate(place.authority, WRITER)
    assert await ask(server, place.authority, shown, [bearer(own)]) == "answered"
    assert await ask(server, place.authority, shown, [bearer(foreign)]) == "CREDENTIAL_INVALID"


async def test_the_servers_certificate_is_changed_without_a_dropped_call(server: Running, place: Place) -> None:
    """A connection that stands goes on through the change; the next ones see the new certificate."""
    shown = certificate(place.authority, WRITER)
    credentials = grpc.ssl_channel_credentials(place.authority.cert_pem.bytes(), shown.key, shown.chain)
    changed = asyncio.Event()
    async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
        answers = {await _ask(channel)}

        async def go_on() -> None:
            while not changed.is_set():
                answers.add(await _ask(channel))

        going_on = asyncio.create_task(go_on())
        before = await asyncio.to_thread(_shown_by, server.port)
        place.renew_server(place.others)
        async with asyncio.timeout(10):
            while await asyncio.to_thread(_shown_by, server.port) == before:
                pass
        changed.set()
        await going_on
    assert answers == {"answered"}
    assert await ask(server, place.others, shown) == "answered"


def _shown_by(port: int) -> str:
    """Give the certificate that a server shows to whoever connects."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
