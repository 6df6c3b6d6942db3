// The Python module forerun._native: bindings only. Backends use all of it but the suffix
// automaton, which is a drafter's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bf16.h"
#include "cpu_features.h"
#include "dispatch.h"
#include "draw.h"
#include "kv_store.h"
#include "measure.h"
#include "memory.h"
#include "packed_matrix.h"
#include "profile.h"
#include "program.h"
#include "suffix_automaton.h"
#include "thread_pool.h"
#include "top.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Floats1 = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes2 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks1 = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int size_of(size_t size) {
    if (size > static_cast<size_t>(std::numeric_limits<int>::max())) throw std::invalid_argument("array is too long");
    return static_cast<int>(size);
}

void expect(size_t size, size_t wanted, const char* name) {
    if (size != wanted) {
        throw std::invalid_argument("bad batch: " + std::string(name) + " has " + std::to_string(size) +
                                    " entries, expected " + std::to_string(wanted));
    }
}

void run_program(Program& program, KvStore& store, const Ints1& tokens, const Ints1& positions, const Ints1& slots,
                 const Ints1& query_start, const Ints1& context_len, const Ints2& block_table, const Ints1& tree_root,
                 const Masks1& ancestors, const Ints1& output_rows) {
    const size_t rows = tokens.shape(0), sequences = context_len.shape(0);
    expect(positions.shape(0), rows, "positions");
    expect(slots.shape(0), rows, "slots");
    expect(ancestors.shape(0), rows, "ancestors");
    expect(query_start.shape(0), sequences + 1, "query_start");
    expect(tree_root.shape(0), sequences, "tree_root");
    expect(block_table.shape(0), sequences, "block_table");
    const BatchArrays batch{size_of(rows),
                            size_of(sequences),
                            size_of(block_table.shape(1)),
                            size_of(output_rows.shape(0)),
                            tokens.data(),
                            positions.data(),
                            slots.data(),
                            query_start.data(),
                            context_len.data(),
                            block_table.data(),
                            tree_root.data(),
                            ancestors.data(),
                            output_rows.data()};
    const nb::gil_scoped_release unlocked;
    program.run(batch, store);
}

void bind_machine(nb::module_& m) {
    m.def("cpu_features", &cpu_features, "Usable instruction set extensions that forerun knows.");
    m.def("all_tables", &all_tables, "Kernel tables of this build, best first.");
    m.def("missing_features", &missing_features, "table"_a, "CPU features that a table needs and this machine lacks.");
    nb::class_<ThreadPool>(m, "ThreadPool").def(nb::init<int>(), "threads"_a).def_prop_ro("size", &ThreadPool::size);
}

void bind_memory(nb::module_& m) {
    nb::class_<Arena>(m, "Arena")
        .def(nb::init<size_t>(), "bytes"_a)
        .def_prop_ro("used", &Arena::used)
        .def_prop_ro("bytes", &Arena::bytes);
    nb::class_<PackedMatrix> matrix(m, "PackedMatrix");
    matrix
        .def(
            "__init__",
            [](PackedMatrix* self, Arena& arena, int64_t rows, int64_t cols, const char* format,
               const std::string& table) {
                new (self) PackedMatrix(arena, rows, cols, find_format(format), find_table(table).tile_order);
            },
            "arena"_a, "rows"_a, "cols"_a, "format"_a = "BF16", "table"_a = "portable", nb::keep_alive<1, 2>())
        .def_static(
            "bytes",
            [](int64_t rows, int64_t cols, const char* format) {
                return PackedMatrix::bytes(rows, cols, find_format(format));
            },
            "rows"_a, "cols"_a, "format"_a = "BF16")
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("cols", &PackedMatrix::cols)
        .def(
            "pack_rows",
            [](PackedMatrix& matrix, int64_t start, const Floats2& values, ThreadPool& pool) {
                expect(values.shape(1), static_cast<size_t>(matrix.cols()), "a matrix row");
                const nb::gil_scoped_release unlocked;
                matrix.pack_rows(start, static_cast<int64_t>(values.shape(0)), values.data(), pool);
            },
            "start"_a, "values"_a.noconvert(), "pool"_a);
    matrix.def(
        "pack_blocks",
        [](PackedMatrix& matrix, int64_t start, const Bytes2& blocks, ThreadPool& pool) {
            expect(blocks.shape(1), matrix.row_bytes(), "a row of blocks");
            const nb::gil_scoped_release unlocked;
            matrix.pack_blocks(start, static_cast<int64_t>(blocks.shape(0)), blocks.data(), pool);
        },
        "start"_a, "blocks"_a.noconvert(), "pool"_a);
    nb::class_<KvStore>(m, "KvStore")
        .def(
            "__init__",
            [](KvStore* self, const std::string& table, int num_blocks, int block_size,
               const std::vector<std::tuple<int, int, std::string>>& layers) {
                std::vector<KvGeometry> geometry;
                for (const auto& [num_heads, head_dim, codec] : layers)
                    geometry.push_back({num_heads, head_dim, find_kv_codec(codec)});
                new (self) KvStore(find_table(table), num_blocks, block_size, geometry);
            },
            "table"_a, "num_blocks"_a, "block_size"_a, "layers"_a)
        .def_prop_ro("bytes", &KvStore::bytes)
        .def("copy_blocks", &KvStore::copy_blocks, "source_target"_a)
        .def("move_slots", &KvStore::move_slots, "source_target"_a)
        .def("clear_blocks", &KvStore::clear_blocks, "blocks"_a);
    m.def(
        "round_to_bf16",
        [](const std::string& table, const Floats1& values, nb::ndarray<uint16_t, nb::ndim<1>, nb::c_contig> out) {
            expect(out.shape(0), values.shape(0), "the result");
            const int size = size_of(values.shape(0));
            if (table == "scalar") {
                for (int i = 0; i < size; ++i)
                    out.data()[i] = bf16_from_float(values.data()[i]);
            } else {
                // One row whose stride is the length, for lengths that are a multiple of the vector.
                if (size % kLanes) throw std::invalid_argument("the length must be a multiple of 16");
                find_table(table).round_rows(values.data(), values.shape(0), 1, size, out.data(), values.shape(0));
            }
        },
        "table"_a, "values"_a.noconvert(), "out"_a.noconvert(),
        "bfloat16 bits by the rule of one table, or of the scalar code that packs weights; for tests.");
}

