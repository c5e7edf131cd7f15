"""Harms an audit log behind the servers' backs, in every way, and says what has to be found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import keys
from kokuban_server.core.audit import ChainHead
from kokuban_server.core.change_set import ChangeSet, DeleteKey, Put
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.audit_codec import (
    decode_anchor,
    decode_head,
    decode_record,
    encode_head,
    seal_anchor,
    seal_record,
    unseal,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from kokuban_server.ports.board_store import BoardStore

    Content = Mapping[bytes, bytes | None]


class Harm(NamedTuple):
    """A change to what the store holds: new values, or nothing for what is deleted."""

    name: str
    writes: Content
    found_as: str
    """What the log's judge must find, and may find beside other things."""


async def content(store: BoardStore) -> dict[bytes, bytes]:
    """Give everything of the audit logs."""
    return {
        record.key: record.value for record in (await store.scan(keys.AUDIT, b"", 10_000, 2**26, STRONG, 10.0)).records
    }


async def write(store: BoardStore, writes: Content) -> None:
    """Write and delete behind the servers' backs."""
    for begin in range(0, len(writes), 90):
        part = list(writes.items())[begin : begin + 90]
        puts = tuple(Put(key, value) for key, value in part if value is not None)
        deletes = tuple(DeleteKey(key) for key, value in part if value is None)
        await store.commit(ChangeSet((), puts, deletes), 10.0)


async def each_is_found(store: BoardStore, tenant: str, judge: Callable[[], Awaitable[set[str]]]) -> dict[str, int]:
    """Do every harm there is, one after the other, and undo each. Give how many of each kind were done."""
    whole = await content(store)
    assert await judge() == set()
    done: dict[str, int] = {}
    for harm in harms(whole, tenant):
        await write(store, harm.writes)
        found = await judge()
        assert harm.found_as in found, (harm.name, found)
        await write(store, {key: whole.get(key) for key in harm.writes})
        kind = harm.name.partition(":")[0]
        done[kind] = done.get(kind, 0) + 1
    assert await judge() == set()
    return done


def harms(whole: Mapping[bytes, bytes], tenant: str) -> Iterator[Harm]:
    """Give every harm that can be done to a tenant's log."""
    chains = chains_of(whole, tenant)
    for chain, places in chains.items():
        yield from _of_chain(whole, tenant, chain, places)
    longest = max(chains.values(), key=len)
    for places in chains.values():  # also between chains
        for one in places:
            other = next(place for place in (*longest, *places) if place != one)
            yield Harm(f"swapped: {one!r}", {one: whole[other], other: whole[one]}, "REORDERED")
    yield from _of_anchors(whole, tenant)
    stray = keys.audit_records(tenant) + b"stray/"
    yield Harm("stray", {stray: whole[longest[0]]}, "ADDED")


def chains_of(whole: Mapping[bytes, bytes], tenant: str) -> dict[str, list[bytes]]:
    """Give the keys of each chain's records, in order."""
    chains: dict[str, list[bytes]] = {}
    for key in sorted(whole):
        if key.startswith(keys.audit_records(tenant)):
            place = keys.parse_audit_record(key)
            assert place is not None
            chains.setdefault(place[1], []).append(key)
    return chains


