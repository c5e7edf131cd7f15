"""What is encrypted in entries, and opened for those who may see it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.entry import Form
from kokuban_server.core.refusals import EncryptionUnavailable, InvalidRequest
from kokuban_server.core.seals import seal, seals_in
from kokuban_server.ports.sealer import KeyUnknownError, NotOpenedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kokuban_server.app.boards import Board
    from kokuban_server.core.entry import Value
    from kokuban_server.core.names import Region
    from kokuban_server.core.redaction.masking import Redaction
    from kokuban_server.core.seals import Seal
    from kokuban_server.ports.sealer import Sealer

_NAMED: Final = re.compile(r'"\s*:')
_BLOCK_BYTES: Final = 32
"""Texts are filled up to so many bytes, so that a seal does not tell how long a password is."""
_PAD: Final = b"\x80"
_TEXT, _IN_JSON, _NUMBER = "t", "j", "n"
"""How it was spelt: as it is, as within a string of JSON, or as a number there."""


class Revealed(NamedTuple):
    """What became of what is encrypted in one text of an entry."""

    field: str
    opened: int
    unknown_keys: int
    unopened: int


class Opened(NamedTuple):
    """An entry's content with what is encrypted in it opened."""

    value: Value | None
    metadata: dict[str, str]
    texts: tuple[Revealed, ...]
    """Those in which anything is encrypted."""
    key_ids: tuple[str, ...]
    """Of the keys that opened anything."""


class Sealing:
    """Puts seals in the place of masks, and texts in the place of seals. `sealer` is nothing where there are no keys."""

    def __init__(self, sealer: Sealer | None, digest: Callable[[bytes], bytes]) -> None:
        self._sealer = sealer
        self._digest = digest

    @property
    def has_keys(self) -> bool:
        """Whether anything can be encrypted."""
        return self._sealer is not None

    def mask_key(self, board: Board | None) -> bytes:
        """Give the key of a board's masks: another one for each board, also for one that is made again under the same id."""
        return self._digest(b"redaction\x00" + (b"" if board is None else _name(board)))

    def sealed(
        self,
        board: Board,
        region: Region,
        field: str,
        text: str,
        redaction: Redaction,
        *,
        is_json: bool,
        shift: int = 0,
    ) -> str:
        """Give a redacted text with seals for what of `text` is to be encrypted; what stands before `shift` is none of it.

        Raises `EncryptionUnavailable`, and `InvalidRequest` for too many.
        """
        if self._sealer is None:
            raise EncryptionUnavailable(field)
        most, count = limits.ENCRYPTED_TEXTS_ENTRIES_MAX, len(redaction.to_encrypt)
        if count > most:
            facts = {"limit": str(most), "actual": str(count)}
            raise InvalidRequest("TOO_MANY_ITEMS", field, f"at most {most} are encrypted, these are {count}", facts)
        key = self.mask_key(board)
        pieces: list[str] = []
        done = 0
        for one in redaction.to_encrypt:
            # A number became a string, which is the mask.
            quote = '"' if redaction.text[one.at] == '"' else ""
            spelling = _NUMBER if quote else _IN_JSON if is_json else _TEXT
            plain = _padded(f"{spelling}{text[max(one.start, shift) : one.end]}")
            key_id, raw = self._sealer.seal(plain, _bound(board, region, one.type, one.digest))
            instead = seal(one.type, one.digest, key_id, raw, key)
            pieces += (redaction.text[done : one.at], quote, instead, quote)
            done = one.until
        return "".join(pieces) + redaction.text[done:]

    def opened(self, board: Board, region: Region, value: Value | None, metadata: Mapping[str, str]) -> Opened:
        """Give an entry's content with all opened that opens; the rest stays as it is, and is counted."""
        opening = _Opening(self._sealer, board, region)
        if value is not None:
            value = opening.value(value)
        shown = {name: opening.text(f"metadata[{name}]", text) for name, text in metadata.items()}
        return Opened(value, shown, tuple(opening.texts), tuple(sorted(opening.key_ids)))


class _Opening:
    """Opens the texts of one entry."""

    def __init__(self, sealer: Sealer | None, board: Board, region: Region) -> None:
        self._sealer = sealer
        self._board = board
        self._region = region
        self.texts: list[Revealed] = []
        self.key_ids: set[str] = set()

    def value(self, value: Value) -> Value:
        data = value.data
        if isinstance(data, str):
            return value._replace(data=self.text("value", data, is_json=value.form is Form.JSON))
        try:
            return value._replace(data=self.text("value", data.decode()).encode())
        except UnicodeDecodeError:  # as such nothing of it was encrypted
            return value

    def text(self, field: str, text: str, *, is_json: bool = False) -> str:
        pieces: list[str] = []
        done = unknown = unopened = opened = 0
        for one in seals_in(text):
            try:
                spelt = self._spelt(one)
            except KeyUnknownError:
                unknown += 1
                continue
            except NotOpenedError:
                unopened += 1
                continue
            opened += 1
            self.key_ids.add(one.key_id)
            start, end, plain = _placed(text, one, spelt) if is_json else (one.start, one.end, _plain(spelt))
            pieces += (text[done:start], plain)
            done = end
        if opened or unknown or unopened:
            self.texts.append(Revealed(field, opened, unknown, unopened))
        return "".join(pieces) + text[done:]

    def _spelt(self, one: Seal) -> str:
        """Give what a seal stands for, behind how it was spelt. Raises `KeyUnknownError` and `NotOpenedError`."""
        if self._sealer is None:
            raise KeyUnknownError
        bound = _bound(self._board, self._region, one.type, one.digest)
        plain = self._sealer.open(one.key_id, one.raw, bound)
        return plain.rstrip(b"\x00").removesuffix(_PAD).decode()


def _placed(source: str, one: Seal, spelt: str) -> tuple[int, int, str]:
    """Give what stands in JSON instead of a seal, and from where to where. It stays JSON."""
    spelling, plain = spelt[0], spelt[1:]
    start, end = one.start, one.end
    if spelling == _TEXT:
        return start, end, json.dumps(plain, ensure_ascii=False)[1:-1]
    # Before the quote that begins a string stands none of its backslashes.
    is_all = source[start - 1 : start] == '"' == source[end : end + 1] and source[start - 2 : start - 1] != "\\"
    if spelling == _NUMBER and is_all and _NAMED.match(source, end) is None:
        return start - 1, end + 1, plain
    return start, end, plain


def _plain(spelt: str) -> str:
    """Give what stands in a text instead of a seal."""
    spelling, plain = spelt[0], spelt[1:]
    return str(json.loads(f'"{plain}"')) if spelling == _IN_JSON else plain


def _padded(plain: str) -> bytes:
    raw = plain.encode() + _PAD
    return raw + b"\x00" * (-len(raw) % _BLOCK_BYTES)


def _name(board: Board) -> bytes:
    return b"%s\x00%d" % (board.key, board.record.create_time_ms)


def _bound(board: Board, region: Region, type_: str, digest: str) -> bytes:
    """Give what a seal belongs to, beside its key: one that is copied from elsewhere, or changed, does not open."""
    return b"\x00".join((b"sealed", _name(board), str(region).encode(), type_.encode(), digest.encode()))
