"""Policies and decisions to messages and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from kokuban.v1 import admin_service_pb2 as admin_pb
from kokuban.v1 import policy_pb2 as pb
from kokuban.v1 import trust_pb2
from kokuban_server.core import limits
from kokuban_server.core.access import Decision, Verb
from kokuban_server.core.boards import BoardState
from kokuban_server.core.locks import LockPolicy
from kokuban_server.core.policy import Policy, RegionRule, Subjects, parse_subjects
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.sensitive import STANDARD, Handling, Terms
from kokuban_server.core.trust import ScreeningProfile, StaleScreening, TaintMode, Trust, WithoutVerdict
from kokuban_server.wire.encode import timestamp
from kokuban_server.wire.fields import duration_ms, too_many, trust_level, words

if TYPE_CHECKING:
    from kokuban_server.core.boards import PolicyVersion

_LOCKS = {
    pb.LOCK_REQUIREMENT_IF_LOCKED: LockPolicy.IF_LOCKED,
    pb.LOCK_REQUIREMENT_REQUIRED: LockPolicy.REQUIRED,
    pb.LOCK_REQUIREMENT_OFF: LockPolicy.OFF,
}
_REQUIREMENTS = {policy: requirement for requirement, policy in _LOCKS.items()}
_TAINTS = {
    pb.TAINT_MODE_OFF: TaintMode.OFF,
    pb.TAINT_MODE_TRACK: TaintMode.TRACK,
    pb.TAINT_MODE_ENFORCE: TaintMode.ENFORCE,
}
_PROFILES = {
    trust_pb2.SCREENING_PROFILE_FULL: ScreeningProfile.FULL,
    trust_pb2.SCREENING_PROFILE_OFF: ScreeningProfile.OFF,
}
_STALE = {
    trust_pb2.STALE_SCREENING_RETURN: StaleScreening.RETURN,
    trust_pb2.STALE_SCREENING_WITHHOLD: StaleScreening.WITHHOLD,
}
_STALE_SCREENING = {stale: message for message, stale in _STALE.items()}
_WITHOUT = {
    trust_pb2.WITHOUT_VERDICT_REFUSE: WithoutVerdict.REFUSE,
    trust_pb2.WITHOUT_VERDICT_HOLD: WithoutVerdict.HOLD,
}
_WITHOUT_VERDICT = {without: message for message, without in _WITHOUT.items()}
_SCREENING = {profile: message for message, profile in _PROFILES.items()}
HANDLINGS = {
    Handling.MASK: trust_pb2.REDACTION_HANDLING_MASK,
    Handling.REFUSE: trust_pb2.REDACTION_HANDLING_REFUSE,
    Handling.KEEP: trust_pb2.REDACTION_HANDLING_KEEP,
    Handling.OFF: trust_pb2.REDACTION_HANDLING_OFF,
    Handling.ENCRYPT: trust_pb2.REDACTION_HANDLING_ENCRYPT,
}
_HANDLED = {message: handling for handling, message in HANDLINGS.items()}
_TAINT_MODES = {mode: stored for stored, mode in _TAINTS.items()}
_VERBS = {pb.VERB_READ: Verb.READ, pb.VERB_WRITE: Verb.WRITE, pb.VERB_LOCK: Verb.LOCK, pb.VERB_REVEAL: Verb.REVEAL}
_DECISIONS = {
    Decision.ALLOWED: pb.ACCESS_DECISION_ALLOWED,
    Decision.FORBIDDEN: pb.ACCESS_DECISION_FORBIDDEN,
    Decision.HIDDEN: pb.ACCESS_DECISION_NOT_READABLE,
}
BOARD_STATES = {
    BoardState.LIVE: admin_pb.BOARD_STATE_LIVE,
    BoardState.DELETED: admin_pb.BOARD_STATE_DELETED,
    BoardState.PURGED: admin_pb.BOARD_STATE_PURGED,
}


def decode(message: pb.Policy, place: str) -> Policy:
    """Give a policy, whose parts are well-formed; what no policy may say is refused by `core.policy.check`."""
    size = message.ByteSize()
    if size > limits.POLICY_BYTES_MAX:
        raise InvalidRequest(
            "FIELD_INVALID",
            place,
            f"at most {limits.POLICY_BYTES_MAX} bytes, this has {size}",
            {"limit": str(limits.POLICY_BYTES_MAX), "actual": str(size)},
        )
    if len(message.rules) > limits.POLICY_RULES_ENTRIES_MAX:
        raise too_many(f"{place}.rules", limits.POLICY_RULES_ENTRIES_MAX, len(message.rules))
    rules = tuple([_rule(rule, f"{place}.rules[{index}]") for index, rule in enumerate(message.rules)])
    administrators = Policy().administrators
    if message.HasField("administrators"):
        administrators = _subjects(message.administrators, f"{place}.administrators")
    tools = _tools(message, place)
    screening = {
        tool.name: _profile(tool.screening, f"{place}.tools[{index}].screening")
        for index, tool in enumerate(message.tools)
        if tool.screening
    }
    stale = {
        tool.name: _stale(tool.stale_screening, f"{place}.tools[{index}].stale_screening")
        for index, tool in enumerate(message.tools)
        if tool.stale_screening
    }
    redaction = Terms(
        _handling(message.secrets, f"{place}.secrets") or STANDARD.secret,
        _handling(message.personal_data, f"{place}.personal_data") or STANDARD.personal,
        _handling(message.unsearched, f"{place}.unsearched") or STANDARD.unsearched,
    )
    return Policy(rules, administrators, tools, screening, redaction, stale)


def _handling(number: int, place: str) -> Handling | None:
    if not number:
        return None
    handling = _HANDLED.get(trust_pb2.RedactionHandling.ValueType(number))
    if handling is None:
        raise InvalidRequest("FIELD_INVALID", place, "not a handling that this server knows")
    return handling


def _profile(number: int, place: str) -> ScreeningProfile:
    if number not in _PROFILES:
        raise InvalidRequest("FIELD_INVALID", place, "not a profile that this server knows")
    return _PROFILES[trust_pb2.ScreeningProfile.ValueType(number)]


def _stale(number: int, place: str) -> StaleScreening:
    if number not in _STALE:
        raise InvalidRequest("FIELD_INVALID", place, "not a way of handling that this server knows")
    return _STALE[trust_pb2.StaleScreening.ValueType(number)]


def _tools(message: pb.Policy, place: str) -> dict[str, Trust]:
    if len(message.tools) > limits.POLICY_TOOLS_ENTRIES_MAX:
        raise too_many(f"{place}.tools", limits.POLICY_TOOLS_ENTRIES_MAX, len(message.tools))
    tools: dict[str, Trust] = {}
    for index, tool in enumerate(message.tools):
        name = words(tool.name, f"{place}.tools[{index}].name", limits.SOURCE_NAME_BYTES_MAX)
        if name in tools:
            raise InvalidRequest("DUPLICATE_KEY", f"{place}.tools[{index}].name", "each tool has one rule")
        tools[name] = trust_level(tool.trust, f"{place}.tools[{index}].trust")
    return tools


def _rule(message: pb.RegionRule, place: str) -> RegionRule:
    has = message.HasField
    requirement = message.lock_requirement
    if requirement and requirement not in _LOCKS:
        raise InvalidRequest("FIELD_INVALID", f"{place}.lock_requirement", "not a requirement that this server knows")
    taint = message.taint_mode
    if taint and taint not in _TAINTS:
        raise InvalidRequest("FIELD_INVALID", f"{place}.taint_mode", "not a mode that this server knows")
    ttl_ms = None
    if has("default_ttl"):
        ttl_ms = duration_ms(message.default_ttl, f"{place}.default_ttl", 0, limits.EXPIRY_MS_MAX)
    age_ms = None
    if has("history_age_max"):
        field = f"{place}.history_age_max"
        age_ms = duration_ms(message.history_age_max, field, limits.POLICY_HISTORY_AGE_MS_MIN, limits.EXPIRY_MS_MAX)
    without = message.without_verdict
    if without and without not in _WITHOUT:
        raise InvalidRequest(
            "FIELD_INVALID", f"{place}.without_verdict", "not a way of handling that this server knows"
        )
    return RegionRule(
        message.pattern,
        _subjects(message.readers, f"{place}.readers") if has("readers") else None,
        _subjects(message.writers, f"{place}.writers") if has("writers") else None,
        _subjects(message.lockers, f"{place}.lockers") if has("lockers") else None,
        not message.allows_unconditional if has("allows_unconditional") else None,
        _LOCKS[requirement] if requirement else None,
        message.history_revisions_max if has("history_revisions_max") else None,
        age_ms,
        ttl_ms,
        trust_level(message.read_floor, f"{place}.read_floor") if message.read_floor else None,
        _TAINTS[taint] if taint else None,
        message.allows_lowering if has("allows_lowering") else None,
        _profile(message.screening, f"{place}.screening") if message.screening else None,
        _handling(message.secrets, f"{place}.secrets"),
        _handling(message.personal_data, f"{place}.personal_data"),
        _stale(message.stale_screening, f"{place}.stale_screening") if message.stale_screening else None,
        _WITHOUT[without] if without else None,
        _subjects(message.revealers, f"{place}.revealers") if has("revealers") else None,
    )


def _subjects(message: pb.Subjects, place: str) -> Subjects:
    return parse_subjects(message.subjects, f"{place}.subjects")


def encode(policy: Policy) -> pb.Policy:
    """Give a policy's message; what holds anyway is not said."""
    message = pb.Policy(rules=map(_encoded_rule, policy.rules))
    if policy.administrators != Policy().administrators:
        message.administrators.subjects.extend(policy.administrators.texts)
    secret, personal, unsearched = policy.redaction
    if secret is not STANDARD.secret:
        message.secrets = HANDLINGS[secret]
    if personal is not STANDARD.personal:
        message.personal_data = HANDLINGS[personal]
    if unsearched is not STANDARD.unsearched:
        message.unsearched = HANDLINGS[unsearched]
    for name, trust in policy.tools.items():
        tool = message.tools.add(name=name, trust=trust.value)
        if name in policy.tool_screening:
            tool.screening = _SCREENING[policy.tool_screening[name]]
        if name in policy.tool_stale_screening:
            tool.stale_screening = _STALE_SCREENING[policy.tool_stale_screening[name]]
    return message


