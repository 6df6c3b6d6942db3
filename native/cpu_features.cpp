#include "cpu_features.h"

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace forerun {

namespace {

#if defined(__x86_64__)

struct Registers {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);  // leaves zeros when the leaf does not exist
    return r;
}

// Register sets that the operating system saves on a context switch.
uint64_t saved_state() {
    if (!(cpuid(1, 0).c & (1u << 27))) return 0;  // OSXSAVE
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux grants the 8 KiB of tile registers per process, on request.
bool request_tiles() {
#if defined(__linux__)
    constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr int kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

std::vector<std::string> detect() {
    const Registers one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
    const uint64_t saved = saved_state();
    const bool avx = (saved & 0x6) == 0x6, avx512 = avx && (saved & 0xe0) == 0xe0;
    const bool tiles = (saved & 0x60000) == 0x60000 && (seven.d & (1u << 24)) && request_tiles();

    std::vector<std::string> names;
    const auto add = [&names](bool present, const char* name) {
        if (present) names.emplace_back(name);
    };
    add(avx && (one.c & (1u << 28)), "avx");
    add(avx && (seven.b & (1u << 5)), "avx2");
    add(avx && (one.c & (1u << 12)), "fma");
    add(avx && (one.c & (1u << 29)), "f16c");
    add(avx512 && (seven.b & (1u << 16)), "avx512f");
    add(avx512 && (seven.b & (1u << 17)), "avx512dq");
    add(avx512 && (seven.b & (1u << 30)), "avx512bw");
    add(avx512 && (seven.b & (1u << 31)), "avx512vl");
    add(avx512 && (seven.c & (1u << 1)), "avx512_vbmi");
    add(avx512 && (seven.c & (1u << 6)), "avx512_vbmi2");
    add(avx512 && (seven.c & (1u << 11)), "avx512_vnni");
    add(avx512 && (seven_one.a & (1u << 5)), "avx512_bf16");
    add(tiles, "amx_tile");
    add(tiles && (seven.d & (1u << 25)), "amx_int8");
    add(tiles && (seven.d & (1u << 22)), "amx_bf16");
    return names;
}

#elif defined(__aarch64__)

// NEON belongs to the architecture.
std::vector<std::string> detect() {
    std::vector<std::string> names = {"neon"};
#if defined(__linux__)
    const auto add = [&names](unsigned long present, const char* name) {
        if (present) names.emplace_back(name);
    };
    add(getauxval(AT_HWCAP) & (1ul << 20), "dotprod");
    add(getauxval(AT_HWCAP2) & (1ul << 13), "i8mm");
    add(getauxval(AT_HWCAP2) & (1ul << 14), "bf16");
#endif
    return names;
}

#else

std::vector<std::string> detect() {
    return {};
}

#endif

}  // namespace

const std::vector<std::string>& cpu_features() {
    static const std::vector<std::string> features = detect();
    return features;
}

bool has_feature(const std::string& name) {
    const auto& all = cpu_features();
    return std::find(all.begin(), all.end(), name) != all.end();
}

}  // namespace forerun
