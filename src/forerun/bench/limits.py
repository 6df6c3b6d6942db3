"""The limits that kernels are held against: how fast this machine reads memory and multiplies numbers.

Bandwidth depends on how much is read over and over: a buffer that fits a cache is read faster. A limit is the best of
all ways and of all rounds; rounds are spread over a run, so that a disturbed minute does not lower it.
"""

import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from forerun.backends.measure import MachineMeter
from forerun.machine import available_memory

KB, MB = 1 << 10, 1 << 20
SIZES = (256 * KB, MB, 4 * MB, *(MB << power for power in range(3, 11)))  # up to 1 GB
QUICK_SIZES = (256 * KB, 8 * MB, 64 * MB)
READ_BYTES = 64 * MB  # a small buffer is read so often that this much is read in all
MULTIPLY_S = 0.01  # of one sample
PROMISING = 3  # ways of reading that are tried in every round
LARGE = 64 * MB  # buffers from here on say how steady the memory is
INT16_PRODUCTS = ("avx512_vnni_int8",)  # the peak that products of 16 bits have half of


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second of reading a buffer of `buffer_bytes`. loop  the way that was the fastest on all threads"""

    buffer_bytes: int
    one_thread: float
    all_threads: float
    loop: str


@dataclass(frozen=True)
class Peak:
    """Operations per second on numbers of one format; a multiply-add is two. format  instruction set and numbers"""

    format: str
    one_thread: float
    all_threads: float


@dataclass(frozen=True)
class Limits:
    """What was measured.

    steadiness  the lowest share of a limit of all threads that the median round reached; far below 1 the machine was
                busy with something else
    """

    threads: int
    bandwidths: tuple[Bandwidth, ...]  # ascending sizes
    peaks: tuple[Peak, ...]
    rounds: int
    steadiness: float

    def bandwidth(self, num_bytes: float) -> float:
        """Bytes per second of all threads for a working set of `num_bytes`, between the sizes that were measured."""
        points = [(point.buffer_bytes, point.all_threads) for point in self.bandwidths]
        if num_bytes <= points[0][0]:
            return points[0][1]
        for (size, rate), (next_size, next_rate) in itertools.pairwise(points):
            if num_bytes <= next_size:
                share = math.log(num_bytes / size) / math.log(next_size / size)
                return rate + share * (next_rate - rate)
        return points[-1][1]

    def peak(self, numerics_id: str) -> Peak:
        """The peak of the instructions that the kernels of `numerics_id` may use, see `peak_formats`."""
        wanted = peak_formats(numerics_id)
        found = [peak for peak in self.peaks if peak.format in wanted]
        if wanted == INT16_PRODUCTS and "int16" in numerics_id:
            # As two products of bytes, or as one instruction for half as many inputs.
            found = [replace(peak, one_thread=peak.one_thread / 2, all_threads=peak.all_threads / 2) for peak in found]
        return max(found or self.peaks, key=lambda peak: peak.all_threads)


def peak_formats(numerics_id: str) -> tuple[str, ...]:
    """Formats of `Peak` for a numerics id: its kernel table, its first part, with its activations, the part a-..."""
    table, *parts = numerics_id.split("/")
    is_int8 = any(part.startswith("a-") and "int8" in part for part in parts)
    if table.startswith("amx"):
        return ("amx_int8",) if is_int8 else ("amx_bf16",)
    if table.startswith("avx512"):
        if any(part.startswith("a-") and "int16" in part for part in parts):
            return INT16_PRODUCTS
        return ("avx512_vnni_int8",) if is_int8 else ("avx512_bf16", "avx512_fp32")
    if table.startswith("avx2"):
        # Bytes are multiplied in two steps, the second of which is that for 16 bits: both have the same peak.
        is_integer = is_int8 or any(part.startswith("a-") and "int16" in part for part in parts)
        return ("avx2_int8",) if is_integer else ("avx2_fp32",)
    return ("neon_fp32",) if table.startswith("neon") else ("portable_fp32",)


@dataclass
class _Best:
    """Rates of one quantity: the best of every round, and of every way of measuring it."""

    rounds: list[float] = field(default_factory=list)
    loops: dict[int, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return max(self.rounds)

    @property
    def ranking(self) -> list[int]:
        """Ways of measuring, the fastest first."""
        return sorted(self.loops, key=lambda loop: -self.loops[loop])

    @property
    def steadiness(self) -> float:
        return sorted(self.rounds)[(len(self.rounds) - 1) // 2] / self.rate

    def add_round(self, rates: Mapping[int, float]) -> None:
        """Take in the rates of one round, by loop."""
        self.rounds.append(max(rates.values()))
        for loop, rate in rates.items():
            self.loops[loop] = max(rate, self.loops.get(loop, 0.0))


class LimitsMeter:
    """Measures the limits round by round. Holds a buffer as large as the largest size until it is dropped.

    Sizes that would take more than a quarter of the free memory are left out.
    """

    def __init__(self, threads: int, quick: bool = False) -> None:
        free = available_memory()
        sizes = QUICK_SIZES if quick else SIZES
        self._sizes = [size for size in sizes if free is None or size <= free // 4] or [sizes[0]]
        self._threads = threads
        self._meter = MachineMeter(threads, self._sizes[-1])
        self._repeats = 2 if quick else 4
        self._reads = {(size, one): _Best() for size in self._sizes for one in (True, False)}
        self._multiplies = {(loop, one): _Best() for loop in range(len(self._formats)) for one in (True, False)}

    @property
    def _formats(self) -> Seq[str]:
        return self._meter.multiply_loops()

    def measure_round(self) -> None:
        """Measure everything once more; the slower ways of reading in the first round only."""
        for (size, one_thread), best in self._reads.items():
            loops = best.ranking[:PROMISING] or range(len(self._meter.read_loops()))
            passes = max(1, READ_BYTES // size)
            best.add_round(
                {
                    loop: max(self._meter.read_rate(size, passes, loop, one_thread) for _ in range(self._repeats))
                    for loop in loops
                }
            )
        for (loop, one_thread), best in self._multiplies.items():
            samples = [self._meter.multiply_rate(loop, MULTIPLY_S, one_thread) for _ in range(self._repeats)]
            best.add_round({loop: max(samples)})

    def limits(self) -> Limits:
        """The best of all rounds so far; at least one."""
        names = self._meter.read_loops()
        reads, multiplies = self._reads, self._multiplies
        steady = [best.steadiness for (size, one), best in reads.items() if not one and size >= LARGE]
        steady += [best.steadiness for (_, one), best in multiplies.items() if not one]
        return Limits(
            threads=self._threads,
            bandwidths=tuple(
                Bandwidth(size, reads[size, True].rate, reads[size, False].rate, names[reads[size, False].ranking[0]])
                for size in self._sizes
            ),
            peaks=tuple(
                Peak(name, multiplies[loop, True].rate, multiplies[loop, False].rate)
                for loop, name in enumerate(self._formats)
            ),
            rounds=len(next(iter(reads.values())).rounds),
            steadiness=min(steady),
        )
