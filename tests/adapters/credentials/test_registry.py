"""The registry file: what cannot be used is refused by name, a change is taken up, a broken one changes nothing."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kokuban_server.adapters.credentials import (
    CredentialBook,
    Entry,
    Registry,
    RegistryFile,
    RegistryRefused,
    edit,
    new_token,
    parse_entry,
    read_entries,
    registry,
    token_sha256,
)
from kokuban_server.core.access import EVERYBODY, NOBODY, Grants, Principal, Role
from kokuban_server.core.refusals import Unauthenticated
from kokuban_server.core.trust import Trust
from kokuban_server.ports.credentials import Certificate, Credentials
from tests.adapters.credentials.turned_clock import NOW_MS, TurnedClock

TOKEN = new_token()
OTHER_TOKEN = new_token()
URI = "spiffe://acme/agent/planner"
LATER_MS = NOW_MS + 3_600_000


def fields(**changed: object) -> dict[str, Any]:
    """A principal's fields; `None` leaves one out."""
    whole: dict[str, object] = {
        "name": "planner",
        "tenant": "acme",
        "agent": "planner-1",
        "roles": ["member"],
        "boards": ["main"],
        "token_sha256": token_sha256(TOKEN),
        **changed,
    }
    return {name: value for name, value in whole.items() if value is not None}


def write(path: Path, *principals: object) -> None:
    path.write_text(json.dumps({"principals": principals}))


def break_off(path: Path) -> None:
    path.write_text('{"principals": [')


def put_in_place(path: Path, principal: object) -> None:
    """Put another file there, as large as the one before and with the same time."""
    before = path.stat()
    new = path.with_name("new")
    write(new, principal)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert new.stat().st_size == before.st_size
    new.replace(path)


class Book:
    """A registry file in use, with what it reported and how often it said that something changed."""

    def __init__(self, path: Path) -> None:
        self.reported: list[str] = []
        self.changes = 0
        self.clock = TurnedClock()
        self.credentials = CredentialBook(RegistryFile(path, self.clock, self.reported.append))
        self.credentials.subscribe(self._changed)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "principals.json"


def refused(credentials: Credentials, token: str) -> str:
    with pytest.raises(Unauthenticated) as told:
        credentials.by_token(token)
    assert token not in str(told.value) + repr(told.value) or not token
    return told.value.reason


def test_a_token_gives_its_principal_and_the_same_object_each_time(path: Path) -> None:
    write(
        path,
        fields(
            roles=["member", "operator"], boards="*", users=["u-1"], conversations="*", expires="2040-01-01T00:00:00Z"
        ),
        fields(name="other", agent="other-1", token_sha256=token_sha256(OTHER_TOKEN)),
    )
    book = Book(path).credentials
    principal = book.by_token(TOKEN)
    assert (principal.tenant, principal.agent) == ("acme", "planner-1")
    assert principal.roles == {Role.MEMBER, Role.OPERATOR}
    assert (principal.boards, principal.users) == (EVERYBODY, Grants(frozenset({"u-1"})))
    assert (principal.conversations, principal.tasks) == (EVERYBODY, NOBODY)
    assert (principal.is_development, principal.expires_ms) == (False, 2_208_988_800_000)
    assert TOKEN not in principal.credential
    assert token_sha256(TOKEN) not in principal.credential
    assert book.by_token(TOKEN) is principal
    other = book.by_token(OTHER_TOKEN)
    assert (other.agent, other.boards, other.expires_ms) == ("other-1", Grants(frozenset({"main"})), 0)
    assert (other.trust_ceiling, other.browses) == (Trust.SYSTEM, False)


def test_a_credential_limits_how_far_its_agent_is_trusted(path: Path) -> None:
    write(path, fields(trust_ceiling="external", browses=True))
    principal = Book(path).credentials.by_token(TOKEN)
    assert (principal.trust_ceiling, principal.browses) == (Trust.EXTERNAL, True)


