"""The second part: two agents of two users work on one board, and then try everything on what is the other's.

What is collected here is judged in `two_users_proof`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kokuban_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence

    from kokuban_client import Board, Client, Revision
    from kokuban_client.types import EntryKey

BOARD, TENANT, TASK = "launch", "acme", "newsletter"
SHARED, TOGETHER = "shared:plan", f"task:{TASK}"
PLAN = ("outline", "draft", "review", "send")
NOTE, LOG = "notes/today", "log"
_PURPOSE = "write the draft"
_NOBODY = "nobody"
"""Nobody has this name, so nothing ever was in its regions."""
_TOKEN = re.compile(r"token='?[\w=-]+'?")


@dataclass(frozen=True, slots=True)
class Member:
    """An agent, and the user that it acts for."""

    agent: str
    user: str

    @property
    def own(self) -> tuple[str, str]:
        """Its own region and its user's."""
        return f"agent:{self.agent}", f"user:{self.user}"

    @property
    def nobodys(self) -> tuple[str, str]:
        """Regions of the same kinds in which nothing ever was."""
        return f"agent:{_NOBODY}", f"user:{_NOBODY}"


MEMBERS = (Member("writer", "ann"), Member("planner", "bob"))


@dataclass(frozen=True, slots=True)
class Note:
    """What a member keeps in one of its regions. The word stands in it and nowhere else."""

    region: str
    word: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class Look:
    """One attempt at a region of the other's, and the same attempt where nothing ever was."""

    agent: str
    region: str
    way: str
    answer: str
    answer_for_nothing: str


@dataclass(frozen=True, slots=True)
class _Said:
    """What an answer that is no refusal says of an entry."""

    what: str
    keys: tuple[EntryKey, ...]

    def __repr__(self) -> str:
        return f"{self.what}: {', '.join(f'{key.region}/{key.path}' for key in self.keys)}"


@dataclass(frozen=True, slots=True)
class Told:
    """Everything that the proof of the second part rests on."""

    plan: Mapping[str, Sequence[str]]
    """Who wrote each item of the plan, oldest first."""
    log: Sequence[str]
    """Who wrote to the task's log."""
    refusal: tuple[str, str, str]
    """Who was kept out by a lock in the task's region, whose lock that was, and what for."""
    notes: Mapping[str, Sequence[Note]]
    read_back: int
    """How many notes their owners read as they wrote them, after everything."""
    looks: Sequence[Look]
    seen_held: Sequence[str]
    """What others were shown of locks in a member's own regions."""
    strangers: Sequence[str]
    """What those were answered who showed no token, or none of this server's."""

    @property
    def words(self) -> list[str]:
        """The words that only their owners may be shown."""
        return [note.word for notes in self.notes.values() for note in notes]


async def work_together(address: str, tokens: Mapping[str, str], tell: Callable[[str], None]) -> Told:
    """Let both members work, look, and be looked at."""
    first, second = MEMBERS
    async with (
        kokuban_client.connect(address, token=tokens[first.agent]) as one,
        kokuban_client.connect(address, token=tokens[second.agent]) as other,
    ):
        boards = {first: one.board(BOARD), second: other.board(BOARD)}
        for item in PLAN:
            await boards[first].put(SHARED, item, {"state": "open"}, must_not_exist=True)
        both = asyncio.Barrier(len(MEMBERS))
        await asyncio.gather(_take_items(boards[first], PLAN, both), _take_items(boards[second], PLAN[::-1], both))
        tell(f"both have worked off {SHARED}: {len(PLAN)} items")
        refusal = await _draft(boards)
        tell(f"{refusal[0]} refused (LOCKED_BY_OTHER) in {TOGETHER}, {refusal[1]}'s lock: {refusal[2]}")
        notes = {member.agent: [await _keep(boards[member], region) for region in member.own] for member in MEMBERS}
        tell("both have taken notes, each in its own region and in its user's")
        looks: list[Look] = []
        seen_held: list[str] = []
        for member, peer in ((first, second), (second, first)):
            looks += await _look_around(boards, member, peer, notes[member.agent], seen_held)
            tell(f"{peer.agent} has tried everything on what is {member.agent}'s and {member.user}'s")
        return Told(
            plan={item: await _authors(boards[first], SHARED, item) for item in PLAN},
            log=await _authors(boards[second], TOGETHER, LOG),
            refusal=refusal,
            notes=notes,
            read_back=sum([await _stands(boards[member], note) for member in MEMBERS for note in notes[member.agent]]),
            looks=looks,
            seen_held=seen_held,
            strangers=await _strangers(address),
        )


async def _take_items(board: Board, items: Sequence[str], both: asyncio.Barrier) -> None:
    """Do what is open, one after another: of two that take the same item one is first, and the other goes on."""
    for item in items:
        entry = await board.get(SHARED, item)
        if entry.value["state"] == "open":
            with contextlib.suppress(kokuban_client.errors.RevisionMismatch):
                await board.put(SHARED, item, {"state": "done"}, at=entry.revision)
        if item == items[0]:  # the quicker one leaves something to the other
            await both.wait()


