"""Tokens and certificates: what is refused before anything is sent, and what goes out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
import trustme
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

import kokuban_client
from kokuban.v1 import admin_service_pb2, board_service_pb2, lock_pb2, lock_service_pb2, session_service_pb2
from kokuban_client import errors, sync
from kokuban_client._channel_options import is_loopback, options_for
from kokuban_client._credentials import TOKEN_BYTES_MAX, TokenFile
from kokuban_client._identity import Identity
from kokuban_client.testing import ServerProcess
from tests.client.waiting import hears, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path
    from typing import Any, NoReturn

SECRET = "kk_the-secret-0123456789"  # noqa: S105 - of a server of the test's own
NEXT = "kk_the-next-9876543210"
KOKUBAN = [sys.executable, "-c", "import sys; from kokuban_client.cli import main; sys.exit(main())"]
REMOTE = "board.example:7420"
BOUND_S = 20.0


class Files:
    """An authority, a server's and an agent's certificate, and what nobody trusts."""

    def __init__(self, folder: Path) -> None:
        authority, foreign = trustme.CA(), trustme.CA()
        self.folder = folder
        self.ca, self.foreign_ca = str(folder / "ca.pem"), str(folder / "foreign.pem")
        authority.cert_pem.write_to_path(self.ca)
        foreign.cert_pem.write_to_path(self.foreign_ca)
        for name, leaf in (
            ("server", authority.issue_cert("127.0.0.1")),
            ("named", authority.issue_cert("board.example")),
            ("agent", authority.issue_cert("agent.example")),
            ("stranger", foreign.issue_cert("agent.example")),
        ):
            leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
            (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))

    def cert(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")

    def shown(self, name: str) -> dict[str, str]:
        return {"ca_file": self.ca, "cert_file": self.cert(name), "key_file": self.key(name)}

    def for_server(self, name: str, *, mutual: bool) -> grpc.ServerCredentials:
        pair = ((self.folder / f"{name}.key").read_bytes(), (self.folder / f"{name}.pem").read_bytes())
        roots = (self.folder / "ca.pem").read_bytes() if mutual else None
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=mutual)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*Identity.VARIABLES, "KOKUBAN_FENCE", "KOKUBAN_SESSION", "KOKUBAN_BOARD", "KOKUBAN_JSON"):
        monkeypatch.delenv(name, raising=False)


class Doorkeeper:
    """A server that answers whoever shows a token that it takes, and remembers what was shown."""

    def __init__(self) -> None:
        self.address = ""
        self.taken: set[str] | None = None  # None: whoever the connection let in
        self.shown: list[dict[str, str]] = []
        self.on_refusal: Callable[[], None] = lambda: None
        self.end_watches = asyncio.Event()
        self.guards_renewals = True

    def services(self) -> list[grpc.GenericRpcHandler]:
        unary, stream, both = (
            grpc.unary_unary_rpc_method_handler,
            grpc.unary_stream_rpc_method_handler,
            grpc.stream_stream_rpc_method_handler,
        )
        made: list[tuple[str, str, Any, Any, Any]] = [
            ("Admin", "GetStatus", unary, self._status, admin_service_pb2.GetStatusRequest),
            ("Board", "Watch", stream, self._watch, board_service_pb2.WatchRequest),
            ("Session", "OpenSession", unary, self._open_session, session_service_pb2.OpenSessionRequest),
            ("Session", "KeepAlive", both, self._keep_alive, session_service_pb2.KeepAliveRequest),
            ("Session", "CloseSession", unary, self._close_session, session_service_pb2.CloseSessionRequest),
            ("Lock", "AcquireLock", stream, self._acquire, lock_service_pb2.AcquireLockRequest),
            ("Lock", "ReleaseLock", unary, self._release, lock_service_pb2.ReleaseLockRequest),
        ]
        return [
            grpc.method_handlers_generic_handler(
                f"kokuban.v1.{service}Service",
                {method: kind(answer, request.FromString, lambda response: response.SerializeToString())},
            )
            for service, method, kind, answer, request in made
        ]

    async def _status(self, request: Any, context: Any) -> admin_service_pb2.GetStatusResponse:  # noqa: ANN401 - grpc's
        await self._let_in(context)
        return admin_service_pb2.GetStatusResponse(server_version="1")

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[board_service_pb2.WatchResponse]:  # noqa: ANN401 - as above
        await self._let_in(context)
        yield board_service_pb2.WatchResponse(token="t1", bookmark=board_service_pb2.WatchBookmark())  # noqa: S106 - a place
        await self.end_watches.wait()
        await self._refuse(context, "CREDENTIAL_EXPIRED")

    async def _open_session(self, request: Any, context: Any) -> session_service_pb2.OpenSessionResponse:  # noqa: ANN401 - as above
        session = lock_pb2.Session(id="s1", agent="known-to-the-server", ttl=duration_pb2.Duration(seconds=30))
        return session_service_pb2.OpenSessionResponse(session=session, token="t1", epoch="0" * 16)  # noqa: S106 - a place

    async def _keep_alive(self, requests: Any, context: Any) -> AsyncIterator[session_service_pb2.KeepAliveResponse]:  # noqa: ANN401 - as above
        if self.guards_renewals:
            await self._let_in(context)
        async for _ in requests:
            yield session_service_pb2.KeepAliveResponse(
                session_id="s1",
                state=session_service_pb2.SESSION_STATE_RENEWED,
                ttl=duration_pb2.Duration(seconds=30),
            )

    async def _close_session(self, request: Any, context: Any) -> session_service_pb2.CloseSessionResponse:  # noqa: ANN401 - as above
        return session_service_pb2.CloseSessionResponse()

    async def _acquire(self, request: Any, context: Any) -> AsyncIterator[lock_service_pb2.AcquireLockResponse]:  # noqa: ANN401 - as above
        await self._let_in(context)
        lock = lock_pb2.Lock(id="l1", session_id="s1", mode=request.mode, targets=request.targets, fence_revision=7)
        fence = lock_pb2.Fence(lock_id="l1", revision=7, epoch="0" * 16)
        granted = lock_service_pb2.LockGranted(lock=lock, fence=fence, token="t1")  # noqa: S106 - a place
        yield lock_service_pb2.AcquireLockResponse(granted=granted)

    async def _release(self, request: Any, context: Any) -> lock_service_pb2.ReleaseLockResponse:  # noqa: ANN401 - as above
        return lock_service_pb2.ReleaseLockResponse()

    async def _let_in(self, context: Any) -> None:  # noqa: ANN401 - as above
        pairs = context.invocation_metadata()
        told = {name: value for name, value in pairs if name.startswith("kokuban-") or name == "authorization"}
        assert len([name for name, _ in pairs if name == "authorization"]) <= 1
        self.shown.append(told)
        if self.taken is not None and told.get("authorization") not in {f"Bearer {token}" for token in self.taken}:
            await self._refuse(context, "CREDENTIAL_INVALID")

    async def _refuse(self, context: Any, reason: str) -> NoReturn:  # noqa: ANN401 - as above
        self.on_refusal()
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="kokuban"))
        status = status_pb2.Status(code=16, message="refused", details=[detail])
        packed = (("grpc-status-details-bin", status.SerializeToString()),)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused", packed)
        raise AssertionError("abort comes back")


@contextlib.asynccontextmanager
async def serving(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[Doorkeeper]:
    doorkeeper, server = Doorkeeper(), grpc.aio.server()
    server.add_generic_rpc_handlers(doorkeeper.services())
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    doorkeeper.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield doorkeeper
    finally:
        await server.stop(None)


@pytest.fixture
async def doorkeeper() -> AsyncIterator[Doorkeeper]:
    async with serving() as doorkeeper:
        doorkeeper.taken = {SECRET}
        yield doorkeeper


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


def replace(path: Path, text: str) -> None:
    """Put another file in its place, as whoever rotates tokens does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def both_ask(address: str, **credentials: Any) -> list[Callable[[], Any]]:  # noqa: ANN401 - what `connect` takes
    """Give the same question over the client for event loops and the one for threads."""

    async def over_loop() -> None:
        async with kokuban_client.connect(address, timeout_s=BOUND_S, **credentials) as client:
            await client.status()

    def over_threads() -> None:
        with sync.connect(address, timeout_s=BOUND_S, **credentials) as client:
            client.status()

    return [over_loop, lambda: asyncio.to_thread(over_threads)]


