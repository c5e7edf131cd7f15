"""The third part: a team reads pages, two of which are poisoned; what came of them is found and removed while others work.

The same team also works on a board that the poison never reaches. What is collected here is judged in `bad_source_proof`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kokuban_client
from kokuban_client import External, Source, SourceKind, SourceSelector, Trust

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kokuban_client import Board, Entry, ProvenanceTrace, QuarantinedCommit, Removal, RemovalPlan, Written

POISONED, CLEAN = "poisoned", "clean"
"""The boards."""
PAGES, NOTES, BRIEF, REGISTER = "shared:pages", "shared:notes", "shared:brief", "shared:register"
EDITION = "backups"
EDITOR, CLERK, OPERATOR = "editor", "clerk", "operator"
BAD_URIS = "https://tips.example/*"
REASON = "it says that backups need no restore drill"
REGISTER_WRITES = 40
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_SENTENCE = re.compile(r".+?(?:\.(?=\s)|。|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was fetched: a file of the demo's, and where it is said to come from."""

    name: str
    uri: str

    def text(self) -> str:
        """Give what stands on it."""
        return (importlib.resources.files(__package__) / "pages" / f"{self.name}.html").read_text(encoding="utf-8")


GOOD_PAGES = (
    Page("restore-drill", "https://handbook.example/zh/restore-drill"),
    Page("three-copies", "https://handbook.example/backups/three-copies"),
)
HIDDEN_ORDER = Page("checklist", "https://tips.example/backups/checklist")
"""Has an order to its reader in a comment, in English and in Chinese."""
LIE = Page("retention", "https://tips.example/backups/retention")
"""Gives no order, and is wrong."""


def summary(page: str) -> str:
    """Give the first sentence of each paragraph: here a real agent would ask its model."""
    sentences = [_SENTENCE.match(paragraph.strip()) for paragraph in _PARAGRAPH.findall(page)]
    return "\n".join(" ".join(one[0].split()) for one in sentences if one is not None)


@dataclass(frozen=True, slots=True)
class Content:
    """What a board holds at a path, without when it was written."""

    region: str
    path: str
    value: object
    source: str
    author: str
    trust: str


@dataclass(frozen=True, slots=True)
class Told:
    """Everything that the proof of the third part rests on."""

    held_back: Sequence[QuarantinedCommit]
    """What the filter put into quarantine."""
    lie_trust: Trust
    """How far the page is trusted that got in."""
    plain_read: str
    """What a reader of that page was answered who did not ask for external text."""
    ancestors: ProvenanceTrace
    """Of the brief."""
    descendants: ProvenanceTrace
    """Of the page that got in."""
    tree: Sequence[str]
    """The brief's ancestors as the command line shows them."""
    plan: RemovalPlan
    removal: Removal
    seen_before: int
    """In how many texts on the board something of the poisoned pages stood before the purge."""
    seen_after: int
    refused: Mapping[str, str]
    """What those were answered who wrote on from what was purged, or fetched it again."""
    written_meanwhile: tuple[int, int]
    """How much another agent wrote after the purge was begun, and how much of that before it was done."""
    result: Sequence[Content]
    """What the board holds in the end."""
    expected: Sequence[Content]
    """What the board holds in the end that the poison never reached."""


async def work_with_a_bad_source(address: str, show: Callable[[], str], tell: Callable[[str], None]) -> Told:
    """Let the team work on both boards. `show` gives the brief's ancestors as the command line shows them."""
    async with contextlib.AsyncExitStack() as clean, contextlib.AsyncExitStack() as poisoned:
        team = _Team(address, CLEAN, clean)
        await team.write_brief(GOOD_PAGES)
        await team.keep_register(range(REGISTER_WRITES))
        expected = await contents(await team.board_of("reader"))
        tell(f"a board that the poison never reaches: {len(GOOD_PAGES)} pages, a brief of them, a register")
        return await _with_poison(_Team(address, POISONED, poisoned), expected, show, tell)


class _Team:
    """Agents on one board, each with a client of its own, kept until the end of the run."""

    def __init__(self, address: str, board: str, clients: contextlib.AsyncExitStack) -> None:
        self._address = address
        self._board = board
        self._clients = clients

    async def board_of(self, agent: str, *roles: str) -> Board:
        """Give the board as an agent sees it that has been given nothing yet."""
        client = kokuban_client.connect(self._address, agent=agent, roles=roles)
        return (await self._clients.enter_async_context(client)).board(self._board)

    async def write_brief(self, pages: Sequence[Page]) -> dict[Page, Board]:
        """Have each page read by an agent of its own, and a brief written of their notes; give the readers' boards."""
        readers = {page: await self.board_of(f"reader-{page.name}") for page in pages}
        notes = await asyncio.gather(*(_read(board, page) for page, board in readers.items()))
        # The editor was told the notes by the readers and asks the board for none of them: it says what they were.
        editor = await self.board_of(EDITOR)
        told = [note for note in notes if note is not None]
        await _edit(editor, {note.path: str(note.value) for note in told}, told)
        return readers

    async def edit_again(self) -> None:
        """Have the brief written by an editor that has only what stands on the board."""
        editor = await self.board_of(EDITOR)
        notes = {note.path: str(_value(note)) async for note in editor.list(NOTES, floor=Trust.EXTERNAL)}
        await _edit(editor, notes, [])

    async def keep_register(self, numbers: range) -> None:
        """Do something else meanwhile: enter machines into a register."""
        clerk = await self.board_of(CLERK)
        for number in numbers:
            async with clerk.commit(reason="another machine") as commit:
                commit.put(REGISTER, _machine(number), {"backed_up": True}, must_not_exist=True)
                commit.increment(REGISTER, "count")


