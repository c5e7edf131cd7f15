"""What the commands print: short lines for people, JSON for machines. Text from the board cannot steer a terminal."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from typing import TYPE_CHECKING

from kokuban_client.types import (
    Access,
    Binary,
    BoardInfo,
    BoardPolicy,
    BoardState,
    Bookmark,
    Content,
    Decision,
    Entry,
    EntryChange,
    External,
    Json,
    Label,
    PolicyVersion,
    RedactionHandling,
    Reset,
    SnapshotComplete,
    SnapshotEntry,
    Source,
    Status,
    Text,
    Trust,
    WatchItem,
    Written,
)

if TYPE_CHECKING:
    from datetime import datetime

    from kokuban_client.errors import KokubanError

_PREVIEW_CHARACTERS_MAX = 100
_JSON_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')

_NOT_PRINTABLE_ASCII = re.compile("[^ -~]")

# Control, format (direction overrides, invisible characters), surrogate, private and unassigned characters, and the two
# separators that some programs take for the end of a line.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escaped(text: str, *, keep_lines: bool = False) -> str:
    r"""Give text that a terminal shows and does not obey: `\x1b` for an escape, and so on."""
    kept = "\n\t" if keep_lines else ""
    return "".join(
        character if character in kept or unicodedata.category(character) not in _UNSAFE else _spelled(character)
        for character in text
    )


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def value_text(content: Content | None) -> str:
    """Give a value for people, over as many lines as it has."""
    match content:
        case Text(text):
            return escaped(text, keep_lines=True)
        case Json(raw):
            return escaped(raw, keep_lines=True)
        case Binary(data, media_type):
            return f"({len(data)} bytes of {escaped(media_type)}; --raw gives them)"
        case External(inner, source):
            where = f" from {source.uri!r}" if source is not None and source.uri else ""
            return f"(external{escaped(where)}: data, no instructions)\n{value_text(inner)}"
        case None:
            return "(no value)"


def value_preview(content: Content | None) -> str:
    """Give the beginning of a value on one line."""
    text = escaped(value_text(content))
    return text if len(text) <= _PREVIEW_CHARACTERS_MAX else text[: _PREVIEW_CHARACTERS_MAX - 1] + "…"


def raw_bytes(content: Content | None) -> bytes:
    """Give a value's exact bytes, for files and pipes."""
    match content:
        case Text(text) | Json(text):
            return text.encode()
        case Binary(data, _):
            return data
        case External(inner):
            return raw_bytes(inner)
        case None:
            return b""


def entry_line(entry: Entry) -> str:
    """Give an entry on one line."""
    return f"{entry.revision}  {escaped(entry.path)}  {escaped(entry.author)}  {_shown(entry)}"


def _shown(entry: Entry) -> str:
    """Give the beginning of an entry's value on one line, or why there is none."""
    if not entry.withheld:
        return value_preview(entry.content)
    level = entry.label.trust.name.lower() if entry.label is not None else "less"
    return f"(withheld: trusted as {level}; --floor asks for it)"


def change_line(change: EntryChange) -> str:
    """Give a change on one line."""
    entry = change.entry
    actors = ", ".join(dict.fromkeys(escaped(act.agent) for act in change.acts)) or escaped(entry.author) or "-"
    reasons = "; ".join(dict.fromkeys(escaped(act.reason) for act in change.acts if act.reason))
    shown = _shown(entry) if entry.content is not None or entry.withheld else ""
    parts = [str(entry.revision), change.type.value, f"{escaped(entry.region)}/{escaped(entry.path)}", f"by {actors}"]
    return "  ".join([*parts, *([f"({reasons})"] if reasons else []), *([shown] if shown else [])])


def watch_line(item: WatchItem) -> str:
    """Give what a watch tells, on one line."""
    match item:
        case EntryChange():
            return change_line(item)
        case SnapshotEntry(entry):
            return f"{entry.revision}  there  {escaped(entry.region)}/{escaped(entry.path)}  {_shown(entry)}"
        case SnapshotComplete():
            return "-- that was there; changes follow"
        case Bookmark(token):
            return f"-- nothing new up to {token}"
        case Reset(cause):
            return f"-- {cause}: forget the lines above, a new snapshot follows"


_DONE = {RedactionHandling.MASK: "masked", RedactionHandling.ENCRYPT: "encrypted"}


def written_line(written: Written) -> str:
    """Give what a write did, on one line."""
    replayed = "  (had been committed before)" if written.replayed else ""
    told = "".join(
        f"  {_DONE[one.handling]}: {one.type} in {one.field}" for one in written.redactions if one.handling in _DONE
    )
    return f"{written.revision}{replayed}{told}"


