"""Preconditions mean on etcd what they mean on the other stores, alone and in commits of several."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kokuban_client import errors

if TYPE_CHECKING:
    from kokuban_client import Board, Revision
    from tests.replicas.conftest import Connections
    from tests.replicas.pair import Pair

pytestmark = pytest.mark.etcd
BOUND_S = 20.0
REGION = "agent:writer-1"
"""A region in which a writer need not believe anything."""
STATES = ("never", "live", "deleted", "expired")


class Case(NamedTuple):
    """A mutation with a belief, of an entry in some state, at some place in a commit."""

    kind: str
    belief: str
    state: str
    place: str

    @property
    def path(self) -> str:
        return "/".join(self)

    @property
    def holds(self) -> bool:
        exists = self.state == "live"
        return {"must_not_exist": not exists, "at": exists, "unconditional": self.kind == "put" or exists}[self.belief]

    @property
    def refusal(self) -> type[errors.KokubanError]:
        return {
            "must_not_exist": errors.AlreadyExists,
            "at": errors.RevisionMismatch,
            "unconditional": errors.NotFound,
        }[self.belief]


CASES = [
    Case(*each)
    for each in product(
        ("put", "delete"), ("must_not_exist", "at", "unconditional"), STATES, ("alone", "first", "last", "beside")
    )
    if each[:2] != ("delete", "must_not_exist")  # refused as bad input whatever the state
    and (each[3] != "beside" or (each[0] == "put" and each[1] != "unconditional"))  # a belief about what is not written
]


async def _bring_about(board: Board, case: Case) -> Revision:
    """Bring the case's entry into its state; give the revision of its last life, or one that it never had."""
    if case.state == "never":
        return (await board.put(REGION, f"other/{case.path}", "x", must_not_exist=True)).revision
    ttl = 1 if case.state == "expired" else None
    made = await board.put(REGION, case.path, "old", must_not_exist=True, ttl=ttl)
    if case.state == "deleted":
        await board.delete(REGION, case.path, at=made.revision)
    return made.revision


async def _try(board: Board, case: Case, revision: Revision) -> errors.KokubanError | None:
    belief: dict[str, Any] = {case.belief: revision if case.belief == "at" else True}
    async with board.commit() as commit:
        if case.place == "beside":
            commit.require(REGION, case.path, **belief)
        if case.place in {"last", "beside"}:
            commit.put(REGION, f"companion/{case.path}", "x", must_not_exist=True)
        if case.place != "beside" and case.kind == "put":
            commit.put(REGION, case.path, "new", **belief)
        elif case.place != "beside":
            commit.delete(REGION, case.path, **belief)
        if case.place == "first":
            commit.put(REGION, f"companion/{case.path}", "x", must_not_exist=True)
    return None


async def test_AB_01_AB_03_each_precondition_on_each_state_alone_and_among_others(
    pair: Pair, connect: Connections
) -> None:
    """One server brings the states about, the other judges."""
    a, b = await connect(pair.a), await connect(pair.b)
    revisions = await asyncio.gather(*(_bring_about(a, case) for case in CASES))
    async with asyncio.timeout(BOUND_S):
        while any([case.state == "expired" and await a.find(REGION, case.path) is not None for case in CASES]):  # noqa: ASYNC110 - the end of an entry is only found by asking
            await asyncio.sleep(0)
    outcomes = await asyncio.gather(*map(_try, [b] * len(CASES), CASES, revisions), return_exceptions=True)
    expected = {case: type(None) if case.holds else case.refusal for case in CASES}
    assert {case: type(outcome) for case, outcome in zip(CASES, outcomes, strict=True)} == expected
    for case in CASES:
        entry = await a.find(REGION, case.path)
        written = case.holds and case.place != "beside"
        if written:
            assert (entry.value if entry else None) == ("new" if case.kind == "put" else None), case
        else:
            assert (entry.value if entry else None) == ("old" if case.state == "live" else None), case
        companion = await a.find(REGION, f"companion/{case.path}")
        assert (companion is not None) == (case.holds and case.place != "alone"), case
    assert len(CASES) == 72 - 12 + 8


@pytest.mark.parametrize("wrong", [{}, {"unconditional": True}])
async def test_AB_02_a_put_without_a_belief_is_refused(a: Board, region: str, wrong: dict[str, Any]) -> None:
    await a.put(region, "e", "kept", must_not_exist=True)
    with pytest.raises(TypeError if not wrong else errors.PreconditionRequired):
        await a.put(region, "e", "lost", **wrong)
    assert (await a.get(region, "e")).value == "kept"
