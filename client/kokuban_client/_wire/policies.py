"""Boards and policies as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from google.protobuf import json_format

from kokuban.v1 import admin_service_pb2 as admin_pb
from kokuban.v1 import policy_pb2 as pb
from kokuban.v1 import trust_pb2
from kokuban_client import types
from kokuban_client._wire import duration, time
from kokuban_client._wire.labels import HANDLING_OF, HANDLINGS, trust_level, trust_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf import duration_pb2

_LOCKS = {
    types.LockRequirement.IF_LOCKED: pb.LOCK_REQUIREMENT_IF_LOCKED,
    types.LockRequirement.REQUIRED: pb.LOCK_REQUIREMENT_REQUIRED,
    types.LockRequirement.OFF: pb.LOCK_REQUIREMENT_OFF,
}
_LOCK_OF = {number: requirement for requirement, number in _LOCKS.items()}
_TAINTS = {
    types.TaintMode.OFF: pb.TAINT_MODE_OFF,
    types.TaintMode.TRACK: pb.TAINT_MODE_TRACK,
    types.TaintMode.ENFORCE: pb.TAINT_MODE_ENFORCE,
}
_PROFILES: dict[types.ScreeningProfile, trust_pb2.ScreeningProfile.ValueType] = {
    types.ScreeningProfile.FULL: trust_pb2.SCREENING_PROFILE_FULL,
    types.ScreeningProfile.OFF: trust_pb2.SCREENING_PROFILE_OFF,
}
_STALE = {
    types.StaleScreening.RETURN: trust_pb2.STALE_SCREENING_RETURN,
    types.StaleScreening.WITHHOLD: trust_pb2.STALE_SCREENING_WITHHOLD,
}
_WITHOUT = {
    types.WithoutVerdict.REFUSE: trust_pb2.WITHOUT_VERDICT_REFUSE,
    types.WithoutVerdict.HOLD: trust_pb2.WITHOUT_VERDICT_HOLD,
}
_WITHOUT_OF = {message: without for without, message in _WITHOUT.items()}
_STALE_OF = {message: stale for stale, message in _STALE.items()}
_PROFILE_OF = {message: profile for profile, message in _PROFILES.items()}
_TAINT_OF = {message: mode for mode, message in _TAINTS.items()}
_VERBS = {
    types.Verb.READ: pb.VERB_READ,
    types.Verb.WRITE: pb.VERB_WRITE,
    types.Verb.LOCK: pb.VERB_LOCK,
    types.Verb.REVEAL: pb.VERB_REVEAL,
}
_DECISION_OF = {
    pb.ACCESS_DECISION_ALLOWED: types.Decision.ALLOWED,
    pb.ACCESS_DECISION_FORBIDDEN: types.Decision.FORBIDDEN,
    pb.ACCESS_DECISION_NOT_READABLE: types.Decision.NOT_READABLE,
}
_STATE_OF = {
    admin_pb.BOARD_STATE_LIVE: types.BoardState.LIVE,
    admin_pb.BOARD_STATE_DELETED: types.BoardState.DELETED,
    admin_pb.BOARD_STATE_PURGED: types.BoardState.PURGED,
}


# Boards


def create_board_request(board: str) -> admin_pb.CreateBoardRequest:
    """Give an order to make a board."""
    return admin_pb.CreateBoardRequest(board=board)


def get_board_request(board: str) -> admin_pb.GetBoardRequest:
    """Give a question about a board."""
    return admin_pb.GetBoardRequest(board=board)


def list_boards_request(page_token: str, *, show_deleted: bool) -> admin_pb.ListBoardsRequest:
    """Give a question for a page of the boards."""
    return admin_pb.ListBoardsRequest(page_token=page_token, show_deleted=show_deleted)


def delete_board_request(board: str, reason: str) -> admin_pb.DeleteBoardRequest:
    """Give an order to remove a board."""
    return admin_pb.DeleteBoardRequest(board=board, reason=reason)


def board_info(message: admin_pb.Board) -> types.BoardInfo:
    """Give a board as it is administered."""
    receipt = None
    if message.HasField("receipt"):
        found = message.receipt
        receipt = types.PurgeReceipt(
            found.entries, found.revisions, found.locks, time(found.purge_time), found.conflicts
        )
    return types.BoardInfo(
        message.id,
        time(message.create_time),
        message.creator,
        _STATE_OF.get(message.state, types.BoardState.UNKNOWN),
        message.policy_number,
        time(message.delete_time) if message.HasField("delete_time") else None,
        message.deleter,
        message.delete_reason,
        receipt,
    )


# Policies


def get_policy_request(board: str) -> admin_pb.GetPolicyRequest:
    """Give a question for a policy."""
    return admin_pb.GetPolicyRequest(board=board)


def set_policy_request(board: str, policy: types.Policy, replaces: int, reason: str) -> admin_pb.SetPolicyRequest:
    """Give an order to lay down a policy."""
    return admin_pb.SetPolicyRequest(board=board, policy=policy_message(policy), replaces=replaces, reason=reason)


def explain_access_request(board: str, region: str, verb: types.Verb) -> admin_pb.ExplainAccessRequest:
    """Give a question for a decision."""
    return admin_pb.ExplainAccessRequest(board=board, region=region, verb=_VERBS[types.Verb(verb)])


def policy_message(policy: types.Policy) -> pb.Policy:
    """Give a policy as it travels."""
    message = pb.Policy(rules=map(_rule_message, policy.rules))
    if policy.administrators is not None:
        message.administrators.CopyFrom(_subjects_message(policy.administrators))
    for field, named in (
        ("tool_screening", policy.tool_screening),
        ("tool_stale_screening", policy.tool_stale_screening),
    ):
        unknown = named.keys() - policy.tools.keys()
        if unknown:
            raise ValueError(f"{field}: {min(unknown)!r} is not one of the tools")
    if policy.secrets is not None:
        message.secrets = _handling(policy.secrets)
    if policy.personal_data is not None:
        message.personal_data = _handling(policy.personal_data)
    if policy.unsearched is not None:
        message.unsearched = _handling(policy.unsearched)
    for name, trust in policy.tools.items():
        tool = message.tools.add(name=name, trust=trust_number(trust))
        if name in policy.tool_screening:
            tool.screening = _PROFILES[types.ScreeningProfile(policy.tool_screening[name])]
        if name in policy.tool_stale_screening:
            tool.stale_screening = _STALE[types.StaleScreening(policy.tool_stale_screening[name])]
    return message


def _handling(handling: types.RedactionHandling | str) -> trust_pb2.RedactionHandling.ValueType:
    chosen = types.RedactionHandling(handling)
    if chosen is types.RedactionHandling.UNKNOWN:
        raise ValueError("a handling is mask, encrypt, refuse, keep or off")
    return HANDLINGS[chosen]


def _rule_message(rule: types.RegionRule) -> pb.RegionRule:
    message = pb.RegionRule(
        pattern=rule.pattern,
        allows_unconditional=rule.allows_unconditional,
        history_revisions_max=rule.history_revisions_max,
        history_age_max=_duration(rule.history_age_max_s, "history_age_max_s"),
        default_ttl=_duration(rule.default_ttl_s, "default_ttl_s"),
        allows_lowering=rule.allows_lowering,
    )
    if rule.read_floor is not None:
        message.read_floor = trust_number(rule.read_floor)
    if rule.taint_mode is not None:
        message.taint_mode = _TAINTS[types.TaintMode(rule.taint_mode)]
    _set_screening(message, rule)
    for field, subjects in (
        (message.readers, rule.readers),
        (message.writers, rule.writers),
        (message.lockers, rule.lockers),
        (message.revealers, rule.revealers),
    ):
        if subjects is not None:
            field.CopyFrom(_subjects_message(subjects))
    if rule.lock_requirement is not None:
        message.lock_requirement = _LOCKS[types.LockRequirement(rule.lock_requirement)]
    return message


def _set_screening(message: pb.RegionRule, rule: types.RegionRule) -> None:
    """Say what becomes of texts."""
    if rule.screening is not None:
        message.screening = _PROFILES[types.ScreeningProfile(rule.screening)]
    if rule.stale_screening is not None:
        message.stale_screening = _STALE[types.StaleScreening(rule.stale_screening)]
    if rule.without_verdict is not None:
        message.without_verdict = _WITHOUT[types.WithoutVerdict(rule.without_verdict)]
    if rule.secrets is not None:
        message.secrets = _handling(rule.secrets)
    if rule.personal_data is not None:
        message.personal_data = _handling(rule.personal_data)


def _subjects_message(subjects: Sequence[str]) -> pb.Subjects:
    if isinstance(subjects, str):
        raise TypeError("subjects are a list of texts, as in ['anyone']")
    return pb.Subjects(subjects=subjects)


def _duration(seconds: float | None, name: str) -> duration_pb2.Duration | None:
    return None if seconds is None else duration(seconds, name)


def policy(message: pb.Policy) -> types.Policy:
    """Give a policy."""
    administrators = tuple(message.administrators.subjects) if message.HasField("administrators") else None
    tools = {tool.name: trust_level(tool.trust) for tool in message.tools}
    screening = {tool.name: _PROFILE_OF[tool.screening] for tool in message.tools if tool.screening in _PROFILE_OF}
    stale = {tool.name: _STALE_OF[tool.stale_screening] for tool in message.tools if tool.stale_screening in _STALE_OF}
    return types.Policy(
        tuple(map(_rule, message.rules)),
        administrators,
        tools,
        screening,
        HANDLING_OF.get(message.secrets),
        HANDLING_OF.get(message.personal_data),
        HANDLING_OF.get(message.unsearched),
        stale,
    )


def _rule(message: pb.RegionRule) -> types.RegionRule:
    has = message.HasField
    return types.RegionRule(
        message.pattern,
        tuple(message.readers.subjects) if has("readers") else None,
        tuple(message.writers.subjects) if has("writers") else None,
        tuple(message.lockers.subjects) if has("lockers") else None,
        message.allows_unconditional if has("allows_unconditional") else None,
        _LOCK_OF.get(message.lock_requirement),
        message.history_revisions_max if has("history_revisions_max") else None,
        message.history_age_max.ToMilliseconds() / 1000 if has("history_age_max") else None,
        message.default_ttl.ToMilliseconds() / 1000 if has("default_ttl") else None,
        trust_level(message.read_floor) if message.read_floor else None,
        _TAINT_OF.get(message.taint_mode),
        message.allows_lowering if has("allows_lowering") else None,
        _PROFILE_OF.get(message.screening),
        HANDLING_OF.get(message.secrets),
        HANDLING_OF.get(message.personal_data),
        _STALE_OF.get(message.stale_screening),
        _WITHOUT_OF.get(message.without_verdict),
        tuple(message.revealers.subjects) if has("revealers") else None,
    )


def board_policy(answer: admin_pb.GetPolicyResponse) -> types.BoardPolicy:
    """Give a board's policy and which it is."""
    return types.BoardPolicy(policy(answer.policy), policy_version(answer.record))


