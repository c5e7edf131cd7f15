"""The proof of the second part: pure functions over what the two members were told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client.demo.proof import Check
from kokuban_client.demo.two_users import MEMBERS, PLAN, TOGETHER

if TYPE_CHECKING:
    from kokuban_client.demo.two_users import Told

_STATES_OF_AN_ITEM = 2


def prove(told: Told, *, kept_tokens: int, left_behind: bool) -> list[Check]:
    """Give every check. `kept_tokens` is how many tokens stood in a file, `left_behind` whether the folder is still there."""
    return [
        _plan(told),
        _task(told),
        _own(told),
        _alike(told),
        _unheard(told),
        _strangers(told),
        Check(
            "no token was kept in a file",
            kept_tokens == 0 and not left_behind,
            f"{kept_tokens} in the file of principals, which held hashes and is gone"
            if not left_behind
            else "the folder with the file of principals is still there",
        ),
    ]


def _plan(told: Told) -> Check:
    """Each item was made once and done once, and both did some."""
    done = [authors[1] for authors in told.plan.values() if len(authors) == _STATES_OF_AN_ITEM]
    counts = {member.agent: done.count(member.agent) for member in MEMBERS}
    return Check(
        "both users' agents worked off one plan",
        len(done) == len(told.plan) == len(PLAN) and all(counts.values()),
        " · ".join(f"{agent} did {count} of {len(PLAN)}" for agent, count in counts.items()),
    )


def _task(told: Told) -> Check:
    """In the task's region both write, and each is told who else is at work there, and what for."""
    refused, holder, purpose = told.refusal
    wrote = [member.agent for member in MEMBERS if member.agent in told.log]
    return Check(
        "in their task's region they see each other",
        len(wrote) == len(MEMBERS) and refused != holder in wrote and bool(purpose),
        f"{' and '.join(wrote)} wrote in {TOGETHER}; {refused} was told that {holder} holds it to {purpose}",
    )


def _own(told: Told) -> Check:
    notes = len(told.words)
    return Check(
        "each has its own notes, as it wrote them",
        told.read_back == notes == len(MEMBERS) * 2,
        f"{told.read_back} of {notes} read back unchanged, after everything that the other tried",
    )


def _alike(told: Told) -> Check:
    alike = sum(look.answer == look.answer_for_nothing for look in told.looks)
    regions = {look.region for look in told.looks}
    tried = {(look.agent, look.region, look.way) for look in told.looks}
    return Check(
        "what is another's is answered like what never was",
        alike == len(told.looks) == len(tried) > 0 and regions == {one for member in MEMBERS for one in member.own},
        f"{alike} of {len(told.looks)} looks into {len(regions)} regions, word for word",
    )


def _unheard(told: Told) -> Check:
    """No word of a note, and no lock on it, was shown to the other."""
    answers = [look.answer for look in told.looks]
    heard = sum(any(word in answer for answer in (*answers, *told.seen_held)) for word in told.words)
    return Check(
        "no answer held a word of another's notes",
        heard == 0 and not told.seen_held and bool(told.words),
        f"{heard} of {len(told.words)} words in {len(answers)} answers; {len(told.seen_held)} of their locks shown",
    )


def _strangers(told: Told) -> Check:
    return Check(
        "who shows no token of this server is not let in",
        list(told.strangers) == ["CREDENTIAL_REQUIRED", "CREDENTIAL_INVALID"],
        f"a member's name alone: {told.strangers[0]} · a made-up token: {told.strangers[1]}",
    )
