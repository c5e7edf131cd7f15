"""A load generator: a process that has one workload, and does a number of its operations for each line that it reads.

    python -m bench.load WORKLOAD ADDRESS PARAMETERS

It writes one JSON line when it is ready and one with a measurement for each number, and ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import TYPE_CHECKING

import grpc
import uvloop

from .callers import TeamCommits
from .commits import Increments, NewEntries, NotedCommits, Pages, StreamCommits, UnaryCommits
from .growth import Filling, RandomCommits
from .locking import FencedCommits, HandOvers, LockCycles, RawLockCycles, RawPutToEvent, WritersBesideLocks
from .raw_etcd import RawGets, RawSwaps
from .reads import StrongGets, VainGets
from .tasks import Resumptions, TaskEvents
from .watching import BareStreams, FanOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from .measurement import Workload

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "unary_commits": UnaryCommits,
    "new_entries": NewEntries,
    "stream_commits": StreamCommits,
    "noted_commits": NotedCommits,
    "pages": Pages,
    "increments": Increments,
    "strong_gets": StrongGets,
    "vain_gets": VainGets,
    "team_commits": TeamCommits,
    "raw_swaps": RawSwaps,
    "raw_gets": RawGets,
    "fan_out": FanOut,
    "bare_streams": BareStreams,
    "filling": Filling,
    "random_commits": RandomCommits,
    "lock_cycles": LockCycles,
    "raw_lock_cycles": RawLockCycles,
    "hand_overs": HandOvers,
    "raw_put_to_event": RawPutToEvent,
    "fenced_commits": FencedCommits,
    "writers_beside_locks": WritersBesideLocks,
    "task_events": TaskEvents,
    "resumptions": Resumptions,
}


async def main(name: str, address: str, parameters: str) -> None:
    """Work until the input ends."""
    async with grpc.aio.insecure_channel(address) as channel:
        workload = WORKLOADS[name](channel, **json.loads(parameters))
        await workload.prepare()
        _say({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            gc.collect()
            _say((await workload.run(int(line)))._asdict())


def _say(fact: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
