// Sixteen floats for any 64-bit machine. No fused multiply-add: `fma` rounds twice.
//
// Included inside the namespace of one translation unit, see isa/portable.cpp.

#include "vec/four.h"

FORERUN_INLINE Four fma(Four a, Four b, Four c) {
    return {a.v * b.v + c.v};
}

#include "vec/twice.h"

typedef Four Reg;
typedef Twice<Twice<Four>> Vec;

#include "vec/sixteen.h"

// Vectors that fit the registers, four registers each, on x86-64.
constexpr int kVectors = 4;
