// The measuring loops of x86-64, each function compiled for its own instruction set and reached only after
// cpu_features() has found it.
#include "measure.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>

#define FORERUN_AVX2 __attribute__((target("avx2,fma")))
#define FORERUN_AVX512 __attribute__((target("avx512f")))
#define FORERUN_VNNI __attribute__((target("avx512f,avx512vnni")))
#define FORERUN_BF16 __attribute__((target("avx512f,avx512bf16")))
#define FORERUN_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))

namespace forerun {

namespace {

// ---- reading ----
//
// Some machines stream fastest along one address, helped by their prefetchers, others along several with prefetches
// that the program issues: the limit is the best of them.

constexpr size_t kLine = 64;
constexpr size_t kStep = 4 * kLine;

// STREAMS addresses at equal distances, AHEAD bytes prefetched on each (0: none).
template <int STREAMS, size_t AHEAD>
FORERUN_AVX512 uint64_t read_avx512(const char* data, size_t bytes) {
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    const size_t part = bytes / STREAMS;
    for (size_t at = 0; at < part; at += kStep) {
#pragma GCC unroll 4
        for (int stream = 0; stream < STREAMS; ++stream) {
            const char* from = data + static_cast<size_t>(stream) * part + at;
#pragma GCC unroll 4
            for (int line = 0; line < 4; ++line) {
                if constexpr (AHEAD > 0) _mm_prefetch(from + AHEAD + line * kLine, _MM_HINT_T0);
                sum[line] = _mm512_add_epi64(sum[line], _mm512_load_si512(from + line * kLine));
            }
        }
    }
    alignas(64) uint64_t lanes[8];
    _mm512_store_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3])));
    uint64_t total = 0;
    for (const uint64_t lane : lanes)
        total += lane;
    return total;
}

template <int STREAMS, size_t AHEAD>
FORERUN_AVX2 uint64_t read_avx2(const char* data, size_t bytes) {
    __m256i sum[8];
#pragma GCC unroll 8
    for (__m256i& lanes : sum)
        lanes = _mm256_setzero_si256();
    const size_t part = bytes / STREAMS;
    for (size_t at = 0; at < part; at += kStep) {
#pragma GCC unroll 4
        for (int stream = 0; stream < STREAMS; ++stream) {
            const char* from = data + static_cast<size_t>(stream) * part + at;
#pragma GCC unroll 8
            for (int half = 0; half < 8; ++half) {
                if (AHEAD > 0 && half % 2 == 0) _mm_prefetch(from + AHEAD + half * 32, _MM_HINT_T0);
                const __m256i* address = reinterpret_cast<const __m256i*>(from + half * 32);
                sum[half] = _mm256_add_epi64(sum[half], _mm256_load_si256(address));
            }
        }
    }
    uint64_t total = 0;
    for (const __m256i& half : sum) {
        alignas(32) uint64_t lanes[4];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), half);
        total += lanes[0] + lanes[1] + lanes[2] + lanes[3];
    }
    return total;
}

// ---- multiplying ----
//
// Enough independent accumulators to hide the latency of the instruction. Operands are not zero, because multiplying
// zeros takes less power.

// As if the vector had changed: what is computed from it cannot be taken from an equal one.
#define FORERUN_DISTINCT(vector) __asm__ volatile("" : "+v"(vector))

alignas(64) constexpr auto kIntegers = [] {
    std::array<int8_t, 1024> values{};
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<int8_t>(i * 37 % 127 + 1);
    return values;
}();
alignas(64) constexpr auto kBf16 = [] {
    std::array<uint16_t, 512> values{};
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<uint16_t>((i * 37 % 2 ? 0x3e80 : 0xbe80) + i * 29 % 128);  // +-0.25 to +-0.5
    return values;
}();

// The address of the operands, of which the compiler then knows nothing.
template <class T, size_t N>
const T* unknown(const std::array<T, N>& values) {
    const T* data = values.data();
    __asm__("" : "+r"(data));
    return data;
}

