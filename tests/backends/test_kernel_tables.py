"""Kernel tables as a set: which exist, which can run, and which of them agree to the bit."""

import platform

import numpy as np
import pytest

from forerun import _native
from forerun.backends.cpu import ROW_TILES, choose_table
from forerun.errors import UsageError
from forerun.models.rope import rope_table
from forerun.models.spec import RopeSpec
from tests.backends.native_ops import TABLES, Bench, exact, new_view, pack, plain_batch, run

# Best first.
ORDER = ["amx_bf16", "avx512_vnni_bf16", "avx512_vnni", "avx512", "avx512_bf16", "avx2", "neon", "portable"]
NEEDS = {
    "amx_bf16": {"amx_tile", "amx_bf16", "avx512_bf16", "avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx512_vnni_bf16": {"avx512_vnni", "avx512_bf16", "avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx512_vnni": {"avx512_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx512_bf16": {"avx512_bf16", "avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx2": {"avx2", "fma", "f16c"},
    "neon": {"neon"},
    "portable": set(),
}
# fp32 with fused multiply-add, in the same order
FUSED = [table for table in TABLES if table in ("avx512_vnni", "avx512", "avx2")]


def test_tables_of_this_build_are_ordered_and_end_with_one_that_always_runs():
    tables = _native.all_tables()
    assert tables == [table for table in ORDER if table in tables]
    assert tables[-1] == "portable"
    assert ("neon" in tables) == (platform.machine() in ("aarch64", "arm64"))
    assert set(tables) <= set(ROW_TILES)


@pytest.mark.parametrize("table", _native.all_tables())
def test_a_table_runs_where_all_its_features_are(table):
    assert set(_native.missing_features(table)) == NEEDS[table] - set(_native.cpu_features())


@pytest.mark.parametrize("table", TABLES)
def test_every_usable_table_can_be_forced(table, monkeypatch):
    monkeypatch.setenv("FORERUN_ISA", table)
    assert choose_table() == table


@pytest.mark.parametrize("usable", range(len(_native.all_tables())))
def test_the_best_usable_table_is_the_default(usable, monkeypatch):
    tables = _native.all_tables()
    monkeypatch.delenv("FORERUN_ISA", raising=False)
    monkeypatch.setattr(_native, "missing_features", lambda t: ["more"] if tables.index(t) < usable else [])
    assert choose_table() == tables[usable]
    if usable > 0:
        with pytest.raises(UsageError, match=f"isa={tables[0]} needs more, which this CPU lacks; use {tables[usable]}"):
            choose_table(tables[0])


def test_programs_refuse_unknown_tables_with_the_names_of_the_others():
    with pytest.raises(ValueError, match=r"no kernel table named 'sse9'; this build has .*portable"):
        _native.Program("sse9", _native.ThreadPool(1), 1, 1, 16)


def linear_program(table, x, weights, bias, threads):
    """A function from row numbers of x to x @ weights.T + bias, those rows computed together."""
    pool = _native.ThreadPool(threads)
    program = _native.Program(table, pool, len(x), len(x), 4096)
    inputs, outputs = new_view(program, x.shape[1]), new_view(program, len(weights))
    program.embed(pack(x, pool), inputs)
    program.linear(inputs, pack(weights, pool), program.add_vector(bias), outputs)
    result = _native.View(program.add_buffer(len(weights), True), 0, len(weights))
    program.select_outputs(outputs, result)
    program.finish(result)
    store = _native.KvStore(table, 64, 16, [(1, 1, "fp32")])

    def compute(rows):
        batch = plain_batch(len(rows))
        batch.tokens[:] = rows
        run(program, store, batch)
        return program.logits()[: len(rows)].copy()

    return compute


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(("outputs", "inputs"), [(50, 70), (16 * 11, 352)])
def test_any_number_of_rows_gives_the_same_bits(table, threads, outputs, inputs):
    x, weights, bias = exact((64, inputs)), exact((outputs, inputs), 1), exact((outputs,), 2)
    alone = linear_program(table, x, weights, bias, 1)
    compute = linear_program(table, x, weights, bias, threads)
    want = np.concatenate([alone([row]) for row in range(64)])
    for count in range(1, 65):
        rows = np.random.default_rng(count).permutation(64)[:count]
        np.testing.assert_array_equal(compute(rows).view(np.int32), want[rows].view(np.int32), err_msg=f"{count} rows")


def every_operation(table):
    """Results of all operations on ragged sizes, by name."""
    found = {}
    x, y, weights = exact((21, 75), 0, 3.0), exact((21, 75), 1), exact((83, 75), 2)
    q, k, v = exact((90, 3 * 40)), exact((90, 40), 1), exact((90, 40), 2)
    cosine, sine = rope_table(RopeSpec(theta=10000.0, rotary_dim=50), 4096)

    def into(width, record):
        def append(program, views):
            out = new_view(program, width)
            record(program, views, out)
            return out

        return append

    def attend(program, views, out):
        program.write_kv(0, views[1], views[2], 1)
        program.attention(0, views[0], 3, 1, 40**-0.5, 0, out)

    def rotate(program, views):
        program.rope(views[0], 1, 50, program.add_rope_table(cosine, sine))
        return views[0]

    pool, bench = _native.ThreadPool(1), Bench(table)
    found["linear"] = bench.run([x], into(83, lambda p, v, out: p.linear(v[0], pack(weights, pool), -1, out)), 83)
    found["norm"] = bench.run([x], into(75, lambda p, v, out: p.rms_norm(v[0], p.add_vector(y[0]), 1e-5, out)), 75)
    found["silu"] = bench.run([x, y], into(75, lambda p, v, out: p.silu_mul(v[0], v[1], out)), 75)
    found["add"] = bench.run([x, y], into(75, lambda p, v, out: p.add(v[0], v[1], out)), 75)
    found["rope"] = bench.run([x], rotate, 75)
    for codec in ("bf16", "fp32"):
        bench = Bench(table, codec=codec)
        found[f"attention, {codec}"] = bench.run([q, k, v], into(120, attend), 120, heads=(1, 40))
    return found


@pytest.mark.skipif(len(FUSED) < 2, reason="this CPU has fewer than two tables of the kind")
def test_tables_with_fused_multiply_add_agree_to_the_bit():
    """They run the same operations in the same order, in vectors of different widths: a strong check of each other."""
    left, *others = (every_operation(table) for table in FUSED)
    for right in others:
        for name in left:
            np.testing.assert_array_equal(left[name].view(np.int32), right[name].view(np.int32), err_msg=name)