# What is refused before anything is sent


@pytest.mark.parametrize(
    "address",
    [
        REMOTE,
        "10.0.0.1:7420",
        "127.evil.example:7420",
        "localhost.evil.example:7420",
        "127.0.0.1.evil.example:7420",
        "[::2]:7420",
        "0.0.0.0:7420",
        "ipv4:127.0.0.1:1,10.0.0.1:2",
        "dns://127.0.0.1/evil.example:7420",
        "xds:///localhost",
        "",
    ],
)
def test_a_token_does_not_travel_in_plain_text_to_another_machine(address: str, files: Files, token_file: Path) -> None:
    assert not is_loopback(address)
    address = address or REMOTE
    for credential in ({"token": SECRET}, {"token_file": str(token_file)}):
        with pytest.raises(ValueError, match="plain text") as refused:
            kokuban_client.connect(address, **credential)  # type: ignore[arg-type] # one of two keywords
        assert SECRET not in str(refused.value)
        kokuban_client.connect(address, ca_file=files.ca, **credential)  # type: ignore[arg-type] # as above


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:7420",
        "127.8.8.8",
        "localhost:7420",
        "LocalHost:7420",
        "[::1]:7420",
        "ipv4:127.0.0.1:1,127.0.0.1:2",
        "ipv6:[::1]:7420",
        "dns:///localhost:7420",
        "unix:/run/kokuban.sock",
    ],
)
def test_a_token_may_travel_in_plain_text_on_this_machine_and_past_every_proxy(address: str) -> None:
    kokuban_client.connect(address, token=SECRET)
    assert ("grpc.enable_http_proxy", 0) in options_for(address, None)


