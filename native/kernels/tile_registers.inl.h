// Tile registers by number. They go by names that the assembler sees, which the compiler's intrinsics want spelled out;
// here they are template arguments. As with those, the compiler is not told which memory a load reads: stores to it
// must be finished before (see finish_stores).

template <int TILE>
FORERUN_INLINE void zero_tile() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// Rows of the tile's shape, `bytes` apart.
template <int TILE>
FORERUN_INLINE void load_tile(const void* from, size_t bytes) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(TILE), "r"(from), "r"(bytes));
}

template <int TILE>
FORERUN_INLINE void store_tile(void* to, size_t bytes) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(to), "r"(bytes) : "memory");
}

// sums[m][n] += products of bfloat16, first[m][k] and second[k / 2][n][k % 2]
template <int SUMS, int FIRST, int SECOND>
FORERUN_INLINE void multiply_tiles() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(FIRST), "i"(SECOND));
}
