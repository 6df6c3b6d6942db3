// bfloat16 weights times bfloat16 inputs by VDPBF16PS: a sum takes both products of a pair in one instruction, in an
// order that the instruction fixes. It rounds to nearest even and flushes denormals, whatever MXCSR says.

struct PairDot {
    typedef uint32_t Input;  // a pair
    static constexpr int kPerPair = 1, kPerTile = kTileDepth / 2;

    FORERUN_INLINE void prepare(const uint16_t* x, uint32_t* to) { _mm512_store_si512(to, _mm512_loadu_si512(x)); }

    template <int ROWS, int PANELS>
    FORERUN_INLINE void add(Vec (&total)[PANELS][ROWS], const uint16_t* pair, size_t panel_elements,
                            const uint32_t* x) {
        __m512i weights[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            weights[p] = _mm512_loadu_si512(pair + p * panel_elements);
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const __m512i inputs = _mm512_set1_epi32(static_cast<int>(x[r * kPerTile]));
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                total[p][r].v = _mm512_dpbf16_ps(total[p][r].v, (__m512bh)inputs, (__m512bh)weights[p]);
        }
    }
};

static void linear(const LinearArgs& args, int panel_begin, int panel_end) {
    linear_by<PairDot>(args, panel_begin, panel_end);
}
