// float16 to float32, exactly; what vcvtph2ps computes.
#pragma once

#include <cstdint>
#include <cstring>

#include "inline.h"

namespace forerun {

FORERUN_INLINE float float_from_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    uint32_t bits;
    if (magnitude >= 0x7c00u) {
        bits = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0);  // infinity, quiet NaN
    } else if (magnitude >= 0x0400u) {
        bits = (magnitude << 13) + (112u << 23);
    } else {
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        std::memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

}  // namespace forerun
