// Tile products of up to 64 rows with streaming weights.
//
// Rows keep their accumulators and pass once over panels, whose steps are unpacked ahead of the products, so that both
// overlap with the weights' way from memory. Few rows take several panels at once: each step of inputs is then loaded
// once for all of them.

// As many as there are tiles for, and no more than two: with four, matrices of some hundred kilobytes, whose code and
// first tiles weigh more, took a tenth longer (the lab log has it).
template <int BLOCKS>
constexpr int kPanelsAtOnce = BLOCKS <= 2 ? 2 : 1;

// Accumulators in tiles 0 to 3, weights in 4 and 5, `columns` rows in 6 and 7.
static void configure_packed(int columns) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, kLanes, tile == 4 || tile == 5 ? 64 : 4 * columns);
    config.load();
}

// One accumulator [16 outputs][columns] a block.
template <int BLOCKS>
using PanelTotals = float[BLOCKS][kLanes * kLanes];

template <int PANELS>
struct PanelPass {
    static constexpr int kRing = 4 / PANELS;  // steps between unpacking and multiplying, and one
    alignas(64) uint16_t ring[kRing][PANELS][kRowTileWords];
    PassScales scales[PANELS];
    StreamedPanel panels[PANELS];
};

struct PassInputs {
    const uint16_t* x;
    size_t next_block, bytes;
    int steps;
};

// A step's products, with what is unpacked meanwhile between loads and products: a product whose operands are not there
// holds up what comes behind it.
//
// Even and odd steps use other tiles, so that one's loads do not wait for the other's products.
template <TileFormat F, int PANELS, int BLOCKS, bool ODD, int P = 0>
FORERUN_INLINE void multiply_step(PanelPass<PANELS>& pass, const PassInputs& inputs, int step) {
    constexpr int kRing = PanelPass<PANELS>::kRing;
    constexpr int kWeights = 4 + ((ODD ? PANELS : 0) + P) % 2, kFirst = BLOCKS == 1 && ODD ? 7 : 6;
    constexpr int kTotal = P * BLOCKS;
    load_tile<kWeights>(pass.ring[step % kRing][P], 64);
    if constexpr (P == 0) load_tile<kFirst>(inputs.x, inputs.bytes);
    if constexpr (P == 0 && BLOCKS > 1) load_tile<7>(inputs.x + inputs.next_block, inputs.bytes);
    const int next = step + kRing - 1;
    if (next < inputs.steps)
        unpack_streamed<F>(pass.panels[P], PANELS, next, inputs.steps, pass.scales[P], pass.ring[next % kRing][P]);
    multiply_tiles<kTotal, kWeights, kFirst>();
    if constexpr (BLOCKS > 1) multiply_tiles<kTotal + 1, kWeights, 7>();
    if constexpr (BLOCKS > 2) {
        load_tile<6>(inputs.x + 2 * inputs.next_block, inputs.bytes);
        multiply_tiles<2, kWeights, 6>();
    }
    if constexpr (BLOCKS > 3) {
        load_tile<7>(inputs.x + 3 * inputs.next_block, inputs.bytes);
        multiply_tiles<3, kWeights, 7>();
    }
    if constexpr (P + 1 < PANELS) multiply_step<F, PANELS, BLOCKS, ODD, P + 1>(pass, inputs, step);
}

