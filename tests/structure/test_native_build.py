"""The native build keeps two promises of the design: bits do not depend on compiler liberties, and no instruction
beyond the platform's minimum is compiled outside `native/isa`, so that feature detection itself can never fault."""

import os
import re
import shutil
import subprocess

from tests.structure.source_tree import ROOT, source_files

ISA_FLAG = re.compile(r"-m(?:arch=|tune=|cpu=|avx|sse|amx|fma|f16c|bmi)[\w.=+-]*")
LOOSE_MATH = re.compile(r"-Ofast|-ffast-math|-funsafe-math\S*|-fassociative-math|-ffp-contract=(?!off)\S+")
INTRINSICS = re.compile(
    r"#include\s*<(?:immintrin|x86intrin|arm_neon|arm_sve)\.h>|__attribute__\(\(target\(|GCC target"
)
MAY_USE_INTRINSICS = ("native/isa/", "native/vec/", "native/kernels/")

COMMENT = re.compile(r"#[^\n]*")
COMMAND = re.compile(r"(\w+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)")

NATIVE = dict(source_files(".cpp", ".h"))
BUILD = (ROOT / "CMakeLists.txt").read_text("utf-8")


# Commands that only put a value into a variable, with the place of the variable's name among the arguments.
VARIABLE_PLACE = {"set": 0, "list": 1, "string": 2}


def misplaced_isa_flags(cmake: str) -> list[str]:
    """CMake commands that give an instruction-set flag to anything but sources under native/isa.

    A variable that was given such a flag, directly or through another, counts as the flag itself.
    """
    problems = []
    carriers: set[str] = set()  # variables that hold flags
    for name, arguments in COMMAND.findall(COMMENT.sub("", cmake)):
        flags = ISA_FLAG.findall(arguments) + [v for v in re.findall(r"\$\{(\w+)\}", arguments) if v in carriers]
        # add_kernel_table of CMakeLists.txt gives its flags to native/isa/NAME.cpp only; its body is checked too.
        if not flags or name.startswith("check_cxx_") or name == "add_kernel_table":
            continue
        if name in VARIABLE_PLACE:
            carriers.add(re.findall(r'"[^"]*"|\S+', arguments)[VARIABLE_PLACE[name]])
            continue
        sources = re.findall(r"\S+\.cpp", arguments)
        if name != "set_source_files_properties" or not sources or not all("native/isa/" in s for s in sources):
            problems.append(f"{name}: {' '.join(flags)}")
    return problems


def test_isa_flags_only_on_isa_units() -> None:
    assert misplaced_isa_flags(BUILD) == []


def test_arithmetic_is_strict() -> None:
    assert "-ffp-contract=off" in BUILD
    assert LOOSE_MATH.findall(BUILD) == []


def test_intrinsics_stay_in_their_rooms() -> None:
    outside = [path for path in NATIVE if not path.startswith(MAY_USE_INTRINSICS)]
    assert [path for path in outside if INTRINSICS.search(NATIVE[path])] == []


class TestTheChecksThemselves:
    def test_isa_flags_in_variables(self) -> None:
        carrier = 'set(fast -mavx2)\nstring(JOIN " " joined ${fast})\n'
        assert misplaced_isa_flags(carrier + "target_compile_options(_native PRIVATE ${joined})")
        assert not misplaced_isa_flags(carrier + "set_source_files_properties(native/isa/a.cpp PROPERTIES X ${fast})")

    def test_isa_flags(self) -> None:
        assert misplaced_isa_flags("target_compile_options(_native PRIVATE -mavx2)")
        assert misplaced_isa_flags('set_source_files_properties(native/draw.cpp PROPERTIES COMPILE_OPTIONS "-mavx2")')
        assert not misplaced_isa_flags(
            'set_source_files_properties(native/isa/avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2")'
        )
        assert not misplaced_isa_flags("# -march=native would be wrong\nset(x 1)")

    def test_intrinsics(self) -> None:
        assert INTRINSICS.search("#include <immintrin.h>")
        assert INTRINSICS.search('__attribute__((target("avx2"))) void f();')
        assert not INTRINSICS.search('__attribute__((target_clones("avx2", "default"))) void f();')

    def test_loose_math(self) -> None:
        assert LOOSE_MATH.search("-ffp-contract=fast")
        assert not LOOSE_MATH.search("-ffp-contract=off -fno-fast-math")


def test_the_check_of_neon_compiles() -> None:
    """`make neon` needs a cross compiler and an emulator; whether its program fits the sources, any compiler sees."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    assert compiler, "a C++ compiler built the module: it must be on PATH, or named by CXX"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Inative", "tools/neon_check.cpp"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
