"""What the API describes is what is served, each method in its described form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban_server.wire.lock_services import LockService, SessionService
from kokuban_server.wire.rpc import Method, ServerStreamMethod, StreamMethod, UnaryMethod
from kokuban_server.wire.services import AdminService, BoardService

if TYPE_CHECKING:
    from google.protobuf import descriptor_pb2

# Whether the client streams, and whether the server does.
FORM: dict[tuple[bool, bool], type[Method]] = {
    (False, False): UnaryMethod,
    (False, True): ServerStreamMethod,
    (True, True): StreamMethod,
}


@pytest.mark.parametrize("servicer", [BoardService, SessionService, LockService, AdminService])
def test_every_method_of_a_service_is_served_as_described(
    api: list[descriptor_pb2.FileDescriptorProto],
    servicer: type[BoardService | SessionService | LockService | AdminService],
) -> None:
    (service,) = (service for file in api for service in file.service if service.name == servicer.__name__)
    described = {method.name: FORM[method.client_streaming, method.server_streaming] for method in service.method}
    bare = servicer.__new__(servicer)  # the table of methods needs no store behind it
    assert {name: type(method) for name, method in bare.methods.items()} == described


def test_every_service_is_served(api: list[descriptor_pb2.FileDescriptorProto]) -> None:
    assert {service.name for file in api for service in file.service} == {
        "BoardService",
        "SessionService",
        "LockService",
        "AdminService",
    }
