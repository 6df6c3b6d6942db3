// The measuring loop of aarch64, whose compilers may all assume NEON.
#include "measure.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace forerun {

namespace {

constexpr int kChains = 24;  // of 32 registers

double multiply_fp32_neon(int64_t rounds) {
    float32x4_t sum[kChains];
    const float32x4_t factor = vdupq_n_f32(0.9990234375f);
#pragma GCC unroll 24
    for (float32x4_t& chain : sum) {
        chain = factor;
        __asm__ volatile("" : "+w"(chain));  // as if it had changed: equal chains would be computed once
    }
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
        for (float32x4_t& chain : sum)
            chain = vfmaq_f32(factor, chain, factor);
    }
    double total = 0;
#pragma GCC unroll 24
    for (const float32x4_t& chain : sum)
        total += vaddvq_f32(chain);
    return total;
}

}  // namespace

const std::vector<MultiplyLoop>& neon_multiply_loops() {
    static const std::vector<MultiplyLoop> loops = {{"neon_fp32", {}, kChains * 2.0 * 4, multiply_fp32_neon}};
    return loops;
}

}  // namespace forerun

#endif
