"""What the API describes is what is served, each method in its described form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban_server.wire.audit_services import AuditMethods
from kokuban_server.wire.board_administration import BoardMethods
from kokuban_server.wire.conflict_services import ConflictService
from kokuban_server.wire.examination_services import ExaminationMethods
from kokuban_server.wire.lock_services import LockService, SessionService
from kokuban_server.wire.rpc import Method, ProgressMethod, ServerStreamMethod, StreamMethod, UnaryMethod
from kokuban_server.wire.services import AdminService, BoardService
from kokuban_server.wire.task_services import TaskService
from kokuban_server.wire.trust_services import TrustService

if TYPE_CHECKING:
    from google.protobuf import descriptor_pb2

# Whether the client streams, and whether the server does.
FORMS: dict[tuple[bool, bool], set[type[Method]]] = {
    (False, False): {UnaryMethod},
    (False, True): {ServerStreamMethod, ProgressMethod},
    (True, True): {StreamMethod},
}


Servicer = type[
    BoardService
    | SessionService
    | LockService
    | ConflictService
    | AdminService
    | BoardMethods
    | AuditMethods
    | TaskService
    | TrustService
]


@pytest.mark.parametrize(
    "parts",
    [
        [BoardService],
        [SessionService],
        [LockService],
        [ConflictService],
        [AdminService, BoardMethods, AuditMethods, ExaminationMethods],
        [TaskService],
        [TrustService],
    ],
    ids=lambda parts: parts[0],
)
def test_every_method_of_a_service_is_served_as_described(
    api: list[descriptor_pb2.FileDescriptorProto], parts: list[Servicer]
) -> None:
    (service,) = (service for file in api for service in file.service if service.name == parts[0].__name__)
    described = {method.name: FORMS[method.client_streaming, method.server_streaming] for method in service.method}
    served: dict[str, type[Method]] = {}
    for part in parts:
        bare = part.__new__(part)  # the table of methods needs no store behind it
        assert not served.keys() & bare.methods.keys()
        served |= {name: type(method) for name, method in bare.methods.items()}
    assert served.keys() == described.keys()
    assert {name for name, form in served.items() if form not in described[name]} == set()


def test_every_service_is_served(api: list[descriptor_pb2.FileDescriptorProto]) -> None:
    assert {service.name for file in api for service in file.service} == {
        "BoardService",
        "SessionService",
        "LockService",
        "ConflictService",
        "AdminService",
        "TaskService",
        "TrustService",
    }
