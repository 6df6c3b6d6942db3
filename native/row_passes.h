// RowPasses: what drawing does over a whole vocabulary, as function pointers of a kernel table. The passes themselves
// are kernels/row_passes.inl.h; every table computes the same bits.
#pragma once

#include <cstdint>

#include "noise.h"

namespace forerun {

constexpr int kNoiseBlock = 256;  // tokens whose noise is computed together
constexpr int kCuts = 8;          // thresholds of one pass of `masses`

// One row z of n values, float as it came from the model or double when it was adjusted.
template <class T>
struct RowPasses {
    // The maximum, or NaN when the row holds NaN, +inf, or nothing above -inf.
    T (*max)(const T* z, int n);
    // First index from i on whose value is at least `bound`, or n.
    int (*find)(const T* z, int i, int n, T bound);
    // weights[i] = exp((z[i] - max) / temperature), for max the largest value; returns their sum.
    double (*exponentiate)(const T* z, int n, double max, double temperature, double* weights);
    // For each bound: the sum of the weights of values that are at least as large, and how many there are.
    void (*masses)(const T* z, const double* weights, int n, const double* bounds, double* sums, int64_t* counts);
    // Bounds of the scores (z[i] - max) * inverse + noise of n <= kNoiseBlock tokens; returns the largest. They are too
    // high by at most, or too low by less than, 1e-3 where the first term is above -50.
    float (*bound_scores)(const T* z, int n, double max, float inverse, const uint32_t* upper, float* out);
};

struct SamplingKernels {
    RowPasses<float> plain;
    RowPasses<double> adjusted;
    void (*widen)(const float* row, int n, double* z);
    // Upper 32 of the 52 noise bits of kNoiseBlock tokens from an even `first` on.
    void (*upper_noise)(NoiseKey key, uint32_t position, uint32_t first, uint32_t* upper);
};

}  // namespace forerun
