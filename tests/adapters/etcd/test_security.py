"""TLS, mutual TLS, and users whose tokens die."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import trustme

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore, new_epoch
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import StoreUnavailable
from kokuban_server.ports.board_store import STRONG
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.etcd
CLOCK = SystemClock()
BOUND_S = 15.0
PASSWORD = "correct horse"  # noqa: S105 - of a throw-away cluster


class Certificates:
    """An authority, a member's and a client's certificate, and another authority that nobody trusts."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        foreign = trustme.CA()
        self.ca = folder / "ca.pem"
        self.foreign_ca = folder / "foreign.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        foreign.cert_pem.write_to_path(str(self.foreign_ca))
        for name, leaf in (
            ("server", authority.issue_cert("127.0.0.1", "localhost")),
            ("client", authority.issue_cert("client.example")),
            ("stranger", foreign.issue_cert("client.example")),
        ):
            leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
            (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        self.folder = folder

    def settings(
        self, server: EtcdServer, shown: str | None = "client", *, ca: Path | None = None, server_name: str = ""
    ) -> EtcdSettings:
        """Believe the authority, or `ca` instead, and show this certificate."""
        return EtcdSettings(
            server.endpoints,
            ca_file=ca or self.ca,
            cert_file=self.folder / f"{shown}.pem" if shown else None,
            key_file=self.folder / f"{shown}.key" if shown else None,
            server_name=server_name,
            connect_s=0.5,
        )


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def tls_server(certificates: Certificates) -> Iterator[EtcdServer]:
    server = EtcdServer(
        scheme="https",
        flags=[
            f"--cert-file={certificates.folder / 'server.pem'}",
            f"--key-file={certificates.folder / 'server.key'}",
            f"--trusted-ca-file={certificates.ca}",
            "--client-cert-auth",
        ],
    )
    yield server
    server.close()


async def test_mutual_tls_lets_in_who_shows_a_certificate_of_the_authority(
    tls_server: EtcdServer, certificates: Certificates
) -> None:
    await tls_server.start_all()
    store = await EtcdStore.open(certificates.settings(tls_server), CLOCK)
    await store.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    await store.close()
    for bad in (
        certificates.settings(tls_server, None),
        certificates.settings(tls_server, "stranger"),
        certificates.settings(tls_server, ca=certificates.foreign_ca),
        certificates.settings(tls_server, server_name="other.example"),
        EtcdSettings(tls_server.endpoints, connect_s=0.5),
    ):
        with pytest.raises(StoreUnavailable):
            await EtcdStore.open(bad, CLOCK, deadline_s=1.0)


async def test_a_member_may_be_known_by_another_name_than_its_address(
    tls_server: EtcdServer, certificates: Certificates
) -> None:
    await tls_server.start_all()
    settings = certificates.settings(tls_server, server_name="localhost")
    await (await EtcdStore.open(settings, CLOCK)).close()


async def test_a_token_that_died_with_its_member_is_renewed(own_server: EtcdServer) -> None:
    await own_server.start_all()
    own_server.ctl("user", "add", f"root:{PASSWORD}")
    own_server.ctl("user", "grant-role", "root", "root")
    own_server.ctl("auth", "enable")
    settings = EtcdSettings(own_server.endpoints, user="root", password=PASSWORD, attempt_s=2.0, connect_s=0.5)
    store = await EtcdStore.open(settings, CLOCK)
    start = await store.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    watch = store.watch([b"k"], start)
    await anext(watch)
    own_server.members[0].kill()
    own_server.start(own_server.members[0])
    written = await asyncio.gather(
        *(store.commit(ChangeSet((), (Put(b"k/%d" % n, b""),)), BOUND_S) for n in range(5)),
        return_exceptions=True,
    )
    last = await store.commit(ChangeSet((), (Put(b"k/end", b""),)), BOUND_S)
    assert (await store.read([b"k"], STRONG, BOUND_S)).revision >= last
    seen: set[bytes] = set()
    async with asyncio.timeout(BOUND_S):
        while b"k/end" not in seen:
            seen |= {event.key for event in (await anext(watch)).events}
    assert len(seen) >= 1 + sum(isinstance(answer, int) for answer in written)
    await watch.aclose()
    await new_epoch(settings)
    await store.close()


async def test_a_token_that_the_cluster_forgot_is_renewed_on_the_same_connection(own_server: EtcdServer) -> None:
    await own_server.start_all()
    own_server.ctl("user", "add", f"root:{PASSWORD}")
    own_server.ctl("user", "grant-role", "root", "root")
    own_server.ctl("auth", "enable")
    store = await EtcdStore.open(EtcdSettings(own_server.endpoints, user="root", password=PASSWORD), CLOCK)
    start = await store.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    own_server.ctl(
        "--user", f"root:{PASSWORD}", "user", "add", f"someone:{PASSWORD}"
    )  # the auth store's revision moves on
    assert (await store.read([b"k"], STRONG, BOUND_S)).revision >= start
    connection = store._channel._current  # only by looking inside can a token be spoilt
    assert connection is not None
    connection.take_token("spoilt.1")
    cuts = await asyncio.gather(*(store.read([b"k"], STRONG, BOUND_S) for _ in range(10)))
    assert all(cut.records[0] is not None for cut in cuts)
    connection.take_token("spoilt.2")
    assert await store.commit(ChangeSet((), (Put(b"k", b"2"),)), BOUND_S) > start
    assert store._channel._current is connection
    await store.close()


async def test_a_wrong_password_is_told_without_it(own_server: EtcdServer) -> None:
    await own_server.start_all()
    own_server.ctl("user", "add", f"root:{PASSWORD}")
    own_server.ctl("user", "grant-role", "root", "root")
    own_server.ctl("auth", "enable")
    settings = EtcdSettings(own_server.endpoints, user="root", password="hunter2")  # noqa: S106 - a wrong one
    with pytest.raises(StoreUnavailable) as caught:
        await EtcdStore.open(settings, CLOCK, deadline_s=1.0)
    assert "authentication failed" in caught.value.detail
    assert "hunter2" not in caught.value.detail
