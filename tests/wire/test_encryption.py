"""What a policy has encrypted stands in entries as seals, which one call opens for those who may see it, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import admin_service_pb2, audit_pb2, entry_pb2, policy_pb2, trust_pb2, trust_service_pb2
from kokuban_server.adapters.encryption import key_line
from kokuban_server.bootstrap.encryption import open_encryption
from kokuban_server.bootstrap.stores import StartError
from kokuban_server.core import limits
from tests.core.obfuscations import ORDERS_EN, hidden
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    REGION,
    Agent,
    acquire_request,
    add,
    append,
    at,
    commit_request,
    delete,
    key,
    merge,
    new_id,
    of_source,
    put,
    put_json,
    refused,
    rule,
    tree,
    until,
)
from tests.wire.task_calls import Tasks, new_step
from tests.wire.test_credentials import Book, Caller, bearer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wire.conftest import Running, Started

TOKEN = "ghp_" + "wJ4kQ9zXc2VbN7mL5pRt8sYd1fGh3KjA6uEo"
MAIL = "li.wei@mail.internal"
CARD = 4111111111111111
PASSWORD = "Zx9!kLmQ7w"  # noqa: S105 - made up
ENCRYPT, MASK = trust_pb2.REDACTION_HANDLING_ENCRYPT, trust_pb2.REDACTION_HANDLING_MASK
KEEP, REFUSE = trust_pb2.REDACTION_HANDLING_KEEP, trust_pb2.REDACTION_HANDLING_REFUSE
SEAL = re.compile(r"\[sealed:([a-z0-9\-]+):([0-9a-f]{6}):([a-z0-9_\-]+):[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]{11}\]")
OPENERS = ["agent:opener"]
BOTH: dict[str, Any] = {"secrets": ENCRYPT, "personal_data": ENCRYPT}


def keys_file(folder: Path, *ids: str) -> Path:
    """Write a file with a key for each id, the same for the same id."""
    file = folder / "keys"
    for name in ids:
        kept = folder / f"key-{name}"
        if not kept.exists():
            kept.write_text(key_line(name), encoding="utf-8")
    file.write_text("\n".join((folder / f"key-{name}").read_text(encoding="utf-8") for name in ids), encoding="utf-8")
    return file


@pytest.fixture
async def sealing(start: Started, tmp_path: Path) -> Running:
    """A server with a key, and a board that encrypts, of whose shared regions an agent is shown all."""
    running = await start(encryption_keys_file=keys_file(tmp_path, "k1"), boards=["main", "other"])
    await operator(running).set_policy(rule("shared:*", revealers=OPENERS), **BOTH)
    return running


def operator(running: Running) -> Agent:
    return running.as_agent("op", "member,operator")


def opener(running: Running) -> Agent:
    return running.as_agent("opener")


async def lay_down(running: Running, *rules: policy_pb2.RegionRule, **more: Any) -> None:  # noqa: ANN401 - fields of a policy
    """Lay down a policy in place of the one that there is."""
    chief = operator(running)
    found = await chief.admin.GetPolicy(admin_service_pb2.GetPolicyRequest(board="main"), metadata=chief.metadata)
    await chief.set_policy(*rules, replaces=found.record.number, **more)


# Encrypting.


async def test_what_is_found_is_sealed_where_it_stands_and_told(sealing: Running) -> None:
    text = f"write to {MAIL} with {TOKEN}."
    answer = await sealing.agent.commit(put("e", text))
    stored = (await sealing.agent.get("e")).value.text
    assert SEAL.sub("…", stored) == "write to … with …."
    assert [one[0] for one in SEAL.findall(stored)] == ["email", "github-token"]
    told = {one.type: (one.handling, one.field, one.count) for one in answer.redactions}
    field = "mutations[0].put.value.text"
    assert told == {"email": (ENCRYPT, field, 1), "github-token": (ENCRYPT, field, 1)}
    revealed = await opener(sealing).reveal("e")
    assert revealed.entry.value.text == text
    [about] = revealed.texts
    assert (about.field, about.opened, about.unknown_keys, about.unopened) == ("value", 2, 0, 0)
    assert revealed.entry.revision == (await sealing.agent.get("e")).revision


async def test_json_metadata_bytes_and_what_is_added_open_as_they_were(sealing: Running) -> None:
    agent, reader = sealing.agent, opener(sealing)
    given = {"mail": MAIL, "card": CARD, "note": f'say "{PASSWORD}"\n password: {PASSWORD}', "n": 1.50}
    await agent.commit(put("e", entry_pb2.Value(json=json.dumps(given)), metadata={"password": PASSWORD, "by": MAIL}))
    entry = await agent.get("e")
    stored = json.loads(entry.value.json)
    assert SEAL.fullmatch(stored["mail"])
    assert SEAL.fullmatch(stored["card"])
    assert SEAL.fullmatch(entry.metadata["password"])
    opened = await reader.reveal("e")
    assert opened.entry.value.json == json.dumps(given)
    assert dict(opened.entry.metadata) == {"password": PASSWORD, "by": MAIL}
    assert {text.field: text.opened for text in opened.texts}.keys() == {"value", "metadata[password]", "metadata[by]"}

    raw = entry_pb2.Value(binary=entry_pb2.BinaryValue(data=f"mail {MAIL}".encode(), media_type="text/plain"))
    await agent.commit(put("b", raw))
    assert MAIL.encode() not in (await agent.get("b")).value.binary.data
    assert (await reader.reveal("b")).entry.value == raw

    await agent.commit(append("list", {"mail": MAIL}))
    await agent.commit(append("list", "nothing"))
    assert json.loads((await reader.reveal("list")).entry.value.json) == [{"mail": MAIL}, "nothing"]
    state = await agent.commit(put_json("m", {"kept": 1}))
    await agent.commit(merge("m", json.dumps({"mail": MAIL}), at(state)))
    assert json.loads((await reader.reveal("m")).entry.value.json) == {"kept": 1, "mail": MAIL}


async def test_what_was_encoded_is_encrypted_in_its_code(sealing: Running) -> None:
    coded = base64.b64encode(f"token {TOKEN}".encode()).decode()
    escaped = f'{{"key": "\\u0067{TOKEN[1:]}"}}'
    await sealing.agent.commit(put("e", f"see {coded}"), put("j", entry_pb2.Value(json=escaped)))
    assert coded not in (await sealing.agent.get("e")).value.text
    assert (await opener(sealing).reveal("e")).entry.value.text == f"see {coded}"
    assert TOKEN[1:] not in (await sealing.agent.get("j")).value.json
    assert (await opener(sealing).reveal("j")).entry.value.json == escaped


async def test_equal_values_are_told_to_be_equal_and_are_encrypted_to_something_else(sealing: Running) -> None:
    await sealing.agent.commit(put("a", TOKEN), put("b", TOKEN), put("c", TOKEN[:-1] + "x"))
    first, second, other = [(await sealing.agent.get(path)).value.text for path in "abc"]
    digests = [SEAL.fullmatch(text)[2] for text in (first, second, other)]  # type: ignore[index] # they are seals
    assert first != second
    assert digests[0] == digests[1] != digests[2]


async def test_a_set_takes_what_is_told_to_be_equal_once(sealing: Running) -> None:
    for _ in range(2):
        await sealing.agent.commit(add("s", json.dumps(MAIL), json.dumps(CARD)))
    assert len(json.loads((await sealing.agent.get("s")).value.json)) == 2
    assert json.loads((await opener(sealing).reveal("s")).entry.value.json) == [MAIL, CARD]


async def test_what_is_written_back_stays_sealed_and_opens_still(sealing: Running) -> None:
    """An agent that may not see it changes what stands around it."""
    agent = sealing.agent
    await agent.commit(
        put("e", f"password: {TOKEN}", metadata={"password": PASSWORD}), put_json("j", {"password": PASSWORD})
    )
    entry, other = await agent.get("e"), await agent.get("j")
    again = await agent.commit(
        put("e", entry.value.text + " changed", at(entry), metadata=dict(entry.metadata)),
        put("j", entry_pb2.Value(json=other.value.json.replace("{", '{"n": 1, ')), at(other)),
    )
    assert not again.redactions
    assert (await agent.get("e")).value.text == entry.value.text + " changed"
    opened = await opener(sealing).reveal("e")
    assert opened.entry.value.text == f"password: {TOKEN} changed"
    assert dict(opened.entry.metadata) == {"password": PASSWORD}
    assert json.loads((await opener(sealing).reveal("j")).entry.value.json) == {"n": 1, "password": PASSWORD}


async def test_what_only_looks_like_a_seal_is_searched(sealing: Running) -> None:
    """Or a secret could be written as one."""
    agent = sealing.agent
    coded = base64.urlsafe_b64encode(f"the token {TOKEN}".encode()).decode().rstrip("=")
    await agent.commit(put("e", f"[sealed:email:0a1b2c:k1:{coded}.AAAAAAAAAAA]"))
    assert coded not in (await agent.get("e")).value.text


async def test_retries_are_the_same_request(sealing: Running) -> None:
    request = commit_request(put("e", MAIL), request_id=new_id())
    first = await sealing.agent.send(request)
    stored = (await sealing.agent.get("e")).value.text
    again = await sealing.agent.send(request)
    assert again.replayed
    assert again.revision == first.revision
    assert (await sealing.agent.get("e")).value.text == stored


async def test_what_belongs_to_no_entry_is_masked_and_names_are_refused(sealing: Running) -> None:
    agent = sealing.agent
    source = of_source("AGENT", f"https://example.com/?token={TOKEN}")
    answer = await agent.commit(put("e", "x", provenance=source), reason=f"for {MAIL}")
    assert {one.handling for one in answer.redactions} == {MASK}
    [change] = await agent.history("e")
    assert re.fullmatch(r"for \[redacted:email:[0-9a-f]{6}\]", change.acts[0].reason)
    granted = await agent.grant(acquire_request(await agent.session(), tree("t"), purpose=f"for {MAIL}"))
    assert "[redacted:email:" in granted.lock.purpose
    state = await agent.commit(put_json("m", {}))
    for mutation, field in (
        (merge("m", json.dumps({MAIL: 1}), at(state)), "mutations[0].merge_patch.patch"),
        (put(f"of/{MAIL}"), "mutations[0].put.key.path"),
        (put("f", metadata={MAIL: "x"}), "mutations[0].put.metadata"),
        (put_json("f", {MAIL: 1}), "mutations[0].put.value.json"),
        (put_json("f", {"a": [{"b": MAIL}, {MAIL: "x"}]}), "mutations[0].put.value.json"),
    ):
        with refused("CONTENT_SENSITIVE", field=field, type="email"):
            await agent.commit(mutation)


async def test_regions_and_kinds_are_handled_apart_and_what_is_masked_for_good_stays_so(sealing: Running) -> None:
    rules = (
        rule("shared:*", revealers=OPENERS),
        rule("shared:strict", secrets=MASK),
        rule("task:*", personal_data=KEEP),
    )
    await lay_down(sealing, *rules, **BOTH)
    await sealing.agent.commit(
        put("e", f"{TOKEN} {MAIL}", region="shared:strict"), put("e", f"{TOKEN} {MAIL}", region="task:t"), reason=MAIL
    )
    strict = (await sealing.agent.get("e", region="shared:strict")).value.text
    assert re.fullmatch(rf"\[redacted:github-token:[0-9a-f]{{6}}\] {SEAL.pattern}", strict)
    task = (await sealing.agent.get("e", region="task:t")).value.text
    assert re.fullmatch(rf"{SEAL.pattern} {re.escape(MAIL)}", task)
    [change] = await sealing.agent.history("e", region="task:t")
    assert "[redacted:email:" in change.acts[0].reason


# Bounds.


async def test_so_many_of_one_text_are_encrypted_and_no_more(sealing: Running) -> None:
    most = limits.ENCRYPTED_TEXTS_ENTRIES_MAX
    mails = [f"user-{number}@mail.internal" for number in range(most + 1)]
    await sealing.agent.commit(put("e", " ".join(mails[:most])))
    opened = await opener(sealing).reveal("e")
    assert (opened.entry.value.text, opened.texts[0].opened) == (" ".join(mails[:most]), most)
    with refused("TOO_MANY_ITEMS", field="mutations[0].put.value.text", limit=str(most), actual=str(most + 1)):
        await sealing.agent.commit(put("f", " ".join(mails)))


async def test_an_entry_may_be_as_large_encrypted_as_any(sealing: Running) -> None:
    """What was sent was smaller."""
    await sealing.agent.commit(put("short", MAIL))
    grown = len((await sealing.agent.get("short")).value.text) - len(MAIL)
    filler = "words " * (limits.VALUE_BYTES_MAX // 6)
    room = limits.VALUE_BYTES_MAX - len(MAIL) - 1 - grown
    await sealing.agent.commit(put("at", f"{MAIL} {filler[:room]}"))
    assert len((await sealing.agent.get("at")).value.text) == limits.VALUE_BYTES_MAX
    assert (await opener(sealing).reveal("at")).entry.value.text == f"{MAIL} {filler[:room]}"
    with refused("VALUE_TOO_LARGE", field="mutations[0].put.value.text"):
        await sealing.agent.commit(put("over", f"{MAIL} {filler[: room + 1]}"))


# Opening.


async def test_who_is_not_named_is_shown_seals_alone(sealing: Running) -> None:
    await sealing.agent.commit(put("e", f"write to {MAIL}"))
    with refused("REVEAL_FORBIDDEN"):
        await sealing.agent.reveal("e")
    with refused("REVEAL_FORBIDDEN"):  # as what is there
        await sealing.agent.reveal("missing")
    with refused("REVEAL_FORBIDDEN"):
        await opener(sealing).reveal("e", region="task:t")
    with refused("NOT_FOUND"):
        await opener(sealing).reveal("missing")
    reader = opener(sealing)
    assert MAIL not in (await reader.get("e")).value.text
    page, history = await reader.page(), await reader.history("e")
    assert MAIL.encode() not in page.SerializeToString() + history[0].SerializeToString()
    allowed = await reader.explain(REGION, policy_pb2.VERB_REVEAL)
    assert (allowed.decision, allowed.rule) == (policy_pb2.ACCESS_DECISION_ALLOWED, "shared:*")
    denied = await sealing.agent.explain(REGION, policy_pb2.VERB_REVEAL)
    assert denied.decision == policy_pb2.ACCESS_DECISION_FORBIDDEN


async def test_what_may_not_be_read_is_not_opened_and_told_like_what_is_not_there(sealing: Running) -> None:
    await lay_down(sealing, rule("shared:hid", readers=["agent:writer-1"], revealers=OPENERS), **BOTH)
    await sealing.agent.commit(put("e", MAIL, region="shared:hid"))
    with refused("NOT_FOUND") as hidden:
        await opener(sealing).reveal("e", region="shared:hid")
    with refused("NOT_FOUND") as missing:
        await opener(sealing).reveal("e", region="agent:nobody")
    assert hidden[0].message == missing[0].message


async def test_a_users_region_is_opened_to_those_who_act_for_the_user_alone(start: Started, tmp_path: Path) -> None:
    book = Book(tmp_path / "principals.json")
    roles = ["member", "operator", "supervisor", "auditor", "system"]
    chief = bearer(book.give("chief", roles=roles, boards="*", users="*"))
    helper, reader, other = (
        bearer(book.give(name, users=users))
        for name, users in (("helper", ["u1"]), ("reader", ["u1"]), ("other", ["u2"]))
    )
    keys = keys_file(tmp_path, "k1")
    running = await start(identity="credentials", principals_file=book.path, encryption_keys_file=keys)
    caller = Caller(running.agent.channel)
    assert (
        await caller.reason("AdminService.CreateBoard", admin_service_pb2.CreateBoardRequest(board="main"), chief) == ""
    )
    policy = admin_service_pb2.SetPolicyRequest(board="main", policy=policy_pb2.Policy(**BOTH))
    policy.policy.rules.append(rule("user:*", revealers=["acting"]))
    assert await caller.reason("AdminService.SetPolicy", policy, chief) == ""
    assert await caller.reason("BoardService.Commit", commit_request(put("e", MAIL, region="user:u1")), helper) == ""
    request = trust_service_pb2.RevealEntryRequest(board="main", key=key("e", "user:u1"))
    assert await caller.reason("TrustService.RevealEntry", request, other) == "NOT_FOUND"
    for mine in (helper, reader):
        raw = await caller.channel.unary_unary("/kokuban.v1.TrustService/RevealEntry")(
            request.SerializeToString(), metadata=[mine]
        )
        assert trust_service_pb2.RevealEntryResponse.FromString(raw).entry.value.text == MAIL
    raw = await caller.channel.unary_unary("/kokuban.v1.AdminService/ListAuditRecords")(
        audit_pb2.ListAuditRecordsRequest().SerializeToString(), metadata=[chief]
    )
    records = audit_pb2.ListAuditRecordsResponse.FromString(raw).records
    targets = [one.target for one in records if one.act == "entry.reveal"]
    assert len(targets) == 2
    assert all(re.fullmatch("user:~[0-9a-f]+ at [0-9]+: 1 opened with k1", target) for target in targets)


async def test_each_kept_state_opens(sealing: Running) -> None:
    agent, reader = sealing.agent, opener(sealing)
    first = await agent.commit(put("e", f"first {MAIL}"))
    second = await agent.commit(put("e", f"second {TOKEN}", at(first)))
    gone = await agent.commit(delete("e", at(second)))
    for state, text in ((first, f"first {MAIL}"), (second, f"second {TOKEN}")):
        assert (await reader.reveal("e", at=state.revision)).entry.value.text == text
    for nothing in (gone.revision, entry_pb2.Revision(number=1, epoch=first.revision.epoch)):
        with refused("NOT_FOUND"):
            await reader.reveal("e", at=nothing)
    with refused("NOT_FOUND"):
        await reader.reveal("e")
    with refused("TOKEN_FROM_ANOTHER_STORE", field="at"):
        await reader.reveal("e", at=entry_pb2.Revision(number=first.revision.number, epoch="0" * 16))
    with refused("REVEAL_FORBIDDEN"):
        await agent.reveal("e", at=first.revision)


async def test_floors_hold_and_external_text_comes_as_such(sealing: Running) -> None:
    page = put("e", f"write to {MAIL}", provenance=of_source())
    state = await sealing.agent.commit(page)
    states: list[dict[str, Any]] = [{}, {"at": state.revision}]
    for asked in states:
        with refused("WITHHELD"):
            await opener(sealing).reveal("e", **asked)
        found = await opener(sealing).reveal("e", floor=trust_pb2.TRUST_LEVEL_EXTERNAL, **asked)
        assert found.entry.value.external.text == f"write to {MAIL}"
        with refused("ROLE_REQUIRED"):
            await opener(sealing).reveal("e", floor=trust_pb2.TRUST_LEVEL_SUSPECT, **asked)


async def test_what_is_opened_of_external_text_is_noted_in_the_readers_scope(sealing: Running) -> None:
    reader = opener(sealing)
    states = [await sealing.agent.commit(put(path, MAIL, provenance=of_source())) for path in ("e", "f")]
    external: dict[str, Any] = {"floor": trust_pb2.TRUST_LEVEL_EXTERNAL}
    asks: list[dict[str, Any]] = [{}, {"at": states[1].revision}]
    for path, asked in zip("ef", asks, strict=True):
        session = await reader.session()
        await reader.reveal(path, session=session, **external, **asked)
        await reader.commit(put(f"of-{path}", "a summary"), session=session)
        entry = await reader.asked(f"of-{path}")
        assert entry.label.tracked
    await lay_down(sealing, rule("shared:*", revealers=OPENERS, taint_mode=policy_pb2.TAINT_MODE_ENFORCE), **BOTH)
    for asked in asks:
        with refused("READ_SCOPE_REQUIRED"):
            await reader.reveal("f", **external, **asked)


async def test_another_agents_memory_is_opened_to_overseers_that_are_named_and_twice_recorded(sealing: Running) -> None:
    overseers = rule("agent:*", readers=["acting", "role:supervisor"], revealers=["role:supervisor"])
    await lay_down(sealing, overseers, **BOTH)
    await sealing.agent.commit(put("e", MAIL, region="agent:writer-1"))
    boss = sealing.as_agent("boss", "member,supervisor")
    assert (await boss.reveal("e", region="agent:writer-1")).entry.value.text == MAIL
    with refused("REVEAL_FORBIDDEN"):  # its writer, who knew it
        await sealing.agent.reveal("e", region="agent:writer-1")
    assert [one.act for one in await audit_records(sealing) if one.agent == "boss"] == ["region.read", "entry.reveal"]


async def test_what_lies_beyond_the_board_is_masked(sealing: Running) -> None:
    """No policy says who could open it."""
    await operator(sealing).commit(put("e", MAIL, region="tenant"))
    assert "[redacted:email:" in (await sealing.agent.get("e", region="tenant")).value.text
    with refused("REVEAL_FORBIDDEN"):
        await opener(sealing).reveal("e", region="tenant")


async def test_what_is_copied_to_another_region_or_board_or_changed_does_not_open(sealing: Running) -> None:
    agent, reader = sealing.agent, opener(sealing)
    await agent.commit(put("e", MAIL), put_json("j", [CARD]))
    seal = (await agent.get("e")).value.text
    await agent.commit(put("copy", seal, region="shared:lobby"), put("near", f"see {seal}"))
    found = await reader.reveal("copy", region="shared:lobby")
    assert found.entry.value.text == seal
    assert (found.texts[0].opened, found.texts[0].unopened) == (0, 1)
    assert (await reader.reveal("near")).entry.value.text == f"see {MAIL}"

    chief = operator(sealing)
    await chief.set_policy(rule("shared:*", revealers=OPENERS), board="other", **BOTH)
    await agent.commit(put("copy", seal), board="other")
    found = await reader.reveal("copy", board="other")
    assert found.entry.value.text == seal
    assert (found.texts[0].opened, found.texts[0].unopened) == (0, 1)

    head, _, tail = seal.rpartition(".")
    changed = head[:-3] + ("AAA" if head[-3:] != "AAA" else "BBB") + "." + tail
    await lay_down(sealing, rule("shared:*", revealers=OPENERS), secrets=KEEP, personal_data=KEEP)
    await agent.commit(put("changed", changed), put("other-type", seal.replace(":email:", ":phone:")))
    for path in ("changed", "other-type"):
        found = await reader.reveal(path)
        assert (found.texts[0].opened, found.texts[0].unopened) == (0, 1)
        assert MAIL not in found.entry.value.text


async def test_a_seal_in_json_leaves_it_json_wherever_it_was_copied(sealing: Running) -> None:
    agent, reader = sealing.agent, opener(sealing)
    secret = 'a"\\b9'  # noqa: S105 - made up
    await agent.commit(
        put("t", "x", metadata={"password": secret}), put_json("n", [CARD]), put_json("s", {"password": secret})
    )
    text = (await agent.get("t")).metadata["password"]
    [number] = json.loads((await agent.get("n")).value.json)
    spelt = json.loads((await agent.get("s")).value.json)["password"]
    await agent.commit(
        put_json("e", [text, number, f'"{number}"', f"{number}!", spelt, {number: number}]),
        put("f", f"{spelt} {number}"),
    )
    opened = json.loads((await reader.reveal("e")).entry.value.json)
    assert opened == [secret, CARD, f'"{CARD}"', f"{CARD}!", secret, {str(CARD): CARD}]
    assert (await reader.reveal("f")).entry.value.text == f"{secret} {CARD}"


async def test_what_is_opened_is_recorded_before_it_is_given(sealing: Running) -> None:
    state = await sealing.agent.commit(put("of/them", f"{MAIL} {TOKEN}"))
    await opener(sealing).reveal("of/them")
    [record] = [one for one in await audit_records(sealing) if one.act == "entry.reveal"]
    assert (record.agent, record.board, record.outcome) == ("opener", "main", "done")
    assert record.target == f"{REGION} at {state.revision.number}: 2 opened with k1"
    with refused("REVEAL_FORBIDDEN"):
        await sealing.agent.reveal("of/them")
    refusals = [one for one in await audit_records(sealing) if one.outcome == "REVEAL_FORBIDDEN"]
    assert [(one.agent, one.target) for one in refusals] == [("writer-1", REGION)]


# Keys.


async def test_keys_are_rotated_and_one_that_is_lost_leaves_its_texts_sealed(start: Started, tmp_path: Path) -> None:
    running = await start(encryption_keys_file=keys_file(tmp_path, "k1"))
    await operator(running).set_policy(rule("shared:*", revealers=OPENERS), **BOTH)
    await running.agent.commit(put("old", MAIL), put("both", MAIL))
    rotated = await start(encryption_keys_file=keys_file(tmp_path, "k2", "k1"))
    both = await rotated.agent.get("both")
    await rotated.agent.commit(put("new", MAIL), put("both", f"{both.value.text} {MAIL}", at(both)))
    assert [one[2] for one in SEAL.findall((await rotated.agent.get("both")).value.text)] == ["k1", "k2"]
    for path, text in (("old", MAIL), ("new", MAIL), ("both", f"{MAIL} {MAIL}")):
        assert (await opener(rotated).reveal(path)).entry.value.text == text
    lost = await start(encryption_keys_file=keys_file(tmp_path, "k2"))
    found = await opener(lost).reveal("both")
    assert (found.texts[0].opened, found.texts[0].unknown_keys, found.texts[0].unopened) == (1, 1, 0)
    assert re.fullmatch(rf"{SEAL.pattern} {re.escape(MAIL)}", found.entry.value.text)
    # Written anew it is under the newest key.
    opened = (await opener(rotated).reveal("old")).entry
    await rotated.agent.commit(put("old", opened.value.text, at(opened)))
    assert (await opener(lost).reveal("old")).entry.value.text == MAIL


async def test_a_changed_file_of_keys_is_taken_up_and_one_that_cannot_be_used_is_not(
    start: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = keys_file(tmp_path, "k1")
    encryption = open_encryption(file)
    assert encryption is not None
    sealer = encryption.sealer
    following = asyncio.create_task(encryption.follow())
    file.write_text("k3 tooshort", encoding="utf-8")
    await until(lambda: "encryption.keys_unusable" in capsys.readouterr().out)
    assert sealer.seal(b"x", b"")[0] == "k1"
    keys_file(tmp_path, "k2", "k1")
    await until(lambda: sealer.seal(b"x", b"")[0] == "k2")
    following.cancel()


async def test_a_server_without_keys_refuses_what_would_need_one_and_stores_nothing_plain(
    sealing: Running, start: Started
) -> None:
    """A replica that nobody gave the file to."""
    await sealing.agent.commit(put("e", f"write to {MAIL}"))
    bare = await start()
    with refused("ENCRYPTION_UNAVAILABLE", field="mutations[0].put.value.text") as found:
        await bare.agent.commit(put("f", f"write to {MAIL}"))
    assert MAIL not in str(found[0])
    with refused("NOT_FOUND"):
        await bare.agent.get("f")
    await bare.agent.commit(put("g", "nothing of it"), reason=f"with {MAIL}")  # which is masked
    entry = await bare.agent.get("e")
    await bare.agent.commit(put("e", entry.value.text + "!", at(entry)))  # what is sealed is known to be, without a key
    shown = await opener(bare).reveal("e")
    assert (shown.texts[0].opened, shown.texts[0].unknown_keys) == (0, 1)
    assert (await opener(sealing).reveal("e")).entry.value.text == f"write to {MAIL}!"
    chief = operator(bare)
    for name, handling in BOTH.items():
        said: dict[str, Any] = {name: handling}
        with refused("ENCRYPTION_UNAVAILABLE", field=f"policy.{name}"):
            await chief.set_policy(replaces=1, **said)
        with refused("ENCRYPTION_UNAVAILABLE", field=f"policy.rules[1].{name}"):
            await chief.set_policy(rule("task:*"), rule("shared:*", **said), replaces=1)
    with refused("FIELD_INVALID", field="policy.unsearched"):
        await operator(sealing).set_policy(replaces=1, unsearched=ENCRYPT)


async def test_a_repeat_of_what_was_committed_needs_no_key(sealing: Running, start: Started) -> None:
    request = commit_request(put("e", MAIL), request_id=new_id())
    first = await sealing.agent.send(request)
    bare = await start()
    assert (await bare.agent.send(request)).revision == first.revision


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "holds 0 keys"),
        ("k1", "line 1"),
        ("# old\nk1 abc", "line 2"),
        ("K1 " + "a" * 43, "line 1"),
    ],
)
def test_a_server_does_not_start_with_a_file_of_keys_that_cannot_be_used(
    tmp_path: Path, content: str, fault: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(StartError, match=fault) as raised:
        open_encryption(file)
    assert "encryption_keys_file" in str(raised.value)
    with pytest.raises(StartError, match="encryption_keys_file"):
        open_encryption(tmp_path / "missing")


def test_keys_that_others_can_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = keys_file(tmp_path, "k1")
    file.chmod(0o640)
    open_encryption(file)
    assert capsys.readouterr().out == ""
    file.chmod(0o644)
    open_encryption(file)
    assert "encryption.keys_readable" in capsys.readouterr().out


# What else there is of an entry.


async def test_quarantine_holds_seals_and_what_is_released_opens(sealing: Running) -> None:
    order = hidden("en", ORDERS_EN[0], "HTML comment")
    page = put("page", f"{order} {MAIL}", provenance=of_source())
    with refused("CONTENT_QUARANTINED") as found:
        await sealing.agent.commit(page)
    reviewer = sealing.as_agent("reviewer", "member,supervisor")
    shown = await reviewer.quarantine(show_texts=True)
    assert MAIL.encode() not in shown[0].SerializeToString()
    await reviewer.review(found[0].facts["quarantine_id"], release=True)
    opened = await opener(sealing).reveal("page", floor=trust_pb2.TRUST_LEVEL_EXTERNAL)
    assert opened.entry.value.external.text == f"{order} {MAIL}"


async def test_what_a_task_is_told_opens_as_the_event_that_it_is(sealing: Running) -> None:
    await lay_down(sealing, rule("task:*", revealers=OPENERS), **BOTH)
    step = new_step("s1")
    step.input.text = f"write to {MAIL}"
    await Tasks(sealing.agent).create("t1", step)
    page = await sealing.agent.page(region="task:t1")
    assert MAIL.encode() not in page.SerializeToString()
    opened = [(await opener(sealing).reveal(one.key.path, region="task:t1")).entry for one in page.entries]
    assert f"write to {MAIL}" in [one.value.text for one in opened]


async def test_screening_does_not_take_a_seal_for_an_order(sealing: Running) -> None:
    page = put("page", f"contact {MAIL} for the minutes of the meeting", provenance=of_source())
    await sealing.agent.commit(page)
    entry = await opener(sealing).reveal("page", floor=trust_pb2.TRUST_LEVEL_EXTERNAL)
    assert not entry.entry.label.suspicious
