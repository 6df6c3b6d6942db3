// The AVX-512 table with bfloat16 dot products. Compiled with avx512f, bw, dq, vl and bf16; reached only after
// cpu_features() has found them all.
#include <immintrin.h>

#include "bf16.h"
#include "kernel_table.h"

namespace forerun {
namespace avx512_bf16 {

#include "vec/avx512.h"

// In this order: attention uses the exponential.
#include "kernels/elementwise.inl.h"

#include "kernels/attention_chunk.inl.h"

#include "kernels/attention.inl.h"

#include "kernels/linear.inl.h"

#include "kernels/linear_avx512_bf16.inl.h"

#include "kernels/lane_scales.inl.h"
#include "kernels/packed_formats.inl.h"
#include "kernels/unpack_lanes.inl.h"

#include "kernels/linear_packed.inl.h"
#include "kernels/round_and_sum.inl.h"
#include "kernels/row_passes.inl.h"

#include "kernels/table.inl.h"

}  // namespace avx512_bf16

const KernelTable avx512_bf16_table = avx512_bf16::make_table("avx512_bf16");

}  // namespace forerun
