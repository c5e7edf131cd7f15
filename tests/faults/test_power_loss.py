"""The disk of a running server as it is at one moment, and as a power cut could leave it, opened by another server."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from kokuban_server.core import limits
from tests.faults.traffic import PUBLISHED, Traffic

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.traffic import Write

_WAL_HEADER_BYTES = 32
_BLOCK_BYTES = 4096


def _write_ahead_log(folder: Path) -> Path:
    (found,) = folder.glob("*-wal")
    return found


def _lose_power(log: Path, safe_bytes: int, draw: random.Random) -> str:
    """Do to a copied write-ahead log what a power cut may do to what was not yet made durable; say what."""
    raw = bytearray(log.read_bytes())
    kind = draw.choice(["whole", "cut", "holes", "garbage"])
    if kind == "cut":
        del raw[draw.randint(safe_bytes, len(raw)) :]
    elif kind != "whole":
        for start in range(safe_bytes, len(raw), _BLOCK_BYTES):
            if draw.random() < 0.5:
                size = min(_BLOCK_BYTES, len(raw) - start)
                raw[start : start + size] = bytes(size) if kind == "holes" else draw.randbytes(size)
    log.write_bytes(raw)
    return kind


async def _check_copy(folder: Path, acknowledged: list[Write]) -> None:
    """Open the copy and check that what was acknowledged is there, and every commit whole."""
    async with ServerProcess(store=f"sqlite:{folder}") as server, Traffic(server.address, 0, agents=0) as reader:
        for path in sorted({path for write in acknowledged for path in write.acts}):
            kept = await reader.history(path)
            made = {(act.request_id, change.entry.revision.number) for change in kept for act in change.acts}
            # Of a busy entry only the newest states are kept.
            oldest = kept[-1].entry.revision.number if len(kept) == limits.HISTORY_REVISIONS_MAX else 0
            for write in acknowledged:
                if path in write.acts and write.revision >= oldest:
                    assert (write.request_id, write.revision) in made, write
        state = await reader.state()
        assert len({state[path].value.text for path in PUBLISHED if path in state}) <= 1


async def _cut_power_often(folder: Path, cuts: int, seed: int) -> None:
    draw = random.Random(seed)
    kinds = []
    live = folder / "live"
    async with ServerProcess(store=f"sqlite:{live}") as server, Traffic(server.address, seed) as traffic:
        for cut in range(cuts):
            traffic.generation = cut
            await traffic.progress(draw.randint(5, 30))
            async with traffic.held():
                acknowledged = [write for write in traffic.records.writes if write.revision]
                before = _write_ahead_log(live).read_bytes()
            await traffic.progress(draw.randint(1, 20))
            copy = folder / f"copy-{cut}"
            server.pause()  # a copy of a moving log would be of no moment
            try:
                shutil.copytree(live, copy)
            finally:
                server.resume()
            log = _write_ahead_log(copy)
            # A log that began anew since no longer holds what was acknowledged at the same place: left whole then.
            is_same = log.read_bytes()[:_WAL_HEADER_BYTES] == before[:_WAL_HEADER_BYTES]
            kinds.append(_lose_power(log, len(before), draw) if is_same else "anew")
            await _check_copy(copy, acknowledged)
        await traffic.finish()
    print(f"\n{cuts} power cuts on sqlite ({', '.join(sorted(set(kinds)))}): nothing lost")  # noqa: T201 - the figures


async def test_RB_17_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    await _cut_power_often(tmp_path, 4, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(1200)
async def test_RB_17_many_power_cuts_take_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    await _cut_power_often(tmp_path, 60, seed=2)
