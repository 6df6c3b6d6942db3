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

#include "kernels/attention.inl.h"

#include "kernels/linear_amx.inl.h"

#include "kernels/table.inl.h"

}  // namespace amx_bf16

const KernelTable amx_bf16_table = amx_bf16::make_table("amx_bf16");

}  // namespace forerun
