// The limits of this machine, measured: how fast memory is read and how fast numbers are multiplied.
//
// A loop is one way of doing it with one instruction set. Loops of an instruction set are compiled for it in
// isa/measure_*.cpp and are offered only when cpu_features() has found what they need.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forerun {

// Reads `bytes` (a multiple of kReadUnit) at a 64-byte aligned address and returns a sum of all of it, so that no read
// can be left out.
struct ReadLoop {
    const char* name;
    std::vector<const char*> needs;  // CPU features
    uint64_t (*read)(const char* data, size_t bytes);
};

constexpr size_t kReadUnit = 4096;

// `rounds` rounds of multiply-adds on registers, `operations` each (a multiply-add is two). Returns something that
// depends on all of them.
struct MultiplyLoop {
    const char* format;
    std::vector<const char*> needs;
    double operations;
    double (*multiply)(int64_t rounds);
};

#if defined(__x86_64__)
const std::vector<ReadLoop>& x86_read_loops();
const std::vector<MultiplyLoop>& x86_multiply_loops();
#elif defined(__aarch64__)
const std::vector<MultiplyLoop>& neon_multiply_loops();
#endif

}  // namespace forerun

// Adds what bench/limits and bench/kernels use to the Python module.
void bind_measure(nanobind::module_& m);