@pytest.mark.parametrize("development", [{"agent": "a"}, {"roles": ["member"]}, {"roles": []}])
@pytest.mark.parametrize("kind", ["token", "token_file", "certificate", "half a certificate"])
def test_agent_and_roles_do_not_stand_beside_a_credential(
    development: dict[str, Any], kind: str, files: Files, token_file: Path
) -> None:
    credential: dict[str, str] = {
        "token": {"token": SECRET},
        "token_file": {"token_file": str(token_file)},
        "certificate": files.shown("agent"),
        "half a certificate": {"cert_file": files.cert("agent")},
    }[kind]
    with pytest.raises(ValueError, match="development identity"):
        kokuban_client.connect(**development, **credential)  # type: ignore[arg-type] # keywords of several types
    with pytest.raises(ValueError, match="development identity"):
        sync.connect(**development, **credential)  # type: ignore[arg-type] # as above


def test_what_belongs_together_is_given_together(files: Files, token_file: Path) -> None:
    with pytest.raises(ValueError, match="go together"):
        kokuban_client.connect(ca_file=files.ca, cert_file=files.cert("agent"))
    with pytest.raises(ValueError, match="go together"):
        kokuban_client.connect(ca_file=files.ca, key_file=files.key("agent"))
    with pytest.raises(ValueError, match="cert_file needs ca_file"):
        kokuban_client.connect(cert_file=files.cert("agent"), key_file=files.key("agent"))
    with pytest.raises(ValueError, match="server_name needs ca_file"):
        kokuban_client.connect(token=SECRET, server_name="board.example")
    with pytest.raises(ValueError, match="one of them") as refused:
        kokuban_client.connect(token=SECRET, token_file=token_file)
    assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match=r"say who calls.*KOKUBAN_AGENT.*KOKUBAN_TOKEN"):
        kokuban_client.connect(ca_file=files.ca)
    kokuban_client.connect(**files.shown("agent"), token=SECRET)  # type: ignore[arg-type] # keywords of several types


def test_a_file_that_is_not_what_it_should_be_is_named(files: Files, tmp_path: Path, token_file: Path) -> None:
    missing, rubbish = str(tmp_path / "missing"), str(tmp_path / "rubbish")
    (tmp_path / "rubbish").write_text("-----BEGIN CERTIFICATE-----\nrubbish\n")
    for name in ("token_file", "ca_file"):
        told = {"token": SECRET} if name == "ca_file" else {}
        with pytest.raises(ValueError, match=rf"{name} .*missing: No such file"):
            kokuban_client.connect(**{name: missing}, **told)  # type: ignore[arg-type] # as above
        with pytest.raises(ValueError, match=rf"{name} .*rubbish"):
            kokuban_client.connect(**{name: rubbish}, **told)  # type: ignore[arg-type] # as above
    for wrong in (
        {"key_file": files.key("server")},
        {"key_file": rubbish},
        {"cert_file": rubbish},
        {"cert_file": files.key("agent")},
    ):
        with pytest.raises(ValueError, match="not a certificate and its own key"):
            kokuban_client.connect(**{**files.shown("agent"), **wrong})  # type: ignore[arg-type] # as above
    with pytest.raises(ValueError, match="server_name is the name"):
        kokuban_client.connect(token=SECRET, ca_file=files.ca, server_name="two words")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        f"Bearer {SECRET}",
        f"{SECRET}\nx",
        f"{SECRET}\r",
        "näme",
        "a=b",
        "=",
        "a" * (TOKEN_BYTES_MAX + 1),
        "a\x00",
    ],
)
def test_what_no_header_carries_is_no_token_and_is_not_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{text}\n{text}")
    for told in ({"token": text}, {"token_file": str(path)}):
        with pytest.raises(ValueError, match="is no token") as refused:
            kokuban_client.connect(**told)  # type: ignore[arg-type] # keywords of several types
        shown = "".join(traceback.format_exception(refused.value))
        assert SECRET not in shown
        assert refused.value.__context__ is None


