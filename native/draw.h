// Drawing tokens from logits by walking draft trees: the native twin of forerun/sampling/walk.py, which defines every
// decision taken here. Binds `Drawers` into the Python module.
#pragma once

#include <nanobind/nanobind.h>

void bind_draw(nanobind::module_& m);
