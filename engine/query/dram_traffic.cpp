// Computes the bytes between L2 and DRAM of a launch; kernrec/model/analytical/dram_traffic.py describes the model.
#include "launch.h"

namespace kernrec::query {

Access::Access(Array<const int64_t, 1> reads_of, Array<const uint8_t, 2> axes_of, Array<const int64_t, 1> writes_of,
               Array<const uint8_t, 1> scratch_of)
    : reads(copied(Row<const int64_t>(reads_of))),
      writes(copied(Row<const int64_t>(writes_of))),
      scratch(copied(Row<const uint8_t>(scratch_of))) {
    const Table<const uint8_t> table(axes_of);
    const int64_t tensors = int64_t(scratch.size());
    steps = table.columns;
    require(steps > 0 && table.rows == int64_t(reads.size()) && all_within(Row<const int64_t>(reads_of), 0, tensors) &&
                all_within(Row<const int64_t>(writes_of), 0, tensors),
            "access: expected tensors that exist, and at least one step");
    for (int64_t read = 0; read < table.rows; read++)
        for (int64_t step = 0; step < steps; step++) axes.push_back(table(read, step));
}

double Access::moved_bytes(double blocks, double concurrent, std::vector<double>& room, double l2_bytes) const {
    const int64_t last = steps - 1;
    double* const extent = room.data();
    double* const share = extent + steps;
    const double* const size = share + steps;
    double working_set = 0.0;
    for (size_t tensor = 0; tensor < scratch.size(); tensor++) working_set = working_set + size[tensor];
    const double miss = maximum(1.0 - l2_bytes / working_set, 0.0);
    double wave = minimum(concurrent, blocks);
    const double waves = blocks / wave;
    // Return the fraction of each step that a wave covers.
    for (int64_t step = 0; step < last; step++) {
        share[step] = minimum(wave, extent[step]) / extent[step];
        wave = maximum(wave / extent[step], 1.0);
    }
    share[last] = minimum(wave, extent[last]) / extent[last];
    double total = 0.0;
    for (size_t number = 0; number < reads.size(); number++) {
        double loads = waves;  // loads of the tensor over all waves
        for (int64_t step = 0; step < steps; step++)
            if (axes[number * size_t(steps) + size_t(step)]) loads = loads * share[step];
        const double again = miss * maximum(loads - 1.0, 0.0);
        const int64_t tensor = reads[number];
        total = total + size[tensor] * ((scratch[size_t(tensor)] ? miss : 1.0) + again);
    }
    for (const int64_t tensor : writes) total = total + (scratch[size_t(tensor)] ? size[tensor] * miss : size[tensor]);
    return total;
}

namespace {

// Fill `moved` (N,). extents: each step of the grid's order, fastest-varying first, (steps, N). sizes: bytes of each
// tensor, (tensors, N).
void dram_bytes(const Access& access, Array<const double, 1> blocks_of, Array<const double, 1> concurrent_of,
                Array<const double, 2> extents_of, Array<const double, 2> sizes_of, double l2_bytes,
                Array<double, 1> moved_of) {
    const Row<const double> blocks(blocks_of), concurrent(concurrent_of);
    const Table<const double> extents(extents_of), sizes(sizes_of);
    const Row<double> moved(moved_of);
    require(extents.rows == access.steps && sizes.rows == int64_t(access.scratch.size()) &&
                concurrent.size == blocks.size && extents.columns == blocks.size && sizes.columns == blocks.size &&
                moved.size == blocks.size,
            "dram_bytes: expected as many launches everywhere");
    std::vector<double> room(access.room());
    for (int64_t i = 0; i < blocks.size; i++) {
        for (int64_t step = 0; step < access.steps; step++) room[size_t(step)] = extents(step, i);
        for (int64_t tensor = 0; tensor < sizes.rows; tensor++)
            room[size_t(2 * access.steps + tensor)] = sizes(tensor, i);
        moved[i] = access.moved_bytes(blocks[i], concurrent[i], room, l2_bytes);
    }
}

}  // namespace

void bind_dram_traffic(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<Access>(module, "Access")
        .def(nb::init<Array<const int64_t, 1>, Array<const uint8_t, 2>, Array<const int64_t, 1>,
                      Array<const uint8_t, 1>>(),
             exact(), exact(), exact(), exact());
    module.def("dram_bytes", &dram_bytes, nb::arg(), exact(), exact(), exact(), exact(), nb::arg(), exact());
}

}  // namespace kernrec::query
