"""Which packed format each matrix gets.

Place: between a model's weights and the CPU backend's load. The kernels multiply GGUF's quantised blocks as they are:
`file` keeps them and takes bfloat16 for everything else, so the weights of those blocks are the file's, unrounded.
`int8` and `int4` change the weights of matrices that are stored with more bits (backends/quantisation).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forerun.backends.quantisation import GROUP
from forerun.errors import UsageError

CHOICES = ("file", "bf16", "int8", "int4")
BLOCK_INPUTS = {"Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32, "Q8_0": 32, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256}
PANEL = 16  # rows that are packed together
KEPT = {"int8": tuple(BLOCK_INPUTS), "int4": ("Q4_0", "Q4_1", "Q4_K")}  # formats that already have as few bits


@dataclass(frozen=True)
class Part:
    """Matrices of one format and input, packed one below the other. rows  of each"""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    cols: int
    format: str

    @property
    def num_rows(self) -> int:
        """Rows of all."""
        return sum(self.rows)


def check_choice(weights: str) -> None:
    """Raises UsageError on an unknown weight format."""
    if weights not in CHOICES:
        raise UsageError(f"unknown weight format {weights!r}: choose one of {', '.join(CHOICES)}")


def packed_format(stored: str, cols: int, weights: str) -> str:
    """The format in which a matrix stored as `stored` is packed: a key of BLOCK_INPUTS or "BF16"."""
    fits = stored in BLOCK_INPUTS and cols % BLOCK_INPUTS[stored] == 0
    if fits and (weights == "file" or stored in KEPT.get(weights, ())):
        return stored
    if weights in KEPT and cols % GROUP == 0:
        return "Q8_0" if weights == "int8" else "Q4_1"
    return "BF16"


def parts_of(
    stack: Sequence[str], shapes: Mapping[str, tuple[int, ...]], format_of: Callable[[str], str]
) -> tuple[Part, ...]:
    """Cut a stack of matrices where the format changes, or where a matrix ends inside a panel."""
    parts: list[Part] = []
    for name in stack:
        (rows, cols), kind = shapes[name], format_of(name)
        last = parts[-1] if parts else None
        if last is not None and last.format == kind and (kind == "BF16" or last.num_rows % PANEL == 0):
            parts[-1] = Part((*last.names, name), (*last.rows, rows), cols, kind)
        else:
            parts.append(Part((name,), (rows,), cols, kind))
    return tuple(parts)
