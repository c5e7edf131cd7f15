"""Reviewing one file: the work that an agent does. Everything around it is about doing it together."""

from __future__ import annotations

import ast
import hashlib
import io
import symtable
import tokenize
import warnings
from typing import TYPE_CHECKING

from kokuban_client.demo.checks import (
    Source,
    broad_excepts,
    complex_functions,
    definitions,
    long_functions,
    missing_docstrings,
)
from kokuban_client.demo.findings import Finding, Kind, Review
from kokuban_client.demo.imports import unused_imports

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES_MAX = 2 * 1024 * 1024

_UNREADABLE_WEIGHT = 10.0


def review_file(path: Path) -> Review:
    """Give the review of one file. Never fails: what cannot be read or parsed is itself a finding.

    This is where a team of real agents would call its model. In words:

        notes    = the text of the file, and the agent's notes from its own region of the board
        answer   = ask the model: "review this file; answer with line, kind and text of each finding"
        findings = one Finding for each, counted as below; claims, notes and totals stay as they are

    It runs in a thread, so a call that takes its time holds nothing else up. A model's second answer differs from its first:
    the recount would then add up the reviews on the board instead of making them again.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        return _unreadable("", f"cannot be read: {error.strerror}")
    sha256 = digest(data)
    if len(data) > FILE_BYTES_MAX:
        return _unreadable(sha256, f"has {len(data):,} bytes; at most {FILE_BYTES_MAX:,} are reviewed")
    try:
        source = parse(data, is_package=path.name == "__init__.py")
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        line = getattr(error, "lineno", None) or 1
        return _unreadable(sha256, f"does not parse: {getattr(error, 'msg', error)}", line)
    except (RecursionError, MemoryError):
        return _unreadable(sha256, "does not parse: nested too deep")
    return review_source(source, sha256)


def review_source(source: Source, sha256: str = "") -> Review:
    """Give the review of a parsed source."""
    found = (
        *complex_functions(source),
        *long_functions(source),
        *broad_excepts(source),
        *unused_imports(source),
        *missing_docstrings(source),
    )
    functions = sum(1 for one in source.definitions if not isinstance(one.node, ast.ClassDef))
    return Review(sha256, source.lines, functions, found)


def parse(data: bytes, *, is_package: bool = False) -> Source:
    """Give a source in all the forms that the checks need.

    Raises SyntaxError, ValueError, tokenize.TokenError, RecursionError or MemoryError for what is not Python.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = io.TextIOWrapper(io.BytesIO(data), encoding).read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of the reviewed code is not ours to print
        tree = ast.parse(text)
        names = symtable.symtable(text, "<reviewed>", "exec")
    tokens = tuple(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    return Source(tree, definitions(tree), names, tokens, lines, is_package=is_package)


def digest(data: bytes) -> str:
    """Give what tells one state of a file from another."""
    return hashlib.sha256(data).hexdigest()


def _unreadable(sha256: str, text: str, line: int = 1) -> Review:
    return Review(sha256, 0, 0, (Finding(Kind.UNREADABLE_FILE, line, "", text, _UNREADABLE_WEIGHT),))
