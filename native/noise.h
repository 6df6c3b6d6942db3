// The noise of tokens, as forerun/sampling/noise.py defines it: Philox4x32-10 of the counter (position, token >> 1, 0,
// 0), an even token in the first two words, an odd one in the last two.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "inline.h"

namespace forerun {

struct NoiseKey {
    uint32_t k0, k1;
};

constexpr uint32_t kPhilox0 = 0xD2511F53u, kPhilox1 = 0xCD9E8D57u;  // multipliers
constexpr NoiseKey kPhiloxStep{0x9E3779B9u, 0xBB67AE85u};           // added to the key between rounds
constexpr int kPhiloxRounds = 10;

// The noise of one token.
class Noise {
  public:
    Noise(NoiseKey key, uint32_t position, uint32_t token) {
        uint32_t x0 = position, x1 = token >> 1, x2 = 0, x3 = 0;
        for (int round = 0; round < kPhiloxRounds; ++round) {
            const uint64_t p0 = uint64_t{x0} * kPhilox0, p1 = uint64_t{x2} * kPhilox1;
            x0 = static_cast<uint32_t>(p1 >> 32) ^ x1 ^ key.k0;
            x1 = static_cast<uint32_t>(p1);
            x2 = static_cast<uint32_t>(p0 >> 32) ^ x3 ^ key.k1;
            x3 = static_cast<uint32_t>(p0);
            key = {key.k0 + kPhiloxStep.k0, key.k1 + kPhiloxStep.k1};
        }
        high_ = token & 1 ? x2 : x0;
        low_ = token & 1 ? x3 : x1;
    }

    // Upper 32 of the 52 bits.
    uint32_t upper() const { return high_; }

    double gumbel() const {
        const uint64_t bits = (uint64_t{high_} << 20) | (low_ >> 12);
        return -std::log(-std::log1p(-(static_cast<double>(bits) + 0.5) * 0x1p-52));
    }

  private:
    uint32_t high_, low_;
};

// At least the Gumbel noise of every token whose upper word is `upper`: with u >= (upper >> 1) * 2^-31,
// -log(-log1p(-u)) <= -log(u), and the bits of a float read as a fixed-point number are at most its log2 + 127.
FORERUN_INLINE float gumbel_bound(uint32_t upper) {
    const float u = static_cast<float>(static_cast<int32_t>(upper >> 1));
    int32_t bits;
    std::memcpy(&bits, &u, sizeof bits);
    const float log2_u = static_cast<float>(bits) * 0x1p-23f - 127.0f;
    return (31.0f - log2_u) * 0.69314718f;  // 109 for upper < 2, more than any noise
}

}  // namespace forerun
