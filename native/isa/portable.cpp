// The portable kernel table: no instruction set beyond what the compiler assumes for the architecture.
#include "bf16.h"
#include "kernel_table.h"

namespace forerun {
namespace portable {

#include "vec/portable.h"

// In this order: attention uses the exponential.
#include "kernels/elementwise.inl.h"

#include "kernels/attention_chunk.inl.h"

#include "kernels/attention.inl.h"

#include "kernels/linear.inl.h"

#include "kernels/linear_fp32.inl.h"

#include "kernels/lane_scales.inl.h"
#include "kernels/packed_formats.inl.h"
#include "kernels/unpack_lanes.inl.h"

#include "kernels/linear_packed.inl.h"
#include "kernels/round_and_sum.inl.h"
#include "kernels/row_passes.inl.h"

#include "kernels/table.inl.h"

}  // namespace portable

const KernelTable portable_table = portable::make_table("portable");

}  // namespace forerun
