"""Reading what is recorded of where states come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.app.mirrored_store import records_below
from kokuban_server.core import keys
from kokuban_server.core.provenance import Ancestry, Origin
from kokuban_server.records.provenance_codec import decode_origins, reach_of_parent
from kokuban_server.records.trust_codec import decode_read_scope

if TYPE_CHECKING:
    from kokuban_server.core.provenance import Reach
    from kokuban_server.ports.board_store import BoardStore


async def read_ancestry(store: BoardStore, below: bytes, deadline: float) -> Ancestry:
    """Give all that is recorded below a prefix of boards: one board's, or those of a tenant.

    Scopes are read after origins: a scope only grows, and each origin says how much of it counts.
    """
    origins: list[Origin] = []
    async for record in records_below(store, keys.ORIGIN + below, deadline):
        origins.extend(decode_origins(record.key, record.value, record.revision))
    scopes: dict[bytes, list[Reach]] = {}
    async for record in records_below(store, keys.SCOPE + below, deadline):
        board = keys.board_of_origin(record.key)
        given = decode_read_scope(record.key, record.value).given
        scopes[record.key] = [reach_of_parent(board, one.state) for one in given]
    return Ancestry(origins, scopes)