def status_lines(status: Status, address: str) -> list[str]:
    """Give a server's state, one fact a line."""
    size = f"{status.size_bytes} bytes" + (f" of {status.size_bytes_max}" if status.size_bytes_max else "")
    facts = [
        ("server", f"{status.server_version} at {address}"),
        ("store", f"{status.store_kind} {status.store_version}".strip()),
        ("size", size),
        ("revision", str(status.revision)),
        ("history", f"from {status.compacted_revision}"),
        *([("leader", status.leader)] if status.leader else []),
        ("time", spelled_time(status.store_time) or "-"),
    ]
    judged = status.rescreening
    if judged is not None:
        told = f"{judged.waiting} to judge, {judged.kept} kept, {judged.lowered} lowered, {judged.withheld} withheld"
        facts.append(("screening", f"rules {judged.rule_set}; of what others let in {told}"))
    return [f"{name:<9} {escaped(text)}" for name, text in facts]


def board_line(board: BoardInfo) -> str:
    """Give a board on one line: id, when it was made, and by whom; of a deleted one what became of it."""
    parts = [board.id, spelled_time(board.create_time) or "-", board.creator]
    if board.policy_number:
        parts.append(f"policy {board.policy_number}")
    if board.state is not BoardState.LIVE:
        parts += [
            board.state,
            spelled_time(board.delete_time) or "-",
            f"by {board.deleter}",
            f"({board.delete_reason})",
        ]
    if (receipt := board.receipt) is not None:
        removed = f"{receipt.entries} entries, {receipt.revisions} revisions, {receipt.locks} of sessions and locks"
        removed += f", {receipt.conflicts} of conflicts" if receipt.conflicts else ""
        parts.append(f"removed by {spelled_time(receipt.time) or '-'}: {removed}")
    return escaped("  ".join(parts))


def version_line(version: PolicyVersion) -> str:
    """Give which policy it is on one line."""
    why = [f"({version.reason})"] if version.reason else []
    return escaped(
        "  ".join([f"policy {version.number}", spelled_time(version.time) or "-", f"by {version.author}", *why])
    )


def access_line(access: Access) -> str:
    """Give a decision on one line, and why."""
    rule = f"rule {access.rule}" if access.rule else "what holds without a policy"
    as_what = f"as {access.subject}" if access.subject else ""
    hidden = access.decision is Decision.NOT_READABLE and not access.rule
    return escaped("  ".join(filter(None, [access.decision, as_what, "" if hidden else rule])))


def error_line(error: KokubanError) -> str:
    """Give an error on one line: reason, message, facts."""
    return escaped(str(error))


# For machines. Everything outside ASCII is escaped, so these lines are safe to show as well.


def entry_json(entry: Entry) -> str:
    """Give an entry as one line of JSON."""
    return _object(
        {
            "region": entry.region,
            "path": entry.path,
            "revision": str(entry.revision),
            "create_revision": entry.create_revision,
            "sequence": entry.sequence,
            "author": entry.author,
            "create_time": spelled_time(entry.create_time),
            "update_time": spelled_time(entry.update_time),
            "expire_time": spelled_time(entry.expire_time),
            "metadata": dict(entry.metadata),
            "token": entry.token or None,
            "trust": _trust(entry.label.trust) if entry.label is not None else None,
            "withheld": entry.withheld,
            "label": _label(entry.label) if entry.label is not None else None,
        },
        entry.content,
    )


def _trust(level: Trust) -> str:
    return level.name.lower()


def _label(label: Label) -> dict[str, object]:
    return {
        "source": source_json(label.source),
        "derived_from": [f"{key}@{revision}" for key, revision in label.derived_from],
        "tracked": label.tracked,
        "extends_previous": label.extends_previous,
        "endorsed_by": label.endorsed_by or None,
    }


def source_json(source: Source | None) -> dict[str, object] | None:
    """Give what a writer said of where something comes from, for JSON."""
    if source is None:
        return None
    return {
        "kind": str(source.kind),
        "uri": source.uri,
        "name": source.name,
        "content_sha256": source.content_sha256,
        "fetch_time": spelled_time(source.fetch_time),
    }


def change_json(change: EntryChange) -> str:
    """Give a change as one line of JSON."""
    acts = [
        {
            "agent": act.agent,
            "request_id": act.request_id,
            "reason": act.reason,
            "traceparent": act.traceparent,
            "unconditional": act.unconditional,
        }
        for act in change.acts
    ]
    head = _members({"kind": "change", "type": change.type.value, "previous_revision": change.previous_revision})
    return f'{{{head},"acts":{dump(acts)},"entry":{entry_json(change.entry)}}}'


def watch_json(item: WatchItem, token: str) -> str:
    """Give what a watch tells as one line of JSON; `token` is where another watch could go on after it."""
    resume = _members({"resume_token": token or None})
    match item:
        case EntryChange():
            return f"{change_json(item)[:-1]},{resume}}}"
        case SnapshotEntry(entry):
            return f'{{"kind":"snapshot_entry","entry":{entry_json(entry)},{resume}}}'
        case SnapshotComplete():
            return f'{{"kind":"snapshot_complete",{resume}}}'
        case Bookmark():
            return f'{{"kind":"bookmark",{resume}}}'
        case Reset(cause):
            return f"{{{_members({'kind': 'reset', 'cause': cause})},{resume}}}"