void bind_program(nb::module_& m) {
    nb::class_<View>(m, "View", "Columns column .. column+width-1 of a buffer.")
        .def(nb::init<int, int, int>(), "buffer"_a, "column"_a, "width"_a);
    nb::class_<Program>(m, "Program")
        .def(
            "__init__",
            [](Program* self, const std::string& table, ThreadPool& pool, int max_rows, int max_outputs,
               int max_positions) {
                new (self) Program(find_table(table), pool, max_rows, max_outputs, max_positions);
            },
            "table"_a, "pool"_a, "max_rows"_a, "max_outputs"_a, "max_positions"_a, nb::keep_alive<1, 3>())
        .def("add_buffer", &Program::add_buffer, "width"_a, "on_outputs"_a)
        .def("add_input", &Program::add_input, "width"_a)
        .def(
            "add_vector",
            [](Program& p, const Floats1& values) { return p.add_vector(values.data(), size_of(values.shape(0))); },
            "values"_a.noconvert())
        .def(
            "add_rope_table",
            [](Program& p, const Floats2& cosine, const Floats2& sine) {
                expect(sine.shape(0), cosine.shape(0), "sine");
                expect(sine.shape(1), cosine.shape(1), "a row of sine");
                return p.add_rope_table(cosine.data(), sine.data(), size_of(cosine.shape(0)), size_of(cosine.shape(1)));
            },
            "cosine"_a.noconvert(), "sine"_a.noconvert())
        .def("embed", &Program::add_matrix_embed, "table"_a, "out"_a, nb::keep_alive<1, 2>())
        .def("rms_norm", &Program::add_rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a)
        .def("linear", &Program::add_linear, "x"_a, "matrix"_a, "bias"_a, "out"_a, nb::keep_alive<1, 3>())
        .def("rope", &Program::add_rope, "x"_a, "num_heads"_a, "rotary_dim"_a, "table"_a)
        .def("write_kv", &Program::add_write_kv, "layer"_a, "k"_a, "v"_a, "num_kv_heads"_a)
        .def("attention", &Program::add_attention, "layer"_a, "q"_a, "num_heads"_a, "num_kv_heads"_a, "scale"_a,
             "window"_a, "out"_a)
        .def("silu", &Program::add_silu, "x"_a, "out"_a)
        .def("silu_mul", &Program::add_silu_mul, "gate"_a, "up"_a, "out"_a)
        .def("add", &Program::add_add, "x"_a, "y"_a, "out"_a)
        .def("select_outputs", &Program::add_select_outputs, "x"_a, "out"_a)
        .def("keep", &Program::keep, "value"_a)
        .def("finish", &Program::finish, "logits"_a, "fuse"_a = true)
        .def("run", &run_program, "store"_a, "tokens"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
             "query_start"_a.noconvert(), "context_len"_a.noconvert(), "block_table"_a.noconvert(),
             "tree_root"_a.noconvert(), "ancestors"_a.noconvert(), "output_rows"_a.noconvert())
        .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
        .def(
            "logits",
            [](Program& p) {
                const size_t shape[2] = {static_cast<size_t>(p.max_outputs()), static_cast<size_t>(p.logits_width())};
                return nb::ndarray<nb::numpy, float, nb::ndim<2>>(p.logits(), 2, shape, nb::find(p));
            },
            "[max_outputs, V] float32 view of the last run's logits, by index into output_rows.")
        .def(
            "rows",
            [](Program& p, View value) {
                const Program::Rows rows = p.rows(value);
                const size_t shape[2] = {rows.rows, static_cast<size_t>(value.width)};
                const int64_t strides[2] = {static_cast<int64_t>(rows.stride), 1};
                return nb::ndarray<nb::numpy, float, nb::ndim<2>>(rows.data, 2, shape, nb::find(p), strides);
            },
            "value"_a, "[max_rows or max_outputs, width] float32 view of an input, to be filled, or of a kept value.");
}

}  // namespace
}  // namespace forerun

NB_MODULE(_native, m) {
    m.doc() = "Native core of forerun: kernels, their memory, and the program replayer.";
    forerun::bind_machine(m);
    forerun::bind_memory(m);
    forerun::bind_program(m);
    bind_measure(m);
    bind_profile(m);
    bind_draw(m);
    bind_top(m);
    bind_suffix_automaton(m);
}