def test_a_token_that_is_not_utf_8_is_refused_without_a_trace_of_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(SECRET.encode() + b"\xff")
    with pytest.raises(ValueError, match="is no token") as refused:
        kokuban_client.connect(token_file=tmp_path / "token")
    assert refused.value.__cause__ is refused.value.__context__ is None
    assert not isinstance(refused.value, UnicodeError)


# What comes from the environment


def test_credentials_come_from_the_environment(files: Files, token_file: Path) -> None:
    tls = {"KOKUBAN_ADDRESS": REMOTE, "KOKUBAN_CA_FILE": files.ca, "KOKUBAN_SERVER_NAME": "other.example"}
    for told in ({"KOKUBAN_TOKEN": SECRET}, {"KOKUBAN_TOKEN_FILE": str(token_file)}):
        identity = Identity.of(None, None, None, {**tls, **told})
        assert identity.metadata == (("authorization", f"Bearer {SECRET}"),)
        assert identity.tls is not None
        assert (identity.agent, identity.tls.server_name, identity.tls.key) == ("", "other.example", None)
    shown = {"KOKUBAN_CERT_FILE": files.cert("agent"), "KOKUBAN_KEY_FILE": files.key("agent")}
    identity = Identity.of(None, None, None, {**tls, **shown})
    assert identity.metadata == ()
    assert identity.tls is not None
    assert identity.tls.key is not None
    both = Identity.of(None, None, None, {**tls, **shown}, token=SECRET)
    assert both.metadata == (("authorization", f"Bearer {SECRET}"),)
    assert both.tls == identity.tls


def test_what_is_given_goes_before_the_environment(files: Files, token_file: Path) -> None:
    environment = {"KOKUBAN_TOKEN": NEXT, "KOKUBAN_CA_FILE": files.ca}
    assert Identity.of(None, None, None, environment, token_file=token_file).metadata[0][1] == f"Bearer {SECRET}"
    assert Identity.of(None, None, None, {"KOKUBAN_AGENT": "a"}, token=SECRET).agent == ""
    here = Identity.of(None, "a", None, environment)
    assert (here.metadata, here.tls) == ((("kokuban-agent", "a"),), None)
    elsewhere = Identity.of(REMOTE, "a", None, environment)
    assert elsewhere.metadata == (("kokuban-agent", "a"),)
    assert elsewhere.tls is not None  # what was to be encrypted is not sent in plain text for the sake of a name


def test_an_environment_that_says_two_things_is_refused(token_file: Path) -> None:
    with pytest.raises(ValueError, match="KOKUBAN_AGENT"):
        Identity.of(None, None, None, {"KOKUBAN_AGENT": "a", "KOKUBAN_TOKEN": SECRET})
    with pytest.raises(ValueError, match="one of them"):
        Identity.of(None, None, None, {"KOKUBAN_TOKEN": SECRET, "KOKUBAN_TOKEN_FILE": str(token_file)})


# What goes out


async def test_every_call_carries_the_token_and_nothing_that_names_an_agent(doorkeeper: Doorkeeper) -> None:
    for ask in both_ask(doorkeeper.address, token=SECRET):
        await ask()
    async with kokuban_client.connect(doorkeeper.address, token=SECRET) as client:
        assert client.agent == ""
        async with client.board("main").watch("shared:plan", start=kokuban_client.NOW):
            pass
    assert doorkeeper.shown == [{"authorization": f"Bearer {SECRET}"}] * 3


