"""Secrets and personal data in what is written: found, and masked, encrypted or refused, before anything of it is kept."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.core import limits
from kokuban_server.core.names import WITHOUT_ID
from kokuban_server.core.redaction.masking import Wish, redact
from kokuban_server.core.redaction.readings import HOLE
from kokuban_server.core.redaction.rules import KINDS
from kokuban_server.core.redaction.search import is_clean
from kokuban_server.core.refusals import (
    ContentSensitive,
    ContentUnsearched,
    DeadlineTooShort,
    Refusal,
    ScreeningUnavailable,
)
from kokuban_server.core.screening.patterns import NotSearchedError
from kokuban_server.core.sensitive import STANDARD, Handling, Kind, Terms, strictest
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kokuban_server.app.boards import Board
    from kokuban_server.app.sealing import Sealing
    from kokuban_server.core.names import Region
    from kokuban_server.core.redaction.masking import Redaction
    from kokuban_server.core.trust import Label
    from kokuban_server.ports.screener import Screener


class Treatment(enum.Enum):
    """What can be done with a text that a request holds."""

    WORDS = 1
    """It can be masked."""
    JSON = 2
    """It can be masked, and stays JSON."""
    NAME = 3
    """Something is found by it, so it cannot be masked: what would be masked is refused."""
    IDENTIFIER = 4
    """As a name, but one that is given to people, such as a user's: it may be personal, and no secret."""
    CONTENT = 5
    """Words that are an entry's value, or among its metadata: they can be masked, or encrypted, as JSON can."""


class FreeText(NamedTuple):
    """A text of a request."""

    field: str
    """Where it stands in the request."""
    text: str
    treatment: Treatment
    said_of: str = ""
    """The name that it is given by, which may tell what it is."""
    mutation: int | None = None
    """The place of the mutation that it belongs to."""
    origin: object = None
    """Where it stands, for who puts another one there."""

    @property
    def prefix(self) -> str:
        """What it is searched behind: `password` tells what the value of a pair is."""
        return f"{self.said_of}: " if self.said_of else ""

    @property
    def searched(self) -> str:
        """What is searched."""
        return self.prefix + self.text


class Found(NamedTuple):
    """What was found of one type in one text, without what it is."""

    field: str
    mutation: int | None
    type: str
    handling: Handling
    times: int
    spans: tuple[tuple[int, int], ...]
    """The first of where it stands."""

    @property
    def kind(self) -> Kind:
        """What is at stake."""
        return KINDS[self.type]


class Redacted(NamedTuple):
    """What became of a request's texts."""

    texts: Mapping[int, str]
    """What stands instead of those that are masked, by their places in what was given."""
    found: tuple[Found, ...]
    unsearched: tuple[FreeText, ...]
    """Those that are encoded deeper than is looked at, and kept all the same."""
    refusal: Refusal | None
    """Why nothing of the request is done, if that is so."""


NOTHING: Final = Redacted({}, (), (), None)


class RedactedOtherwiseError(Exception):
    """A board's policy says otherwise by now: redact anew what was sent."""


class Holdings(NamedTuple):
    """What a commit holds that is sensitive, and under which terms that was found out."""

    board: Board
    """Whose terms they are. It was entered for the commit, which is guarded on its revision."""
    terms: Mapping[Region, Terms]
    kept: Mapping[int, frozenset[Kind]]
    """By the places of the mutations."""
    unsearched: frozenset[int]
    """The places of mutations that may hold more."""
    refusal: Refusal | None

    def labelled(self, region: Region, terms: Terms, place: int, label: Label) -> Label:
        """Give the label of a mutation with what it holds. Raises `RedactedOtherwiseError` where other terms hold by now."""
        if self.terms.get(region) != terms:
            raise RedactedOtherwiseError
        if place not in self.kept and place not in self.unsearched:
            return label
        return label.holding(self.kept.get(place, frozenset()), unsearched=place in self.unsearched)