async def _draft(boards: Mapping[Member, Board]) -> tuple[str, str, str]:
    """Write the task's draft under a lock, and let the other run into it: in a common region both see who and what for."""
    first, second = MEMBERS
    for board in boards.values():
        await board.append(TOGETHER, LOG, "joined")
    async with boards[first].lock(TOGETHER, "draft", purpose=_PURPOSE) as held:
        await held.board.put(TOGETHER, "draft/text", "Dear reader", must_not_exist=True)
        try:
            await boards[second].put(TOGETHER, "draft/text", "Hello", unconditional=True)
        except kokuban_client.errors.LockedByOther as error:
            return second.agent, error.holder_agent, error.purpose
    return second.agent, "", ""


async def _keep(board: Board, region: str) -> Note:
    word = secrets.token_hex(8)
    written = await board.put(region, NOTE, f"not for others: {word}", must_not_exist=True, metadata={"word": word})
    return Note(region, word, written.revision)


async def _stands(board: Board, note: Note) -> bool:
    """Say whether a note is what its owner wrote, in the state in which it was written."""
    entry = await board.get(note.region, NOTE)
    return note.word in entry.value and entry.revision == note.revision


async def _authors(board: Board, region: str, path: str) -> list[str]:
    """Give who wrote each state of an entry, oldest first."""
    return [change.entry.author for change in reversed(await board.history(region, path))]


async def _look_around(
    boards: Mapping[Member, Board], owner: Member, peer: Member, notes: Sequence[Note], seen_held: list[str]
) -> list[Look]:
    """Have a peer try everything on the owner's regions, while the owner holds locks there, and where nothing ever was."""
    looks = []
    for note, nothing in zip(notes, owner.nobodys, strict=True):
        async with boards[owner].lock(note.region, purpose=f"think about {note.word}"):
            board = boards[peer]
            for way, look in _WAYS.items():
                answer = await _answer(look(board, note.region, note.revision), note.region)
                answer_for_nothing = await _answer(look(board, nothing, note.revision), nothing)
                looks.append(Look(peer.agent, note.region, way, answer, answer_for_nothing))
            for presence in await board.sessions():
                seen_held += [f"{lock.purpose} {lock.targets}" for lock in presence.holds]
    return looks


async def _answer(call: Awaitable[object], region: str) -> str:
    """Give what a call answers as a text, without the name that was asked for and without tokens, which always move."""
    try:
        answer = repr(await call)
    except kokuban_client.KokubanError as error:
        answer = str(error)
    return _TOKEN.sub("token=…", answer.replace(region, "REGION"))


async def _all(items: AsyncIterable[object]) -> list[object]:
    return [item async for item in items]


async def _watched(board: Board, region: str) -> object:
    async with board.watch(region, start=kokuban_client.SNAPSHOT) as changes:
        return await anext(aiter(changes))


async def _locked(board: Board, region: str) -> object:
    async with board.lock(region, NOTE, purpose="look"):
        return "locked"


async def _claimed(board: Board, region: str) -> object:
    async with board.claim([(region, NOTE)], purpose="look") as claim:
        return claim.entry


async def _required(board: Board, region: str, revision: Revision) -> object:
    """Write to what is common on the condition that the other's note is as it is."""
    async with board.commit() as commit:
        commit.append(TOGETHER, LOG, "found out")
        commit.require(region, NOTE, at=revision)
    return "written"


async def _batch(board: Board, region: str) -> object:
    batch = await board.get_many([(region, NOTE)])
    return batch.entries or _Said("missing", batch.missing)


async def _currency(board: Board, region: str, revision: Revision) -> object:
    told = await board.check_current(entries=[(region, NOTE, revision)])
    return told.current or _Said("not as believed", told.stale_entries)


_WAYS: dict[str, Callable[[Board, str, Revision], Awaitable[Any]]] = {
    "get": lambda board, region, _: board.get(region, NOTE),
    "get many": lambda board, region, _: _batch(board, region),
    "list": lambda board, region, _: _all(board.list(region)),
    "history": lambda board, region, _: board.history(region, NOTE),
    "watch": lambda board, region, _: _watched(board, region),
    "check": _currency,
    "locks": lambda board, region, _: board.locks(region),
    "lock": lambda board, region, _: _locked(board, region),
    "claim": lambda board, region, _: _claimed(board, region),
    "create": lambda board, region, _: board.put(region, NOTE, "mine", must_not_exist=True),
    "change": lambda board, region, revision: board.put(region, NOTE, "mine", at=revision),
    "delete": lambda board, region, revision: board.delete(region, NOTE, at=revision),
    "increment": lambda board, region, _: board.increment(region, "count"),
    "require": _required,
}
"""Each way to learn something of a region, with the path and the revision that the owner would use."""


async def _strangers(address: str) -> list[str]:
    """Call without a token, under a member's name, and with a token of nobody's."""
    named = kokuban_client.connect(address, agent=MEMBERS[0].agent, roles=["operator"])
    unknown = kokuban_client.connect(address, token=f"kk_{secrets.token_urlsafe(32)}")
    return [await _refusal(client) for client in (named, unknown)]


async def _refusal(client: Client) -> str:
    async with client:
        try:
            await client.board(BOARD).get(SHARED, PLAN[0])
        except kokuban_client.KokubanError as error:
            return error.reason
    return "let in"
