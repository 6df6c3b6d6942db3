// bfloat16 weights times bfloat16 inputs in float32: both are widened exactly; of a pair the even input is added first.

FORERUN_INLINE Vec load_member(const uint16_t* pair, int member) {
    Vec even, odd;
    load_pairs(pair, even, odd);
    return member == 0 ? even : odd;
}

struct Fp32Dot {
    typedef float Input;
    static constexpr int kPerPair = 2, kPerTile = kTileDepth;

    FORERUN_INLINE void prepare(const uint16_t* x, float* to) {
        store(to, load(x));
        store(to + kLanes, load(x + kLanes));
    }

    template <int ROWS, int PANELS>
    FORERUN_INLINE void add(Vec (&total)[PANELS][ROWS], const uint16_t* pair, size_t panel_elements, const float* x) {
        // Panels share the broadcast of an input where registers are left for the weights of all of them.
        constexpr int kTogether = ROWS * PANELS + PANELS < kVectors ? PANELS : 1;
        FORERUN_UNROLL
        for (int first = 0; first < PANELS; first += kTogether) {
            FORERUN_UNROLL
            for (int member = 0; member < 2; ++member) {
                Vec weights[kTogether];
                FORERUN_UNROLL
                for (int p = 0; p < kTogether; ++p)
                    weights[p] = load_member(pair + (first + p) * panel_elements, member);
                FORERUN_UNROLL
                for (int r = 0; r < ROWS; ++r) {
                    const Vec input = broadcast(x[r * kPerTile + member]);
                    FORERUN_UNROLL
                    for (int p = 0; p < kTogether; ++p)
                        total[first + p][r] = fma(input, weights[p], total[first + p][r]);
                }
                // As if the addresses had changed: what was loaded is loaded again, not kept in a register that a sum
                // needs.
                __asm__("" : "+r"(pair), "+r"(x));
            }
        }
    }
};

static void linear(const LinearArgs& args, int panel_begin, int panel_end) {
    linear_by<Fp32Dot>(args, panel_begin, panel_end);
}
