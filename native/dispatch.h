// Which kernel tables exist in this build, what each needs, and how one is found by name.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace forerun {

// All tables of this build, best first; "portable" is last and always usable.
std::vector<std::string> all_tables();

// CPU features that the table needs and this machine lacks; empty when it can run.
std::vector<std::string> missing_features(const std::string& table);

// Throws std::invalid_argument when the name is unknown or features are missing.
const KernelTable& find_table(const std::string& name);

}  // namespace forerun
