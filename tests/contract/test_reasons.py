"""Each reason of the API is given by the server in one way, with one status code, and known to the client."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import grpc

import kokuban_client.errors
from kokuban_server.core import refusals
from kokuban_server.core.refusals import InvalidRequest, Refusal, StateUnfit, Unauthenticated
from kokuban_server.wire.rpc import InternalFault
from kokuban_server.wire.status import CODE_BY_REASON

if TYPE_CHECKING:
    from pathlib import Path

# One class for several reasons: the reason is its first argument. All of a class's reasons have one status code.
CODED = {InvalidRequest: "INVALID_ARGUMENT", Unauthenticated: "UNAUTHENTICATED", StateUnfit: "FAILED_PRECONDITION"}


def leaves() -> dict[str, type[Refusal]]:
    """The refusals that stand for one reason each."""
    found: dict[str, type[Refusal]] = {}
    for kind in Refusal.__subclasses__():
        if kind not in CODED:
            reason = kind.__dict__["reason"]
            assert isinstance(reason, str), kind
            assert reason not in found, reason
            found[reason] = kind
    return found


def status_code(comment: str) -> str:
    found = re.match(r"([A-Z_]+)\. ", comment)
    assert found, comment
    return found[1]


def reasons_spelled_in(root: Path, reasons: set[str]) -> dict[str, set[str]]:
    """Where each reason stands as a text of its own in the server, except for the table of codes."""
    places: dict[str, set[str]] = defaultdict(set)
    for path in (root / "server/kokuban_server").rglob("*.py"):
        if path.name == "status.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in reasons:
                places[str(node.value)].add(path.name)
    return places


def test_refusals_are_told_in_one_place() -> None:
    """One level deep, in `core.refusals`; a fault of the server alone, which no core can know of, is the wire's own."""
    assert all(not kind.__subclasses__() for kind in Refusal.__subclasses__())
    elsewhere = {kind for kind in Refusal.__subclasses__() if kind.__module__ != refusals.__name__}
    assert elsewhere == {InternalFault}


def test_every_leaf_is_a_reason_of_the_api(reasons: set[str]) -> None:
    assert set(leaves()) <= reasons


def test_every_reason_has_a_status_code_and_it_is_the_documented_one(
    reasons: set[str], comments: dict[str, str]
) -> None:
    assert set(CODE_BY_REASON) == reasons
    documented = {reason: status_code(comments[f"ErrorReason.ERROR_REASON_{reason}"]) for reason in reasons}
    assert {reason: code.name for reason, code in CODE_BY_REASON.items()} == documented
    assert grpc.StatusCode.OK not in CODE_BY_REASON.values()
    assert grpc.StatusCode.UNKNOWN not in CODE_BY_REASON.values()


def test_every_reason_is_given_by_the_server(root: Path, reasons: set[str]) -> None:
    """A reason that nothing gives is a promise that nobody keeps."""
    spelled = reasons_spelled_in(root, reasons)
    assert reasons - set(spelled) == set()


def test_a_reason_belongs_to_one_class_of_refusal(root: Path) -> None:
    """Each reason that a coded refusal is made with has that class's status code, and no class of its own."""
    by_name = {kind.__name__: code for kind, code in CODED.items()}
    made: dict[str, set[str]] = defaultdict(set)
    for path in (root / "server/kokuban_server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in by_name and node.args:
                for constant in ast.walk(node.args[0]):
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                        made[constant.value].add(by_name[node.func.id])
    assert made
    for reason, codes in made.items():
        assert codes == {CODE_BY_REASON[reason].name}, reason
        assert reason not in leaves(), reason


def test_the_facts_of_a_refusal_are_the_documented_ones(comments: dict[str, str]) -> None:
    """Metadata that no comment names could not be acted on."""
    for reason, kind in leaves().items():
        comment = comments[f"ErrorReason.ERROR_REASON_{reason}"]
        given = facts_named_in(kind)
        documented = set(re.findall(r"[a-z_]+", comment.partition("Metadata:")[2].partition("Example:")[0]))
        assert given <= documented, (reason, given - documented)


def facts_named_in(kind: type[Refusal]) -> set[str]:
    """The names of the facts that a refusal can have, told by one that has everything."""
    everything: dict[str, object] = {
        "int": 1,
        "bool": True,
        "bytes": b"x",
        "str": "x",
        "Winner | None": refusals.Winner("a", "r", 1, "t"),
        "Winner": refusals.Winner("a", "r", 1, "t"),
        "Holder": (holder := refusals.Holder("r", "p", "l", "a", "s", "m", "HELD", "p", 1, "t")),
        "Holder | None": holder,
        "tuple[CycleEdge, ...]": (refusals.CycleEdge("a", "s", (), "p"),),
    }
    parameters = inspect.signature(kind).parameters
    arguments = {name: everything[parameter.annotation] for name, parameter in parameters.items()}
    return set(kind(**arguments).facts)


def test_the_client_knows_every_reason(reasons: set[str]) -> None:
    assert set(kokuban_client.errors.BY_REASON) == reasons
