"""The gRPC server: which methods there are, who may call them, and how it listens and stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from kokuban.v1 import (
    admin_service_pb2,
    board_service_pb2,
    conflict_service_pb2,
    lock_service_pb2,
    session_service_pb2,
    task_service_pb2,
    trust_service_pb2,
)
from kokuban_server.core import limits
from kokuban_server.wire.rpc import Calls, Method
from kokuban_server.wire.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.descriptor import ServiceDescriptor

    from kokuban_server.app.measures import Measures
    from kokuban_server.ports.tracing import Tracer
    from kokuban_server.wire.identity import Identity
    from kokuban_server.wire.usage import PrincipalLimits

_SERVICES: Final[tuple[ServiceDescriptor, ...]] = (
    board_service_pb2.DESCRIPTOR.services_by_name["BoardService"],
    session_service_pb2.DESCRIPTOR.services_by_name["SessionService"],
    lock_service_pb2.DESCRIPTOR.services_by_name["LockService"],
    task_service_pb2.DESCRIPTOR.services_by_name["TaskService"],
    conflict_service_pb2.DESCRIPTOR.services_by_name["ConflictService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    trust_service_pb2.DESCRIPTOR.services_by_name["TrustService"],
)

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.so_reuseport", 0),  # else a second server on the port would silently take half of the connections
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # pages and messages have bounds of their own
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # what clients may ask; the *_recv_* spelling is ignored
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),  # the default of two hours lets watchers that vanished hold their place
    ("grpc.http2.ping_timeout_ms", 10_000),
)


class UnruledMethodError(Exception):
    """A method of the API has no rule or no handler; the server does not start."""


class WireServer:
    """Listens, answers, and drains. `services` are the methods of each service by their names in the proto."""

    def __init__(
        self,
        services: Mapping[str, Mapping[str, Method]],
        identity: Identity,
        on_drain: Callable[[], None],
        *,
        unary_max: int,
        streams_max: int,
        principal_limits: PrincipalLimits,
        with_reflection: bool,
        tracer: Tracer | None = None,
        measures: Measures | None = None,
    ) -> None:
        self._calls = Calls(identity, unary_max, streams_max, principal_limits, tracer, measures)
        self._on_drain = on_drain
        self._server = grpc.aio.server(options=OPTIONS)
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        for descriptor in _SERVICES:
            names.append(descriptor.full_name)
            self._add(descriptor, services[descriptor.name])
        self._names = names
        if with_reflection:
            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._server)

    def _add(self, descriptor: ServiceDescriptor, methods: Mapping[str, Method]) -> None:
        wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for method in descriptor.methods:
            name = method.full_name
            if name not in RULES or method.name not in methods:
                raise UnruledMethodError(f"{name} has no rule or no handler")
            wrapped[method.name] = self._calls.wrap(name, methods[method.name])
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, wrapped),))

    async def start(self, listen: str, tls: grpc.ServerCredentials | None = None) -> int:
        """Listen on `host:port` (port 0: any that is free); give the port. Raises `OSError` if it cannot be had."""
        try:
            port = self._server.add_insecure_port(listen) if tls is None else self._server.add_secure_port(listen, tls)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {error}") from error
        await self._server.start()
        for name in ["", *self._names]:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def watch_credentials(self, interval_s: float = 1.0) -> None:
        """End streams whose credential is over, revoked or changed, within this time, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self._calls.end_stale_streams()

    async def drain(self, grace_s: float) -> None:
        """Stop in good order.

        Health says NOT_SERVING, new calls are refused, streams end in good order (watches say where to resume), and commits
        under way finish, for up to `grace_s` seconds.
        """
        self._calls.draining.set()
        await self._health.enter_graceful_shutdown()
        self._on_drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        await self._calls.settle(grace_s)
        await self._server.stop(max(0.0, end - loop.time()))

    async def wait(self) -> None:
        """Come back when the server has stopped."""
        await self._server.wait_for_termination()