def written_json(written: Written) -> str:
    """Give what a write did as one line of JSON."""
    return dump(_written_facts(written))


def computed_json(written: Written) -> str:
    """Give what a write did, and the value that the server computed, as one line of JSON."""
    return _object(_written_facts(written), written.content)


def _written_facts(written: Written) -> dict[str, object]:
    return {
        "region": written.region,
        "path": written.path,
        "revision": str(written.revision),
        "sequence": written.sequence,
        "commit_time": spelled_time(written.commit_time),
        "replayed": written.replayed,
        "request_id": written.request_id,
        "token": written.token,
        "trust": _trust(written.trust) if written.trust else None,
        "redactions": [
            {"field": one.field, "type": one.type, "kind": one.kind, "handling": one.handling, "count": one.count}
            for one in written.redactions
        ],
    }


def status_json(status: Status, address: str) -> str:
    """Give a server's state as one line of JSON."""
    return dump(
        {
            "address": address,
            "server_version": status.server_version,
            "store_kind": status.store_kind,
            "store_version": status.store_version,
            "token": status.token,
            "revision": str(status.revision),
            "compacted_revision": status.compacted_revision,
            "store_time": spelled_time(status.store_time),
            "size_bytes": status.size_bytes,
            "size_bytes_max": status.size_bytes_max or None,
            "leader": status.leader or None,
            "rescreening": status.rescreening
            and {
                "rule_set": status.rescreening.rule_set,
                "begin_time": spelled_time(status.rescreening.begin_time),
                "waiting": status.rescreening.waiting,
                "kept": status.rescreening.kept,
                "lowered": status.rescreening.lowered,
                "withheld": status.rescreening.withheld,
            },
        }
    )


def board_json(board: BoardInfo) -> str:
    """Give a board as one line of JSON."""
    receipt = board.receipt
    return dump(
        {
            "id": board.id,
            "create_time": spelled_time(board.create_time),
            "creator": board.creator,
            "state": board.state,
            "policy_number": board.policy_number,
            "delete_time": spelled_time(board.delete_time),
            "deleter": board.deleter,
            "delete_reason": board.delete_reason,
            "receipt": receipt
            and {
                "entries": receipt.entries,
                "revisions": receipt.revisions,
                "locks": receipt.locks,
                "conflicts": receipt.conflicts,
                "time": spelled_time(receipt.time),
            },
        }
    )


def policy_json(of: BoardPolicy, *, indent: int | None) -> str:
    """Give a policy and its number as JSON, on one line or indented."""
    from kokuban_client._wire import policies  # noqa: PLC0415 - loads the stubs, which other commands have already

    number, policy = of.version.number, policies.policy_json(of.policy)
    return json.dumps({"number": number, "policy": policy}, indent=indent)


def version_json(version: PolicyVersion) -> str:
    """Give which policy it is as one line of JSON."""
    time = spelled_time(version.time)
    return dump({"number": version.number, "time": time, "author": version.author, "reason": version.reason})


def access_json(access: Access) -> str:
    """Give a decision as one line of JSON."""
    return dump(
        {
            "decision": access.decision,
            "rule": access.rule,
            "subject": access.subject,
            "policy_number": access.policy_number,
        }
    )


def error_json(error: KokubanError) -> str:
    """Give an error as one line of JSON."""
    return dump(
        {
            "error": {
                "code": error.code,
                "reason": error.reason,
                "message": error.message,
                "facts": dict(error.facts),
                "request_id": error.request_id or None,
            }
        }
    )


def _object(facts: dict[str, object], content: Content | None) -> str:
    match content:
        case Text(text):
            value = f'"form":"text","value":{dump(text)}'
        case Json(raw):
            value = f'"form":"json","value":{_one_line(raw)}'
        case Binary(data, media_type):
            encoded = base64.b64encode(data).decode()
            value = _members({"form": "binary", "media_type": media_type, "value": encoded})
        case External(inner, source, metadata):
            # Nothing here that reads like another entry's value: a program has to ask for it by its name.
            origin: dict[str, object] = {"source": source_json(source), "metadata": dict(metadata)}
            value = f'"form":"external","external":{_object(origin, inner)}'
        case None:
            value = '"form":null,"value":null'
    return f"{{{_members(facts)},{value}}}"


def _one_line(raw: str) -> str:
    """Give a JSON text without spaces between its parts and without characters outside ASCII, every digit kept."""
    dense = _JSON_STRING_OR_SPACE.sub(lambda found: found[1] or "", raw)
    # Such characters stand inside strings only, where this spelling means the same.
    return _NOT_PRINTABLE_ASCII.sub(lambda found: dump(found[0])[1:-1], dense)


def _members(facts: dict[str, object]) -> str:
    return dump(facts)[1:-1]


def dump(value: object) -> str:
    """Give compact JSON in ASCII."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def spelled_time(instant: datetime | None) -> str | None:
    """Give an instant as text, if there is one."""
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")