def test_what_is_no_known_token_is_refused_alike(path: Path) -> None:
    write(path, fields())
    book = Book(path).credentials
    texts = set()
    for token in (
        "",
        "kk_",
        TOKEN[:-1],
        TOKEN + "A",
        TOKEN.removeprefix("kk_"),
        TOKEN.upper(),
        f" {TOKEN}",
        OTHER_TOKEN,
        token_sha256(TOKEN),  # who reads the file cannot call
        f"kk_{token_sha256(TOKEN)}",
        "kk_ü",
        "kk_\udc80",
        "kk_" + "a" * 100_000,
        "a.b.c",
    ):
        with pytest.raises(Unauthenticated) as told:
            book.by_token(token)
        texts.add((told.value.reason, told.value.detail))
    assert [reason for reason, _ in texts] == ["CREDENTIAL_INVALID"]


def test_an_expired_credential_is_refused_as_expired(path: Path) -> None:
    write(path, fields(san_uri=URI, expires="2030-03-17T17:46:41.000+00:00"))  # one second after NOW_MS
    book = Book(path)
    certificate = Certificate((URI,), LATER_MS)
    assert book.credentials.by_token(TOKEN).expires_ms == NOW_MS + 1_000
    assert book.credentials.by_certificate(certificate).expires_ms == NOW_MS + 1_000
    book.clock.ms = NOW_MS + 999
    book.credentials.by_token(TOKEN)
    book.clock.ms = NOW_MS + 1_000
    assert refused(book.credentials, TOKEN) == "CREDENTIAL_EXPIRED"
    with pytest.raises(Unauthenticated) as told:
        book.credentials.by_certificate(certificate)
    assert told.value.reason == "CREDENTIAL_EXPIRED"


def test_a_certificate_gives_the_one_principal_that_one_of_its_uris_names(path: Path) -> None:
    write(path, fields(token_sha256=None, san_uri=URI), fields(name="other", token_sha256=None, san_uri=f"{URI}2"))
    book = Book(path)
    credentials = book.credentials
    certificate = Certificate(("https://elsewhere", URI), LATER_MS)
    principal = credentials.by_certificate(certificate)
    assert (principal.agent, principal.expires_ms) == ("planner-1", LATER_MS)
    assert credentials.by_certificate(certificate) is principal
    assert credentials.by_certificate(Certificate((URI, URI), LATER_MS)) is principal
    assert credentials.by_certificate(Certificate((URI,), LATER_MS + 1)).expires_ms == LATER_MS + 1
    for uris in ((), ("",), (f"{URI}/",), (URI.upper(),), (URI[:-1],), (URI, f"{URI}2")):
        with pytest.raises(Unauthenticated) as told:
            credentials.by_certificate(Certificate(uris, LATER_MS))
        assert told.value.reason == "CREDENTIAL_INVALID"
    book.clock.ms = LATER_MS
    with pytest.raises(Unauthenticated) as told:
        credentials.by_certificate(certificate)
    assert told.value.reason == "CREDENTIAL_EXPIRED"