class Redactions:
    """Has texts searched: short ones at once, longer ones by another process if a first look finds anything to search for."""

    def __init__(self, screener: Screener, sealing: Sealing) -> None:
        self._screener = screener
        self._sealing = sealing
        self._turn = asyncio.Lock()
        self._working: set[asyncio.Task[Redaction]] = set()

    async def redact(
        self,
        board: Board | None,
        texts: Sequence[FreeText],
        terms_of: Callable[[FreeText], Terms],
        deadline: float,
        region_of: Callable[[FreeText], Region | None] = lambda _: None,
    ) -> Redacted:
        """Do with each text what its terms say. No board is one that is not there, or not yet.

        Encrypted is what belongs to one region of the board, and is opened there.

        Raises `ScreeningUnavailable` where nothing is known, and `DeadlineTooShort`.
        """
        masked: dict[int, str] = {}
        found: list[Found] = []
        unsearched: list[FreeText] = []
        refusals: list[Refusal] = []
        key, deadline = self._sealing.mask_key(board), of_one_act(deadline)
        at_once = sum(len(text.text) + _OF_EACH for text in texts) <= limits.REDACTED_AT_ONCE_CHARACTERS_MAX
        looked_at = 0
        for place, text in enumerate(texts):
            terms, region = _kept_to(text, terms_of(text), region_of)
            if terms.is_off:
                continue
            looked_at += len(text.text) + _OF_EACH
            if looked_at > limits.REDACTED_HINTED_CHARACTERS_MAX:  # others want the loop too
                looked_at = 0
                await asyncio.sleep(0)
            redaction = await self._one(text, Wish(terms, key), deadline, at_once=at_once)
            if redaction is None:
                continue
            refusals += _refusals(text, terms, redaction)
            if not redaction.is_whole:
                unsearched.append(text)
            prefix = text.prefix
            if redaction.to_encrypt and board is not None and region is not None:
                redaction = self._sealed(board, region, text, redaction, refusals)
                await asyncio.sleep(0)  # as above
            if text.treatment in _MASKED and redaction.text != prefix + text.text:
                masked[place] = redaction.text.removeprefix(prefix)
            found += _found(text, terms, redaction, len(prefix))
        return Redacted(masked, tuple(found), tuple(unsearched), refusals[0] if refusals else None)

    async def close(self) -> None:
        """Search no more."""
        for working in self._working:
            working.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self._screener.close()

    def _sealed(
        self, board: Board, region: Region, text: FreeText, redaction: Redaction, refusals: list[Refusal]
    ) -> Redaction:
        """Give a redaction with seals in the place of those masks that are for what is encrypted; or why it cannot be."""
        is_json, shift = text.treatment is Treatment.JSON, len(text.prefix)
        try:
            sealed = self._sealing.sealed(
                board, region, text.field, text.searched, redaction, is_json=is_json, shift=shift
            )
        except Refusal as refusal:  # the masks stay, whatever becomes of it
            refusals.append(refusal)
            return redaction
        return redaction._replace(text=sealed)

    async def _one(self, text: FreeText, wish: Wish, deadline: float, *, at_once: bool) -> Redaction | None:
        """Redact one text; nothing where there is nothing to search it for."""
        words = text.searched
        wish = wish._replace(is_json=text.treatment is Treatment.JSON)
        try:
            if at_once:
                return redact(words, wish)
            # What hints at something may be spelt with escapes.
            is_spelt = wish.is_json and "\\" in words
            if len(words) <= limits.REDACTED_HINTED_CHARACTERS_MAX and not is_spelt and is_clean(words):
                return None
            return await self._elsewhere(words, wish, deadline)
        except (NotSearchedError, ScreenerError) as fault:
            raise ScreeningUnavailable(text.field) from fault

    async def _elsewhere(self, text: str, wish: Wish, deadline: float) -> Redaction:
        """Have a text searched by the process, when that has done with those before. Raises `ScreenerError`."""
        try:
            async with asyncio.timeout(left_s(deadline)):
                await self._turn.acquire()
        except TimeoutError:
            raise DeadlineTooShort from None
        working = asyncio.create_task(self._screener.redact(text, wish), name="redaction")
        self._working.add(working)
        working.add_done_callback(self._done)
        # It is searched to its end also when nobody waits any more: to break off is to begin a new process.
        done, _ = await asyncio.wait((working,), timeout=left_s(deadline))
        if not done:
            raise DeadlineTooShort
        return working.result()

    def _done(self, working: asyncio.Task[Redaction]) -> None:
        self._working.discard(working)
        self._turn.release()
        if not working.cancelled():
            working.exception()  # who asked is told, if they still wait


def holds_nothing(texts: Iterable[str]) -> bool:
    """Say whether nothing is to be found in some short texts, by searching all of them at once. False is not known."""
    together = _APART.join(texts)
    # JSON is to be read with its escapes undone.
    if len(together) > limits.REDACTED_HINTED_CHARACTERS_MAX or "\\" in together:
        return False
    return _is_clean(together)


def _is_clean(text: str) -> bool:
    try:
        return is_clean(text)
    except NotSearchedError:
        return False


