"""What came of what: the walk over origins and scopes against a plain model, and the patterns of sources."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.core.provenance import Ancestry, Origin, Reach, Selector, descent, matches
from kokuban_server.core.trust import Label, Source, SourceKind, Trust

HEADS = (b"e/a/", b"e/b/", b"e/c/")
SCOPES = (b"t/s/", b"t/u/")
StateName = tuple[bytes, int]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Ancestry, list[StateName], dict[StateName, int]]:
    """Write states one after another as a board would, each of what was there; give also what each keeps of those before."""
    origins: list[Origin] = []
    given_to: dict[bytes, list[Reach]] = {scope: [] for scope in SCOPES}
    first: dict[StateName, int] = {}
    newest = dict.fromkeys(HEADS, 0)
    order: list[StateName] = []
    for _ in range(draw(st.integers(1, 12))):
        head = draw(st.sampled_from(HEADS))
        newest[head] += 1
        name = head, newest[head]
        keeps = newest[head] > 1 and draw(st.booleans())
        first[name] = first[head, newest[head] - 1] if keeps else newest[head]
        parents = draw(st.lists(st.sampled_from(order), max_size=2, unique=True)) if order else []
        scope = draw(st.sampled_from((b"", *SCOPES)))
        if scope and order and draw(st.booleans()):
            shown = draw(st.sampled_from(order))
            given_to[scope].append(Reach(shown[0], first[shown], shown[1]))
        size = len(given_to[scope]) if scope else 0
        label = Label(Trust.EXTERNAL, scope_size=size)
        reaches = tuple(Reach(parent, first[parent, number], number) for parent, number in parents)
        if reaches or size:
            origins.append(Origin(b"x/", *name, b"", 1, "a", "", 0, label, reaches, scope if size else b""))
        order.append(name)
    return Ancestry(origins, given_to), order, first


def model(ancestry: Ancestry, first: dict[StateName, int], begin: set[StateName]) -> set[StateName]:
    """Walk until nothing is added: by parents, by what a scope had been given, and by what a state keeps."""
    found = set(begin)
    while True:
        more = set(found)
        for name, keeps_from in first.items():
            if any((name[0], number) in found for number in range(keeps_from, name[1])):
                more.add(name)
        for origin in ancestry.origins:
            shown = [(one.head, one.last) for one in origin.parents]
            shown += [(one.head, one.last) for one in ancestry.scopes.get(origin.scope, ())[: origin.label.scope_size]]
            if any(name in found for name in shown):
                more.add(origin.name)
        if more == found:
            return found
        found = more


@given(histories(), st.data())
def test_everything_that_came_of_it_is_found_and_nothing_else(
    history: tuple[Ancestry, list[StateName], dict[StateName, int]], data: st.DataObject
) -> None:
    """No history is needed for it: a state is told by its reach, however much of what lies between is forgotten."""
    ancestry, order, first = history
    begin = data.draw(st.sets(st.sampled_from(order), min_size=1, max_size=2))
    found = descent(ancestry, begin)
    reached = {name for name in order if found.reaches(Reach(name[0], first[name], name[1]))}
    assert reached == model(ancestry, first, begin)


def test_a_scope_counts_only_from_what_it_had_been_given_by_then() -> None:
    def written(head: bytes, size: int) -> Origin:
        label = Label(Trust.EXTERNAL, read_scope="s", scope_size=size)
        return Origin(b"x/", head, 1, b"", 1, "a", "s", 0, label, (), b"t/s/")

    given_to = {b"t/s/": [Reach(b"e/clean/", 1, 1), Reach(b"e/page/", 1, 1)]}
    ancestry = Ancestry([written(b"e/before/", 1), written(b"e/after/", 2)], given_to)
    found = descent(ancestry, [(b"e/page/", 1)])
    assert set(found.states) == {b"e/page/", b"e/after/"}
    assert found.scopes == {b"t/s/": 1}


def test_of_what_is_spared_nothing_is_taken_to_be_made() -> None:
    label = Label(Trust.EXTERNAL)
    child = Origin(b"x/", b"e/child/", 1, b"", 1, "a", "", 0, label, (Reach(b"e/page/", 1, 1),), b"")
    ancestry = Ancestry([child], {})
    assert set(descent(ancestry, [(b"e/page/", 1)]).states) == {b"e/page/", b"e/child/"}
    assert descent(ancestry, [(b"e/page/", 1)], {(b"e/page/", 1)}).states == {}


PIECES = st.text(alphabet="ab/.", max_size=4)


@given(st.lists(PIECES, min_size=1, max_size=9), st.text(alphabet="ab/.", max_size=16))
def test_a_star_stands_for_any_run_of_characters(pieces: list[str], text: str) -> None:
    pattern = "*".join(pieces)
    assert matches(pattern, text) == fnmatch.fnmatchcase(text, pattern)


@given(st.lists(PIECES, min_size=2, max_size=9), st.lists(PIECES, min_size=8, max_size=8))
def test_what_is_put_in_place_of_the_stars_matches(pieces: list[str], runs: list[str]) -> None:
    text = "".join(piece + run for piece, run in zip(pieces, runs, strict=False)) + "".join(pieces[len(runs) :])
    assert matches("*".join(pieces), text) == fnmatch.fnmatchcase(text, "*".join(pieces))


@pytest.mark.parametrize(
    ("selector", "is_meant"),
    [
        (Selector(uri="https://a.example/x"), True),
        (Selector(uri="https://a.example/"), False),
        (Selector(uri_pattern="https://a.example/*"), True),
        (Selector(uri_pattern="*.b.example/*"), False),
        (Selector(content_sha256=b"\x01" * 32), True),
        (Selector(uri="https://a.example/x", content_sha256=b"\x02" * 32), False),
        (Selector(user="u1"), False),
    ],
)
def test_a_source_is_meant_if_all_holds_that_is_set(selector: Selector, is_meant: bool) -> None:  # noqa: FBT001 - a case
    source = Source(SourceKind.EXTERNAL, "https://a.example/x", "", b"\x01" * 32)
    assert selector.means_source(source) is is_meant


def test_a_person_is_meant_by_name_alone() -> None:
    assert Selector(user="u1").means_source(Source(SourceKind.USER, name="u1"))
    assert not Selector(user="u1").means_source(Source(SourceKind.TOOL, name="u1"))
