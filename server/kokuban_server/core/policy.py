"""A board's policy: who may do what in which of its regions, and what holds there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.access import Decision, RegionRules, Role, Verb
from kokuban_server.core.locks import LockPolicy
from kokuban_server.core.names import WITHOUT_ID, Region, RegionKind, parse_agent, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.sensitive import STANDARD, Handling, Terms
from kokuban_server.core.trust import ScreeningProfile, StaleScreening, TaintMode, Trust, WithoutVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kokuban_server.core.access import Principal


class Subjects(NamedTuple):
    """Some of a board's principals."""

    anyone: bool = False
    acting: bool = False
    """Those to whom the region's id belongs: the agent itself, or those who act for the user, serve the conversation or work
    on the task."""
    roles: frozenset[Role] = frozenset()
    agents: frozenset[str] = frozenset()

    @property
    def texts(self) -> list[str]:
        """The same as it is written down."""
        words = [word for word, is_meant in ((_ANYONE, self.anyone), (_ACTING, self.acting)) if is_meant]
        return [
            *words,
            *(f"role:{role}" for role in sorted(self.roles)),
            *(f"agent:{name}" for name in sorted(self.agents)),
        ]

    def match(self, principal: Principal, region: Region) -> str:
        """Give the first subject that a principal is one of, or an empty text."""
        if self.anyone:
            return _ANYONE
        if self.acting and acts_for(principal, region):
            return _ACTING
        for role in sorted(self.roles & principal.roles):
            return f"role:{role}"
        return f"agent:{principal.agent}" if principal.agent in self.agents else ""


_ANYONE, _ACTING = "anyone", "acting"
_NOBODY = Subjects()
_OPERATORS = Subjects(roles=frozenset({Role.OPERATOR}))


class RegionRule(NamedTuple):
    """What a policy says of a region (`shared:plan`) or of all regions of a kind (`task:*`); nothing where it is silent."""

    pattern: str
    readers: Subjects | None = None
    writers: Subjects | None = None
    lockers: Subjects | None = None
    needs_precondition: bool | None = None
    lock_policy: LockPolicy | None = None
    history_revisions_max: int | None = None
    history_age_ms_max: int | None = None
    default_ttl_ms: int | None = None
    """How long an entry lives whose writer says nothing; 0 for ever."""
    read_floor: Trust | None = None
    taint_mode: TaintMode | None = None
    allows_lowering: bool | None = None
    screening: ScreeningProfile | None = None
    secrets: Handling | None = None
    personal_data: Handling | None = None
    stale_screening: StaleScreening | None = None
    without_verdict: WithoutVerdict | None = None
    revealers: Subjects | None = None


class Ruling(NamedTuple):
    """What was decided, and by what."""

    decision: Decision
    rule: str
    """The pattern of the rule that decided, or an empty text for what holds without a policy."""
    subject: str
    """As what the principal was let in; empty where it was not."""


class _Say(NamedTuple):
    subjects: Subjects
    rule: str


