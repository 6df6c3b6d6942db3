// FORERUN_INLINE marks functions that headers share between translation units compiled for different instruction sets.
//
// An ordinary inline function may be emitted once per unit and merged by the linker; the surviving copy could be the
// one with AVX-512 in it, and the portable path would die on an older machine. Forced inlining with internal linkage
// leaves nothing to merge. For the same reason kernels use no templates of the standard library.
#pragma once

#define FORERUN_INLINE static inline __attribute__((always_inline))
#define FORERUN_MEMBER inline __attribute__((always_inline))  // the same for members of classes

// FORERUN_UNROLL stands before a loop of fixed small count over vectors that should live in registers; left to itself
// the compiler may keep such arrays in memory.
#if defined(__clang__)
#define FORERUN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FORERUN_UNROLL _Pragma("GCC unroll 16")
#endif
