"""Policies: who they let in, what they cannot open, and what they say of a region."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.core import limits
from kokuban_server.core.access import Decision, Grants, Principal, Role, Verb
from kokuban_server.core.boards import BoardRecord, BoardState, PolicyVersion, PurgeCount, Receipt
from kokuban_server.core.locks import LockPolicy
from kokuban_server.core.names import Region, RegionKind
from kokuban_server.core.policy import NO_POLICY, Policy, RegionRule, Subjects, acts_for, check, parse_subjects
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt
from kokuban_server.core.sensitive import Handling, Terms
from kokuban_server.records.board_codec import decode_board, decode_purge, encode_board, encode_purge
from kokuban_server.wire import policies

IDS = st.sampled_from(["a", "a1", "A", "\u0430", "plan"])
WITH_ID = st.sampled_from([kind for kind in RegionKind if kind not in {RegionKind.TENANT, RegionKind.GLOBAL}])
REGIONS = st.builds(Region, WITH_ID, IDS)
PATTERNS = st.one_of(REGIONS.map(str), WITH_ID.map(lambda kind: f"{kind}:*"))
ROLES = st.frozensets(st.sampled_from(Role), max_size=3)
AGENTS = st.sampled_from(["a", "a1", "A", "plan"])
SUBJECTS = st.builds(Subjects, st.booleans(), st.booleans(), ROLES, st.frozensets(AGENTS, max_size=2))
RULES = st.builds(
    RegionRule,
    PATTERNS,
    st.none() | SUBJECTS,
    st.none() | SUBJECTS,
    st.none() | SUBJECTS,
    st.none() | st.booleans(),
    st.none() | st.sampled_from(LockPolicy),
    st.none() | st.integers(1, limits.POLICY_HISTORY_REVISIONS_MAX),
    st.none() | st.integers(limits.POLICY_HISTORY_AGE_MS_MIN, limits.EXPIRY_MS_MAX),
    st.none() | st.just(0) | st.integers(limits.EXPIRY_MS_MIN, limits.EXPIRY_MS_MAX),
    secrets=st.none() | st.sampled_from(Handling),
    personal_data=st.none() | st.sampled_from(Handling),
    revealers=st.none() | SUBJECTS,
)
POLICIES = st.builds(
    Policy,
    st.lists(RULES, max_size=5, unique_by=lambda rule: rule.pattern).map(tuple),
    SUBJECTS.map(lambda subjects: subjects._replace(acting=False)),
    redaction=st.builds(Terms, *[st.sampled_from(Handling)] * 2, st.sampled_from([Handling.REFUSE, Handling.KEEP])),
)
GRANTS = st.builds(Grants, st.frozensets(IDS, max_size=2))
PRINCIPALS = st.builds(
    Principal,
    st.just("acme"),
    AGENTS,
    st.frozensets(st.sampled_from(Role), min_size=1),
    users=GRANTS,
    conversations=GRANTS,
    tasks=GRANTS,
)


def is_valid(policy: Policy) -> bool:
    try:
        check(policy, "policy")
    except InvalidRequest:
        return False
    return True


def allows(policy: Policy, principal: Principal, region: Region, verb: Verb) -> bool:
    return policy.rule(principal, region, verb).decision is Decision.ALLOWED


def said(policy: Policy, region: Region, verb: Verb) -> Subjects | None:
    """What the policy says of a verb in a region, written anew: the region's own rule, then its kind's."""
    rules = {rule.pattern: rule for rule in policy.rules}
    for pattern in (f"{region.kind.value}:{region.id}", f"{region.kind.value}:*"):
        rule = rules.get(pattern)
        if rule is None:
            continue
        lockers = rule.lockers or rule.writers
        found = {
            Verb.READ: rule.readers,
            Verb.WRITE: rule.writers,
            Verb.LOCK: lockers,
            Verb.REVEAL: rule.revealers,
        }[verb]
        if found is not None:
            return found
    return None


def is_one_of(subjects: Subjects | None, principal: Principal, region: Region) -> bool:
    if subjects is None:
        return region.kind is RegionKind.SHARED or acts_for(principal, region)
    return (
        subjects.anyone
        or (subjects.acting and acts_for(principal, region))
        or bool(subjects.roles & principal.roles)
        or principal.agent in subjects.agents
    )


@given(POLICIES, PRINCIPALS, REGIONS, st.sampled_from(Verb))
def test_what_is_decided_is_what_the_nearest_rule_says_and_who_may_not_read_may_do_nothing(
    policy: Policy, principal: Principal, region: Region, verb: Verb
) -> None:
    may_read = is_one_of(said(policy, region, Verb.READ), principal, region)
    named = said(policy, region, verb)
    may = is_one_of(named, principal, region) and not (verb is Verb.REVEAL and named is None)
    if not may_read:
        expected = Decision.HIDDEN
    elif verb is not Verb.READ and (not may or (verb is not Verb.REVEAL and principal.roles == {Role.AUDITOR})):
        expected = Decision.FORBIDDEN
    else:
        expected = Decision.ALLOWED
    ruling = policy.rule(principal, region, verb)
    assert ruling.decision is expected
    assert bool(ruling.subject) == (expected is Decision.ALLOWED)
    assert ruling.rule in {"", str(region), f"{region.kind}:*"}


@given(POLICIES.filter(is_valid), PRINCIPALS, REGIONS)
def test_no_policy_that_is_taken_opens_what_is_private(policy: Policy, principal: Principal, region: Region) -> None:
    if acts_for(principal, region) or region.kind not in {RegionKind.AGENT, RegionKind.USER}:
        return
    assert not allows(policy, principal, region, Verb.WRITE)
    assert not allows(policy, principal, region, Verb.LOCK)
    if region.kind is RegionKind.USER:
        assert policy.rule(principal, region, Verb.REVEAL).decision is Decision.HIDDEN
    if region.kind is RegionKind.USER or principal.roles <= {Role.MEMBER, Role.SYSTEM}:
        assert policy.rule(principal, region, Verb.READ).decision is Decision.HIDDEN


@given(PRINCIPALS, REGIONS, st.sampled_from(Verb))
def test_without_a_policy_shared_regions_are_everybodys_and_others_belong_to_those_they_name(
    principal: Principal, region: Region, verb: Verb
) -> None:
    reads = region.kind is RegionKind.SHARED or acts_for(principal, region)
    writes = reads and principal.roles != {Role.AUDITOR}
    allowed = {Verb.READ: reads, Verb.REVEAL: False}.get(verb, writes)
    assert allows(NO_POLICY, principal, region, verb) == allowed


@pytest.mark.parametrize(
    ("kind", "role"), [(RegionKind.TENANT, Role.OPERATOR), (RegionKind.GLOBAL, Role.SYSTEM)], ids=str
)
@given(policy=POLICIES, principal=PRINCIPALS)
def test_regions_beyond_a_board_are_read_by_all_and_written_by_one_role_whatever_its_policy(
    kind: RegionKind, role: Role, policy: Policy, principal: Principal
) -> None:
    region = Region(kind, "")
    assert allows(policy, principal, region, Verb.READ)
    assert allows(policy, principal, region, Verb.WRITE) == (role in principal.roles)
    assert policy.terms(region).rules.lock_policy is LockPolicy.OFF


@given(POLICIES, PRINCIPALS)
def test_only_operators_whom_the_policy_names_administer_it(policy: Policy, principal: Principal) -> None:
    assert not policy.may_administer(replace(principal, roles=principal.roles - {Role.OPERATOR}))
    operator = replace(principal, roles=principal.roles | {Role.OPERATOR})
    named = policy.administrators
    expected = named.anyone or bool(named.roles & operator.roles) or operator.agent in named.agents
    assert policy.may_administer(operator) == expected
    assert NO_POLICY.may_administer(operator)


@given(RULES, RULES, IDS)
def test_what_holds_is_said_field_by_field_by_the_region_its_kind_or_nobody(
    own: RegionRule, of_kind: RegionRule, name: str
) -> None:
    region = Region(RegionKind.SHARED, name)
    own, of_kind = own._replace(pattern=str(region)), of_kind._replace(pattern="shared:*")
    rules = Policy((of_kind, own)).terms(region).rules
    standard = NO_POLICY.terms(region).rules
    for field in (
        "needs_precondition",
        "lock_policy",
        "history_revisions_max",
        "history_age_ms_max",
        "default_ttl_ms",
    ):
        values = [getattr(rule, field) for rule in (own, of_kind)] + [getattr(standard, field)]
        assert getattr(rules, field) == next(value for value in values if value is not None)


@given(POLICIES, st.integers(1, 2**40), AGENTS)
def test_a_board_is_read_as_it_was_written(policy: Policy, number: int, author: str) -> None:
    version = PolicyVersion(number, 5, author, "why")
    live = BoardRecord(1, "maker", policy, version)
    gone = replace(live, state=BoardState.DELETED, delete_time_ms=7, deleted_by="op", delete_reason="over")
    purged = replace(gone, state=BoardState.PURGED, receipt=Receipt(PurgeCount(1, 2, 3), 9))
    for board in (BoardRecord(1, "maker"), live, gone, purged):
        read = decode_board(b"k", encode_board(board))
        assert read.policy.says_the_same_as(board.policy)
        assert replace(read, policy=board.policy) == board
    assert decode_purge(b"k", encode_purge(PurgeCount(4, 5, 6))) == PurgeCount(4, 5, 6)


@given(POLICIES)
def test_a_policy_comes_back_as_it_was_sent(policy: Policy) -> None:
    assert policies.decode(policies.encode(policy), "policy").says_the_same_as(policy)


@given(POLICIES, POLICIES)
def test_policies_are_the_same_if_their_rules_are_in_whatever_order(one: Policy, other: Policy) -> None:
    assert one.says_the_same_as(Policy(tuple(reversed(one.rules)), one.administrators, redaction=one.redaction))
    same = ({*one.rules}, one.administrators, one.redaction) == ({*other.rules}, other.administrators, other.redaction)
    assert one.says_the_same_as(other) == same


@pytest.mark.parametrize("raw", [b"\xff", b"\x1a\x06\x0a\x04\x12\x02\x0a\x00"])
def test_a_record_that_cannot_be_read_is_corrupt(raw: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode_board(b"k", raw)


def test_subjects_are_read_and_written_alike() -> None:
    texts = ["anyone", "acting", "role:operator", "role:supervisor", "agent:a:b", "agent:writer-1"]
    subjects = parse_subjects(texts, "readers")
    assert subjects == Subjects(True, True, frozenset({Role.OPERATOR, Role.SUPERVISOR}), frozenset({"a:b", "writer-1"}))
    assert subjects.texts == texts
    assert parse_subjects([], "readers").texts == []


@pytest.mark.parametrize(
    "text", ["", "anyone ", "Anyone", "*", "role:", "role:chief", "role:Member", "agent:", "agent:a b", "user:u1", "a"]
)
def test_a_subject_that_makes_no_sense_is_refused_by_its_place(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_subjects(["anyone", text], "policy.rules[0].readers.subjects")
    assert (refused.value.reason, refused.value.field_path) == ("FIELD_INVALID", "policy.rules[0].readers.subjects[1]")


@pytest.mark.parametrize("text", ["anyone", "acting", "role:member", "agent:a"])
def test_a_subject_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_subjects([text, "agent:b", text], "subjects")
    assert (refused.value.reason, refused.value.field_path) == ("DUPLICATE_KEY", "subjects[2]")


def test_64_subjects_are_taken_and_65_are_not() -> None:
    texts = [f"agent:{number}" for number in range(limits.POLICY_SUBJECTS_ENTRIES_MAX + 1)]
    assert len(parse_subjects(texts[:-1], "subjects").agents) == 64
    with pytest.raises(InvalidRequest) as refused:
        parse_subjects(texts, "subjects")
    assert refused.value.reason == "TOO_MANY_ITEMS"


def shown(part: RegionRule | str) -> str:
    """Give what a case is called: not by all that a rule says, as sets are in another order in each process."""
    return part if isinstance(part, str) else part.pattern


ANYONE, ACTING = Subjects(anyone=True), Subjects(acting=True)
AUDITORS = Subjects(roles=frozenset({Role.AUDITOR}))


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (RegionRule(""), "pattern"),
        (RegionRule("*"), "pattern"),
        (RegionRule("shared"), "pattern"),
        (RegionRule("shared:"), "pattern"),
        (RegionRule("plan:*"), "pattern"),
        (RegionRule("shared:a/b"), "pattern"),
        (RegionRule("tenant"), "pattern"),
        (RegionRule("tenant:*"), "pattern"),
        (RegionRule("global:*"), "pattern"),
        (RegionRule("shared:plan", readers=ACTING), "readers.subjects"),
        (RegionRule("shared:*", lockers=ACTING), "lockers.subjects"),
        (RegionRule("agent:*", readers=ANYONE), "readers.subjects"),
        (RegionRule("agent:a", readers=Subjects(agents=frozenset({"b"}))), "readers.subjects"),
        (RegionRule("agent:a", readers=Subjects(roles=frozenset({Role.MEMBER}))), "readers.subjects"),
        (RegionRule("agent:*", writers=Subjects(roles=frozenset({Role.SUPERVISOR}))), "writers.subjects"),
        (RegionRule("agent:*", lockers=ANYONE), "lockers.subjects"),
        (RegionRule("user:*", readers=Subjects(roles=frozenset({Role.SUPERVISOR}))), "readers.subjects"),
        (RegionRule("user:u", writers=ANYONE), "writers.subjects"),
        (RegionRule("user:*", revealers=ANYONE), "revealers.subjects"),
        (RegionRule("agent:*", revealers=ANYONE), "revealers.subjects"),
        (RegionRule("shared:*", revealers=ACTING), "revealers.subjects"),
        (RegionRule("shared:*", writers=AUDITORS), "writers.subjects"),
        (RegionRule("task:*", lockers=AUDITORS), "lockers.subjects"),
        (RegionRule("task:*", history_revisions_max=0), "history_revisions_max"),
        (RegionRule("task:*", history_revisions_max=limits.POLICY_HISTORY_REVISIONS_MAX + 1), "history_revisions_max"),
        (RegionRule("task:*", default_ttl_ms=limits.EXPIRY_MS_MIN - 1), "default_ttl"),
    ],
    ids=shown,
)
def test_what_no_policy_may_say_is_refused_by_its_field(rule: RegionRule, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(Policy((RegionRule("task:ok"), rule)), "policy")
    assert refused.value.field_path == f"policy.rules[1].{field}"


@pytest.mark.parametrize(
    "rule",
    [
        RegionRule("agent:*", readers=Subjects(acting=True, roles=frozenset({Role.SUPERVISOR, Role.AUDITOR}))),
        RegionRule("agent:a:b", writers=Subjects()),
        RegionRule("user:*", readers=Subjects(), writers=Subjects()),
        RegionRule("shared:*", readers=AUDITORS, revealers=AUDITORS),
        RegionRule("user:*", revealers=ACTING),
        RegionRule("conversation:*", readers=ANYONE, writers=Subjects(agents=frozenset({"a"}))),
        RegionRule("task:*", history_revisions_max=1, default_ttl_ms=0),
        RegionRule("task:t", history_revisions_max=limits.POLICY_HISTORY_REVISIONS_MAX),
        RegionRule("task:t", default_ttl_ms=limits.EXPIRY_MS_MIN),
        RegionRule("task:t", default_ttl_ms=limits.EXPIRY_MS_MAX),
    ],
    ids=shown,
)
def test_what_a_policy_may_say_is_taken(rule: RegionRule) -> None:
    check(Policy((rule,)), "policy")


def test_a_pattern_has_one_rule_and_administrators_have_no_regions() -> None:
    with pytest.raises(InvalidRequest) as twice:
        check(Policy((RegionRule("task:*"), RegionRule("task:*"))), "policy")
    assert (twice.value.reason, twice.value.field_path) == ("DUPLICATE_KEY", "policy.rules[1].pattern")
    with pytest.raises(InvalidRequest) as acting:
        check(Policy((), ACTING), "policy")
    assert acting.value.field_path == "policy.administrators.subjects"


def test_a_region_is_redacted_as_its_rule_says_before_its_kinds_and_the_boards() -> None:
    keep, mask, refuse, off = Handling.KEEP, Handling.MASK, Handling.REFUSE, Handling.OFF
    rules = (RegionRule("task:*", secrets=keep, personal_data=mask), RegionRule("task:a", secrets=refuse))
    policy = Policy(rules, redaction=Terms(mask, off))
    found = [policy.redaction_in(Region(kind, name)) for kind, name in ((RegionKind.TASK, "a"), (RegionKind.TASK, "b"))]
    assert found == [Terms(refuse, mask), Terms(keep, mask)]
    assert policy.redaction_in(Region(RegionKind.SHARED, "a")) == Terms(mask, off)
    assert NO_POLICY.redaction_in(Region(RegionKind.SHARED, "a")) == Terms(mask, keep, refuse)