async def test_a_rotated_token_is_taken_up_by_the_next_call(doorkeeper: Doorkeeper, token_file: Path) -> None:
    async with kokuban_client.connect(doorkeeper.address, token_file=token_file) as client:
        with sync.connect(doorkeeper.address, token_file=token_file) as blocking:
            await client.status()
            await asyncio.to_thread(blocking.status)
            doorkeeper.taken = {NEXT}
            replace(token_file, NEXT)
            await client.status()
            await asyncio.to_thread(blocking.status)
    old, new = {"authorization": f"Bearer {SECRET}"}, {"authorization": f"Bearer {NEXT}"}
    assert doorkeeper.shown == [old, old, new, new]


async def test_a_call_that_crosses_a_rotation_is_repeated_with_the_new_token(
    doorkeeper: Doorkeeper, token_file: Path
) -> None:
    doorkeeper.taken = {NEXT}
    doorkeeper.on_refusal = lambda: replace(token_file, NEXT)
    for ask in both_ask(doorkeeper.address, token_file=token_file):
        replace(token_file, SECRET)
        await ask()
    assert len(doorkeeper.shown) == 4


async def test_a_token_that_is_refused_and_stays_is_not_shown_again(doorkeeper: Doorkeeper, token_file: Path) -> None:
    doorkeeper.taken = set()
    for told in ({"token": SECRET}, {"token_file": token_file}):
        for ask in both_ask(doorkeeper.address, **told):
            doorkeeper.shown.clear()
            with pytest.raises(errors.CredentialInvalid) as refused:
                await ask()
            assert len(doorkeeper.shown) == 1
            seen: BaseException | None = refused.value
            while seen is not None:
                assert SECRET not in f"{seen!r} {seen} {vars(seen)}"
                seen = seen.__cause__ or seen.__context__
            assert SECRET.encode() not in pickle.dumps(refused.value)


async def test_a_watch_whose_token_expired_goes_on_with_the_new_one(doorkeeper: Doorkeeper, token_file: Path) -> None:
    async with kokuban_client.connect(doorkeeper.address, token_file=token_file) as client:
        watch = client.board("main").watch("shared:plan", start=kokuban_client.NOW, bookmarks=True)
        async with watch, asyncio.timeout(BOUND_S):
            assert await anext(watch) == kokuban_client.Bookmark("t1")
            doorkeeper.taken = {NEXT}
            replace(token_file, NEXT)
            doorkeeper.end_watches.set()
            assert await anext(watch) == kokuban_client.Bookmark("t1")
    assert [one["authorization"] for one in doorkeeper.shown] == [f"Bearer {SECRET}", f"Bearer {NEXT}"]


async def test_a_watch_whose_token_expired_and_stayed_ends_and_says_so(doorkeeper: Doorkeeper) -> None:
    async with kokuban_client.connect(doorkeeper.address, token=SECRET) as client:
        watch = client.board("main").watch("shared:plan", start=kokuban_client.NOW)
        async with watch, asyncio.timeout(BOUND_S):
            doorkeeper.end_watches.set()
            with pytest.raises(errors.CredentialExpired):
                await anext(watch)
    assert len(doorkeeper.shown) == 1


async def test_a_lock_that_is_asked_for_across_a_rotation_is_granted_to_the_new_token(
    doorkeeper: Doorkeeper, token_file: Path
) -> None:
    doorkeeper.taken = {NEXT}
    doorkeeper.on_refusal = lambda: replace(token_file, NEXT)
    doorkeeper.guards_renewals = False  # so that it is the asking that is refused

    def over_threads() -> None:
        with (
            sync.connect(doorkeeper.address, token_file=token_file, timeout_s=BOUND_S) as client,
            client.board("main").lock("shared:plan", "a", purpose="a test") as lock,
        ):
            assert lock.fence.lock_id == "l1"

    async with (
        asyncio.timeout(BOUND_S),
        kokuban_client.connect(doorkeeper.address, token_file=token_file) as client,
        client.board("main").lock("shared:plan", "a", purpose="a test") as lock,
    ):
        assert lock.fence.lock_id == "l1"
    replace(token_file, SECRET)
    await asyncio.to_thread(over_threads)
    assert [one["authorization"] for one in doorkeeper.shown] == [f"Bearer {SECRET}", f"Bearer {NEXT}"] * 2


async def test_a_session_whose_token_was_rotated_is_renewed_with_the_new_one(
    doorkeeper: Doorkeeper, token_file: Path
) -> None:
    doorkeeper.taken = {NEXT}
    doorkeeper.on_refusal = lambda: replace(token_file, NEXT)
    async with (
        kokuban_client.connect(doorkeeper.address, token_file=token_file) as client,
        client.board("main").session() as session,
    ):
        await until(lambda: hears(session), BOUND_S)
    assert [one["authorization"] for one in doorkeeper.shown] == [f"Bearer {SECRET}", f"Bearer {NEXT}"]