def policy_version(message: pb.PolicyRecord) -> types.PolicyVersion:
    """Give which policy it is."""
    at = time(message.set_time) if message.HasField("set_time") else None
    return types.PolicyVersion(message.number, at, message.author, message.reason)


def access(answer: admin_pb.ExplainAccessResponse) -> types.Access:
    """Give a decision."""
    decision = _DECISION_OF.get(answer.decision, types.Decision.UNKNOWN)
    return types.Access(decision, answer.rule, answer.subject, answer.policy_number)


def policy_json(of: types.Policy) -> dict[str, object]:
    """Give a policy in the JSON form of `kokuban.v1.Policy`."""
    shown: dict[str, object] = json_format.MessageToDict(policy_message(of), preserving_proto_field_name=True)
    return shown


def read_policy_json(text: str) -> tuple[types.Policy, int | None]:
    """Read what `policy_json` gives, alone or as `policy` beside the `number` of the policy that it was.

    Raises ValueError that names the field.
    """
    read = json.loads(text)
    number = None
    if isinstance(read, dict) and "policy" in read:
        number = read.get("number")
        if type(number) is not int:
            raise ValueError("number: is not the number of a policy")
        read = read["policy"]
    if not isinstance(read, dict):
        raise ValueError("is not a policy: a JSON object with rules and administrators")  # noqa: TRY004 - of what it says
    try:
        return policy(json_format.ParseDict(read, pb.Policy())), number
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error
