"""The bare echo: a `grpc.aio` server on uvloop whose methods do nothing, and so the ceiling of any server in Python.

It answers to the board's own method names, with bytes made once: what a commit answers (its size, without reading the
request), so that the very same load generator runs against it. Its own `Stream` sends as many messages as it is asked to,
each of the size of a watch's message with one event of 512 bytes. `python -m bench.echo FOLDER` wants mutual TLS.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop

from kokuban.v1 import board_service_pb2, commit_pb2, entry_pb2

from .messages import REGION, new_request_id, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_EPOCH = "0123456789abcdef"
_NUMBER = 123_456
_TOKEN = "S" * 24


def commit_answer() -> bytes:
    """Give the bytes of a commit's answer."""
    answer = commit_pb2.CommitResponse(
        token=_TOKEN,
        revision=entry_pb2.Revision(number=_NUMBER, epoch=_EPOCH),
        results=[commit_pb2.MutationResult(sequence=1_000)],
    )
    answer.commit_time.FromNanoseconds(time.time_ns() // 1_000_000 * 1_000_000)
    return answer.SerializeToString()


def watch_message() -> bytes:
    """Give the bytes of a watch's message with one event."""
    revision = entry_pb2.Revision(number=_NUMBER, epoch=_EPOCH)
    entry = entry_pb2.Entry(
        key=entry_pb2.EntryKey(region=REGION, path="watched/entry"),
        revision=revision,
        create_revision=_NUMBER,
        sequence=1_000,
        value=entry_pb2.Value(text=text(1)),
        author="bench",
    )
    entry.create_time.FromNanoseconds(time.time_ns() // 1_000_000 * 1_000_000)
    entry.update_time.CopyFrom(entry.create_time)
    change = entry_pb2.EntryChange(
        type=entry_pb2.CHANGE_TYPE_PUT,
        entry=entry,
        previous_revision=_NUMBER,
        acts=[entry_pb2.Act(agent="bench", request_id=new_request_id())],
    )
    events = board_service_pb2.WatchEvents(changes=[change])
    return board_service_pb2.WatchResponse(token=_TOKEN, events=events).SerializeToString()


def mutual_tls(folder: Path) -> grpc.ServerCredentials:
    """Give what a listener with the certificates in a folder needs; it wants one of every caller."""
    key, certificate, authority = ((folder / name).read_bytes() for name in ("server.key", "server.pem", "ca.pem"))
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)


async def serve(tls: grpc.ServerCredentials | None) -> None:
    """Listen on a free port, say which on standard output, and answer until killed."""
    answer = commit_answer()
    message = watch_message()

    async def commit(_request: bytes, _context: Any) -> bytes:  # noqa: ANN401 - as grpc types it
        return answer

    async def stream(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401 - as grpc types it
        async for request in requests:
            for _ in range(int.from_bytes(request, "big")):
                await context.write(message)

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    board: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Commit": grpc.unary_unary_rpc_method_handler(commit)}
    echo: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Stream": grpc.stream_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("kokuban.v1.BoardService", board),
            grpc.method_handlers_generic_handler("bench.Echo", echo),
        )
    )
    port = server.add_secure_port("127.0.0.1:0", tls) if tls is not None else server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(mutual_tls(Path(sys.argv[1])) if len(sys.argv) > 1 else None))