constexpr int kChains = 24;

double total_of(const void* lanes, size_t count, bool integers) {
    double total = 0;
    for (size_t i = 0; i < count; ++i)
        total += integers ? static_cast<const int32_t*>(lanes)[i] : static_cast<const float*>(lanes)[i];
    return total;
}

FORERUN_AVX512 double multiply_fp32_avx512(int64_t rounds) {
    __m512 sum[kChains];
    const __m512 a = _mm512_set1_ps(0.9990234375f), b = _mm512_set1_ps(static_cast<float>(*unknown(kIntegers)));
#pragma GCC unroll 24
    for (__m512& chain : sum) {
        chain = b;
        FORERUN_DISTINCT(chain);
    }
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
        for (__m512& chain : sum)
            chain = _mm512_fmadd_ps(chain, a, b);
    }
    alignas(64) float lanes[16];
    double total = 0;
#pragma GCC unroll 24
    for (const __m512& chain : sum) {
        _mm512_store_ps(lanes, chain);
        total += total_of(lanes, 16, false);
    }
    return total;
}

FORERUN_VNNI double multiply_int8_avx512(int64_t rounds) {
    __m512i sum[kChains];
    const int8_t* operands = unknown(kIntegers);
    const __m512i a = _mm512_load_si512(operands), b = _mm512_load_si512(operands + 64);
#pragma GCC unroll 24
    for (__m512i& chain : sum) {
        chain = _mm512_setzero_si512();
        FORERUN_DISTINCT(chain);
    }
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
        for (__m512i& chain : sum)
            chain = _mm512_dpbusd_epi32(chain, a, b);
    }
    alignas(64) int32_t lanes[16];
    double total = 0;
#pragma GCC unroll 24
    for (const __m512i& chain : sum) {
        _mm512_store_si512(lanes, chain);
        total += total_of(lanes, 16, true);
    }
    return total;
}

FORERUN_BF16 double multiply_bf16_avx512(int64_t rounds) {
    __m512 sum[kChains];
    const uint16_t* operands = unknown(kBf16);
    const __m512i a = _mm512_load_si512(operands), b = _mm512_load_si512(operands + 32);
#pragma GCC unroll 24
    for (__m512& chain : sum) {
        chain = _mm512_setzero_ps();
        FORERUN_DISTINCT(chain);
    }
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
        for (__m512& chain : sum)
            chain = _mm512_dpbf16_ps(chain, (__m512bh)a, (__m512bh)b);
    }
    alignas(64) float lanes[16];
    double total = 0;
#pragma GCC unroll 24
    for (const __m512& chain : sum) {
        _mm512_store_ps(lanes, chain);
        total += total_of(lanes, 16, false);
    }
    return total;
}

constexpr int kAvx2Chains = 12;  // of 16 registers

FORERUN_AVX2 double multiply_fp32_avx2(int64_t rounds) {
    __m256 sum[kAvx2Chains];
    const __m256 a = _mm256_set1_ps(0.9990234375f), b = _mm256_set1_ps(static_cast<float>(*unknown(kIntegers)));
#pragma GCC unroll 12
    for (__m256& chain : sum) {
        chain = b;
        FORERUN_DISTINCT(chain);
    }
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (__m256& chain : sum)
            chain = _mm256_fmadd_ps(chain, a, b);
    }
    alignas(32) float lanes[8];
    double total = 0;
#pragma GCC unroll 12
    for (const __m256& chain : sum) {
        _mm256_store_ps(lanes, chain);
        total += total_of(lanes, 8, false);
    }
    return total;
}

