"""Limits: what is measured is possible, what is derived is arithmetic."""

import pytest

from forerun import _native
from forerun.bench import limits as module
from forerun.bench.limits import Bandwidth, Limits, LimitsMeter, Peak, peak_formats

# The features that an instruction of a format needs, spelled out a second time as a check.
NEEDS = {
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "avx512_vnni_int8": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp32": "avx512f",
    "avx2_int8": "avx2",
    "avx2_fp32": "avx2",
}


def made(*points: tuple[int, float], peaks: tuple[Peak, ...] = (Peak("portable_fp32", 1.0, 2.0),)) -> Limits:
    """Limits of these (buffer bytes, rate)."""
    return Limits(2, tuple(Bandwidth(size, rate / 2, rate, "x") for size, rate in points), peaks, 1, 1.0)


def test_bandwidth_between_and_beyond_the_measured_sizes() -> None:
    limits = made((1 << 20, 100.0), (1 << 22, 60.0), (1 << 23, 40.0))
    assert limits.bandwidth(1) == 100.0
    assert limits.bandwidth(1 << 20) == pytest.approx(100.0)
    assert limits.bandwidth(1 << 21) == pytest.approx(80.0)  # half way in powers of two
    assert limits.bandwidth(1 << 22) == pytest.approx(60.0)
    assert limits.bandwidth(1 << 23) == pytest.approx(40.0)
    assert limits.bandwidth(1 << 40) == 40.0


@pytest.mark.parametrize(
    ("numerics_id", "formats"),
    [
        ("amx_bf16/k1/w-bf16/a-bf16/kv-bf16", ("amx_bf16",)),
        ("amx/k7/w-int4/a-int8/kv-int8", ("amx_int8",)),
        ("avx512_vnni/k2/w-int8/a-int8/kv-bf16", ("avx512_vnni_int8",)),
        ("avx512_vnni/k4/w-q4_1/a-int16/kv-bf16", ("avx512_vnni_int8",)),
        ("avx512/k2/w-int8/a-bf16/kv-bf16", ("avx512_bf16", "avx512_fp32")),
        ("avx2/k2/w-int4/a-int8/kv-bf16", ("avx2_int8",)),
        ("avx2/k6/w-q4_k/a-bf16+int16/kv-bf16", ("avx2_int8",)),
        ("avx2/k2/w-bf16/a-fp32/kv-int8", ("avx2_fp32",)),
        ("portable/k1/w-bf16/a-bf16/kv-bf16", ("portable_fp32",)),
        ("neon/k1/w-bf16/a-fp32/kv-bf16", ("neon_fp32",)),
    ],
)
def test_which_peak_binds(numerics_id: str, formats: tuple[str, ...]) -> None:
    assert peak_formats(numerics_id) == formats


def test_the_best_of_the_instructions_that_may_be_used_is_the_limit() -> None:
    peaks = (Peak("avx512_bf16", 1.0, 3.0), Peak("avx512_fp32", 2.0, 4.0), Peak("amx_bf16", 9.0, 9.0))
    assert made((1, 1.0), peaks=peaks).peak("avx512/k/a-bf16").format == "avx512_fp32"
    assert made((1, 1.0), peaks=peaks[:1]).peak("amx/k/a-int8").format == "avx512_bf16"  # not measured: the best known


def test_products_of_16_bits_have_half_the_peak_of_bytes() -> None:
    limits = made((1, 1.0), peaks=(Peak("avx512_vnni_int8", 4.0, 8.0), Peak("avx512_bf16", 1.0, 2.0)))
    assert limits.peak("avx512_vnni/k4/w-q4_1/a-int16/kv-bf16") == Peak("avx512_vnni_int8", 2.0, 4.0)
    assert limits.peak("avx512_vnni/k4/w-q4_1/a-int8/kv-bf16") == Peak("avx512_vnni_int8", 4.0, 8.0)


def test_products_of_16_bits_on_avx2_have_the_peak_of_bytes() -> None:
    limits = made((1, 1.0), peaks=(Peak("avx2_int8", 2.0, 4.0), Peak("avx2_fp32", 1.0, 2.0)))
    assert limits.peak("avx2/k6/w-q4_1/a-int16/kv-bf16") == Peak("avx2_int8", 2.0, 4.0)


def test_a_measured_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_SIZES", (256 << 10, 2 << 20))
    monkeypatch.setattr(module, "READ_BYTES", 4 << 20)
    monkeypatch.setattr(module, "MULTIPLY_S", 0.0005)
    meter = LimitsMeter(2, quick=True)
    for _ in range(3):
        meter.measure_round()
    limits = meter.limits()
    assert [point.buffer_bytes for point in limits.bandwidths] == [256 << 10, 2 << 20]
    assert (limits.threads, limits.rounds) == (2, 3)
    assert 0 < limits.steadiness <= 1
    features = set(_native.cpu_features())
    assert [peak.format for peak in limits.peaks] == [f for f, need in NEEDS.items() if need in features] + [
        "portable_fp32"
    ]
    for point in limits.bandwidths:
        assert 1e8 < point.one_thread < 1e12
        assert point.loop in _native.read_loops()
    for peak in limits.peaks:
        assert 1e8 < peak.one_thread < 1e14
    rates = {peak.format: peak.one_thread for peak in limits.peaks}
    if "avx512_fp32" in rates:  # wider registers, and strict multiply and add against fused ones
        assert rates["avx512_fp32"] > rates["portable_fp32"]


def test_every_way_of_reading_reads_everything() -> None:
    # A loop that skipped half of the buffer would seem twice as fast. From a cache all loops of one width are alike.
    pool = _native.ThreadPool(1)
    buffer = _native.ReadBuffer(256 << 10, pool)
    names = _native.read_loops()
    rates = {name: max(buffer.rate(256 << 10, 40, loop, pool) for _ in range(8)) for loop, name in enumerate(names)}
    for width in ("avx512", "avx2"):
        alike = [rate for name, rate in rates.items() if name.startswith(width)]
        assert not alike or max(alike) < 1.8 * min(alike), rates


def test_impossible_measurements_are_refused() -> None:
    pool = _native.ThreadPool(2)
    buffer = _native.ReadBuffer(1 << 16, pool)
    for num_bytes, passes in ((1 << 17, 1), (4096, 1), (1 << 16, 0)):  # too large, no page a thread, not at all
        with pytest.raises(ValueError, match="cannot read"):
            buffer.rate(num_bytes, passes, 0, pool)
    with pytest.raises(IndexError):
        buffer.rate(1 << 16, 1, len(_native.read_loops()), pool)
    with pytest.raises(IndexError):
        _native.multiply_rate(-1, 0.001, pool)
    with pytest.raises(ValueError, match="read buffer"):
        _native.ReadBuffer(0, pool)
