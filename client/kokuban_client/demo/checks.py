"""What is looked for in a source, by its syntax tree and its tokens. Pure: a source in, findings out."""

from __future__ import annotations

import ast
import tokenize
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kokuban_client.demo.findings import Finding, Kind

if TYPE_CHECKING:
    import symtable
    from collections.abc import Iterator

COMPLEXITY_MAX = 10
CODE_LINES_MAX = 60

_BROAD_WEIGHT = 0.9
_DOCSTRING_WEIGHT = 0.3
_BROAD = frozenset({"Exception", "BaseException"})
_NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class, wherever it stands. Public: neither it nor what it stands in begins with an underscore."""

    node: Function | ast.ClassDef
    name: str
    is_public: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A source in the forms that the checks need."""

    tree: ast.Module
    definitions: tuple[Definition, ...]
    names: symtable.SymbolTable
    tokens: tuple[tokenize.TokenInfo, ...]
    lines: int
    is_package: bool
    """Whether it is a package's `__init__.py`, whose imports are there for others."""


def definitions(tree: ast.Module) -> tuple[Definition, ...]:
    """Give all functions and classes of a module, in the order of their lines. What stands in a function is not public."""
    found: list[Definition] = []
    # A stack of our own instead of recursion: generated code is nested deeper than Python's.
    waiting: list[tuple[ast.AST, str, bool]] = [(tree, "", True)]
    while waiting:
        node, prefix, is_public = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _SCOPES):
                one = Definition(child, prefix + child.name, is_public and not child.name.startswith("_"))
                found.append(one)
                open_to_all = one.is_public and isinstance(child, ast.ClassDef)
                waiting.append((child, f"{one.name}.", open_to_all))
            elif not isinstance(child, ast.expr):  # nothing is defined inside an expression
                waiting.append((child, prefix, is_public))
    return tuple(sorted(found, key=lambda one: (one.node.lineno, one.node.col_offset)))


def complex_functions(source: Source) -> Iterator[Finding]:
    """Find the functions with a cyclomatic complexity above the bound."""
    for one in source.definitions:
        if isinstance(one.node, ast.ClassDef):
            continue
        value = complexity(one.node)
        if value > COMPLEXITY_MAX:
            text = f"complexity {value}; at most {COMPLEXITY_MAX} is easy to follow"
            yield Finding(Kind.COMPLEX_FUNCTION, one.node.lineno, one.name, text, value / COMPLEXITY_MAX)


def complexity(function: Function) -> int:
    """Give the cyclomatic complexity (McCabe): one, and one for each place where the way through may fork.

    Those are if, elif, for, while, except, a conditional expression, each for and if of a comprehension, each further operand
    of and/or, and each case but an unguarded catch-all. A function inside counts for itself, a lambda for what it stands in.
    """
    value = 1
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        value += _forks(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [
                *node.decorator_list,
                node.args,
            ]  # which the function around it works out; the body is not its own
        else:
            waiting += ast.iter_child_nodes(node)
    return value


def _forks(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler() | ast.IfExp():
            return 1
        case ast.BoolOp(values=operands):
            return len(operands) - 1
        case ast.comprehension(ifs=conditions):
            return 1 + len(conditions)
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return 0
        case ast.match_case():
            return 1
        case _:
            return 0


def long_functions(source: Source) -> Iterator[Finding]:
    """Find the functions with more lines of code than the bound: comments, blank lines and docstrings do not count."""
    lines = sorted(code_lines(source))
    for one in source.definitions:
        if isinstance(one.node, ast.ClassDef):
            continue
        last = one.node.end_lineno or one.node.lineno
        count = bisect_right(lines, last) - bisect_left(lines, one.node.lineno)
        if count > CODE_LINES_MAX:
            text = f"{count} lines of code; at most {CODE_LINES_MAX} fit a screen"
            yield Finding(Kind.LONG_FUNCTION, one.node.lineno, one.name, text, count / CODE_LINES_MAX)


def code_lines(source: Source) -> set[int]:
    """Give the numbers of the lines on which code stands."""
    documented: set[int] = set()
    for scope in (source.tree, *(one.node for one in source.definitions)):
        if ast.get_docstring(scope, clean=False) is not None:
            documented.update(range(scope.body[0].lineno, (scope.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in source.tokens:
        is_docstring = token.type == tokenize.STRING and token.start[0] in documented and token.end[0] in documented
        if token.type not in _NOT_CODE and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def broad_excepts(source: Source) -> Iterator[Finding]:
    """Find the handlers that catch everything and do not raise again, so that a fault may go unseen."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and (caught := _broadly(node.type)) and not _raises(node):
            yield Finding(Kind.BROAD_EXCEPT, node.lineno, "", f"{caught} hides faults nobody thought of", _BROAD_WEIGHT)


def _broadly(caught: ast.expr | None) -> str:
    """Say how the handler catches everything, or give an empty text."""
    if caught is None:
        return "bare except"
    for one in caught.elts if isinstance(caught, ast.Tuple) else [caught]:
        name = one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
        whole = not isinstance(one, ast.Attribute) or (isinstance(one.value, ast.Name) and one.value.id == "builtins")
        if name in _BROAD and whole:
            return f"except {name}"
    return ""


def _raises(handler: ast.ExceptHandler) -> bool:
    """Say whether the handler itself raises something, at least on one way through."""
    waiting: list[ast.AST] = list(handler.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise):
            return True
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)
    return False


def missing_docstrings(source: Source) -> Iterator[Finding]:
    """Find the module, public classes, functions and methods that say nothing about themselves.

    Not asked for: an empty module, overloads, and the setter or deleter of a property.
    """
    if source.tree.body and ast.get_docstring(source.tree, clean=False) is None:
        yield Finding(Kind.MISSING_DOCSTRING, 1, "", "the module has no docstring", _DOCSTRING_WEIGHT)
    for one in source.definitions:
        if one.is_public and not _speaks_elsewhere(one.node) and ast.get_docstring(one.node, clean=False) is None:
            what = "class" if isinstance(one.node, ast.ClassDef) else "function"
            text = f"the public {what} has no docstring"
            yield Finding(Kind.MISSING_DOCSTRING, one.node.lineno, one.name, text, _DOCSTRING_WEIGHT)


def _speaks_elsewhere(node: Function | ast.ClassDef) -> bool:
    for decorator in node.decorator_list:
        name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        if name == "overload" or (name in {"setter", "deleter"} and isinstance(decorator, ast.Attribute)):
            return True
    return False
