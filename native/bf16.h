// The one float32 -> bfloat16 rule of forerun, shared by packing, the KV codec, the kernels and the numpy oracle:
// round to nearest even, denormals become zero of the same sign, NaN stays a (quiet) NaN.
// It is what the AVX-512 instruction vcvtneps2bf16 computes; vec/portable.h spells the same rule for sixteen lanes.
#pragma once

#include <cstdint>
#include <cstring>

#include "inline.h"

namespace forerun {

FORERUN_INLINE uint16_t bf16_from_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);  // NaN, made quiet
    if (magnitude < 0x00800000u) return static_cast<uint16_t>((bits >> 16) & 0x8000u);  // zero or denormal
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

FORERUN_INLINE float float_from_bf16(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

}  // namespace forerun