BAD_PRINCIPALS: list[tuple[str, dict[str, Any], str]] = [
    ("no name", fields(name=None), "principals[0]: name: is missing"),
    ("empty name", fields(name=""), "principals[0]: name"),
    ("name with a space", fields(name="a b"), "principals[0]: name"),
    ("no tenant", fields(tenant=None), "'planner': tenant: is missing"),
    ("tenant not a text", fields(tenant=1), "'planner': tenant: is not a text"),
    ("tenant with a slash", fields(tenant="a/b"), "'planner': tenant"),
    ("tenant too long", fields(tenant="a" * 64), "'planner': tenant"),
    ("tenant in capitals", fields(tenant="ACME"), "'planner': tenant"),
    ("no agent", fields(agent=None), "'planner': agent: is missing"),
    ("agent too long", fields(agent="a" * 129), "'planner': agent"),
    ("no roles", fields(roles=None), "'planner': roles: is missing"),
    ("empty roles", fields(roles=[]), "'planner': roles"),
    ("roles a text", fields(roles="member"), "'planner': roles"),
    ("unknown role", fields(roles=["member", "root"]), "'planner': roles: 'root'"),
    ("no boards", fields(boards=None), "'planner': boards: is missing"),
    ("boards a text", fields(boards="main"), "'planner': boards"),
    ("boards null", {**fields(), "boards": None}, "'planner': boards"),
    ("board not a name", fields(boards=["Main"]), "'planner': boards: 'Main'"),
    ("star in a list", fields(boards=["*"]), "'planner': boards"),
    ("users numbers", fields(users=[1]), "'planner': users"),
    ("user with a slash", fields(users=["a/b"]), "'planner': users: 'a/b'"),
    ("star among users", fields(users=["*", "a"]), "'planner': users"),
    ("user not in form C", fields(users=["e\u0301"]), "'planner': users"),
    ("conversations true", fields(conversations=True), "'planner': conversations"),
    ("tasks an object", fields(tasks={}), "'planner': tasks"),
    ("too many tasks", fields(tasks=[str(n) for n in range(1_025)]), "'planner': tasks"),
    ("ceiling unknown", fields(trust_ceiling="USER"), "'planner': trust_ceiling: 'USER'"),
    ("ceiling suspect", fields(trust_ceiling="suspect"), "'planner': trust_ceiling: 'suspect'"),
    ("browses a text", fields(browses="yes"), "'planner': browses"),
    ("no credential", fields(token_sha256=None), "'planner': token_sha256"),
    ("hash too short", fields(token_sha256=token_sha256(TOKEN)[1:]), "'planner': token_sha256"),
    ("hash in capitals", fields(token_sha256="A" * 64), "'planner': token_sha256"),
    ("token for its hash", fields(token_sha256=TOKEN), "'planner': token_sha256"),
    ("uri no uri", fields(san_uri="planner"), "'planner': san_uri"),
    ("uri with a space", fields(san_uri="spiffe://a b"), "'planner': san_uri"),
    ("expires a number", fields(expires=1_900_000_000), "'planner': expires"),
    ("expires without zone", fields(expires="2030-01-31T12:00:00"), "'planner': expires"),
    ("expires a day", fields(expires="2030-01-31"), "'planner': expires"),
    ("expires no date", fields(expires="2030-02-31T12:00:00Z"), "'planner': expires"),
    ("expires before 1970", fields(expires="1960-01-01T00:00:00Z"), "'planner': expires"),
    ("field of no text", {**fields(), "\ud800\n": 1}, "'planner': \\ud800\\n: is not a field"),
    ("unknown field", fields(token=TOKEN), "'planner': token: is not a field"),
]


@pytest.mark.parametrize(
    ("principal", "told"), [bad[1:] for bad in BAD_PRINCIPALS], ids=[bad[0] for bad in BAD_PRINCIPALS]
)
def test_a_bad_principal_is_refused_by_name(path: Path, principal: dict[str, Any], told: str) -> None:
    write(path, principal)
    with pytest.raises(RegistryRefused) as error:
        Book(path)
    assert str(path) in str(error.value)
    assert told in str(error.value)
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "principals"),
        (b"{}", "principals"),
        (b'{"principals": {}}', "principals"),
        (b'{"principals": [], "more": 1}', "more: is not a field"),
        (b'{"principals": [1]}', "principals[0]: is not an object"),
        (b'{"principals": [], "principals": []}', "principals: stands twice"),
        (b'{"principals": [{"name": "a", "name": "b"}]}', "name: stands twice"),
        (b'{"principals": "\xff"}', "is not UTF-8"),
    ],
)
def test_a_file_that_is_no_registry_is_refused_by_name(path: Path, content: bytes, told: str) -> None:
    path.write_bytes(content)
    with pytest.raises(RegistryRefused) as error:
        Book(path)
    assert str(path) in str(error.value)
    assert told in str(error.value)


def test_a_file_that_is_not_there_is_refused_by_name(path: Path) -> None:
    with pytest.raises(RegistryRefused, match="cannot be read") as error:
        Book(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("twin", "told"),
    [
        (fields(token_sha256=token_sha256(OTHER_TOKEN)), "'planner': name"),
        (fields(name="twin"), "'twin': token_sha256"),
        (fields(name="twin", token_sha256=None, san_uri=URI), "'twin': san_uri"),
    ],
)
def test_two_principals_never_share_a_name_or_a_credential(path: Path, twin: dict[str, Any], told: str) -> None:
    write(path, fields(san_uri=URI), twin)
    with pytest.raises(RegistryRefused) as error:
        Book(path)
    assert f"{told}: stands there twice" in str(error.value)