def _encoded_rule(rule: RegionRule) -> pb.RegionRule:
    message = pb.RegionRule(
        pattern=rule.pattern,
        readers=_encoded_subjects(rule.readers),
        writers=_encoded_subjects(rule.writers),
        lockers=_encoded_subjects(rule.lockers),
        revealers=_encoded_subjects(rule.revealers),
        allows_unconditional=None if rule.needs_precondition is None else not rule.needs_precondition,
        history_revisions_max=rule.history_revisions_max,
        history_age_max=_duration(rule.history_age_ms_max),
        default_ttl=_duration(rule.default_ttl_ms),
        allows_lowering=rule.allows_lowering,
    )
    if rule.read_floor is not None:
        message.read_floor = rule.read_floor.value  # type: ignore[assignment]
    if rule.taint_mode is not None:
        message.taint_mode = _TAINT_MODES[rule.taint_mode]
    if rule.screening is not None:
        message.screening = _SCREENING[rule.screening]
    if rule.stale_screening is not None:
        message.stale_screening = _STALE_SCREENING[rule.stale_screening]
    if rule.without_verdict is not None:
        message.without_verdict = _WITHOUT_VERDICT[rule.without_verdict]
    if rule.secrets is not None:
        message.secrets = HANDLINGS[rule.secrets]
    if rule.personal_data is not None:
        message.personal_data = HANDLINGS[rule.personal_data]
    if rule.lock_policy is not None:
        message.lock_requirement = _REQUIREMENTS[rule.lock_policy]
    return message


def _encoded_subjects(subjects: Subjects | None) -> pb.Subjects | None:
    return None if subjects is None else pb.Subjects(subjects=subjects.texts)


def _duration(ms: int | None) -> Duration | None:
    if ms is None:
        return None
    duration = Duration()
    duration.FromMilliseconds(ms)
    return duration


def encode_version(version: PolicyVersion) -> pb.PolicyRecord:
    """Give which policy it is."""
    message = pb.PolicyRecord(number=version.number, author=version.author, reason=version.reason)
    if version.number:
        message.set_time.CopyFrom(timestamp(version.time_ms))
    return message


def decode_verb(verb: pb.Verb.ValueType, field: str) -> Verb:
    """Give a verb, or refuse it."""
    if not verb:
        raise InvalidRequest("FIELD_REQUIRED", field, "what would be done there")
    found = _VERBS.get(verb)
    if found is None:
        raise InvalidRequest("FIELD_INVALID", field, "not a verb that this server knows")
    return found


def encode_decision(decision: Decision) -> pb.AccessDecision.ValueType:
    """Give a decision's value."""
    return _DECISIONS[decision]
