"""The repository as data for the structural tests: its files, its Python modules, and what they import.

Every check takes a `Module` made from text, so that a test can also feed it a bad example and see it fail.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "forerun"
SOURCE_DIRS = ("src", "native", "tests", "tools", "benchmarks", "examples")
TEXT_SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".md", ".toml", ".yml", ".yaml", ".json", ".txt", ".sh", ".cfg", ".html"}
TOP_FILES = ("Makefile", "CMakeLists.txt", ".ci/run", ".clang-format", ".gitignore")


@dataclass(frozen=True)
class Module:
    """One Python file. `name` is dotted and without the package's own name; the package itself is ""."""

    name: str
    text: str
    path: str = "example.py"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imports(self) -> tuple[tuple[str, int], ...]:
        """(dotted target, line) of every import, wherever it stands; `from a import b` gives "a.b"."""
        found: list[tuple[str, int]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = "." * node.level + (node.module or "")
                found += [(f"{source}.{alias.name}", node.lineno) for alias in node.names]
        return tuple(found)

    @cached_property
    def functions(self) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
        """Every function and method, nested ones included."""
        return tuple(node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    @cached_property
    def classes(self) -> tuple[ast.ClassDef, ...]:
        return tuple(node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


def package_modules() -> dict[str, Module]:
    """Every module under src/forerun by name."""
    root = ROOT / "src" / PACKAGE
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        name = ".".join(parts)
        modules[name] = Module(name, path.read_text("utf-8"), str(path.relative_to(ROOT)))
    return modules


def source_files(*suffixes: str) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of the project's own source files with these suffixes."""
    for folder in SOURCE_DIRS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def text_files() -> Iterator[tuple[str, str]]:
    """(path from the root, text) of everything written by hand: sources, documents, build files."""
    paths = [path for path in sorted(ROOT.glob("*")) if path.suffix in TEXT_SUFFIXES]
    paths += [ROOT / name for name in TOP_FILES]
    for folder in (*SOURCE_DIRS, "docs"):
        paths += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TEXT_SUFFIXES]
    for path in paths:
        if path.is_file():
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")
