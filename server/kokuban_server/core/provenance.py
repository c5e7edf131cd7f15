"""What was made of what: the origins of states, the sources that removals are about, and what came of them."""

from __future__ import annotations

import enum
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kokuban_server.core.trust import OWN_WORD, UNDECLARED, Label, Source, SourceKind

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from kokuban_server.core.entry import Act

StateName: TypeAlias = "tuple[bytes, int]"
"""A state: its entry's head key, and its sequence."""


class Link(enum.IntEnum):
    """How a state came of another. The numbers are those of the wire."""

    DECLARED = 1
    READ_SCOPE = 2
    EXTENDS = 3
    ASKED = 4
    """It is the one that was asked about."""


class Reach(NamedTuple):
    """A state with those before it of which it may hold a part."""

    head: bytes
    first: int
    last: int
    """The sequence of the state itself."""

    def covers(self, sequence: int) -> bool:
        """Say whether the state may hold a part of that one of its entry."""
        return self.first <= sequence <= self.last


class Origin(NamedTuple):
    """What a state was made of, as it was recorded with it."""

    board: bytes
    """The prefix of the board on which it was written."""
    head: bytes
    sequence: int
    key: bytes
    """Of the record, which is that of a commit and may have several such states."""
    revision: int
    """Of the record."""
    agent: str
    session: str
    time_ms: int
    label: Label
    parents: tuple[Reach, ...]
    """In the order of the label's."""
    scope: bytes
    """The key of the read scope that it was written in, if that counted."""

    @property
    def name(self) -> StateName:
        """The state."""
        return self.head, self.sequence


class Ancestry(NamedTuple):
    """All that is recorded of where states come from."""

    origins: Sequence[Origin]
    scopes: Mapping[bytes, Sequence[Reach]]
    """What each read scope was given, in order, by the scope's key."""


class Descent(NamedTuple):
    """What came of some states."""

    states: dict[bytes, set[int]]
    """Sequences by heads, of the states begun with and all that was made of them."""
    scopes: dict[bytes, int]
    """The read scopes that were given any of it, and the place of the first such thing among what they were given."""

    def reaches(self, reach: Reach) -> bool:
        """Say whether a state may hold a part of one of these."""
        return any(map(reach.covers, self.states.get(reach.head, ())))


def reach_of(head: bytes, sequence: int, label: Label) -> Reach:
    """Give a state with what it keeps of those before."""
    return Reach(head, label.extends_from or sequence, sequence)


def has_origin(label: Label) -> bool:
    """Say whether a state was made of something else than its writer's word and the states before it."""
    return label is not OWN_WORD and (label.source is not UNDECLARED or bool(label.parents) or bool(label.read_scope))


def descent(ancestry: Ancestry, begin: Iterable[StateName], spared: Container[StateName] = ()) -> Descent:
    """Give the states begun with and everything that was made of them; of what is spared nothing is taken to be made.

    What a state keeps of earlier states of its own entry is told by those that name it: nothing depends on a history that may
    have been cut.
    """
    links = Links(ancestry, spared)
    found = Descent({}, {})
    waiting = list(begin)
    while waiting:
        name = waiting.pop()
        head, sequence = name
        sequences = found.states.setdefault(head, set())
        if name in spared or sequence in sequences:
            continue
        sequences.add(sequence)
        waiting += [child for reach, child in links.declared[head] if reach.covers(sequence)]
        for reach, scope, place in links.given[head]:
            if reach.covers(sequence) and place < found.scopes.get(scope, place + 1):
                found.scopes[scope] = place
                waiting += links.written_in(scope, place)
    return Descent({head: sequences for head, sequences in found.states.items() if sequences}, found.scopes)


class Links:
    """What is recorded, by the entries that things were made of; of what is spared nothing is taken to be made."""

    def __init__(self, ancestry: Ancestry, spared: Container[StateName] = ()) -> None:
        self.declared: dict[bytes, list[tuple[Reach, StateName]]] = defaultdict(list)
        """By an entry's head: its states that were named, and what named them."""
        self.given: dict[bytes, list[tuple[Reach, bytes, int]]] = defaultdict(list)
        """By an entry's head: its states that a scope was given, the scope, and the place among all that it was given."""
        self._written: dict[bytes, list[Origin]] = defaultdict(list)
        for origin in ancestry.origins:
            for parent in origin.parents:
                if (parent.head, parent.last) not in spared:
                    self.declared[parent.head].append((parent, origin.name))
            if origin.scope:
                self._written[origin.scope].append(origin)
        for scope, given in ancestry.scopes.items():
            for place, reach in enumerate(given):
                if (reach.head, reach.last) not in spared:
                    self.given[reach.head].append((reach, scope, place))

    def written_in(self, scope: bytes, place: int) -> list[StateName]:
        """Give the states that were written in a scope after it had been given what stands at a place."""
        return [origin.name for origin in self._written[scope] if place < origin.label.scope_size]


class Selector(NamedTuple):
    """Which states a removal begins with. All that is set must hold."""

    uri: str = ""
    uri_pattern: str = ""
    content_sha256: bytes = b""
    agent: str = ""
    session: str = ""
    from_ms: int = 0
    before_ms: int = 0
    user: str = ""
    """A person: what is in the user's region, or is declared to come from that user. Nothing else is set then."""

    @property
    def needs_source(self) -> bool:
        """Whether only what declares a source can be meant."""
        return bool(self.uri or self.uri_pattern or self.content_sha256)

    def means_source(self, source: Source) -> bool:
        """Say whether a declared source is meant, as far as it goes by that."""
        if self.user:
            return source.kind is SourceKind.USER and source.name == self.user
        if self.uri and source.uri != self.uri:
            return False
        if self.content_sha256 and source.content_sha256 != self.content_sha256:
            return False
        return not self.uri_pattern or matches(self.uri_pattern, source.uri)

    def means(self, source: Source, acts: Sequence[Act], time_ms: int) -> bool:
        """Say whether a state is meant."""
        if not self.means_source(source):
            return False
        if self.agent and all(act.agent != self.agent for act in acts):
            return False
        if self.session and all(act.session != self.session for act in acts):
            return False
        return self.from_ms <= time_ms and (not self.before_ms or time_ms < self.before_ms)


class Bar(NamedTuple):
    """What a board refuses since it was removed: a source, or a person by a pseudonym."""

    removal: str
    selector: Selector | None = None
    pseudonym: bytes = b""


def matches(pattern: str, text: str) -> bool:
    """Say whether a text is what a pattern describes, in which `*` stands for any run of characters."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    if not text.startswith(first) or not text[len(first) :].endswith(others[-1]):
        return False
    place, end = len(first), len(text) - len(others[-1])
    for part in others[:-1]:
        place = text.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True
