// Compares the NEON table with the portable one, and rows computed alone with rows computed together, to the bit. Run
// on an emulator by tools/check_neon.sh; on an ARM machine the ordinary tests do all of this and more.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernel_table.h"
#include "packed_tiles.h"
#include "tile_formats.h"

using namespace forerun;

namespace {

constexpr int kInputs = 512, kOutputs = 48, kRows = 21;
int failures = 0;

struct Buffer {
    explicit Buffer(size_t bytes) : bytes_(bytes), data_(std::aligned_alloc(64, (bytes + 4096) / 64 * 64)) {
        std::memset(data_, 0, bytes);
    }
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t bytes() const { return bytes_; }

  private:
    size_t bytes_;
    void* data_;
};

// The largest difference, relative to the largest value.
double difference(const float* a, const float* b, size_t count) {
    double largest = 0, size = 1e-30;
    for (size_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::fabs(double{a[i]} - b[i]));
        size = std::max(size, std::fabs(double{b[i]}));
        if (std::isnan(a[i]) != std::isnan(b[i])) return INFINITY;
    }
    return largest / size;
}

void check(const char* what, const char* name, bool ok, double value) {
    std::printf("%-28s %-5s %s %.1e\n", what, name, ok ? "ok  " : "FAIL", value);
    failures += !ok;
}

void linear_of(const KernelTable& table, const PackedLinearArgs& packed, const float* x, int rows, float* out) {
    PackedLinearArgs args = packed;
    const size_t block = kInputs / kTileDepth * kSumsPerTile * kLanes;
    const Buffer rounded(32 * args.ldx * 2), sums(2 * block * 4), scratch(kPackedScratchBytes);
    table.round_rows_and_sum(x, kInputs, 0, rows, kInputs, rounded.as<uint16_t>(), args.ldx, sums.as<float>(), block);
    args.x = rounded.as<uint16_t>();
    args.sums = sums.as<float>();
    args.sum_floats = block;
    args.rows = rows;
    args.out = out;
    table.linear_packed(args, 0, kOutputs / kLanes, scratch.as<char>());
}

void check_format(TileFormat format) {
    const TileShape shape = tile_shape(format);
    std::mt19937 random(static_cast<unsigned>(format));
    const size_t row_bytes = size_t{kInputs} / static_cast<size_t>(shape.block_inputs) * shape.block_bytes;
    std::vector<uint8_t> blocks(kOutputs * row_bytes);
    for (uint8_t& byte : blocks)
        byte = static_cast<uint8_t>(random());
    for (size_t at = 0; at < blocks.size(); at += shape.block_bytes) {  // scales that are no NaN
        const size_t d = format == TileFormat::kQ6_K ? 208 : 0;
        blocks[at + d + 1] = 0x28;
        if (has_minimum(format)) blocks[at + 3] = 0xa8;
    }
    const int tiles = tile_count(shape, kInputs);
    const size_t panel_bytes = static_cast<size_t>(tiles / shape.group_tiles) * group_bytes(shape);
    const Buffer panels(kOutputs / kLanes * panel_bytes + 65536);  // kernels prefetch, and may load, behind the end
    for (int panel = 0; panel < kOutputs / kLanes; ++panel)
        pack_panel(format, TileOrder::kPairs, blocks.data() + static_cast<size_t>(panel) * kLanes * row_bytes,
                   row_bytes, kLanes, tiles, panels.as<uint8_t>() + static_cast<size_t>(panel) * panel_bytes);
    std::vector<float> x(kRows * kInputs);
    for (float& value : x)
        value = std::normal_distribution<float>()(random);
    PackedLinearArgs args{};
    args.ldx = kInputs + kTileDepth;
    args.panels = panels.as<uint8_t>();
    args.panel_bytes = panel_bytes;
    args.format = format;
    args.k_tiles = tiles;
    args.columns = kOutputs;
    args.ldo = kOutputs;
    std::vector<float> neon(kRows * kOutputs), portable(neon.size()), alone(kOutputs);
    linear_of(neon_table, args, x.data(), kRows, neon.data());
    linear_of(portable_table, args, x.data(), kRows, portable.data());
    const double error = difference(neon.data(), portable.data(), neon.size());
    check("linear, against portable", shape.name, error < 1e-5, error);
    bool same = true;
    for (int row = 0; row < kRows; ++row) {
        linear_of(neon_table, args, x.data() + row * kInputs, 1, alone.data());
        same &= std::memcmp(alone.data(), neon.data() + row * kOutputs, sizeof(float) * kOutputs) == 0;
    }
    check("linear, a row alone", shape.name, same, 0);
}

void check_rows() {
    std::mt19937 random(1);
    std::vector<float> x(kRows * kInputs), weight(kInputs), neon(x.size()), portable(x.size());
    for (float& value : x)
        value = std::normal_distribution<float>()(random);
    for (float& value : weight)
        value = std::normal_distribution<float>()(random);
    neon_table.rms_norm(x.data(), kInputs, kRows, kInputs, weight.data(), 1e-5f, neon.data(), kInputs);
    portable_table.rms_norm(x.data(), kInputs, kRows, kInputs, weight.data(), 1e-5f, portable.data(), kInputs);
    double error = difference(neon.data(), portable.data(), neon.size());
    check("rms_norm, against portable", "", error < 1e-6, error);
    neon_table.silu_mul(x.data(), kInputs, x.data(), kInputs, kRows, kInputs - 3, neon.data(), kInputs);
    portable_table.silu_mul(x.data(), kInputs, x.data(), kInputs, kRows, kInputs - 3, portable.data(), kInputs);
    error = difference(neon.data(), portable.data(), neon.size());
    check("silu_mul, against portable", "", error < 1e-6, error);
}

}  // namespace

int main() {
    for (int format = 1; format <= static_cast<int>(TileFormat::kQ6_K); ++format)
        check_format(static_cast<TileFormat>(format));
    check_rows();
    return failures > 0;
}