def test_halfway_through_a_rotation_the_last_token_is_kept(token_file: Path) -> None:
    told = TokenFile(str(token_file))
    first = told.metadata
    for halfway in ("", "Bearer half", "kk half"):
        replace(token_file, halfway)
        assert told.metadata is first
    token_file.unlink()
    assert told.metadata is first
    token_file.write_text(SECRET)
    assert told.metadata is first  # the same token in another file is the same token
    replace(token_file, NEXT)
    assert told.metadata == (("authorization", f"Bearer {NEXT}"),)


def test_a_link_that_is_turned_to_another_file_is_followed(tmp_path: Path) -> None:
    for name, text in (("old", SECRET), ("new", NEXT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text)
    (tmp_path / "current").symlink_to("old")
    told = TokenFile(str(tmp_path / "current" / "token"))
    assert told.metadata[0][1] == f"Bearer {SECRET}"
    (tmp_path / "turned").symlink_to("new")
    (tmp_path / "turned").replace(tmp_path / "current")
    assert told.metadata[0][1] == f"Bearer {NEXT}"


def test_a_token_may_come_through_a_pipe_which_is_read_once() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, f"{SECRET}\n".encode())
        os.close(writing)
        told = TokenFile(f"/dev/fd/{reading}")
        assert told.metadata == told.metadata == (("authorization", f"Bearer {SECRET}"),)
    finally:
        os.close(reading)


# TLS


async def test_with_an_authority_the_channel_is_tls(files: Files) -> None:
    async with serving(files.for_server("server", mutual=False)) as doorkeeper:
        doorkeeper.taken = {SECRET}
        for ask in both_ask(doorkeeper.address, token=SECRET, ca_file=files.ca):
            await ask()
        assert len(doorkeeper.shown) == 2
        for wrong in ({"ca_file": files.foreign_ca}, {}, {"ca_file": files.ca, "server_name": "other.example"}):
            for ask in both_ask(doorkeeper.address, token=SECRET, **wrong, wait_for_ready=False):
                with pytest.raises(errors.Unreachable, match="no server answers"):
                    await ask()
        assert len(doorkeeper.shown) == 2


async def test_the_server_may_go_by_another_name_than_its_address(files: Files) -> None:
    async with serving(files.for_server("named", mutual=False)) as doorkeeper:
        doorkeeper.taken = {SECRET}
        for ask in both_ask(doorkeeper.address, token=SECRET, ca_file=files.ca, server_name="board.example"):
            await ask()
        for ask in both_ask(doorkeeper.address, token=SECRET, ca_file=files.ca, wait_for_ready=False):
            with pytest.raises(errors.Unreachable):
                await ask()


async def test_a_certificate_says_who_calls(files: Files) -> None:
    async with serving(files.for_server("server", mutual=True)) as doorkeeper:
        for ask in both_ask(doorkeeper.address, **files.shown("agent")):
            await ask()
        assert doorkeeper.shown == [{}, {}]
        for ask in both_ask(doorkeeper.address, **files.shown("agent"), token=SECRET):
            await ask()
        assert doorkeeper.shown[2:] == [{"authorization": f"Bearer {SECRET}"}] * 2


@pytest.mark.parametrize("kind", ["none", "a stranger's"])
async def test_a_certificate_that_the_server_does_not_trust_reaches_nothing(files: Files, kind: str) -> None:
    told = files.shown("stranger") if kind != "none" else {"ca_file": files.ca, "token": SECRET}
    async with serving(files.for_server("server", mutual=True)) as doorkeeper:
        for face in (kokuban_client.connect, sync.connect):
            client = face(doorkeeper.address, **told, timeout_s=1.0, wait_for_ready=False)
            with pytest.raises(errors.Unavailable):
                await client.status() if isinstance(client, kokuban_client.Client) else await asyncio.to_thread(
                    client.status
                )
            await client.aclose() if isinstance(client, kokuban_client.Client) else client.close()
        assert doorkeeper.shown == []


# What is never shown


