from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from kokuban_client.demo.checks import COMPLEXITY_MAX, code_lines, complexity
from kokuban_client.demo.findings import Kind, added_up, worst_first
from kokuban_client.demo.review import FILE_BYTES_MAX, parse, review_file, review_source

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_client.demo.findings import Finding, Review


def review(text: str, *, is_package: bool = False) -> Review:
    return review_source(parse(text.encode(), is_package=is_package))


def found(kind: Kind, text: str, *, is_package: bool = False) -> list[Finding]:
    return [one for one in review(text, is_package=is_package).findings if one.kind is kind]


def unused(text: str, *, is_package: bool = False) -> list[str]:
    return sorted(one.name for one in found(Kind.UNUSED_IMPORT, text, is_package=is_package))


def body(text: str) -> int:
    (function,) = ast.parse(f"def f(a, b, c, xs):\n{text}").body
    assert isinstance(function, ast.FunctionDef)
    return complexity(function)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" pass", 1),
        (" if a: pass", 2),
        (" if a: pass\n elif b: pass\n else: pass", 3),
        (" for x in xs: pass\n else: pass", 2),
        (" while a: pass", 2),
        (" try: pass\n except A: pass\n except B: pass\n else: pass\n finally: pass", 3),
        (" try: pass\n except* A: pass", 2),
        (" return a if b else c", 2),
        (" return a and b and c", 3),
        (" return a and b or c", 3),
        (" return [x for x in xs if a if b]", 4),
        (" return {x: y for x in xs for y in x}", 3),
        (" match a:\n  case 1: pass\n  case 2: pass\n  case _: pass", 3),
        (" match a:\n  case 1 if b and c: pass\n  case _ if b: pass", 4),
        (" with a: pass", 1),
        (" assert a", 1),
        (" async def g():\n  if a: pass", 1),
        (" def g():\n  if a: pass\n if b: pass", 2),
        (" def g(x=a or b): pass", 2),
        (" @(a or b)\n def g(): pass", 2),
        (" g = lambda: a or b", 2),
        (" class G:\n  if a: x = 1\n  def g(self):\n   if b: pass", 2),
    ],
)
def test_complexity_counts_each_fork_once(text: str, value: int) -> None:
    assert body(text) == value


def test_a_function_is_complex_from_one_above_the_bound() -> None:
    at_the_bound = "def f(a):\n" + " if a: pass\n" * (COMPLEXITY_MAX - 1)
    assert found(Kind.COMPLEX_FUNCTION, at_the_bound) == []
    (one,) = found(Kind.COMPLEX_FUNCTION, f"class A:\n def g(self): pass\n{at_the_bound} if a: pass\n")
    assert (one.name, one.line, one.weight) == ("f", 3, (COMPLEXITY_MAX + 1) / COMPLEXITY_MAX)
    assert one.text.startswith(f"complexity {COMPLEXITY_MAX + 1};")


def test_only_lines_with_code_make_a_function_long() -> None:
    padding = " # a comment\n\n" * 80
    documented = ' """A docstring\n' + " of many lines.\n" * 80 + ' """\n'
    assert found(Kind.LONG_FUNCTION, f"def f():\n{documented}{padding}" + " f()\n" * 59) == []
    (one,) = found(Kind.LONG_FUNCTION, f"@f\ndef f():\n{documented}{padding}" + " f()\n" * 60)
    assert (one.line, one.text.partition(";")[0]) == (2, "61 lines of code")
    (one,) = found(Kind.LONG_FUNCTION, "def f():\n x = '''\n" + "text\n" * 60 + "'''\n")
    assert one.text.startswith("63 lines")


def test_code_lines_are_those_with_more_than_comments_and_docstrings() -> None:
    text = '"""Module."""\n\n# why\nx = (1,\n     2)\ndef f(): "doc"\n'
    text += 'class A:\n    """Doc\n    more."""\n    y = """t\n    u"""\n'
    assert code_lines(parse(text.encode())) == {4, 5, 6, 7, 10, 11}


@pytest.mark.parametrize(
    ("handler", "broad"),
    [
        ("except: pass", True),
        ("except Exception: pass", True),
        ("except BaseException as e: print(e)", True),
        ("except (ValueError, Exception): pass", True),
        ("except builtins.Exception: pass", True),
        ("except ValueError: pass", False),
        ("except other.Exception: pass", False),
        ("except Exception: raise", False),
        ("except Exception as e:\n  if e.args: raise ValueError from e", False),
        ("except Exception:\n  def later(): raise", True),
    ],
)
def test_a_handler_is_broad_if_it_catches_everything_and_raises_nothing(handler: str, *, broad: bool) -> None:
    assert bool(found(Kind.BROAD_EXCEPT, f"try: f()\n{handler}")) is broad


