// Submodule `kernrec._engine.query`: arithmetic of a query.
#include "arrays.h"

namespace kernrec {

void bind_query(nanobind::module_& engine) {
    nanobind::set_leak_warnings(false);  // plans and trees stay cached until the process ends
    nanobind::module_ module = engine.def_submodule("query");
    for (const auto bind : query::Binding::all()) bind(module);
}

}  // namespace kernrec