def test_no_object_of_the_client_shows_a_secret(files: Files, token_file: Path) -> None:
    for told in ({"token": SECRET}, {"token_file": token_file}):
        identity = Identity.of(None, None, None, {}, **files.shown("agent"), **told)
        key = (files.folder / "agent.key").read_text().splitlines()[1]
        client = kokuban_client.connect(**files.shown("agent"), **told)  # type: ignore[arg-type] # keywords of several types
        for shown in (identity, identity.metadata, identity.tls, client, client.board("main")):
            assert SECRET not in repr(shown)
            assert SECRET not in str(shown)
            assert key not in repr(shown)


# The command line


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("KOKUBAN_")}
    return subprocess.run(
        [*KOKUBAN, *arguments],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_command_line_takes_the_same_and_shows_no_secret(files: Files, token_file: Path) -> None:
    async with serving(files.for_server("server", mutual=False)) as doorkeeper:
        doorkeeper.taken = {SECRET}
        status = ("--address", doorkeeper.address, "status", "--json", "--ca-file", files.ca)
        by_file = await asyncio.to_thread(run, *status, "--token-file", str(token_file))
        by_text = await asyncio.to_thread(run, *status, KOKUBAN_TOKEN=SECRET)
        flag_first = await asyncio.to_thread(run, *status, "--token-file", str(token_file), KOKUBAN_AGENT="me")
        for answer in (by_file, by_text, flag_first):
            assert (answer.returncode, json.loads(answer.stdout)["server_version"]) == (0, "1"), answer.stderr
        doorkeeper.taken = {NEXT}
        refused = await asyncio.to_thread(run, *status, KOKUBAN_TOKEN=SECRET)
        assert refused.returncode == 5
        assert json.loads(refused.stderr)["error"]["reason"] == "CREDENTIAL_INVALID"
        for answer in (by_file, by_text, flag_first, refused):
            assert SECRET not in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("--agent", "me", "--token-file", "FILE"), {}),
        ((), {"KOKUBAN_AGENT": "me", "KOKUBAN_TOKEN": SECRET}),
        (("--address", REMOTE), {"KOKUBAN_TOKEN": SECRET}),
        (("--cert-file", "x"), {}),
        ((), {"KOKUBAN_TOKEN": f"Bearer {SECRET}"}),
        (("--token", SECRET), {}),
    ],
)
def test_what_does_not_go_together_is_a_wrong_usage(
    arguments: tuple[str, ...], environment: dict[str, str], token_file: Path
) -> None:
    told = [str(token_file) if word == "FILE" else word for word in arguments]
    answer = run("status", *told, **environment)
    assert answer.returncode == 2
    assert SECRET not in answer.stdout + answer.stderr