// All steps of panels that are taken at once.
template <TileFormat F, int PANELS, int BLOCKS>
static void multiply_together(const PackedLinearArgs& args, int columns, const StreamedPanel (&panels)[PANELS],
                              PanelTotals<BLOCKS>* totals) {
    constexpr int kTotals = PANELS * BLOCKS, kRing = PanelPass<PANELS>::kRing;
    static_assert(kTotals <= 4 && (PANELS == 1 || BLOCKS <= 2));
    PanelPass<PANELS> pass;
    PassInputs inputs{.x = args.x,
                      .next_block = kLanes * args.ldx,
                      .bytes = 4 * static_cast<size_t>(columns),
                      .steps = step_count<F>(args)};
    const size_t next_step = static_cast<size_t>(columns) * kTileDepth;
    zero_tile<0>();
    if constexpr (kTotals > 1) zero_tile<1>();
    if constexpr (kTotals > 2) zero_tile<2>();
    if constexpr (kTotals > 3) zero_tile<3>();
    for (int p = 0; p < PANELS; ++p) {
        pass.panels[p] = panels[p];
        begin_scales<F>(panels[p].from, 0, pass.scales[p]);
        for (int step = 0; step < kRing - 1 && step < inputs.steps; ++step)
            unpack_streamed<F>(panels[p], PANELS, step, inputs.steps, pass.scales[p], pass.ring[step][p]);
    }
    for (int step = 0; step < inputs.steps; step += 2) {
        finish_stores(pass.ring);
        multiply_step<F, PANELS, BLOCKS, false>(pass, inputs, step);
        inputs.x += next_step;
        if (step + 1 == inputs.steps) break;
        finish_stores(pass.ring);
        multiply_step<F, PANELS, BLOCKS, true>(pass, inputs, step + 1);
        inputs.x += next_step;
    }
    const auto total = [&](int i) { return totals[i / BLOCKS][i % BLOCKS]; };
    store_tile<0>(total(0), inputs.bytes);
    if constexpr (kTotals > 1) store_tile<1>(total(1), inputs.bytes);
    if constexpr (kTotals > 2) store_tile<2>(total(2), inputs.bytes);
    if constexpr (kTotals > 3) store_tile<3>(total(3), inputs.bytes);
}

// `UNIT` panels, PANELS at a time. order  where unit `first` has its panels; those of unit `next` come behind them
template <TileFormat F, int BLOCKS, int UNIT, class Order>
FORERUN_INLINE void multiply_unit(const PackedLinearArgs& args, int columns, int first, int next, const Order& order,
                                  PanelTotals<BLOCKS>* totals) {
    constexpr int kPanels = kPanelsAtOnce<BLOCKS> < UNIT ? kPanelsAtOnce<BLOCKS> : UNIT;
    const auto at = [&](int unit, int i) {
        return args.panels + static_cast<size_t>(order(unit, i)) * args.panel_bytes;
    };
    for (int begin = 0; begin < UNIT; begin += kPanels) {
        StreamedPanel panels[kPanels];
        const int behind = begin + kPanels;
        for (int p = 0; p < kPanels; ++p)
            panels[p] = {.from = at(first, begin + p),
                         .next = behind < UNIT ? at(first, behind + p) : at(next, p),
                         .bytes = args.panel_bytes};
        multiply_together<F, kPanels, BLOCKS>(args, columns, panels, totals + begin);
    }
}

template <TileFormat F, int BLOCKS>
static void multiply_few_rows(const PackedLinearArgs& args, int panel_begin, int panel_end) {
    constexpr int kPanels = kPanelsAtOnce<BLOCKS>;
    const int columns = tile_columns(args.rows);
    configure_packed(columns);
    alignas(64) PanelTotals<BLOCKS> totals[kPanels];
    const auto order = [](int panel, int i) { return panel + i; };
    const auto store_panels = [&](int first, int count) {
        for (int p = 0; p < count; ++p)
            for (int block = 0; block < BLOCKS; ++block)
                store_outputs(args, totals[p][block], columns, block, first + p);
    };
    int panel = panel_begin;
    for (; panel + kPanels <= panel_end; panel += kPanels) {
        multiply_unit<F, BLOCKS, kPanels>(args, columns, panel, panel + kPanels, order, totals);
        store_panels(panel, kPanels);
    }
    for (; panel < panel_end; ++panel) {
        multiply_unit<F, BLOCKS, 1>(args, columns, panel, panel + 1, order, totals);
        store_panels(panel, 1);
    }
}

// Panels of gates [panel_begin, panel_end), both even, with those that they gate.
template <TileFormat F, int BLOCKS>
static void multiply_few_gated(const PackedLinearArgs& args, int panel_begin, int panel_end) {
    const int columns = tile_columns(args.rows), half = args.columns / kLanes / 2;
    configure_packed(columns);
    alignas(64) PanelTotals<BLOCKS> totals[4];
    // gate, what it gates, and both of the sixteen outputs behind: in the order in which two at once need them
    const auto order = [half](int panel, int i) { return panel + i / 2 + i % 2 * half; };
    for (int panel = panel_begin; panel < panel_end; panel += 2) {
        multiply_unit<F, BLOCKS, 4>(args, columns, panel, panel + 2, order, totals);
        for (int block = 0; block < BLOCKS; ++block)
            store_gated(args, {totals[0][block], totals[2][block], totals[1][block], totals[3][block]}, columns, block,
                        panel / 2);
    }
}