class RegionTerms(NamedTuple):
    """What holds in one region."""

    readers: _Say
    writers: _Say
    lockers: _Say
    revealers: _Say
    rules: RegionRules


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """What a board's operators have laid down. Compared by identity."""

    rules: tuple[RegionRule, ...] = ()
    """Each pattern once. The rule for a region comes before that for its kind, and both before what holds anyway."""
    administrators: Subjects = _OPERATORS
    """Which operators may change the policy and delete the board."""
    tools: Mapping[str, Trust] = field(default_factory=dict)
    """The most that what a tool gives may be trusted, by its name."""
    tool_screening: Mapping[str, ScreeningProfile] = field(default_factory=dict)
    """What is said of the screening of what a tool gives, by its name."""
    redaction: Terms = STANDARD
    """What becomes of secrets and personal data, where no rule says otherwise."""
    tool_stale_screening: Mapping[str, StaleScreening] = field(default_factory=dict)
    """What is said of what a tool gave and older rules have let in, by its name."""
    _by_pattern: dict[str, RegionRule] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_pattern", {rule.pattern: rule for rule in self.rules})

    def terms(self, region: Region) -> RegionTerms:
        """Give what holds in a region."""
        standard = _STANDARD[region.kind]
        layers = [
            rule for pattern in (str(region), f"{region.kind}:*") if (rule := self._by_pattern.get(pattern)) is not None
        ]
        if not layers and self.redaction == STANDARD:
            return standard
        readers, writers, lockers, revealers, rules = standard
        redaction = self.redaction
        for rule in reversed(layers):
            if rule.readers is not None:
                readers = _Say(rule.readers, rule.pattern)
            if rule.writers is not None:
                writers = lockers = _Say(rule.writers, rule.pattern)  # who may write may lock
            if rule.lockers is not None:
                lockers = _Say(rule.lockers, rule.pattern)
            if rule.revealers is not None:
                revealers = _Say(rule.revealers, rule.pattern)
            said = {name: value for name in _OF_RULES if (value := getattr(rule, name)) is not None}
            rules = replace(rules, **said)
            redaction = redaction._replace(
                secret=rule.secrets or redaction.secret, personal=rule.personal_data or redaction.personal
            )
        return RegionTerms(readers, writers, lockers, revealers, replace(rules, redaction=redaction))

    def redaction_in(self, region: Region) -> Terms:
        """Give what becomes of secrets and personal data that are written in a region."""
        return self.terms(region).rules.redaction if self.rules else self.redaction

    def rule(self, principal: Principal, region: Region, verb: Verb) -> Ruling:
        """Decide whether the principal may do this in the region. Who may not read may do nothing there.

        A principal whose only role is `auditor` never writes nor locks, whatever the policy says.
        """
        terms = self.terms(region)
        may_read = terms.readers.subjects.match(principal, region)
        if not may_read:
            return Ruling(Decision.HIDDEN, terms.readers.rule, "")
        if verb is Verb.READ:
            return Ruling(Decision.ALLOWED, terms.readers.rule, may_read)
        said = getattr(terms, _SAID[verb])
        may = said.subjects.match(principal, region)
        if not may or (verb is not Verb.REVEAL and principal.roles <= _READERS):
            return Ruling(Decision.FORBIDDEN, said.rule if not may else "", "")
        return Ruling(Decision.ALLOWED, said.rule, may)

    def says_the_same_as(self, other: Policy) -> bool:
        """Say whether another policy lays down the same."""
        return self._said == other._said

    @property
    def _said(self) -> tuple[object, ...]:
        of_tools = (self.tools, self.tool_screening, self.tool_stale_screening)
        return (self._by_pattern, self.administrators, *of_tools, self.redaction)

    def first_encrypting(self, place: str) -> str:
        """Give the first field of the policy by which anything is encrypted; empty if there is none."""
        said: list[tuple[str, Handling | None]]
        said = [(f"{place}.secrets", self.redaction.secret), (f"{place}.personal_data", self.redaction.personal)]
        for index, rule in enumerate(self.rules):
            at = f"{place}.rules[{index}]"
            said += [(f"{at}.secrets", rule.secrets), (f"{at}.personal_data", rule.personal_data)]
        return next((field for field, handling in said if handling is Handling.ENCRYPT), "")

    def may_administer(self, principal: Principal) -> bool:
        """Say whether the principal may change this policy and delete the board."""
        return Role.OPERATOR in principal.roles and bool(self.administrators.match(principal, _NOWHERE))


_SAID = {Verb.WRITE: "writers", Verb.LOCK: "lockers", Verb.REVEAL: "revealers"}
_OF_RULES = (
    "needs_precondition",
    "lock_policy",
    "history_revisions_max",
    "history_age_ms_max",
    "default_ttl_ms",
    "read_floor",
    "taint_mode",
    "allows_lowering",
    "screening",
    "stale_screening",
    "without_verdict",
)
_READERS = frozenset({Role.AUDITOR})
_NOWHERE = Region(RegionKind.SHARED, "")
"""A region to which nobody has a title of its own."""


