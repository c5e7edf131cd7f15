"""An agent in a process of its own that holds a lock: `lock_holder.py ADDRESS NAME PATH TTL_S LOCK_DELAY_S`.

It says what happens as JSON lines, and does what it is told on standard input: `write` under its fence, `ask` the gate.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from kokuban.v1 import session_service_pb2
from tests.replicas.lock_calls import channels, outcome

if TYPE_CHECKING:
    from tests.replicas.lock_calls import Beats


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - its way of talking


async def _tell(beats: Beats) -> None:
    """Say what the server says of the session."""
    told = 0
    while True:
        await beats.until(lambda seen=told: len(beats.told) > seen, 3600)  # type: ignore[misc] # the loop's own
        for one in beats.told[told:]:
            _say(told=session_service_pb2.SessionState.Name(one.state).removeprefix("SESSION_STATE_"))
        told = len(beats.told)


async def hold(address: str, name: str, path: str, ttl_s: float, delay_s: float) -> None:
    """Hold the lock, and do what is asked, until standard input ends."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with channels() as connect:
        agent = await connect.agent(address, name)
        opened = await agent.open(ttl_s)
        granted = await agent.acquire(agent.asks(path, wait_s=30, delay_s=delay_s), 60)
        async with agent.kept_alive(ttl_s / 4) as beats:
            _say(
                session=agent.session_id,
                ttl_s=opened.session.ttl.ToMilliseconds() / 1000,
                lock=granted.lock.id,
                fence=granted.fence.revision,
            )
            telling = asyncio.create_task(_tell(beats))
            while command := (await commands.readline()).decode().strip():
                if command == "write":
                    _say(wrote=(await outcome(agent.write(f"{path}/late", granted.fence))).reason)
                else:
                    _say(current=(await outcome(agent.current(granted.fence))).answer)
            telling.cancel()


if __name__ == "__main__":
    address_given, name_given, path_given, *times = sys.argv[1:]
    asyncio.run(hold(address_given, name_given, path_given, *map(float, times)))
