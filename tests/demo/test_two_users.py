"""The second part's proof holds of a good run, and of no run in which anything was told to the wrong one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kokuban_client.demo.two_users import MEMBERS, PLAN, Look, Note, Told
from kokuban_client.demo.two_users_proof import prove
from kokuban_client.types import Revision

_FIRST, _SECOND = MEMBERS
_WAYS = ("get", "list", "watch")
_WORDS = iter(range(100))


def _note(region: str) -> Note:
    return Note(region, f"word-{next(_WORDS)}", Revision(7, "0" * 16))


NOTES = {member.agent: [_note(region) for region in member.own] for member in MEMBERS}
LOOKS = [
    Look(peer.agent, note.region, way, "NOT_FOUND", "NOT_FOUND")
    for owner, peer in ((_FIRST, _SECOND), (_SECOND, _FIRST))
    for note in NOTES[owner.agent]
    for way in _WAYS
]
GOOD = Told(
    plan={
        item: [_FIRST.agent, member.agent]
        for item, member in zip(PLAN, [_FIRST, _FIRST, _SECOND, _SECOND], strict=True)
    },
    log=[_FIRST.agent, _SECOND.agent],
    refusal=(_SECOND.agent, _FIRST.agent, "write the draft"),
    notes=NOTES,
    read_back=4,
    looks=LOOKS,
    seen_held=[],
    strangers=["CREDENTIAL_REQUIRED", "CREDENTIAL_INVALID"],
)
_WORD = NOTES[_FIRST.agent][1].word
ALONE, TASK, OWN, ALIKE, UNHEARD, STRANGERS, KEPT = range(7)


def _broken(told: Told, *, kept_tokens: int = 0, left_behind: bool = False) -> list[int]:
    checks = prove(told, kept_tokens=kept_tokens, left_behind=left_behind)
    return [number for number, check in enumerate(checks) if not check.holds]


def test_a_good_run_is_proved() -> None:
    assert _broken(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"plan": {item: [_FIRST.agent, _FIRST.agent] for item in PLAN}}, [ALONE]),
        ({"plan": {**GOOD.plan, PLAN[0]: [_FIRST.agent, _FIRST.agent, _SECOND.agent]}}, [ALONE]),
        ({"log": [_FIRST.agent]}, [TASK]),
        ({"refusal": (_SECOND.agent, "", "")}, [TASK]),
        ({"read_back": 3}, [OWN]),
        ({"looks": [replace(LOOKS[0], answer="WRITE_FORBIDDEN"), *LOOKS[1:]]}, [ALIKE]),
        ({"looks": LOOKS[: len(_WAYS)]}, [ALIKE]),
        ({"looks": []}, [ALIKE]),
        ({"looks": [replace(LOOKS[0], answer=_WORD, answer_for_nothing=_WORD), *LOOKS[1:]]}, [UNHEARD]),
        ({"seen_held": ["think"]}, [UNHEARD]),
        ({"strangers": ["let in", "CREDENTIAL_INVALID"]}, [STRANGERS]),
    ],
)
def test_what_is_not_so_is_noticed(changed: dict[str, Any], broken: list[int]) -> None:
    assert _broken(replace(GOOD, **changed)) == broken


def test_a_token_in_a_file_is_noticed() -> None:
    assert _broken(GOOD, kept_tokens=1) == [KEPT]
    assert _broken(GOOD, left_behind=True) == [KEPT]
