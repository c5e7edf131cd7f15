"""Which imports of a source are never used: by the compiler's own symbol tables, where every doubt counts as a use."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kokuban_client.demo.findings import Finding, Kind

if TYPE_CHECKING:
    import symtable
    from collections.abc import Iterator

    from kokuban_client.demo.checks import Source

_WEIGHT = 0.6


@dataclass(frozen=True, slots=True)
class _Import:
    line: int
    name: str
    shown: str


def unused_imports(source: Source) -> Iterator[Finding]:
    """Find the imports whose name is used nowhere in the source.

    Left alone, because they are there for others: a package's `__init__.py`, `__future__`, `import *`, `import a as a`,
    `__all__` and what it names, and imports that a `try` probes for or that stand in a class.
    """
    if source.is_package:
        return
    elsewhere = _used_in_text(source.tree)
    for scope, table in _scopes(source):
        for one in _imports_of(scope):
            if one.name not in elsewhere and not _is_used(one.name, table, source.names):
                text = f"{one.shown} is imported and never used"
                yield Finding(Kind.UNUSED_IMPORT, one.line, one.name, text, _WEIGHT)


def _scopes(source: Source) -> Iterator[tuple[ast.AST, symtable.SymbolTable]]:
    """Give the module and all functions in it, each with its table."""
    tables: dict[tuple[str, int], list[symtable.SymbolTable]] = {}
    waiting = [source.names]
    while waiting:
        table = waiting.pop()
        if table.get_type() == "function":
            tables.setdefault((table.get_name(), table.get_lineno()), []).append(table)
        waiting += table.get_children()
    yield source.tree, source.names
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Two functions of one name on one line cannot be told apart, and are not looked into.
            here = tables.get((node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)])), [])
            here = here or tables.get((node.name, node.lineno), [])
            if len(here) == 1:
                yield node, here[0]


def _imports_of(scope: ast.AST) -> Iterator[_Import]:
    """Give the imports that bind a name in this scope and not in one inside it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.expr():
                continue
            case ast.Try() | ast.TryStar() if node.handlers:
                waiting += node.orelse + node.finalbody  # what is tried, and what stands in for it, is there on purpose
            case ast.Import():
                for alias in node.names:
                    if alias.asname != alias.name:
                        yield _Import(node.lineno, alias.asname or alias.name.partition(".")[0], alias.name)
            case ast.ImportFrom() if node.module != "__future__":
                origin = "." * node.level + (node.module or "")
                for alias in node.names:
                    if alias.name not in ("*", "__all__", alias.asname):
                        shown = f"{origin}{'' if origin.endswith('.') else '.'}{alias.name}"
                        yield _Import(node.lineno, alias.asname or alias.name, shown)
            case _:
                waiting += ast.iter_child_nodes(node)


def _is_used(name: str, table: symtable.SymbolTable, module: symtable.SymbolTable) -> bool:
    symbol = table.lookup(name)
    if symbol.is_referenced():
        return True
    if table is module or symbol.is_declared_global():
        return (_has(module, name) and module.lookup(name).is_referenced()) or _used_as_global(name, module)
    return _used_from_inside(name, table)


def _has(table: symtable.SymbolTable, name: str) -> bool:
    return name in table.get_identifiers()


def _used_as_global(name: str, module: symtable.SymbolTable) -> bool:
    waiting = list(module.get_children())
    while waiting:
        table = waiting.pop()
        if _has(table, name):
            symbol = table.lookup(name)
            # A class's own name may still be read from the module: `class A: os = os`.
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "class"):
                return True
        waiting += table.get_children()
    return False


def _used_from_inside(name: str, table: symtable.SymbolTable) -> bool:
    """Say whether a scope inside this function uses its name; one that binds the name anew hides it from those inside it."""
    waiting = list(table.get_children())
    while waiting:
        inner = waiting.pop()
        if _has(inner, name):
            symbol = inner.lookup(name)
            if symbol.is_free() and symbol.is_referenced():
                return True
            if symbol.is_local() and inner.get_type() == "function":
                continue
        waiting += inner.get_children()
    return False


def _used_in_text(tree: ast.Module) -> set[str]:
    """Give the names that are used where a symbol table does not look: hints, texts in hints, `__all__`, and `del`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Del()):
                names.add(node.id)
            case ast.arg(annotation=hint) | ast.AnnAssign(annotation=hint) if hint is not None:
                names |= _names_in(hint)
            case ast.FunctionDef(returns=hint) | ast.AsyncFunctionDef(returns=hint) if hint is not None:
                names |= _names_in(hint)
            case ast.Call(func=ast.Name(id="cast") | ast.Attribute(attr="cast"), args=[hint, *_]):
                names |= _names_in(hint)
            case _:
                pass
        if _is_about_all(node):
            names |= {
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return names


def _is_about_all(node: ast.AST) -> bool:
    match node:
        case (
            ast.Assign(targets=[ast.Name(id="__all__")])
            | ast.AugAssign(target=ast.Name(id="__all__"))
            | ast.AnnAssign(target=ast.Name(id="__all__"))
            | ast.Call(func=ast.Attribute(value=ast.Name(id="__all__")))
        ):
            return True
        case _:
            return False


def _names_in(hint: ast.expr) -> set[str]:
    """Give the names in a hint, also those in a text that is a hint."""
    names: set[str] = set()
    for node in ast.walk(hint):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            with contextlib.suppress(SyntaxError, ValueError):
                names |= {one.id for one in ast.walk(ast.parse(node.value, mode="eval")) if isinstance(one, ast.Name)}
    return names