def test_help_names_the_variables_and_has_no_flag_for_a_secret() -> None:
    text = run("--help").stdout
    for name in ("TOKEN", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE", "SERVER_NAME"):
        assert f"KOKUBAN_{name}" in text
    assert "--token-file" in text
    assert "--token " not in text


def test_a_command_under_a_lock_calls_as_its_lock_does(files: Files, token_file: Path) -> None:
    around = {"KOKUBAN_AGENT": "me", "KOKUBAN_ROLES": "member", "OTHER": "stays"}
    identity = Identity.of(REMOTE, None, None, around, token_file=token_file, ca_file=files.ca)
    assert not identity.is_callers(around)
    assert identity.variables == {
        "KOKUBAN_ADDRESS": REMOTE,
        "KOKUBAN_TOKEN_FILE": str(token_file),
        "KOKUBAN_CA_FILE": files.ca,
    }
    below = Identity.of(None, None, None, identity.variables)
    assert below == identity or (below.metadata, below.tls) == (identity.metadata, identity.tls)
    assert identity.is_callers(identity.variables)
    developer = Identity.of(None, "me", ["member", "operator"], {"KOKUBAN_TOKEN": SECRET})
    assert developer.variables["KOKUBAN_ROLES"] == "member,operator"
    assert "KOKUBAN_TOKEN" not in developer.variables
    assert developer.is_callers({"KOKUBAN_AGENT": "me"})


# The server for tests


@pytest.fixture
def told_server() -> Iterator[ServerProcess]:
    with ServerProcess(environment={"KOKUBAN_LOG_FORMAT": "json"}, arguments=["--log-level", "debug"]) as server:
        yield server


def test_a_server_for_tests_takes_flags_and_variables(told_server: ServerProcess) -> None:
    assert all(line.startswith("{") for line in told_server.log.splitlines())
    assert told_server.log


# Against a real server


def made(*arguments: str | Path) -> str:
    done = subprocess.run([*KOKUBAN, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


async def test_a_real_server_knows_a_caller_by_its_token_and_ends_a_revoked_one(tmp_path: Path) -> None:
    principals, token_file = tmp_path / "principals.json", tmp_path / "token"
    create = ("token", "create", "--principals", principals, "--tenant", "acme", "--agent", "teller")
    token_file.write_text(made(*create, "--name", "first"))
    server = ServerProcess(
        arguments=["--identity", "credentials", "--principals", str(principals)], caller={"token_file": token_file}
    )
    async with server, kokuban_client.connect(server.address, token_file=token_file) as client:
        assert (await client.status()).store_kind == "memory"
        async with kokuban_client.connect(server.address, token=NEXT) as stranger:
            with pytest.raises(errors.CredentialInvalid):
                await stranger.status()
        async with kokuban_client.connect(server.address, agent="teller") as pretender:
            with pytest.raises(errors.CredentialRequired):
                await pretender.status()
        second = made(*create, "--name", "second")
        made("token", "revoke", "--principals", principals, "first")

        async def is_refused() -> bool:
            try:
                await client.status()
            except errors.CredentialInvalid:
                return True
            return False

        await until(is_refused, BOUND_S)
        replace(token_file, second)
        assert (await client.status()).store_kind == "memory"
    assert second not in server.log


async def test_agents_with_certificates_lock_and_write_without_saying_who_they_are(tmp_path: Path) -> None:
    folder, principals = tmp_path / "certificates", tmp_path / "principals.json"
    made("certs", "dev", folder, "--agent", "one", "--agent", "two", "--tenant", "acme")
    create = ("token", "create", "--principals", principals, "--tenant", "acme")
    for agent, role in (("one", "operator"), ("two", "member")):
        uri = f"spiffe://acme/agent/{agent}"
        made(*create, "--agent", agent, "--role", "member", "--role", role, "--san-uri", uri)
    ca = str(folder / "ca.pem")

    def shown(agent: str) -> dict[str, str]:
        return {"ca_file": ca, "cert_file": f"{folder}/{agent}.pem", "key_file": f"{folder}/{agent}.key"}

    server = ServerProcess(
        arguments=["--identity", "credentials", "--principals", str(principals)],
        environment={
            "KOKUBAN_TLS__CERT_FILE": f"{folder}/server.pem",
            "KOKUBAN_TLS__KEY_FILE": f"{folder}/server.key",
            "KOKUBAN_TLS__CLIENT_CA_FILE": ca,
        },
        caller=shown("one"),
    )
    async with server:
        with sync.connect(server.address, **shown("one")) as operator:  # type: ignore[arg-type] # keywords of several types
            operator._calls.call(  # white-box: boards are not made by this library yet
                lambda link: link.admin.CreateBoard,
                admin_service_pb2.CreateBoardRequest(board="main"),
            )
        async with (
            kokuban_client.connect(server.address, **shown("one")) as one,  # type: ignore[arg-type] # as above
            kokuban_client.connect(server.address, **shown("two")) as two,  # type: ignore[arg-type] # as above
        ):
            assert one.agent == two.agent == ""
            async with one.board("main").lock("shared:plan", "a", purpose="a test") as lock:
                await lock.board.put("shared:plan", "a", 1, must_not_exist=True)
                with pytest.raises(errors.LockedByOther) as refused:
                    async with two.board("main").lock("shared:plan", "a", purpose="another"):
                        pass
                assert refused.value.holder_agent == "one"
            await two.board("main").increment("shared:plan", "a", 1)
            assert (await one.board("main").get("shared:plan", "a")).author == "two"
        flags = ("--ca-file", ca, "--cert-file", f"{folder}/two.pem", "--key-file", f"{folder}/two.key")
        put = (*KOKUBAN, "put", "shared:plan", "b", "x", "--new")
        inner = (*KOKUBAN, "lock", "run", "shared:plan", "c", "--", *put)
        under = ("--address", server.address, *flags, "lock", "run", "shared:plan", "b", "--", *inner)
        # The command below both locks calls as their holder, by variables alone, and carries both fences.
        answer = await asyncio.to_thread(run, *under, KOKUBAN_AGENT="somebody")
        assert answer.returncode == 0, answer.stderr
        async with kokuban_client.connect(server.address, **shown("one")) as one:  # type: ignore[arg-type] # as above
            assert (await one.board("main").get("shared:plan", "b")).author == "two"