async def _read(board: Board, page: Page) -> Written | None:
    """Put a page on the board, read it there, and note what it says; or give nothing if the page is held back."""
    source = Source(SourceKind.EXTERNAL, page.uri)
    try:
        await board.put(PAGES, page.name, page.text(), must_not_exist=True, source=source)
    except kokuban_client.ContentQuarantined:
        return None
    entry = await board.get(PAGES, page.name, floor=Trust.EXTERNAL)
    # Nothing is declared here: that the page was read is known to the board.
    return await board.put(NOTES, page.name, summary(entry.value.read()), must_not_exist=True)


async def _edit(editor: Board, notes: Mapping[str, str], derived_from: Sequence[Written]) -> None:
    text = "\n\n".join(notes[name] for name in sorted(notes))
    await editor.put(BRIEF, EDITION, text, must_not_exist=True, derived_from=derived_from)


async def _with_poison(
    team: _Team, expected: Sequence[Content], show: Callable[[], str], tell: Callable[[str], None]
) -> Told:
    await team.keep_register(range(REGISTER_WRITES // 2))
    readers = await team.write_brief((*GOOD_PAGES, HIDDEN_ORDER, LIE))
    operator = await team.board_of(OPERATOR, "operator")
    held_back = await operator.quarantine()
    tell(f"the same with {len(readers)} pages: {len(held_back)} held back by the filter, one that lies got in")
    lie = await readers[LIE].get(PAGES, LIE.name, floor=Trust.EXTERNAL)
    plain_read = await _reason(operator.get(PAGES, LIE.name))
    seen_before = await sightings(await team.board_of("reader"), operator)
    ancestors = await operator.trace_provenance(BRIEF, EDITION, direction="ancestors")
    descendants = await operator.trace_provenance(PAGES, LIE.name, direction="descendants")
    tree = await asyncio.to_thread(show)
    tell(f"the brief is wrong; it goes back to {_origins(ancestors)} pages; made of {LIE.name}: {_names(descendants)}")
    plan = await operator.purge_source(SourceSelector(uri_pattern=BAD_URIS), reason=REASON)
    await operator.purge(plan.id)
    later = range(REGISTER_WRITES // 2, REGISTER_WRITES)
    removal, _ = await asyncio.gather(operator.wait_for_removal(plan.id), team.keep_register(later))
    tell(f"purged {BAD_URIS} with what was made of it, while the {CLERK} wrote on")
    refused = {
        "its reader writes on": await _reason(
            readers[LIE].put(NOTES, "more", summary(LIE.text()), must_not_exist=True)
        ),
        "another fetches it again": await _reason(_read(await team.board_of("reader-again"), LIE)),
    }
    await team.edit_again()
    tell("the brief is made again of the notes that are left")
    reader = await team.board_of("reader")
    return Told(
        held_back=held_back,
        lie_trust=Trust.UNKNOWN if lie.label is None else lie.label.trust,
        plain_read=plain_read,
        ancestors=ancestors,
        descendants=descendants,
        tree=tree.splitlines(),
        plan=plan,
        removal=removal,
        seen_before=seen_before,
        seen_after=await sightings(reader, operator),
        refused=refused,
        written_meanwhile=await _written(reader, later, removal),
        result=await contents(reader),
        expected=expected,
    )


async def contents(board: Board) -> list[Content]:
    """Give all that a board holds, in order."""
    found = []
    for region in (PAGES, NOTES, BRIEF, REGISTER):
        async for entry in board.list(region, floor=Trust.EXTERNAL):
            value = entry.value
            source = value.source.uri if isinstance(value, External) and value.source is not None else ""
            trust = "" if entry.label is None else entry.label.trust.name
            found.append(Content(region, entry.path, _value(entry), source, entry.author, trust))
    return found


async def sightings(reader: Board, operator: Board) -> int:
    """Say in how many texts, present, past or held back, a sentence of the poisoned pages stands."""
    names = [page.name for page in (*GOOD_PAGES, HIDDEN_ORDER, LIE)]
    texts = [str(text.read()) for commit in await operator.quarantine(show_texts=True) for text in commit.texts if text]
    for region, path in [*((region, name) for region in (PAGES, NOTES) for name in names), (BRIEF, EDITION)]:
        with contextlib.suppress(kokuban_client.NotFound):
            past = await reader.history(region, path, floor=Trust.EXTERNAL)
            texts += [str(_value(change.entry)) for change in past]
    poison = [line for page in (HIDDEN_ORDER, LIE) for line in summary(page.text()).splitlines()]
    return sum(any(line in text for line in poison) for text in texts)


def _value(entry: Entry) -> object:
    value: object = entry.value
    return value.read() if isinstance(value, External) else value


async def _written(board: Board, numbers: range, removal: Removal) -> tuple[int, int]:
    """Say how many of those machines are in the register, and how many of them were before the removal was done."""
    entered = [await board.get(REGISTER, _machine(number)) for number in numbers]
    end = removal.end_time
    return len(entered), sum(end is not None and entry.update_time < end for entry in entered)


def _machine(number: int) -> str:
    return f"machines/{number:02}"


async def _reason(call: Awaitable[object]) -> str:
    """Give the reason of a refusal."""
    try:
        await call
    except kokuban_client.KokubanError as error:
        return error.reason
    return "done"


def _origins(trace: ProvenanceTrace) -> int:
    return len({state.source.uri for state in trace.states if state.source is not None})


def _names(trace: ProvenanceTrace) -> str:
    return ", ".join(str(state.key) for state in trace.states[1:])
