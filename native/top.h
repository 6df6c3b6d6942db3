// The ids of the largest logits of a row: the native twin of forerun/sampling/top.py. Binds into the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

namespace forerun {

// Write the ids of the largest values, largest first, the lowest id among equals; NaN counts as the smallest. `ids`
// says how many, at most as many as there are values.
void top_ids(std::span<const float> values, std::span<int32_t> ids);

}  // namespace forerun

void bind_top(nanobind::module_& m);
