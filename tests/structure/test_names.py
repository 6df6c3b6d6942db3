"""Names and words: no empty-word class names, a docstring on everything public, no path of one person's machine."""

import ast
import re

from tests.structure.source_tree import Module, package_modules, source_files, text_files

# Words that say nothing about what a thing does.
EMPTY_WORDS = {"manager", "helper", "helpers", "util", "utils", "base", "mixin", "mixins"}
ABSOLUTE_PATH = re.compile(r"(?<![\w.~)}>-])/(?:work|tmp|root|home)/")
NATIVE_TYPE = re.compile(r"^\s*(?:class|struct|enum class)\s+(\w+)", re.MULTILINE)

MODULES = package_modules()
NATIVE = dict(source_files(".cpp", ".h"))
TEXTS = dict(text_files())


def words(identifier: str) -> set[str]:
    """Lower-case words of a snake_case or CamelCase identifier."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def empty_names(module: Module) -> list[str]:
    """Classes, and the module itself, whose name contains an empty word. `backends/base` is the protocol's own name."""
    problems = [
        f"{module.path}:{node.lineno}: class {node.name}" for node in module.classes if words(node.name) & EMPTY_WORDS
    ]
    if words(module.name.rpartition(".")[2]) & EMPTY_WORDS and module.name != "backends.base":
        problems.append(f"{module.path}: module name")
    return problems


def missing_docstrings(module: Module) -> list[str]:
    """The module (unless empty) and its public classes and functions that have no docstring."""
    if not module.tree.body:
        return []
    problems = [] if ast.get_docstring(module.tree) else [f"{module.path}: module"]
    definitions = [n for n in module.tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    bare = [node for node in definitions if not node.name.startswith("_") and not ast.get_docstring(node)]
    return problems + [f"{module.path}:{node.lineno}: {node.name}" for node in bare]


def test_names_say_something() -> None:
    assert [problem for module in MODULES.values() for problem in empty_names(module)] == []
    native = [(path, name) for path, text in NATIVE.items() for name in NATIVE_TYPE.findall(text)]
    assert [(path, name) for path, name in native if words(name) & EMPTY_WORDS] == []


def test_public_things_are_explained() -> None:
    assert [problem for module in MODULES.values() for problem in missing_docstrings(module)] == []


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path}:{number}"
        for path, text in TEXTS.items()
        for number, line in enumerate(text.splitlines(), 1)
        if ABSOLUTE_PATH.search(line)
    ]
    assert found == [], "use a relative path or pytest's tmp_path"


class TestTheChecksThemselves:
    def test_empty_names(self) -> None:
        assert empty_names(Module("cache.pool", "class CacheManager: pass"))
        assert empty_names(Module("text.utils", ""))
        assert not empty_names(Module("backends.base", "class Database: pass"))

    def test_docstrings(self) -> None:
        assert len(missing_docstrings(Module("a", "class A: pass\ndef f(): pass"))) == 3
        assert not missing_docstrings(Module("a", '"""A."""\ndef _f(): pass'))
        assert not missing_docstrings(Module("a", ""))

    def test_absolute_paths(self) -> None:
        assert ABSOLUTE_PATH.search("open('/" + "tmp/x')")
        assert not ABSOLUTE_PATH.search("https://example.org/home/page and frame/" + "work/x")