def acts_for(principal: Principal, region: Region) -> bool:
    """Say whether a region's id is the principal's own, or one of those that its credential names."""
    kind = region.kind
    if kind is RegionKind.AGENT:
        return region.id == principal.agent
    if kind is RegionKind.USER:
        return principal.is_development or principal.users.includes(region.id)
    if kind is RegionKind.CONVERSATION:
        return principal.is_development or principal.conversations.includes(region.id)
    if kind is RegionKind.TASK:
        return principal.is_development or principal.tasks.includes(region.id)
    return False


def _standard(
    readers: Subjects, writers: Subjects, *, needs_precondition: bool = False, locks: LockPolicy = LockPolicy.IF_LOCKED
) -> RegionTerms:
    rules = RegionRules(needs_precondition, lock_policy=locks)
    return RegionTerms(_Say(readers, ""), _Say(writers, ""), _Say(writers, ""), _Say(_NOBODY, ""), rules)


_EVERYONE, _THE_ACTING = Subjects(anyone=True), Subjects(acting=True)
_SYSTEM = Subjects(roles=frozenset({Role.SYSTEM}))
_STANDARD = {
    RegionKind.SHARED: _standard(_EVERYONE, _EVERYONE, needs_precondition=True),
    RegionKind.AGENT: _standard(_THE_ACTING, _THE_ACTING),
    RegionKind.TASK: _standard(_THE_ACTING, _THE_ACTING),
    RegionKind.CONVERSATION: _standard(_THE_ACTING, _THE_ACTING),
    RegionKind.USER: _standard(_THE_ACTING, _THE_ACTING),
    # Beyond a board there is no board's policy, and there are no locks.
    RegionKind.TENANT: _standard(_EVERYONE, _OPERATORS, locks=LockPolicy.OFF),
    RegionKind.GLOBAL: _standard(_EVERYONE, _SYSTEM, locks=LockPolicy.OFF),
}
"""What holds unless a policy says otherwise."""

NO_POLICY = Policy()


# Reading a policy.


def parse_subjects(texts: Sequence[str], place: str) -> Subjects:
    """Read subjects: `anyone`, `acting`, `role:ROLE`, `agent:ID`, each once. None at all is nobody."""
    if len(texts) > limits.POLICY_SUBJECTS_ENTRIES_MAX:
        limit, actual = limits.POLICY_SUBJECTS_ENTRIES_MAX, len(texts)
        more = {"limit": str(limit), "actual": str(actual)}
        raise InvalidRequest("TOO_MANY_ITEMS", place, f"at most {limit}, these are {actual}", more)
    roles: set[Role] = set()
    agents: set[str] = set()
    words: set[str] = set()
    for index, text in enumerate(texts):
        kind, _, name = text.partition(":")
        if text in {_ANYONE, _ACTING}:
            words.add(text)
        elif kind == "role" and name in _ROLES:
            roles.add(Role(name))
        elif kind == "agent" and parse_agent(name) is not None:
            agents.add(name)
        else:
            raise InvalidRequest(
                "FIELD_INVALID",
                f"{place}[{index}]",
                f"not `anyone`, `acting`, `agent:ID` or `role:ROLE` with {', '.join(Role)}",
            )
        if len(words) + len(roles) + len(agents) <= index:
            raise InvalidRequest("DUPLICATE_KEY", f"{place}[{index}]", "each subject stands there at most once")
    return Subjects(_ANYONE in words, _ACTING in words, frozenset(roles), frozenset(agents))


def check(policy: Policy, place: str) -> None:
    """Raise `InvalidRequest` for a policy that says what no policy may say."""
    if policy.administrators.acting:
        raise InvalidRequest(
            "FIELD_INVALID", f"{place}.administrators.subjects", "`acting` is for regions that have an owner"
        )
    if policy.redaction.unsearched not in {Handling.REFUSE, Handling.KEEP}:
        raise InvalidRequest("FIELD_INVALID", f"{place}.unsearched", "REFUSE or KEEP: what was not found is not masked")
    for index, trust in enumerate(policy.tools.values()):
        if not Trust.EXTERNAL <= trust <= Trust.USER:
            raise InvalidRequest("FIELD_INVALID", f"{place}.tools[{index}].trust", "EXTERNAL, AGENT or USER")
    patterns: set[str] = set()
    for index, rule in enumerate(policy.rules):
        _check_rule(rule, f"{place}.rules[{index}]")
        if rule.pattern in patterns:
            raise InvalidRequest("DUPLICATE_KEY", f"{place}.rules[{index}].pattern", "each pattern has one rule")
        patterns.add(rule.pattern)