def _of_chain(whole: Mapping[bytes, bytes], tenant: str, chain: str, places: Sequence[bytes]) -> Iterator[Harm]:
    head_key = keys.audit_chain(keys.AUDIT_HEAD, tenant, chain)
    for index, key in enumerate(places):
        is_last = index == len(places) - 1
        value = whole[key]
        yield Harm(f"removed: {key!r}", {key: None}, "CUT" if is_last else "MISSING")
        for place in {0, 1, len(value) // 3, len(value) // 2, len(value) - 1}:
            changed = value[:place] + bytes((value[place] ^ 1,)) + value[place + 1 :]
            yield Harm(f"bit: {key!r} {place}", {key: changed}, "EDITED")
        yield Harm(f"emptied: {key!r}", {key: b""}, "EDITED")
        yield Harm(f"longer: {key!r}", {key: value + b"\x1a\x00"}, "EDITED")
        yield Harm(f"forged: {key!r}", {key: _with_other_words(key, value)}, "EDITED")
        time_ms, _, sequence = keys.parse_audit_record(key) or (0, "", 0)
        later = keys.audit_record(tenant, time_ms + 10**9, chain, sequence)
        yield Harm(f"moved: {key!r}", {key: None, later: value}, "REORDERED")
        other = keys.audit_record(tenant, time_ms, "f" * 16, sequence)
        yield Harm(f"to another chain: {key!r}", {key: None, other: value}, "REORDERED")
        yield Harm(f"cut: {key!r}", dict.fromkeys(places[index:]), "CUT")
        yield Harm(
            f"written anew: {key!r}",
            {**dict(_anew(whole, places, index)), head_key: _head_after(whole, tenant, places, index)},
            "EDITED",
        )
    last = places[-1]
    record = decode_record(last, unseal(last, whole[last]))
    more = seal_record(replace(record, sequence=record.sequence + 1, previous_hash=unseal(last, whole[last]).hash))
    behind = keys.audit_record(tenant, record.record_time_ms, chain, record.sequence + 1)
    yield Harm(f"added: {chain}", {behind: more.encode()}, "ADDED")
    yield Harm(f"without head: {chain}", {head_key: None}, "CUT")
    yield Harm(f"nothing left: {chain}", {head_key: None, **dict.fromkeys(places)}, "CUT")
    shorter = places[:-1]
    if shorter:
        kept = decode_record(shorter[-1], unseal(shorter[-1], whole[shorter[-1]]))
        head = ChainHead(chain, kept.sequence, kept.record_time_ms, unseal(shorter[-1], whole[shorter[-1]]).hash)
        yield Harm(f"cut with its head: {chain}", {last: None, head_key: encode_head(head)}, "CUT")


def _with_other_words(key: bytes, value: bytes) -> bytes:
    """Give a record that tells another story, with a hash of its own."""
    record = decode_record(key, unseal(key, value))
    return seal_record(replace(record, reason="nothing to see here")).encode()


def _anew(whole: Mapping[bytes, bytes], places: Sequence[bytes], first: int) -> Iterator[tuple[bytes, bytes]]:
    """Give a chain that tells another story from a record on, in itself without fault."""
    previous = b""
    for index, key in enumerate(places):
        sealed = unseal(key, whole[key])
        if index >= first:
            record = replace(decode_record(key, sealed), reason="nothing to see here", previous_hash=previous)
            sealed = seal_record(record)
            yield key, sealed.encode()
        previous = sealed.hash


def _head_after(whole: Mapping[bytes, bytes], tenant: str, places: Sequence[bytes], first: int) -> bytes:
    anew = dict(_anew(whole, places, first))
    chain = (keys.parse_audit_record(places[-1]) or (0, "", 0))[1]
    key = keys.audit_chain(keys.AUDIT_HEAD, tenant, chain)
    return encode_head(decode_head(key, whole[key])._replace(hash=unseal(places[-1], anew[places[-1]]).hash))


def _of_anchors(whole: Mapping[bytes, bytes], tenant: str) -> Iterator[Harm]:
    anchors = sorted(key for key in whole if key.startswith(keys.audit_anchors(tenant)))
    assert len(anchors) > 1
    for index, key in enumerate(anchors):
        value = whole[key]
        yield Harm(f"anchor removed: {key!r}", {key: None}, "ANCHOR_BROKEN")
        for place in {0, 1, len(value) // 3, len(value) // 2, len(value) - 1}:
            changed = value[:place] + bytes((value[place] ^ 1,)) + value[place + 1 :]
            yield Harm(f"anchor bit: {key!r} {place}", {key: changed}, "ANCHOR_BROKEN")
        anchor = decode_anchor(key, unseal(key, value))
        forged = seal_anchor(replace(anchor, heads=anchor.heads[1:]))
        yield Harm(f"anchor forged: {key!r}", {key: forged.encode()}, "ANCHOR_BROKEN")
        other = anchors[index - 1]
        yield Harm(f"anchors swapped: {key!r}", {key: whole[other], other: value}, "ANCHOR_BROKEN")
    yield Harm("no anchors", dict.fromkeys(anchors), "ANCHOR_BROKEN")
    yield Harm("newest anchor not known", {keys.audit_newest(tenant): None}, "ANCHOR_BROKEN")
