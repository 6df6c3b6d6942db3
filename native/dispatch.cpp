#include "dispatch.h"

#include <stdexcept>

#include "cpu_features.h"

namespace forerun {

namespace {

struct Entry {
    const KernelTable* table;
    std::vector<std::string> needs;
};

const std::vector<Entry>& entries() {
    static const std::vector<Entry> all = {
#ifdef FORERUN_TABLE_AMX_BF16
        {&amx_bf16_table,
         {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vbmi", "avx512_vbmi2", "amx_tile",
          "amx_bf16"}},
#endif
#ifdef FORERUN_TABLE_AVX512_VNNI_BF16
        {&avx512_vnni_bf16_table, {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"}},
#endif
#ifdef FORERUN_TABLE_AVX512_VNNI
        {&avx512_vnni_table, {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"}},
#endif
#ifdef FORERUN_TABLE_AVX512
        {&avx512_table, {"avx512f", "avx512dq", "avx512bw", "avx512vl"}},
#endif
#ifdef FORERUN_TABLE_AVX512_BF16
        {&avx512_bf16_table, {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_bf16"}},
#endif
#ifdef FORERUN_TABLE_AVX2
        {&avx2_table, {"avx2", "fma", "f16c"}},
#endif
#ifdef FORERUN_TABLE_NEON
        {&neon_table, {"neon"}},
#endif
        {&portable_table, {}},
    };
    return all;
}

const Entry& find(const std::string& name) {
    for (const Entry& entry : entries()) {
        if (entry.table->name == name) return entry;
    }
    std::string names;
    for (const Entry& entry : entries())
        names += std::string(names.empty() ? "" : ", ") + entry.table->name;
    throw std::invalid_argument("no kernel table named '" + name + "'; this build has " + names);
}

}  // namespace

std::vector<std::string> all_tables() {
    std::vector<std::string> names;
    for (const Entry& entry : entries())
        names.emplace_back(entry.table->name);
    return names;
}

std::vector<std::string> missing_features(const std::string& table) {
    std::vector<std::string> missing;
    for (const std::string& need : find(table).needs) {
        if (!has_feature(need)) missing.push_back(need);
    }
    return missing;
}

const KernelTable& find_table(const std::string& name) {
    const Entry& entry = find(name);
    const auto missing = missing_features(name);
    if (missing.empty()) return *entry.table;
    std::string lacking;
    for (const std::string& feature : missing)
        lacking += (lacking.empty() ? "" : ", ") + feature;
    throw std::invalid_argument("kernel table '" + name + "' needs " + lacking + ", which this CPU lacks");
}

}  // namespace forerun
