// What this processor and this operating system offer. Compiled without ISA flags, so that asking is always safe.
#pragma once

#include <string>
#include <vector>

namespace forerun {

// Names of the instruction set extensions that forerun knows and that are usable here, e.g. "avx512f", "amx_bf16".
// An extension counts only when the operating system saves its registers; for AMX that permission is requested here.
const std::vector<std::string>& cpu_features();

bool has_feature(const std::string& name);

}  // namespace forerun
