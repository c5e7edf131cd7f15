"""No way up but Endorse: whatever is written from whatever was read, what came from outside stays marked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kokuban_server.core import keys
from kokuban_server.core.access import Grants, Principal, RegionRules, Role
from kokuban_server.core.commit import (
    AddToSet,
    AppendToList,
    At,
    Delete,
    Endorse,
    MergePatch,
    MetadataChange,
    Moment,
    MustNotExist,
    Mutation,
    Put,
    Step,
    Target,
    plan,
    plan_fold,
)
from kokuban_server.core.entry import NOTHING, Act, Current, Form, Value
from kokuban_server.core.labels import label_of, source_ceiling
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.read_scopes import Given, ReadScope
from kokuban_server.core.refusals import Refusal, TrustTooLow
from kokuban_server.core.trust import OWN_WORD, UNDECLARED, Label, Parent, Source, SourceKind, Trust

if TYPE_CHECKING:
    from collections.abc import Sequence

REGION = parse_region("shared:plan")
PREFIX = keys.region_prefix("acme", "main", REGION)
PATHS = [f"e{number}" for number in range(6)]
WEB = Source(SourceKind.EXTERNAL, "https://example.com")
_CHAINS = 400
_CHAINS_LONG = 100_000
_STEPS = 30


def principal(**more: object) -> Principal:
    return Principal("acme", "a", frozenset({Role.MEMBER}), **more)  # type: ignore[arg-type]  # by name


class State(NamedTuple):
    """A state of an entry, and what of it truly came from outside and was not endorsed."""

    current: Current
    outside: frozenset[str]


class World:
    """Entries that agents write from what they have read, with the truth about every word kept apart from the labels."""

    def __init__(self, draw: random.Random, *, allows_lowering: bool) -> None:
        self.draw = draw
        self.rules = RegionRules(needs_precondition=False, allows_lowering=allows_lowering)
        self.states: dict[str, State] = {}
        self.past: list[tuple[str, State]] = []
        self.scopes = [ReadScope("a"), ReadScope("a")]
        self.memory: list[set[str]] = [set(), set()]
        """What is truly in the mind of the agent that works in each scope."""
        self.revision = 0
        self.words = 0

    def step(self) -> None:
        draw, kind = self.draw, self.draw.random()
        if kind < 0.3:
            self.read(draw.randrange(2))
        elif kind < 0.35:
            self.endorse()
        elif kind < 0.4:
            self.write(draw.choice(PATHS), None, OWN_WORD, frozenset())
        else:
            self.compose()

    def read(self, scope: int) -> None:
        """Be given an entry, as a read that asks for external text would."""
        if self.past:
            path, state = self.draw.choice(self.past)
            record = state.current.record
            assert record is not None
            self.memory[scope] |= state.outside
            if record.label.trust < Trust.AGENT:
                given = Given(
                    Parent(EntryKey(REGION, path), state.current.revision, record.sequence), record.label.trust
                )
                self.scopes[scope] = self.scopes[scope].given_more([given])

    def compose(self) -> None:
        """Write something that is made of a fetched page, of declared parents, of what the scope has in mind, or of nothing."""
        draw = self.draw
        made_of = draw.sample(self.past, min(len(self.past), draw.randrange(3)))
        scope = draw.choice([None, 0, 1])
        source = draw.choice([UNDECLARED, UNDECLARED, WEB])
        outside = {word for _, state in made_of for word in state.outside}
        if scope is not None:
            outside |= self.memory[scope]
        if source is WEB:
            self.words += 1
            outside.add(f"w{self.words}")
        parents, trusts = [], []
        for path, state in made_of:
            record = state.current.record
            assert record is not None
            parents.append(Parent(EntryKey(REGION, path), state.current.revision, record.sequence))
            trusts.append(record.label.trust)
        tracked = ""
        if scope is not None and self.scopes[scope].watermark < Trust.AGENT:
            trusts.append(self.scopes[scope].watermark)
            tracked = str(scope)
        label = label_of(source, tuple(parents), trusts, principal(), {}, tracked)
        if not outside and scope is None and all(trust >= Trust.AGENT for trust in trusts):
            assert label.trust is Trust.AGENT  # what is clean is not marked either
        self.write(draw.choice(PATHS), self.mutation(outside), label, frozenset(outside))

    def mutation(self, words: set[str]) -> Mutation | None:
        text = " ".join(sorted(words)) or "clean"
        kind = self.draw.randrange(6)
        if kind == 0:
            return AppendToList((text,))
        if kind == 1:
            return AddToSet((text,))
        if kind == 2:
            return MergePatch(At(0, ""), {text: "x"})
        if kind == 3:
            return Put(MustNotExist(), None, MetadataChange(replace=self.draw.random() < 0.5, set={"m": text}), None)
        form = self.draw.choice(["[]", "{}"])
        value = (
            Value(Form.JSON, form) if kind == 4 else Value(Form.TEXT, text)
        )  # a JSON value holds no words: none are outside
        return Put(MustNotExist(), value, None, None)

    def write(self, path: str, mutation: Mutation | None, label: Label, outside: frozenset[str]) -> None:
        """Plan a mutation as the server does, and keep what it made; nothing for a delete."""
        before = self.states.get(path)
        current = before.current if before is not None else NOTHING
        live = before is not None
        if mutation is None:
            mutation = Delete(At(current.revision, "e"))
        elif isinstance(mutation, Put):
            mutation = mutation._replace(precondition=At(current.revision, "e") if live else MustNotExist())
        elif isinstance(mutation, MergePatch):
            mutation = mutation._replace(precondition=At(current.revision, "e"))
        target = Target(EntryKey(REGION, path), keys.head(PREFIX, path), self.rules, b"")
        moment = Moment(1, 1, "e")
        try:
            if label is OWN_WORD and isinstance(mutation, AppendToList | AddToSet) and self.draw.random() < 0.5:
                planned = plan_fold(target, [mutation], (Act("a", "r"),), current, moment)
            else:
                planned = plan([Step(target, mutation, 0, label)], [], {target.head: current}, Act("a", "r"), moment)
        except Refusal as refusal:
            if isinstance(refusal, TrustTooLow):
                assert not self.rules.allows_lowering
            return
        [(_, record)] = planned.states
        self.revision += 1
        if isinstance(mutation, Delete):
            del self.states[path]
            return
        kept = before.outside if before is not None and self._keeps(mutation, before) else frozenset()
        state = State(Current(record, self.revision), outside | kept)
        if isinstance(mutation, Endorse):
            state = state._replace(outside=frozenset())
        self.states[path] = state
        self.past.append((path, state))
        if state.outside:
            assert record.label.trust <= Trust.EXTERNAL, (mutation, record.label)

    @staticmethod
    def _keeps(mutation: Mutation, before: State) -> bool:
        """Say whether something of what was there is there still, as the words tell."""
        if isinstance(mutation, Put) and mutation.value is not None:
            record = before.current.record
            given = mutation.metadata.set if mutation.metadata is not None else {}
            assert record is not None
            return any(name not in given for name in record.metadata)
        return True

    def endorse(self) -> None:
        if self.states:
            path = self.draw.choice(sorted(self.states))
            revision = self.states[path].current.revision
            self.write(path, Endorse(At(revision, "e"), Trust.AGENT), Label(Trust.AGENT), frozenset())


def chains(seed: int, count: int) -> None:
    draw = random.Random(seed)
    for number in range(count):
        world = World(draw, allows_lowering=number % 2 == 0)
        for _ in range(_STEPS):
            world.step()


def test_nothing_raises_trust_but_an_endorsement() -> None:
    chains(1, _CHAINS)


@pytest.mark.faults
@pytest.mark.timeout(1_800)
def test_nothing_raises_trust_in_100_000_chains() -> None:
    chains(2, _CHAINS_LONG)


def test_the_chains_meet_marked_and_clean_entries_and_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that forgets what it keeps of the state before, or what its scope was given, is found."""
    monkeypatch.setattr(Label, "onto", lambda self, _before, _sequence: self)
    with pytest.raises(AssertionError):
        chains(1, _CHAINS)
    monkeypatch.undo()
    monkeypatch.setattr(ReadScope, "watermark", Trust.SYSTEM)
    with pytest.raises(AssertionError):
        chains(1, _CHAINS)