def test_what_is_public_and_says_nothing_is_found() -> None:
    text = """
class A:
    def open(self):
        def inner(): pass
    def _own(self): pass
    def __len__(self): pass
    class B: pass
    @property
    def p(self): 'doc'
    @p.setter
    def p(self, value): pass
    @typing.overload
    def o(self): pass
class _C:
    def open(self): pass
if f:
    async def g(): pass
def h(): 'doc'
"""
    names = [one.name for one in found(Kind.MISSING_DOCSTRING, text)]
    assert names == ["", "A", "A.open", "A.B", "g"]
    assert found(Kind.MISSING_DOCSTRING, "") == []
    assert found(Kind.MISSING_DOCSTRING, "# nothing\n") == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a\n", ["a"]),
        ("import a.b\n", ["a"]),
        ("import a.b as c\n", ["c"]),
        ("from a import b, c\nc()\n", ["b"]),
        ("from . import b\n", ["b"]),
        ("import a\ndef f(): a.x\n", []),
        ("import a\nclass A:\n def f(self): return [a for _ in ()]\n", []),
        ("import a\ndef f(a): return a\n", ["a"]),
        ("import a\nclass A:\n a = a\n", []),
        ("import a\ndef f():\n global a\n a = 1\n", ["a"]),
        ("def f():\n import a\n", ["a"]),
        ("def f():\n import a\n return lambda: a\n", []),
        ("def f():\n import a\n def g(a): return a\n", ["a"]),
        ("def f():\n import a\n class A:\n  a = 1\n  def g(self): return a\n", []),
        ("@d\n@e\ndef f():\n import a\n", ["a"]),
        ("def f():\n global a\n import a\ndef g(): a()\n", []),
        ("def f():\n global a\n import a\n", ["a"]),
        ("def f():\n if f:\n  from a import b\n", ["b"]),
        ("import a\nx: a\n", []),
        ("from __future__ import annotations\nimport a, b\ndef f(x: a) -> b: pass\n", []),
        ("import a, b\ndef f(x: 'a | None') -> 'list[b.c]': pass\n", []),
        ("import a\nx = typing.cast('a', y)\n", []),
        ("import a, b, c\n__all__ = ['a']\n__all__ += ['b']\n__all__.append('c')\n", []),
        ("import a as a\nfrom b import c as c\n", []),
        ("from __future__ import annotations\nfrom a import __all__\n", []),
        ("from a import *\n", []),
        ("try:\n import a\nexcept ImportError:\n import b\n", []),
        ("try: pass\nexcept E: pass\nelse:\n import a\nfinally:\n import b\n", ["a", "b"]),
        ("try:\n import a\nfinally: pass\n", ["a"]),
        ("class A:\n import a\n", []),
        ("import a\ndel a\n", []),
    ],
)
def test_an_import_is_unused_if_nothing_in_the_source_could_mean_it(text: str, names: list[str]) -> None:
    assert unused(text) == names


def test_a_package_imports_for_others() -> None:
    assert unused("import a\n", is_package=True) == []
    assert unused("import a\n") == ["a"]


def test_a_file_that_is_not_python_is_a_finding(tmp_path: Path) -> None:
    for name, data, said in (
        ("syntax.py", b"def f(:\n", "does not parse"),
        ("bytes.py", b"x = '\xff'\n", "does not parse"),
        ("nul.py", b"x = 1\0\n", "does not parse"),
        ("cookie.py", b"# -*- coding: no-such-encoding -*-\n", "does not parse"),
        ("symbols.py", b"def f(a, a): pass\n", "does not parse"),
        ("deep.py", b"(" * 3_000 + b")" * 3_000, "does not parse"),
        ("large.py", b"#" * (FILE_BYTES_MAX + 1), "bytes; at most"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        made = review_file(path)
        assert [one.kind for one in made.findings] == [Kind.UNREADABLE_FILE], name
        assert said in made.findings[0].text, name
        assert made.totals == {"files": 1, "findings": 1, "unreadable-file": 1}
    assert "cannot be read" in review_file(tmp_path / "absent.py").findings[0].text


def test_old_encodings_and_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\r\n'''Caf\xe9.'''\r\nx = 1")
    made = review_file(path)
    assert (made.lines, made.findings) == (3, ())


def test_deeply_nested_code_is_reviewed() -> None:
    deep = "x = " + " + ".join(["a"] * 900) + "\n"
    assert review(f"'''Doc.'''\n{deep}").findings == ()


def test_what_the_compiler_says_of_reviewed_code_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert review("'''Doc.'''\nx = '\\d'\ny = 1 is 1\n").findings == ()
    assert capfd.readouterr() == ("", "")


def test_totals_are_what_was_found() -> None:
    made = review("'''Doc.'''\nimport a\ndef f(): pass\nclass A:\n 'doc'\n async def _g(self): pass\n")
    assert made.totals == {
        "files": 1,
        "lines": 6,
        "functions": 2,
        "findings": 2,
        "unused-import": 1,
        "missing-docstring": 1,
    }
    sums = added_up([made.totals, made.totals])
    assert (sums["files"], sums["lines"], sums["unused-import"], sums["broad-except"]) == (2, 12, 2, 0)
    assert [one.kind for one in worst_first(made.findings)] == [Kind.UNUSED_IMPORT, Kind.MISSING_DOCSTRING]