async def test_a_changed_file_is_taken_up_and_what_it_left_alone_keeps_its_principals(path: Path) -> None:
    kept = fields(name="kept", token_sha256=token_sha256(OTHER_TOKEN))
    write(path, fields(), kept)
    book = Book(path)
    planner, other = book.credentials.by_token(TOKEN), book.credentials.by_token(OTHER_TOKEN)
    await book.credentials.refresh()
    assert book.changes == 0  # nothing has
    write(path, kept)
    await book.credentials.refresh()
    assert book.changes == 1
    assert not book.credentials.stands(planner)
    assert refused(book.credentials, TOKEN) == "CREDENTIAL_INVALID"
    assert book.credentials.stands(other)
    assert book.credentials.by_token(OTHER_TOKEN) is other
    write(path, fields(), kept)
    await book.credentials.refresh()
    assert book.credentials.by_token(TOKEN) is not planner
    assert not book.credentials.stands(planner)
    assert (book.changes, book.reported) == (2, [])


@pytest.mark.parametrize(
    "changed",
    [
        {"roles": ["auditor"]},
        {"boards": ["other"]},
        {"users": ["u"]},
        {"agent": "planner-2"},
        {"tenant": "other"},
        {"trust_ceiling": "external"},
        {"browses": True},
        {"expires": "2030-03-17T18:00:00Z"},
        {"token_sha256": token_sha256(OTHER_TOKEN), "san_uri": f"{URI}2"},
    ],
)
async def test_a_principal_whose_entry_changed_stands_no_more(path: Path, changed: dict[str, Any]) -> None:
    write(path, fields(san_uri=URI))
    book = Book(path)
    given = [book.credentials.by_token(TOKEN), book.credentials.by_certificate(Certificate((URI,), LATER_MS))]
    assert [book.credentials.stands(one) for one in given] == [True, True]
    write(path, fields(**{"san_uri": URI, **changed}))
    await book.credentials.refresh()
    assert [book.credentials.stands(one) for one in given] == [False, False]
    assert book.changes == 1


async def test_a_principal_of_before_a_restart_is_given_as_its_entry_says_now(path: Path) -> None:
    write(path, fields(san_uri=URI, tasks=["t"]))
    before = Book(path).credentials
    token, certificate = before.by_token(TOKEN), before.by_certificate(Certificate((URI,), LATER_MS))
    write(path, fields(san_uri=URI, tasks=[], expires="2030-03-17T18:00:00Z"))
    after = Book(path).credentials
    for principal in (token, certificate):
        present = after.present(principal)
        assert present is not None
        assert (present.credential, present.tasks) == (principal.credential, Grants())
        assert present.expires_ms == min(after.by_token(TOKEN).expires_ms, principal.expires_ms or LATER_MS)
        assert after.stands(present)
        assert not after.stands(principal)


@pytest.mark.parametrize(
    "changed", [{"token_sha256": token_sha256(OTHER_TOKEN)}, {"san_uri": f"{URI}2"}, {"name": "b"}]
)
async def test_a_principal_whose_credential_was_replaced_is_nobody_now(path: Path, changed: dict[str, Any]) -> None:
    write(path, fields(san_uri=URI))
    credentials = Book(path).credentials
    given = {
        "token_sha256": credentials.by_token(TOKEN),
        "san_uri": credentials.by_certificate(Certificate((URI,), LATER_MS)),
    }
    write(path, fields(**{"san_uri": URI, **changed}))
    await credentials.refresh()
    gone = {name for name, principal in given.items() if credentials.present(principal) is None}
    assert gone == (given.keys() if "name" in changed else changed.keys())
    assert credentials.present(Principal("acme", "planner-1", frozenset(), is_development=True)) is None


def test_a_name_may_hold_what_divides_the_names_of_credentials(path: Path) -> None:
    write(path, fields(name="plan#1:a", san_uri=f"{URI}#part"))
    credentials = Book(path).credentials
    for principal in (
        credentials.by_token(TOKEN),
        credentials.by_certificate(Certificate((f"{URI}#part",), LATER_MS)),
    ):
        assert credentials.stands(principal)


