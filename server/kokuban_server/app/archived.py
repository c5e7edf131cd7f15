"""Whether a task is archived: asked by whatever reads or writes in its region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys
from kokuban_server.core.archives import ArchivePhase
from kokuban_server.core.names import RegionKind
from kokuban_server.core.refusals import TaskArchived
from kokuban_server.ports.board_store import LOCAL, Local, Snapshot
from kokuban_server.records.archive_codec import decode_archive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kokuban_server.app.access import OpenRegion
    from kokuban_server.core.archives import Archive
    from kokuban_server.core.commit import Target
    from kokuban_server.ports.board_store import BoardStore, Consistency, Record


def archive_keys(regions: Iterable[OpenRegion]) -> list[bytes]:
    """Give the keys of what would stand for the tasks whose regions are among some."""
    named = {keys.TASK_ARCHIVE + one.prefix: None for one in regions if one.region.kind is RegionKind.TASK}
    return list(named)


def archive_keys_of(targets: Iterable[Target]) -> list[bytes]:
    """Give the same for the regions in which a commit's targets lie."""
    named: dict[bytes, None] = {}
    for target in targets:
        if target.key.region.kind is RegionKind.TASK:
            named[keys.TASK_ARCHIVE + target.generation[len(keys.LOCK_GENERATION) :]] = None
    return list(named)


def archived(task: str, archive: Archive) -> TaskArchived:
    """Give the refusal of what would be done to a task that is archived."""
    phase = ArchivePhase.ARCHIVED if archive.phase is ArchivePhase.REMOVING else archive.phase
    return TaskArchived(task, phase.name.lower(), archive.time_ms, archive.digest)


def refuse_archived(records: Iterable[Record | None], *, writes: bool) -> None:
    """Raise `TaskArchived` for the first task of which there is such a record.

    One that is being compared with an archive is still there for those who read.
    """
    for record in records:
        if record is None:
            continue
        archive = decode_archive(record.key, record.value)
        if writes or archive.is_hidden:
            region = keys.parse_region_of(record.key, keys.TASK_ARCHIVE)
            raise archived(region.id, archive)


async def refuse_hidden(
    store: BoardStore, regions: Sequence[OpenRegion], revision: int, consistency: Consistency, deadline: float
) -> None:
    """Raise `TaskArchived` if a task whose region was read was not whole in the state of a revision."""
    named = archive_keys(regions)
    if named:
        same = LOCAL if isinstance(consistency, Local) else Snapshot(revision)
        refuse_archived((await store.read(named, same, left_s(deadline))).records, writes=False)
