"""What a board refuses since it was removed: sources that were purged, and persons who were erased."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.names import Region, RegionKind
from kokuban_server.core.refusals import SourcePurged
from kokuban_server.core.trust import SourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.app.boards import Board
    from kokuban_server.core.access import Principal
    from kokuban_server.core.trust import Label


class Written(NamedTuple):
    """What somebody is about to write."""

    region: Region
    label: Label
    principal: Principal
    field: str
    """Where it stands in the request."""


def refuse_barred(written: Written, board: Board, digest: Callable[[bytes], bytes]) -> None:
    """Raise `SourcePurged` for what comes from a source, or belongs to a person, that was removed from the board."""
    region, label, principal, field = written
    source = label.source
    persons = {}
    if region.kind is RegionKind.USER:
        persons[pseudonym(digest, principal.tenant, region.id)] = f"{field}.key.region"
    if source.kind is SourceKind.USER:
        persons[pseudonym(digest, principal.tenant, source.name)] = f"{field}.provenance.source"
    for bar in board.record.bars:
        if bar.selector is None:
            place = persons.get(bar.pseudonym, "")
        else:
            is_meant = bar.selector.means_source(source) and bar.selector.agent in {"", principal.agent}
            place = f"{field}.provenance.source" if is_meant else ""
        if place:
            raise SourcePurged(place, bar.removal)


def pseudonym(digest: Callable[[bytes], bytes], tenant: str, user: str) -> bytes:
    """Give what stands for a person: it says nothing of who it is to those who have not the store's secret."""
    return digest(b"\x00".join([b"subject", tenant.encode(), user.encode()]))