async def test_many_certificates_of_one_agent_all_stand_until_it_is_revoked(path: Path) -> None:
    write(path, fields(token_sha256=None, san_uri=URI))
    book = Book(path)
    given = [book.credentials.by_certificate(Certificate((URI,), LATER_MS + number)) for number in range(100)]
    assert all(map(book.credentials.stands, given))
    write(path)
    await book.credentials.refresh()
    assert not any(map(book.credentials.stands, given))


async def test_a_broken_new_file_keeps_the_old_entries_and_is_reported_once(path: Path) -> None:
    write(path, fields())
    book = Book(path)
    planner = book.credentials.by_token(TOKEN)
    for break_it in (break_off, Path.unlink, lambda path: write(path, fields(roles=["root"]))):
        book.reported.clear()
        break_it(path)
        for _ in range(3):
            await book.credentials.refresh()
        assert len(book.reported) == 1
        assert str(path) in book.reported[0]
        assert book.credentials.by_token(TOKEN) is planner
        assert book.credentials.stands(planner)
    assert book.changes == 0
    write(path)
    await book.credentials.refresh()
    assert refused(book.credentials, TOKEN) == "CREDENTIAL_INVALID"
    book.reported.clear()
    break_off(path)  # the same fault again, after one that was mended, is news
    await book.credentials.refresh()
    assert len(book.reported) == 1


async def test_a_file_of_the_same_size_put_in_its_place_is_seen(path: Path) -> None:
    write(path, fields())
    book = Book(path)
    put_in_place(path, fields(token_sha256=token_sha256(OTHER_TOKEN)))
    await book.credentials.refresh()
    assert book.credentials.by_token(OTHER_TOKEN).agent == "planner-1"
    assert refused(book.credentials, TOKEN) == "CREDENTIAL_INVALID"


def entry(name: str, token: str) -> Entry:
    return parse_entry(fields(name=name, token_sha256=token_sha256(token)))


def with_one_more(one: Entry, entries: tuple[Entry, ...]) -> list[Entry]:
    return [*entries, one]


def test_an_edit_is_read_back_as_it_was_written(path: Path) -> None:
    rich = parse_entry(
        fields(boards="*", users=["u", "ü"], tasks="*", san_uri=URI, expires="2030-01-31T12:00:00.125+01:00")
    )
    edit(path, lambda _: [rich], may_make=True)
    assert read_entries(path) == (rich,)
    assert rich.expires_ms == 1_896_087_600_125
    assert TOKEN not in path.read_text()


def test_an_edit_that_a_server_would_refuse_changes_nothing(path: Path) -> None:
    edit(path, lambda _: [entry("one", TOKEN)], may_make=True)
    before = path.read_bytes()
    for twin in (entry("one", OTHER_TOKEN), entry("two", TOKEN)):
        with pytest.raises(RegistryRefused, match="stands there twice"):
            edit(path, partial(with_one_more, twin))
    assert path.read_bytes() == before
    path.write_text("broken")
    with pytest.raises(RegistryRefused, match="is not JSON"):
        edit(path, lambda _: [], may_make=True)
    assert path.read_text() == "broken"
    assert list(path.parent.iterdir()) == [path]  # nothing is left lying about


def test_only_the_hash_of_a_token_is_kept_and_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Registry([entry("one", TOKEN)], TurnedClock())
    assert TOKEN not in repr(vars(held))
    asked: list[str] = []

    def other_hash(token: str) -> str:
        asked.append(token)
        return token_sha256(OTHER_TOKEN)

    monkeypatch.setattr(registry, "token_sha256", other_hash)
    assert refused(held, TOKEN) == "CREDENTIAL_INVALID"  # what it is compared by is the hash and nothing else
    assert asked == [TOKEN]


def test_tokens_are_32_random_bytes() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {46}


def test_a_file_that_cannot_be_read_is_not_said_to_be_unwritable(tmp_path: Path) -> None:
    with pytest.raises(RegistryRefused, match="cannot be changed: Is a directory"):
        edit(tmp_path, lambda _: [], may_make=True)