def _check_rule(rule: RegionRule, place: str) -> None:
    kind = _kind_of(rule.pattern, f"{place}.pattern")
    widest = _WIDEST.get(kind, _ANY)
    for name, subjects, most in (
        ("readers", rule.readers, widest.readers),
        ("writers", rule.writers, widest.writers),
        ("lockers", rule.lockers, widest.writers),
        ("revealers", rule.revealers, widest.readers),
    ):
        if subjects is None:
            continue
        if kind is RegionKind.SHARED and subjects.acting:
            raise InvalidRequest(
                "FIELD_INVALID", f"{place}.{name}.subjects", "shared regions have no owner who could be `acting`"
            )
        if _exceeds(subjects, most):
            raise InvalidRequest(
                "FIELD_INVALID",
                f"{place}.{name}.subjects",
                f"of {kind} regions at most {', '.join(most.texts) or 'nobody'}",
            )
        if name in {"writers", "lockers"} and Role.AUDITOR in subjects.roles:
            raise InvalidRequest("FIELD_INVALID", f"{place}.{name}.subjects", "auditors only read")
    revisions = rule.history_revisions_max
    if revisions is not None and not 1 <= revisions <= limits.POLICY_HISTORY_REVISIONS_MAX:
        raise InvalidRequest(
            "FIELD_INVALID", f"{place}.history_revisions_max", f"1 to {limits.POLICY_HISTORY_REVISIONS_MAX}"
        )
    if rule.read_floor is Trust.SUSPECT:
        raise InvalidRequest("FIELD_INVALID", f"{place}.read_floor", "EXTERNAL to SYSTEM")
    ttl_ms = rule.default_ttl_ms
    if ttl_ms and not limits.EXPIRY_MS_MIN <= ttl_ms <= limits.EXPIRY_MS_MAX:
        raise InvalidRequest("FIELD_INVALID", f"{place}.default_ttl", "0, or 1 second to 3,650 days")


def _kind_of(pattern: str, place: str) -> RegionKind:
    """Give the kind of the regions that a pattern means."""
    kind, colon, name = pattern.partition(":")
    if not pattern:
        raise InvalidRequest("FIELD_REQUIRED", place, "a region, as in shared:plan, or a kind, as in task:*")
    region = Region(_KINDS[kind], "") if colon and name == "*" and kind in _KINDS else parse_region(pattern, place)
    if region.kind in WITHOUT_ID:
        raise InvalidRequest("FIELD_INVALID", place, f"the {region.kind} region lies beyond the board and its policy")
    return region.kind


class _Widest(NamedTuple):
    readers: Subjects
    writers: Subjects


_ANY = _Widest(_EVERYONE, _EVERYONE)
_OVERSEERS = frozenset({Role.SUPERVISOR, Role.OPERATOR, Role.AUDITOR})
_WIDEST = {
    RegionKind.AGENT: _Widest(Subjects(acting=True, roles=_OVERSEERS), _THE_ACTING),
    RegionKind.USER: _Widest(_THE_ACTING, _THE_ACTING),
}
"""How far a policy may open what is private: others never write an agent's memory, and never see another user's data."""
_ROLES = frozenset(role.value for role in Role)
_KINDS = {kind.value: kind for kind in RegionKind}


def _exceeds(subjects: Subjects, most: Subjects) -> bool:
    return not most.anyone and (
        subjects.anyone
        or (subjects.acting and not most.acting)
        or not subjects.roles <= most.roles
        or not subjects.agents <= most.agents
    )
