// Kernels that treat each row on its own: rounding, embedding, norm, rotation, activation, sum, KV encoding.
//
// Row tails are partial vectors that run the same instructions as full ones.

// e^x for x <= 88; exactly 1 at 0, exactly 0 below -87.3, NaN stays NaN. Error below 2 units in the last place.
FORERUN_INLINE Vec exponential(Vec x) {
    const Vec low = broadcast(-87.3f);
    const Vec clamped = minimum(broadcast(88.0f), maximum(low, x));
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding and taking away 1.5 * 2^23 rounds to a whole number.
    const Vec magic = broadcast(12582912.0f);
    const Vec n = (clamped * broadcast(1.44269504088896341f) + magic) - magic;
    Vec r = fma(n, broadcast(-0.693359375f), clamped);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    const Vec e = (fma(p, r * r, r) + broadcast(1.0f)) * power_of_two(n);
    return select(x < low, zero(), e);
}

static void round_rows(const float* x, size_t ldx, int rows, int width, uint16_t* out, size_t ldo) {
    for (int row = 0; row < rows; ++row) {
        const float* from = x + row * ldx;
        uint16_t* to = out + row * ldo;
        for (int i = 0; i < static_cast<int>(ldo); i += 16) {
            const Vec value = i < width ? load_first(from + i, width - i) : zero();
            store_bf16_first(to + i, value, 16);
        }
    }
}

static void embed(const uint16_t* panels, int k_tiles, const int32_t* tokens, int rows, int width, float* out,
                  size_t ldo) {
    for (int row = 0; row < rows; ++row) {
        const size_t panel = static_cast<size_t>(tokens[row] / kLanes),
                     column = static_cast<size_t>(tokens[row] % kLanes);
        const uint16_t* from = panels + panel * k_tiles * kTileElements + 2 * column;
        float* to = out + row * ldo;
        // Inputs 2i and 2i+1 of a column lie side by side, pairs a row of the tile (32 elements) apart.
        for (int i = 0; i < width; ++i)
            to[i] = float_from_bf16(from[(i / 2) * 2 * kLanes + i % 2]);
    }
}

static void rms_norm(const float* x, size_t ldx, int rows, int width, const float* weight, float eps, float* out,
                     size_t ldo) {
    for (int row = 0; row < rows; ++row) {
        const float* from = x + row * ldx;
        float* to = out + row * ldo;
        Vec squares[4] = {zero(), zero(), zero(), zero()};  // column i belongs to accumulator i / 16 mod 4
        for (int i = 0; i < width; i += 64) {
            FORERUN_UNROLL
            for (int j = 0; j < 4; ++j) {
                const Vec value = load_first(from + i + 16 * j, width - i - 16 * j);
                squares[j] = fma(value, value, squares[j]);
            }
        }
        const float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
        const Vec factor = broadcast(1.0f / __builtin_sqrtf(total / static_cast<float>(width) + eps));
        for (int i = 0; i < width; i += 16) {
            const int lanes = width - i;
            store_first(to + i, load_first(from + i, lanes) * factor * load_first(weight + i, lanes), lanes);
        }
    }
}

static void rope(float* x, size_t ldx, int rows, int num_heads, int head_dim, int rotary_dim, const float* cosine,
                 const float* sine, const int32_t* positions) {
    const int half = rotary_dim / 2;
    for (int row = 0; row < rows; ++row) {
        const float* cos_row = cosine + static_cast<size_t>(positions[row]) * half;
        const float* sin_row = sine + static_cast<size_t>(positions[row]) * half;
        for (int head = 0; head < num_heads; ++head) {
            float* low = x + row * ldx + static_cast<size_t>(head) * head_dim;
            float* high = low + half;
            for (int i = 0; i < half; i += 16) {
                const int lanes = half - i;
                const Vec c = load_first(cos_row + i, lanes), s = load_first(sin_row + i, lanes);
                const Vec a = load_first(low + i, lanes), b = load_first(high + i, lanes);
                store_first(low + i, a * c - b * s, lanes);
                store_first(high + i, b * c + a * s, lanes);
            }
        }
    }
}

// silu(gate) * up
FORERUN_INLINE Vec gated(Vec gate, Vec up) {
    return gate / (broadcast(1.0f) + exponential(zero() - gate)) * up;
}

static void silu_mul(const float* gate, size_t ldg, const float* up, size_t ldu, int rows, int width, float* out,
                     size_t ldo) {
    for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < width; i += 16) {
            const int lanes = width - i;
            const Vec g = load_first(gate + row * ldg + i, lanes), u = load_first(up + row * ldu + i, lanes);
            store_first(out + row * ldo + i, gated(g, u), lanes);
        }
    }
}

static void add(const float* x, size_t ldx, const float* y, size_t ldy, int rows, int width, float* out, size_t ldo) {
    for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < width; i += 16) {
            const int lanes = width - i;
            store_first(out + row * ldo + i,
                        load_first(x + row * ldx + i, lanes) + load_first(y + row * ldy + i, lanes), lanes);
        }
    }
}

FORERUN_INLINE void encode(float value, float* to) {
    *to = value;
}
FORERUN_INLINE void encode(float value, uint16_t* to) {
    *to = bf16_from_float(value);
}

template <class T>
static void write_kv(const WriteKvArgs& args, int row_begin, int row_end) {
    const KvLayer& layer = args.layer;
    const size_t head_elements = static_cast<size_t>(layer.head_dim) * layer.block_size;
    for (int row = row_begin; row < row_end; ++row) {
        const int block = args.slots[row] / layer.block_size, slot = args.slots[row] % layer.block_size;
        T* keys = reinterpret_cast<T*>(layer.base + block * layer.block_bytes);
        T* values = reinterpret_cast<T*>(layer.base + block * layer.block_bytes + layer.block_bytes / 2);
        for (int head = 0; head < layer.num_heads; ++head) {
            const float* k = args.k + row * args.ldk + static_cast<size_t>(head) * layer.head_dim;
            const float* v = args.v + row * args.ldv + static_cast<size_t>(head) * layer.head_dim;
            T* key_to = keys + head * head_elements + slot;
            T* value_to = values + head * head_elements + static_cast<size_t>(slot) * layer.head_dim;
            for (int d = 0; d < layer.head_dim; ++d) {
                encode(k[d], key_to + static_cast<size_t>(d) * layer.block_size);
                encode(v[d], value_to + d);
            }
        }
    }
}
