// Sixteen floats in four NEON registers, with fused multiply-add. Every 64-bit ARM processor has it.
//
// Included inside the namespace of one translation unit, see isa/neon.cpp.

#include "vec/four.h"

FORERUN_INLINE Four fma(Four a, Four b, Four c) {
    return {vfmaq_f32(c.v, a.v, b.v)};
}

#include "vec/twice.h"

typedef Four Reg;
typedef Twice<Twice<Four>> Vec;

#include "vec/sixteen.h"

// Vectors that fit the registers, four registers each.
constexpr int kVectors = 8;
