// The AVX2 table, with products of 16-bit whole numbers for packed weights. Compiled with avx2, fma and f16c; reached
// only after cpu_features() has found them all.
#include <immintrin.h>

#include "bf16.h"
#include "kernel_table.h"

namespace forerun {
namespace avx2 {

#include "vec/avx2.h"
#include "vec/avx2_pairs.h"

// In this order: attention uses the exponential.
#include "kernels/elementwise.inl.h"

#include "kernels/attention_chunk.inl.h"

#include "kernels/attention.inl.h"

#include "kernels/linear.inl.h"

#include "kernels/linear_fp32.inl.h"

#include "kernels/lane_scales.inl.h"
#include "kernels/packed_formats.inl.h"
#include "kernels/unpack_pairs.inl.h"

#include "kernels/quantise_rows.inl.h"

#include "kernels/linear_packed_int16.inl.h"
#include "kernels/row_passes.inl.h"

#include "kernels/table.inl.h"

static constexpr KernelTable make_int16_table(const char* name) {
    KernelTable table = make_table(name);
    table.sums_per_tile = 0;
    table.packed_inputs = PackedInputs::kInt16;
    return table;
}

}  // namespace avx2

const KernelTable avx2_table = avx2::make_int16_table("avx2");

}  // namespace forerun
