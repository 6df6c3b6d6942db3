// The table of the kernels included above it.

static constexpr KernelTable make_table(const char* name) {
    return KernelTable{
        .name = name,
        .tiles_kv = false,
        .tile_order = TileOrder::kPairs,
        .packed_inputs = PackedInputs::kRows,
        .gates_packed = false,
        .sums_per_tile = kSumsPerTile,
        .round_rows = round_rows,
        .linear = linear,
        .round_rows_and_sum = round_rows_and_sum,
        .round_columns = nullptr,
        .linear_packed = linear_packed,
        .embed = embed,
        .rms_norm = rms_norm,
        .rope = rope,
        .silu_mul = silu_mul,
        .add = add,
        .write_kv_bf16 = write_kv<uint16_t>,
        .write_kv_fp32 = write_kv<float>,
        .attention_bf16 = attention<uint16_t>,
        .attention_fp32 = attention<float>,
        .merge_bf16 = attention_merge,
        .merge_fp32 = attention_merge,
        .sampling = make_sampling_kernels(),
    };
}
