// The AMX table: bf16 tile products, everything else on AVX-512. Compiled with those flags; reached only after
// cpu_features() has found them all.
#include <immintrin.h>

#include "bf16.h"
#include "kernel_table.h"

namespace forerun {
namespace amx_bf16 {

#include "vec/avx512.h"

// In this order: attention uses the exponential.
#include "kernels/elementwise.inl.h"

#include "kernels/attention_chunk.inl.h"

#include "kernels/attention.inl.h"

#include "kernels/attention_tiled_kv.inl.h"

#include "kernels/tile_config.inl.h"
#include "kernels/tile_registers.inl.h"

#include "kernels/attention_tiles.inl.h"

#include "kernels/attention_amx.inl.h"

#include "kernels/linear_amx.inl.h"

#include "kernels/lane_scales.inl.h"
#include "kernels/packed_formats.inl.h"
#include "kernels/round_columns.inl.h"
#include "kernels/unpack_rows.inl.h"
#include "kernels/unpack_steps.inl.h"

#include "kernels/packed_outputs_amx.inl.h"

#include "kernels/linear_packed_amx_few.inl.h"

#include "kernels/linear_packed_amx.inl.h"
#include "kernels/row_passes.inl.h"

static constexpr auto round_rows_and_sum = nullptr;  // scales are in the weights

#include "kernels/table.inl.h"

static constexpr KernelTable make_tiled_table(const char* name) {
    KernelTable table = make_table(name);
    table.tiles_kv = true;
    table.tile_order = TileOrder::kRows;
    table.packed_inputs = PackedInputs::kColumns;
    table.round_columns = round_columns;
    table.gates_packed = true;
    table.write_kv_bf16 = write_kv_bf16;
    table.attention_bf16 = attention_bf16;
    table.merge_bf16 = attention_merge_bf16;
    return table;
}

}  // namespace amx_bf16

const KernelTable amx_bf16_table = amx_bf16::make_tiled_table("amx_bf16");

}  // namespace forerun
