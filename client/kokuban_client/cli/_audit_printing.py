"""What the commands for the audit log print: short lines for people, JSON for machines."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from kokuban_client.cli._printing import dump, escaped, spelled_time

if TYPE_CHECKING:
    from kokuban_client.types import AuditFault, AuditRecord, AuditVerdict


def record_line(record: AuditRecord) -> str:
    """Give a record on one line: when, who, from where, what, to what, with which outcome, why."""
    where = "/".join(part for part in (record.board, record.target) if part)
    why = [f"({escaped(record.reason)})"] if record.reason else []
    more = [f"and {record.suppressed} more"] if record.suppressed else []
    parts = [
        spelled_time(record.act_time) or "-",
        record.agent or "-",
        record.peer or "-",
        record.act,
        *([record.method] if record.method else []),
        where or "-",
        record.outcome,
    ]
    return "  ".join([*map(escaped, parts), *why, *more])


def record_json(record: AuditRecord) -> str:
    """Give a record as one line of JSON."""
    return dump(
        {
            "chain": record.chain,
            "sequence": record.sequence,
            "record_time": spelled_time(record.record_time),
            "act_time": spelled_time(record.act_time),
            "act": record.act,
            "method": record.method,
            "agent": record.agent,
            "credential": record.credential,
            "roles": list(record.roles),
            "peer": record.peer,
            "board": record.board,
            "target": record.target,
            "reason": record.reason,
            "outcome": record.outcome,
            "traceparent": record.traceparent,
            "suppressed": record.suppressed,
            "previous_hash": record.previous_hash,
            "hash": record.hash,
            "body": base64.b64encode(record.body).decode(),
        }
    )


def verdict_lines(verdict: AuditVerdict) -> list[str]:
    """Give what was found of a log: how much there is, its newest anchor, and what is wrong."""
    counts = f"{verdict.record_count} records in {verdict.chain_count} chains, {verdict.anchor_count} anchors"
    anchor = verdict.newest_anchor
    newest = [f"newest anchor {anchor.sequence} of {spelled_time(anchor.anchor_time)}: {anchor.hash}"] if anchor else []
    if not verdict.fault_count:
        return [counts, *newest, "as it was written"]
    hidden = verdict.fault_count - len(verdict.faults)
    more = [f"and {hidden} more"] if hidden else []
    return [counts, *newest, f"{verdict.fault_count} faults:", *map(_fault_line, verdict.faults), *more]


def _fault_line(fault: AuditFault) -> str:
    where = f"chain {escaped(fault.chain)}  record {fault.sequence}" if fault.chain else f"record {fault.sequence}"
    if fault.kind == "anchor broken":
        where = f"anchor {fault.sequence}" if fault.sequence else "the anchor that was kept is not there"
    count = [f"and the {fault.count - 1} behind it"] if fault.count > 1 else []
    return "  ".join([f"  {fault.kind}", where, *count])


def verdict_json(verdict: AuditVerdict) -> str:
    """Give what was found of a log as one line of JSON."""
    anchor = verdict.newest_anchor
    return dump(
        {
            "record_count": verdict.record_count,
            "anchor_count": verdict.anchor_count,
            "chain_count": verdict.chain_count,
            "chains": [
                {
                    "id": chain.id,
                    "newest_sequence": chain.newest_sequence,
                    "newest_time": spelled_time(chain.newest_time),
                    "newest_hash": chain.newest_hash,
                    "anchored_sequence": chain.anchored_sequence,
                }
                for chain in verdict.chains
            ],
            "newest_anchor": None
            if anchor is None
            else {"sequence": anchor.sequence, "anchor_time": spelled_time(anchor.anchor_time), "hash": anchor.hash},
            "fault_count": verdict.fault_count,
            "faults": [
                {"kind": fault.kind, "chain": fault.chain, "sequence": fault.sequence, "count": fault.count}
                for fault in verdict.faults
            ],
            "token": verdict.token,
        }
    )