@pytest.mark.parametrize(
    ("source", "who", "ceiling"),
    [
        (UNDECLARED, principal(), Trust.AGENT),
        (UNDECLARED, principal(browses=True), Trust.EXTERNAL),
        (Source(SourceKind.AGENT), principal(browses=True), Trust.AGENT),
        (Source(SourceKind.USER, name="u1"), principal(users=Grants(frozenset({"u1"}))), Trust.USER),
        (Source(SourceKind.USER, name="u2"), principal(users=Grants(frozenset({"u1"}))), Trust.AGENT),
        (Source(SourceKind.USER), principal(users=Grants(is_all=True)), Trust.AGENT),
        (Source(SourceKind.TOOL, name="search"), principal(), Trust.AGENT),
        (Source(SourceKind.TOOL, name="other"), principal(), Trust.EXTERNAL),
        (WEB, principal(), Trust.EXTERNAL),
    ],
)
def test_a_source_has_a_ceiling(source: Source, who: Principal, ceiling: Trust) -> None:
    assert source_ceiling(source, who, {"search": Trust.AGENT}) is ceiling


@pytest.mark.parametrize("ceiling", [Trust.EXTERNAL, Trust.AGENT, Trust.USER])
def test_a_credential_has_a_ceiling(ceiling: Trust) -> None:
    who = principal(trust_ceiling=ceiling, users=Grants(is_all=True))
    said = label_of(Source(SourceKind.USER, name="u1"), (), [], who, {}, "")
    assert said.trust is min(ceiling, Trust.USER)


def test_an_agents_own_word_is_one_label() -> None:
    """What nearly every write has is stored as nothing at all."""
    assert label_of(UNDECLARED, (), [], principal(), {}, "") is OWN_WORD


def test_what_a_scope_was_given_counts_once() -> None:
    states: Sequence[Given] = [
        Given(Parent(EntryKey(REGION, "a"), number, number), Trust.EXTERNAL) for number in (1, 2, 1)
    ]
    scope = ReadScope("a").given_more(states)
    assert len(scope.given) == 2
    assert scope.given_more(states) is scope
    assert (ReadScope("a").watermark, scope.watermark) == (Trust.SYSTEM, Trust.EXTERNAL)
