// Python module `kernrec._engine`: decodes a kernel that Python passes as flat arrays, and runs its blocks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "batch.h"
#include "decoder.h"
#include "handovers.h"
#include "tensor_maps.h"
#include "texture.h"

namespace nb = nanobind;

namespace kernrec {
namespace {

template <class T>
using Flat = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Operands in preorder: (kind, id, value, number of parts) each.
Operand read_operand(const Flat<int64_t>& table, size_t& next) {
    const int64_t* row = table.data() + 4 * next++;
    Operand operand{OperandKind(row[0]), uint32_t(row[1]), row[2], {}};
    for (int64_t i = 0; i < row[3]; i++) operand.items.push_back(read_operand(table, next));
    return operand;
}

template <class T>
nb::object array_of(std::vector<T> values) {
    auto* held = new std::vector<T>(std::move(values));
    const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

class Kernel {
  public:
    Kernel(const std::vector<std::vector<std::string>>& names, Flat<int64_t> instructions, Flat<int64_t> operands,
           Flat<int64_t> blocks, const std::vector<uint32_t>& widths, const std::vector<std::string>& specials,
           const std::vector<int64_t>& special_values, const std::vector<int64_t>& symbols,
           const std::vector<uint32_t>& grid, const std::vector<uint32_t>& block, uint32_t blocks_per_batch,
           const std::vector<uint32_t>& sizes, nb::bytes constants, nb::bytes parameters, uint64_t budget, bool count,
           bool check_races, const std::vector<uint32_t>& cluster, uint32_t registers,
           const std::vector<int64_t>& watched, const std::vector<uint32_t>& unneeded,
           const std::vector<uint32_t>& unassigned) {
        std::copy_n(grid.begin(), 3, launch_.grid);
        std::copy_n(block.begin(), 3, launch_.block);
        std::copy_n(cluster.begin(), 3, launch_.cluster);
        launch_.registers = registers;
        launch_.blocks_per_batch = blocks_per_batch;
        launch_.shared_bytes = sizes[0];
        launch_.local_bytes = sizes[1];
        launch_.argument_bytes = sizes[2];
        launch_.symbols = symbols;
        launch_.special_names = specials;
        launch_.special_values = special_values;
        launch_.budget = budget;
        launch_.count = count;
        launch_.check_races = check_races;
        launch_.watch = !watched.empty();
        for (const int64_t block : watched) watches_[block];
        copy(constants, launch_.constants, launch_.constant_bytes);
        set_parameters(parameters);

        size_t next = 0;
        for (size_t i = 0; i < instructions.size() / 4; i++) {  // name, operands, guard, whether the guard is negated
            const int64_t* row = instructions.data() + 4 * i;
            Source& source = program_.sources.emplace_back();
            const std::vector<std::string>& name = names.at(row[0]);
            source.opcode = name.at(0);
            source.modifiers.assign(name.begin() + 1, name.end());
            for (int64_t k = 0; k < row[1]; k++) source.operands.push_back(read_operand(operands, next));
            source.guard = int32_t(row[2]);
            source.guard_inverted = row[3];
        }
        for (const uint32_t source : unneeded) program_.sources.at(source).unneeded = true;
        for (size_t i = 0; i < blocks.size() / 6; i++) {
            const int64_t* row = blocks.data() + 6 * i;
            BasicBlock& made = program_.blocks.emplace_back();
            made.first = uint32_t(row[0]);
            made.count = uint32_t(row[1]);
            made.end = row[2] ? End::kTrap : End::kNone;  // the decoder sets the other kinds
            made.warp_synchronous = row[3];
            made.spins = row[4];
            made.goes_on = row[5];
        }
        program_.unassigned = unassigned;
        program_.hands_over = Handovers::hands_over(program_);
        Decoder(program_, launch_, widths).decode();
    }

    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    void set_parameters(nb::bytes parameters) { copy(parameters, launch_.parameters, launch_.parameter_bytes); }

    // Return the unsupported instructions in text order, each with the unsupported part.
    std::vector<std::pair<uint32_t, std::string>> unsupported() const {
        return {program_.unsupported.begin(), program_.unsupported.end()};
    }

    void add_buffer(const std::string& name, nb::ndarray<nb::numpy, nb::ro, nb::device::cpu> bytes, bool writable) {
        Region& region = launch_.buffers.emplace_back();
        region.name = name;
        region.bytes = static_cast<uint8_t*>(const_cast<void*>(bytes.data()));
        region.size = bytes.size();
        region.writable = writable;
        kept_.push_back(bytes);
    }

    // Add a texture or surface over a buffer; modes are the numbers in texture.h.
    void add_image(uint64_t handle, uint32_t buffer, const std::vector<int64_t>& extents, const std::string& element,
                   const std::vector<int64_t>& channels_layers_levels, const std::vector<uint32_t>& sampler) {
        auto image = std::make_shared<Image>();
        const Region& region = launch_.buffers.at(buffer);
        image->data = region.bytes;
        image->address = uint64_t(buffer + 1) << kBufferShift;
        image->axes = uint32_t(extents.size());
        image->extents = {1, 1, 1};
        std::copy(extents.begin(), extents.end(), image->extents.begin());
        image->element = number_type(element);
        image->channels = uint32_t(channels_layers_levels[0]);
        image->layers = channels_layers_levels[1];
        image->levels = channels_layers_levels[2];
        image->sampler = {sampler[0] != 0, AddressMode(sampler[1]), sampler[2] != 0, sampler[3] != 0};
        image->writable = region.writable;
        image->name = region.name;
        launch_.images[handle] = std::move(image);
    }

    // Run thread blocks in batches. Return (fault or None, counters by name, warps that ran each basic block, lanes
    // that ran each basic block, number of barriers, `Counts::by_warp`). after_faults: whether a fault ends only its
    // batch, and not the run.
    nb::tuple run(Flat<int64_t> blocks, uint32_t threads, bool after_faults) {
        const size_t size = launch_.blocks_per_batch, batches = (blocks.size() + size - 1) / size;
        std::map<size_t, Fault> faults;  // keyed by batch
        std::atomic<size_t> next{0}, stop{batches};
        const Counts none(launch_.buffers.size(), program_.blocks.size());
        Counts total = none;
        std::mutex merging;
        auto work = [&] {
            std::unique_ptr<Batch> batch;
            {
                std::lock_guard<std::mutex> lock(merging);
                if (!spare_.empty()) {
                    batch = std::move(spare_.back());
                    spare_.pop_back();
                }
            }
            for (size_t i; (i = next++) < stop;) {
                const size_t first = i * size;
                const auto fail = [&](const Fault& fault) {
                    std::lock_guard<std::mutex> lock(merging);
                    faults.emplace(i, fault);
                    if (!after_faults) stop = std::min<size_t>(stop, i);
                };
                try {
                    if (!batch) batch = std::make_unique<Batch>(program_, launch_);
                    if (launch_.watch) batch->watched = &watches_;
                    batch->run(blocks.data() + first, uint32_t(std::min(size, blocks.size() - first)));
                } catch (const Fault& fault) {
                    fail(fault);
                } catch (const std::exception& error) {  // report an unexpected error instead of ending the process
                    fail({FaultKind::kEmulation, batch ? int64_t(batch->source) : -1, error.what()});
                }
            }
            if (!batch) return;
            std::lock_guard<std::mutex> lock(merging);
            total.merge(batch->counts);
            batch->counts = none;
            spare_.push_back(std::move(batch));
        };
        {
            nb::gil_scoped_release release;
            // Results of atomic operations depend on the order of blocks, and so does code that waits for other blocks.
            bool in_order = program_.has_atomics || threads <= 1 || batches <= 1 || launch_.checks;
            for (const BasicBlock& block : program_.blocks) in_order |= block.spins;
            in_order |= launch_.check_races && program_.hands_over;
            std::vector<std::thread> others;
            if (!in_order)
                for (size_t i = 1; i < std::min<size_t>(threads, batches); i++) others.emplace_back(work);
            work();
            for (std::thread& other : others) other.join();
        }
        nb::object fault = nb::none();
        if (!faults.empty()) {
            const Fault& first = faults.begin()->second;
            fault = nb::make_tuple(uint32_t(first.kind), first.source, std::string(first.what()));
        }
        std::vector<std::string> names;
        for (const Region& buffer : launch_.buffers) names.push_back(buffer.name);
        return nb::make_tuple(fault, total.by_name(names), total.warps, total.lanes, total.barriers.value,
                              total.by_warp);
    }

    // Enable checks. Takes arrays of shared memory (name, start, size) and the indices of buffers that are unwritten at
    // the start.
    void check(const std::vector<std::tuple<std::string, uint32_t, uint32_t>>& arrays,
               const std::vector<uint32_t>& uninitialized, bool shared_memory, bool global_races, bool values) {
        launch_.checks = std::make_shared<Watch>();
        for (const auto& [name, start, size] : arrays) launch_.checks->arrays.push_back({name, start, size});
        launch_.checks->uninitialized = uninitialized;
        launch_.checks->shared_memory = shared_memory;
        launch_.checks->global_races = global_races;
        launch_.checks->values = values;
    }

    nb::list findings() const {
        nb::list result;
        if (!launch_.checks) return result;
        for (const Finding& each : launch_.checks->findings)
            result.append(nb::make_tuple(each.kind, each.source, each.other, each.block, each.thread, each.other_block,
                                         each.other_thread, each.memory, each.offset, each.bytes));
        return result;
    }

    // Return for each instruction: requests, lanes, bytes, sectors or wavefronts moved, ideal wavefronts, atomics.
    nb::list sites() const {
        nb::list result;
        if (!launch_.checks) return result;
        for (const SiteCounts& each : launch_.checks->sites)
            result.append(nb::make_tuple(each.requests, each.lanes, each.bytes, each.moved, each.ideal, each.atomics));
        return result;
    }

    // Return the fields of `BlockWatch`, keyed by block, and forget them. Vectors become arrays, and `touched` becomes
    // a list of (number of the buffer, whether it was written, `Touched`).
    nb::dict watches() {
        nb::dict result;
        for (auto& [block, kept] : watches_) {
            BlockWatch watch = std::exchange(kept, {});
            nb::list touched;
            for (auto& [key, units] : watch.touched)
                touched.append(nb::make_tuple(key.first, key.second, std::move(units)));
            result[nb::int_(block)] = nb::make_tuple(
                array_of(std::move(watch.steps)), array_of(std::move(watch.warps)), array_of(std::move(watch.sectors)),
                array_of(std::move(watch.reads)), array_of(std::move(watch.atomics)), touched);
        }
        return result;
    }

    // Return lists of sectors read, keyed by buffer. Item n is the number of distinct sectors that a group of 2^n
    // consecutive watched blocks reads, in total over all groups.
    std::map<std::string, std::vector<uint64_t>> shared_reads() const {
        std::map<uint32_t, std::pair<std::vector<int64_t>, std::vector<uint64_t>>> reads;  // sectors, and their blocks
        uint64_t position = 0;
        for (const auto& entry : watches_) {
            for (const auto& [key, touched] : entry.second.touched)
                if (!key.second) {
                    auto& [sectors, blocks] = reads[key.first];
                    for (const int64_t sector : touched.sectors()) sectors.push_back(sector);
                    blocks.resize(sectors.size(), position);
                }
            position++;
        }
        std::map<std::string, std::vector<uint64_t>> result;
        for (const auto& [buffer, read] : reads) {
            const auto& [sectors, blocks] = read;
            const std::vector<uint32_t> times = reuse_times(sectors.data(), sectors.size(), 0);
            std::array<uint64_t, 65> apart{};  // reads, by bit length of (block ^ last block that read the sector)
            for (size_t i = 0; i < times.size(); i++)
                apart[times[i] == kNever ? 64 : 64 - __builtin_clzll(blocks[i] ^ blocks[i - times[i]])]++;
            for (size_t n = 0; watches_.size() >> n; n++)
                result[launch_.buffers[buffer].name].push_back(
                    std::accumulate(apart.begin() + n + 1, apart.end(), uint64_t(0)));
        }
        return result;
    }

  private:
    static void copy(nb::bytes from, std::vector<uint8_t>& to, uint64_t& size) {
        to.assign(from.c_str(), from.c_str() + from.size());
        size = to.size();
        to.resize(size + 16);  // padding, because vector code may load values of inactive lanes
    }

    Program program_;
    Launch launch_;
    std::map<int64_t, BlockWatch> watches_;
    std::vector<nb::ndarray<nb::numpy, nb::ro, nb::device::cpu>> kept_;
    std::vector<std::unique_ptr<Batch>> spare_;
};

}  // namespace

void bind_query(nb::module_& module);

NB_MODULE(_engine, module) {
    module.attr("COMPILER") = __VERSION__;
    bind_query(module);
    module.def("opcodes", [] {
        std::vector<std::string> names;
        for (const auto& builder : builders()) names.push_back(builder.first);
        return names;
    });
    module.def("check_tensor_map", [](nb::bytes map) {
        if (map.size() < 128) throw nb::value_error("a tensor map has 128 bytes");
        decode_tensor_map(static_cast<const uint8_t*>(map.data()));
    });
    module.def("first_requests", [](Flat<int64_t> units) {
        const std::vector<uint32_t> times = reuse_times(units.data(), units.size(), 0);
        std::vector<int64_t> first;
        for (size_t i = 0; i < times.size(); i++)
            if (times[i] == kNever) first.push_back(int64_t(i));
        return array_of(std::move(first));
    });
    module.def("reuse", [](Flat<int64_t> steps, Flat<uint8_t> warps, Flat<int64_t> sectors, Flat<bool> loads,
                           const std::vector<double>& lines) {
        const Reuse made = reuse(steps.data(), warps.data(), sectors.data(), loads.data(), sectors.size(), lines);
        return nb::make_tuple(made.hits, made.warp_hits, made.warps);
    });
    nb::class_<Touched>(module, "Touched")
        .def("__init__",
             [](Touched* made, Flat<int64_t> words) {
                 new (made) Touched;
                 for (size_t i = 0; i < words.size(); i++) made->units.add(uint64_t(words.data()[i]), 1);
             })
        .def_prop_ro("sectors", [](const Touched& touched) { return touched.sectors().size(); })
        .def("new_bytes", &Touched::new_bytes);
    nb::class_<Kernel>(module, "Kernel")
        .def(nb::init<const std::vector<std::vector<std::string>>&, Flat<int64_t>, Flat<int64_t>, Flat<int64_t>,
                      const std::vector<uint32_t>&, const std::vector<std::string>&, const std::vector<int64_t>&,
                      const std::vector<int64_t>&, const std::vector<uint32_t>&, const std::vector<uint32_t>&, uint32_t,
                      const std::vector<uint32_t>&, nb::bytes, nb::bytes, uint64_t, bool, bool,
                      const std::vector<uint32_t>&, uint32_t, const std::vector<int64_t>&, const std::vector<uint32_t>&,
                      const std::vector<uint32_t>&>())
        .def_prop_ro("unsupported", &Kernel::unsupported)
        .def("set_parameters", &Kernel::set_parameters)
        .def("add_buffer", &Kernel::add_buffer)
        .def("check", &Kernel::check)
        .def("findings", &Kernel::findings)
        .def("sites", &Kernel::sites)
        .def("add_image", &Kernel::add_image)
        .def("run", &Kernel::run)
        .def("shared_reads", &Kernel::shared_reads)
        .def("watches", &Kernel::watches);
}

}  // namespace kernrec