// 32 products of an unsigned and a signed byte in pairs to 16 bits, the pairs to 32 bits, and a sum: what AVX2 has for
// int8.
FORERUN_AVX2 double multiply_int8_avx2(int64_t rounds) {
    constexpr int kProducts = 6;
    __m256i sum[kProducts];
    const __m256i* operands = reinterpret_cast<const __m256i*>(unknown(kIntegers));
    __m256i a = _mm256_load_si256(operands);
    const __m256i b = _mm256_load_si256(operands + 1);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 6
    for (__m256i& chain : sum) {
        chain = _mm256_setzero_si256();
        FORERUN_DISTINCT(chain);
    }
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 6
        for (__m256i& chain : sum) {
            FORERUN_DISTINCT(a);
            chain = _mm256_add_epi32(chain, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    }
    alignas(32) int32_t lanes[8];
    double total = 0;
#pragma GCC unroll 6
    for (const __m256i& chain : sum) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), chain);
        total += total_of(lanes, 8, true);
    }
    return total;
}

FORERUN_AMX void configure_tiles() {
    struct alignas(64) Config {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {};
    config.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = 16;
    }
    // gcc 12 declares only 8 bytes of the configuration as input and may drop the other stores without this barrier.
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

// Four accumulators, two tiles on either side, as a matrix kernel has them.
template <bool INTEGERS>
FORERUN_AMX double multiply_amx(int64_t rounds) {
    const void* operands = INTEGERS ? static_cast<const void*>(unknown(kIntegers)) : unknown(kBf16);
    configure_tiles();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, operands, 64);
    _tile_loadd(5, operands, 64);
    _tile_loadd(6, operands, 64);
    _tile_loadd(7, operands, 64);
    for (int64_t round = 0; round < rounds; ++round) {
        if constexpr (INTEGERS) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    alignas(64) float lanes[4][256];
    _tile_stored(0, lanes[0], 64);
    _tile_stored(1, lanes[1], 64);
    _tile_stored(2, lanes[2], 64);
    _tile_stored(3, lanes[3], 64);
    _tile_release();
    return total_of(lanes, 1024, INTEGERS);
}

constexpr double kTileOperations = 2.0 * 16 * 16;  // for every input: a multiply-add for each of 16 x 16 outputs

}  // namespace

const std::vector<ReadLoop>& x86_read_loops() {
    static const std::vector<ReadLoop> loops = {
        {"avx512", {"avx512f"}, read_avx512<1, 0>},
        {"avx512, 1 stream prefetched", {"avx512f"}, read_avx512<1, 4096>},
        {"avx512, 2 streams prefetched", {"avx512f"}, read_avx512<2, 4096>},
        {"avx512, 4 streams prefetched", {"avx512f"}, read_avx512<4, 2048>},
        {"avx2", {"avx2", "fma"}, read_avx2<1, 0>},
        {"avx2, 2 streams prefetched", {"avx2", "fma"}, read_avx2<2, 4096>},
    };
    return loops;
}

const std::vector<MultiplyLoop>& x86_multiply_loops() {
    static const std::vector<MultiplyLoop> loops = {
        {"amx_bf16", {"amx_tile", "amx_bf16", "amx_int8"}, 4 * 32 * kTileOperations, multiply_amx<false>},
        {"amx_int8", {"amx_tile", "amx_bf16", "amx_int8"}, 4 * 64 * kTileOperations, multiply_amx<true>},
        {"avx512_vnni_int8", {"avx512f", "avx512_vnni"}, kChains * 2.0 * 64, multiply_int8_avx512},
        {"avx512_bf16", {"avx512f", "avx512_bf16"}, kChains * 2.0 * 32, multiply_bf16_avx512},
        {"avx512_fp32", {"avx512f"}, kChains * 2.0 * 16, multiply_fp32_avx512},
        {"avx2_int8", {"avx2", "fma"}, 6 * 2.0 * 32, multiply_int8_avx2},
        {"avx2_fp32", {"avx2", "fma"}, kAvx2Chains * 2.0 * 8, multiply_fp32_avx2},
    };
    return loops;
}

}  // namespace forerun

#endif