class FirstLooks:
    """Looks through the short texts of several requests at once.

    Requests are begun together (`wire.gathering`). Looked through apart, each finds the processor's caches full of everything
    else that is done for it, and takes several times as long.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, asyncio.Future[bool]]] = []

    async def hold_nothing(self, texts: Iterable[str]) -> bool:
        """Say of a request's texts what `holds_nothing` says."""
        together = _APART.join(texts)
        if len(together) > limits.REDACTED_AT_ONCE_CHARACTERS_MAX or "\\" in together:
            return holds_nothing((together,))
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._look)  # behind those that go on in the same turn of the loop
        answer: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((together, answer))
        return await answer

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            for start in range(0, len(waiting), _LOOKED_AT_ONCE):
                _answer(waiting[start : start + _LOOKED_AT_ONCE])
        except Exception as fault:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(fault)


def _answer(waiting: list[tuple[str, asyncio.Future[bool]]]) -> None:
    """Answer for some texts: if there is something in one of them, for each half by itself."""
    clean = _is_clean(_APART.join([text for text, _ in waiting]))
    if clean or len(waiting) == 1:
        for _, answer in waiting:
            if not answer.done():
                answer.set_result(clean)
        return
    middle = len(waiting) // 2
    _answer(waiting[:middle])
    _answer(waiting[middle:])


def terms_for(board: Board | None, regions: Iterable[Region]) -> Terms:
    """Give what is as strict as what holds in each of several regions; without any, what holds on the board."""
    if board is None:
        return STANDARD
    policy = board.policy
    named = [policy.redaction_in(region) for region in regions] if policy.rules else ()
    return strictest(named) if named else policy.redaction


_NO_PLACES: Final[frozenset[int]] = frozenset()


def holdings(board: Board, redacted: Redacted, terms: Mapping[Region, Terms]) -> Holdings:
    """Give what a commit's labels should say."""
    if redacted is NOTHING:
        return Holdings(board, terms, {}, _NO_PLACES, None)
    kept: dict[int, frozenset[Kind]] = defaultdict(frozenset)
    for one in redacted.found:
        if one.mutation is not None and one.handling is Handling.KEEP:
            kept[one.mutation] |= {one.kind}
    unsearched = frozenset(text.mutation for text in redacted.unsearched if text.mutation is not None)
    return Holdings(board, terms, dict(kept), unsearched, redacted.refusal)


def without_secrets(digest: Callable[[bytes], bytes], text: str) -> str:
    """Give a short text with its secrets masked; nothing of one that cannot be searched."""
    try:
        return redact(text, Wish(Terms(personal=Handling.OFF), digest(b"redaction of records"))).text
    except NotSearchedError:
        return ""


_ENCRYPTED: Final = {Treatment.CONTENT, Treatment.JSON}
_MASKED: Final = {Treatment.WORDS, *_ENCRYPTED}
_OF_EACH: Final = 8
"""What a text counts beside its characters: many short ones take their time too."""
_LOOKED_AT_ONCE: Final = 16
"""Requests whose texts are looked through together: what one of them holds is looked for again in half of them, and so on."""
_APART: Final = f" {HOLE} "
"""Between texts that are searched together: no pattern goes over it."""


def _kept_to(
    text: FreeText, terms: Terms, region_of: Callable[[FreeText], Region | None]
) -> tuple[Terms, Region | None]:
    """Give the terms of a text as they can be kept to, and the region in which it can be encrypted, if anything is."""
    if text.treatment is Treatment.IDENTIFIER:
        terms = terms._replace(personal=Handling.OFF)
    if not terms.encrypts:
        return terms, None
    region = region_of(text) if text.treatment in _ENCRYPTED else None
    # Beyond the board there is no policy that says to whom it would be opened.
    return (terms.masking, None) if region is None or region.kind in WITHOUT_ID else (terms, region)


def _refusals(text: FreeText, terms: Terms, redaction: Redaction) -> Iterator[Refusal]:
    """Give why a text is not taken."""
    if not redaction.is_whole and terms.unsearched is Handling.REFUSE:
        yield ContentUnsearched(text.field)
    for name in redaction.counts:
        kind = KINDS[name]
        handling = terms.of(kind)
        is_fixed = text.treatment not in _MASKED if handling is Handling.MASK else name in redaction.named
        if handling is Handling.REFUSE or is_fixed:
            yield ContentSensitive(text.field, name, kind.name.lower())


def _found(text: FreeText, terms: Terms, redaction: Redaction, shift: int) -> Iterable[Found]:
    """Give what was found in a text; not what is in the name that it was searched behind, which is a text of its own."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    counts = dict(redaction.counts)
    for place in redaction.places:
        if place.end > shift:
            spans[place.type].append((max(0, place.start - shift), place.end - shift))
        else:
            counts[place.type] -= 1
    for name, count in counts.items():
        if count:
            yield Found(text.field, text.mutation, name, terms.of(KINDS[name]), count, tuple(spans[name]))
