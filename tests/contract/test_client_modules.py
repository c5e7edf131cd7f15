"""The client library keeps no state of its own: two connections in one process know nothing of each other."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest
from google.protobuf.message_factory import GetMessageClass

import kokuban.v1
from kokuban_client._wire import method_of

if TYPE_CHECKING:
    from pathlib import Path

MADE_TO_CHANGE = {
    "Condition",
    "ContextVar",
    "Counter",
    "Event",
    "Lock",
    "OrderedDict",
    "Queue",
    "RLock",
    "Semaphore",
    "SimpleQueue",
    "ThreadPoolExecutor",
    "WeakKeyDictionary",
    "WeakSet",
    "WeakValueDictionary",
    "bytearray",
    "count",
    "cycle",
    "defaultdict",
    "deque",
    "local",
}
CHANGING = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "update",
}


def faults(source: str) -> list[str]:
    """Say what in a module is, or treats something as, state of the module."""
    tree = ast.parse(source)
    names: set[str] = set()
    found: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            if statement.value is not None and is_made_to_change(statement.value):
                found.append(f"line {statement.lineno}: made to be changed")
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found.append(f"line {node.lineno}: global {', '.join(node.names)}")
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and is_one_of(node.value, names)
        ):
            found.append(f"line {node.lineno}: changes an element of a module's constant")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGING
            and is_one_of(node.func.value, names)
        ):
            found.append(f"line {node.lineno}: changes a module's constant")
    return found


def is_one_of(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def is_made_to_change(value: ast.expr) -> bool:
    """An empty container has no use but to be filled."""
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Call):
        callee = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return callee in MADE_TO_CHANGE or (callee in {"dict", "list", "set"} and not value.args and not value.keywords)
    return False


def test_no_module_of_the_client_keeps_state(root: Path) -> None:
    modules = sorted((root / "client/kokuban_client").rglob("*.py"))
    assert modules
    found = {str(path.relative_to(root)): faults(path.read_text(encoding="utf-8")) for path in modules}
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "_seen = {}",
        "_seen: dict[str, int] = {}",
        "CACHE = []",
        "_all = set()",
        "_lock = threading.Lock()",
        "_now = ContextVar('now')",
        "_last = None\ndef f():\n    global _last\n    _last = 1",
        "KNOWN = {'a': 1}\ndef f():\n    KNOWN['b'] = 2",
        "KNOWN = {'a': 1}\ndef f():\n    KNOWN.update(b=2)",
        "KNOWN = ['a']\nclass C:\n    def f(self):\n        KNOWN.append('b')",
    ],
)
def test_state_would_be_seen(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "KNOWN = {'a': 1}",
        "NAMES: Final = ('a', 'b')",
        "_FORM = re.compile('a')",
        "def f():\n    seen = {}\n    seen['a'] = 1\n    seen.update(b=1)",
        "class C:\n    def __init__(self):\n        self.seen = {}",
    ],
)
def test_constants_and_the_state_of_objects_are_no_fault(source: str) -> None:
    assert not faults(source)


def test_the_client_can_name_the_method_of_every_request() -> None:
    """Where calls are traced their spans are named by it."""
    named = {
        method.input_type: f"{service.full_name}/{method.name}"
        for module in pkgutil.iter_modules(kokuban.v1.__path__)
        if module.name.endswith("_service_pb2")
        for service in importlib.import_module(f"kokuban.v1.{module.name}").DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert len(named) >= 50
    assert {of: method_of(GetMessageClass(of)()) for of in named} == named
