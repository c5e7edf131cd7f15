"""What the commands for locks and sessions print: short lines for people, JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client.cli._printing import dump, escaped, spelled_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_client.types import Lock, LockTarget, LockWait, Presence, Queued


def lock_line(lock: Lock) -> str:
    """Give a lock on one line."""
    return _line(lock.id, lock.state, lock.mode, lock.targets, lock.agent, lock.purpose)


def wait_line(wait: LockWait) -> str:
    """Give a request that waits on one line."""
    return _line(wait.lock_id, "waits", wait.mode, wait.targets, wait.agent, wait.purpose)


def _line(lock_id: str, state: str, mode: str, targets: Iterable[LockTarget], agent: str, purpose: str) -> str:
    where = escaped(", ".join(map(str, targets))) or "-"
    why = [f"({escaped(purpose)})"] if purpose else []
    return "  ".join([lock_id, state, mode, where, f"by {escaped(agent)}", *why])


def queued_line(queued: Queued) -> str:
    """Give where a request stands on one line."""
    holders = "; ".join(lock_line(one) for one in queued.held_by)
    return f"kokuban: waiting, {queued.ahead} ahead" + (f", held: {holders}" if holders else "")


def queued_json(queued: Queued) -> str:
    """Give where a request stands as one line of JSON."""
    held_by = [_lock_facts(one) for one in queued.held_by]
    return dump({"queued": {"ahead": queued.ahead, "held_by": held_by}})


def presence_lines(presence: Presence) -> list[str]:
    """Give a session, and below it what it holds and waits for."""
    session = presence.session
    heard = [] if session.heartbeat_age_s is None else [f"heard of {session.heartbeat_age_s:.0f} s ago"]
    label = [f"({escaped(session.label)})"] if session.label else []
    head = "  ".join([session.id, escaped(session.agent), f"lives {session.ttl_s:g} s", *heard, *label])
    return [
        head,
        *(f"  {lock_line(one)}" for one in presence.holds),
        *(f"  {wait_line(one)}" for one in presence.waits),
    ]


def lock_json(lock: Lock) -> str:
    """Give a lock as one line of JSON."""
    return dump(_lock_facts(lock))


def wait_json(wait: LockWait) -> str:
    """Give a request that waits as one line of JSON."""
    return dump(_wait_facts(wait))


def presence_json(presence: Presence) -> str:
    """Give a session as one line of JSON."""
    session = presence.session
    return dump(
        {
            "session_id": session.id,
            "agent": session.agent,
            "label": session.label,
            "open_time": spelled_time(session.open_time),
            "ttl_s": session.ttl_s,
            "heartbeat_age_s": session.heartbeat_age_s,
            "holds": [_lock_facts(lock) for lock in presence.holds],
            "waits": [_wait_facts(wait) for wait in presence.waits],
        }
    )


def _lock_facts(lock: Lock) -> dict[str, object]:
    return {
        "kind": "lock",
        "lock_id": lock.id,
        "state": lock.state,
        "mode": lock.mode,
        "targets": _targets(lock.targets),
        "agent": lock.agent,
        "session_id": lock.session_id,
        "purpose": lock.purpose,
        "grant_time": spelled_time(lock.grant_time),
        "end_time": spelled_time(lock.end_time),
        "lock_delay_s": lock.lock_delay_s,
        "fence_revision": lock.fence_revision,
        "traceparent": lock.traceparent,
    }


def _wait_facts(wait: LockWait) -> dict[str, object]:
    return {
        "kind": "wait",
        "lock_id": wait.lock_id,
        "mode": wait.mode,
        "targets": _targets(wait.targets),
        "agent": wait.agent,
        "session_id": wait.session_id,
        "purpose": wait.purpose,
        "start_time": spelled_time(wait.start_time),
    }


def _targets(targets: Iterable[LockTarget]) -> list[dict[str, str]]:
    return [{"region": one.region, "path": one.path, "scope": one.scope} for one in targets]
