"""Soft limits on size. A bigger file, function or parameter list says why in a comment that begins with "size:".

In a file the comment stands in the first lines; in a function between the line above it and its first statement.
"""

import ast
import re

from tests.structure.source_tree import Module, source_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 7
HEAD_LINES = 40

REASON = re.compile(r"(#|//) size: \w+")

FILES = dict(source_files(".py", ".cpp", ".h"))
MODULES = [Module(path, text, path) for path, text in FILES.items() if path.endswith(".py")]


def long_file(path: str, text: str) -> list[str]:
    """The file's complaint, if it has one."""
    lines = text.splitlines()
    if len(lines) <= MAX_FILE_LINES or REASON.search("\n".join(lines[:HEAD_LINES])):
        return []
    return [f"{path}: {len(lines)} lines, at most {MAX_FILE_LINES} without a reason"]


def big_functions(module: Module) -> list[str]:
    """One line for every function that is too long or takes too much, and gives no reason."""
    lines = module.text.splitlines()
    problems = []
    for function in module.functions:
        length = function.end_lineno - function.lineno + 1 if function.end_lineno else 0
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if length <= MAX_FUNCTION_LINES and count <= MAX_PARAMETERS:
            continue
        if REASON.search("\n".join(_head(function, lines))):
            continue
        problems.append(f"{module.path}:{function.lineno}: {function.name} has {length} lines, {count} parameters")
    return problems


def _head(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> list[str]:
    start = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    body = function.body
    has_docstring = ast.get_docstring(function) is not None
    first = body[1] if has_docstring and len(body) > 1 else body[0]
    return lines[max(0, start - 2) : first.lineno - 1]


def test_files_are_short_or_say_why() -> None:
    assert [problem for path, text in FILES.items() for problem in long_file(path, text)] == []


def test_functions_are_small_or_say_why() -> None:
    assert [problem for module in MODULES for problem in big_functions(module)] == []


class TestTheChecksThemselves:
    def test_long_file(self) -> None:
        text = "x = 1\n" * (MAX_FILE_LINES + 1)
        assert long_file("a.py", text)
        assert not long_file("a.py", "# size: one table, split nowhere\n" + text)
        assert not long_file("a.py", "x = 1\n" * MAX_FILE_LINES)

    def test_long_function(self) -> None:
        body = "    x = 1\n" * MAX_FUNCTION_LINES
        assert big_functions(Module("a", "def f():\n" + body))
        assert not big_functions(Module("a", "# size: one case per opcode\ndef f():\n" + body))
        assert not big_functions(Module("a", 'def f():\n    """Do."""\n    # size: one case per opcode\n' + body))

    def test_many_parameters(self) -> None:
        assert big_functions(Module("a", "def f(a, b, c, d, e, f, g, *, h): pass"))
        assert not big_functions(Module("a", "class C:\n    def f(self, a, b, c, d, e, f, g): pass"))
