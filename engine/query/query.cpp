// Submodule `kernrec._engine.query`: arithmetic of a query.
#include "arrays.h"

namespace kernrec {

void bind_query(nanobind::module_& engine) {
    nanobind::set_leak_warnings(false);  // plans and trees stay cached until the process ends
    nanobind::module_ module = engine.def_submodule("query");
    query::bind_features(module);
    query::bind_trees(module);
    query::bind_products(module);
    query::bind_more_items(module);
    query::bind_spaces(module);
    query::bind_dram_traffic(module);
    query::bind_launches(module);
    query::bind_power_limits(module);
    query::bind_costs(module);
    query::bind_learned_models(module);
    query::bind_rankings(module);
}

}  // namespace kernrec
