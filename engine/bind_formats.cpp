// Python bindings of number formats, tensor cores and asynchronous copies, for tests: lane arrays in, lane arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "async_copy.h"
#include "number_formats.h"
#include "tensor_core.h"
#include "texture.h"

namespace nb = nanobind;

namespace kernrec {
namespace {

using Words = nb::ndarray<uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Word, class Array>
std::vector<Word*> registers_of(const Array& array) {
    std::vector<Word*> registers;
    for (size_t r = 0; r < array.shape(0); ++r) registers.push_back(array.data() + r * array.shape(1));
    return registers;
}

std::vector<Register> words_of(const Words& array) { return registers_of<uint32_t>(array); }
const ConstRegister* read_only(const std::vector<Register>& registers) {
    return const_cast<const ConstRegister*>(registers.data());
}

void run_convert(const Modifiers& modifiers, const Row& bits, const Row& out) {
    const Conversion conversion = conversion_form(modifiers);
    for (size_t i = 0; i < bits.shape(0); ++i) out.data()[i] = convert(conversion, bits.data()[i]);
}

void run_convert_pair(const Modifiers& modifiers, const Row& high, const Row& low, const Row& out) {
    const Conversion conversion = conversion_form(modifiers);
    for (size_t i = 0; i < high.shape(0); ++i)
        out.data()[i] = convert_pair(conversion, uint32_t(high.data()[i]), uint32_t(low.data()[i]));
}

void run_convert_packed(const Modifiers& modifiers, const Row& pairs, const Row& out) {
    const Conversion conversion = conversion_form(modifiers);
    for (size_t i = 0; i < pairs.shape(0); ++i) out.data()[i] = convert_packed(conversion, uint32_t(pairs.data()[i]));
}

void run_mma(const Modifiers& modifiers, const Words& a, const Words& b, const Words& c, const Words& d, int times) {
    const MatrixMultiply form = mma_form(modifiers);
    const auto ra = words_of(a), rb = words_of(b), rc = words_of(c), rd = words_of(d);
    for (int i = 0; i < times; ++i) mma_sync(form, read_only(ra), read_only(rb), read_only(rc), rd.data());
}

void run_mma_f64(const Modifiers& modifiers, const Longs& a, const Longs& b, const Longs& c, const Longs& d) {
    const auto ra = registers_of<uint64_t>(a), rb = registers_of<uint64_t>(b), rc = registers_of<uint64_t>(c),
               rd = registers_of<uint64_t>(d);
    mma_sync_f64(mma_form(modifiers), const_cast<const uint64_t* const*>(ra.data()),
                 const_cast<const uint64_t* const*>(rb.data()), const_cast<const uint64_t* const*>(rc.data()),
                 rd.data());
}

void run_scaled_mma(const Modifiers& modifiers, const Words& a, const Words& b, const Words& c, const Words& d,
                    const Words& scales, const std::vector<uint32_t>& selectors) {
    const auto ra = words_of(a), rb = words_of(b), rc = words_of(c), rd = words_of(d), rs = words_of(scales);
    scaled_mma(scaled_mma_form(modifiers), read_only(ra), read_only(rb), read_only(rc), rd.data(),
               {rs[0], selectors[0], selectors[1]}, {rs[1], selectors[2], selectors[3]});
}

void run_wmma(const Modifiers& modifiers, const Words& a, const Words& b, const Words& c, const Words& d) {
    const auto ra = words_of(a), rb = words_of(b), rc = words_of(c), rd = words_of(d);
    wmma_mma(wmma_multiply_form(modifiers), read_only(ra), read_only(rb), read_only(rc), rd.data());
}

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Shared memory of a few thread blocks, one behind the other in an array, and counters.
class SharedArray final : public Memory {
 public:
    SharedArray(Bytes bytes, uint32_t blocks) : bytes_(bytes), blocks_(blocks) {}

    void resolve(const WarpAccess& access, uint8_t* (&places)[kWarp]) override {
        for (uint32_t lane = 0; lane < kWarp; ++lane) {
            places[lane] = nullptr;
            if (!(access.mask >> lane & 1)) continue;
            if (access.addresses[lane] + access.bytes > shared_bytes()) fail("outside");
            places[lane] = shared(0) + access.addresses[lane];
        }
    }
    void record(const WarpAccess&) override {}
    uint8_t* shared(uint32_t block) override { return bytes_.data() + size_t(block) * shared_bytes(); }
    uint32_t shared_bytes() const override { return uint32_t(bytes_.shape(0) / blocks_); }
    uint32_t block_of(uint32_t) const override { return 0; }
    uint8_t* global(uint32_t, uint32_t, uint64_t, uint64_t, bool) override { fail("no global memory"); }
    void count(const char* metric, uint64_t by) override { counts[metric] += by; }
    [[noreturn]] void fail(const std::string& text) override { throw Error(text); }
    [[noreturn]] void fail(uint32_t, uint32_t, const std::string& text) override { throw Error(text); }

    std::map<std::string, uint64_t> counts;

 private:
    Bytes bytes_;
    uint32_t blocks_;
};

using Addresses = std::vector<uint32_t>;
using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;

Pairs pairs_of(const Cells& cells) {
    Pairs pairs;
    for (const Cell cell : cells) pairs.emplace_back(cell.lane, cell.column);
    return pairs;
}

std::pair<std::vector<uint8_t>, Addresses> run_read_tile(SharedArray& memory, bool is_tcgen05, uint64_t descriptor,
                                                         const std::array<uint32_t, 3>& shape, bool mn_major) {
    Addresses addresses;
    auto tile = read_tile(memory, 0, is_tcgen05, descriptor, {shape[0], shape[1], shape[2], mn_major}, &addresses);
    return {tile, addresses};
}

void run_wgmma(SharedArray& memory, const Modifiers& modifiers, const Words& a, uint64_t a_descriptor,
               uint64_t b_descriptor, const std::vector<int>& options, const Words& d) {
    const auto ra = words_of(a);
    const auto rd = words_of(d);
    const WgmmaMultiply form = wgmma_form(modifiers);
    for (int quarter = 0; quarter < 4; ++quarter) {
        // The registers of a warp are 32 of the 128 columns.
        std::vector<Register> part_a, part_d;
        for (Register r : ra) part_a.push_back(r + 32 * quarter);
        for (Register r : rd) part_d.push_back(r + 32 * quarter);
        WgmmaOperands operands{part_a.empty() ? nullptr : read_only(part_a),
                               a_descriptor,
                               b_descriptor,
                               options[0] != 0,
                               options[1] != 0,
                               options[2],
                               options[3] != 0};
        wgmma_mma(memory, form, operands, read_wgmma_tiles(memory, form, operands, 0), quarter, part_d.data());
    }
}

using Described =
    std::tuple<int, int, std::string, std::string, std::string, bool, bool, int, bool, std::string, int, int>;

Described run_instruction_descriptor(uint32_t bits, const Modifiers& modifiers) {
    const InstructionDescriptor says = instruction_descriptor(bits, tensor_multiply_form(modifiers));
    return {says.m,
            says.n,
            number_name(says.a),
            number_name(says.b),
            number_name(says.d),
            says.a_mn_major,
            says.b_mn_major,
            says.sign,
            says.saturates,
            number_name(says.scale),
            says.first_scale_a,
            says.first_scale_b};
}

// Tensor memory of a few thread blocks.
class TensorMemories {
 public:
    explicit TensorMemories(uint32_t blocks) : blocks_(blocks) {}
    uint32_t allocate(uint32_t block, uint32_t columns) { return blocks_[block].allocate(columns, 0); }
    void release(uint32_t block, uint32_t address, uint32_t columns) { blocks_[block].release(address, columns); }
    std::vector<uint32_t> load(uint32_t block, const Pairs& cells) {
        std::vector<uint32_t> values(cells.size());
        blocks_[block].load(cells_of(cells), values.data());
        return values;
    }
    void store(uint32_t block, const Pairs& cells, const std::vector<uint32_t>& values) {
        blocks_[block].store(cells_of(cells), values.data());
    }
    void finish(uint32_t block, int use, const Pairs& cells) { blocks_[block].finish(TensorUse(use), cells_of(cells)); }
    void put(uint32_t block, const Words& words) {
        for (uint32_t lane = 0; lane < kTensorLanes; ++lane)
            for (uint32_t column = 0; column < kTensorColumns; ++column)
                blocks_[block].put({lane, column}, words.data()[lane * kTensorColumns + column]);
    }
    void get(uint32_t block, const Words& words) {
        for (uint32_t lane = 0; lane < kTensorLanes; ++lane)
            for (uint32_t column = 0; column < kTensorColumns; ++column)
                words.data()[lane * kTensorColumns + column] = blocks_[block].value({lane, column});
    }
    std::vector<std::pair<uint32_t, TensorMemory*>> first(uint32_t count) {
        std::vector<std::pair<uint32_t, TensorMemory*>> result;
        for (uint32_t block = 0; block < count; ++block) result.emplace_back(block, &blocks_[block]);
        return result;
    }
    void end(const TensorOperation& operation) {
        for (const auto& [block, cells] : operation.read) blocks_[block].finish(TensorUse::kRead, cells);
        for (const auto& [block, cells] : operation.written) blocks_[block].finish(TensorUse::kComputed, cells);
    }
    IssueOperation begin() {
        return [this](const TensorOperation& operation) {
            for (const auto& [block, cells] : operation.read) blocks_[block].begin_read(cells);
            for (const auto& [block, cells] : operation.written) blocks_[block].begin_write(cells);
        };
    }

 private:
    static Cells cells_of(const Pairs& pairs) {
        Cells cells;
        for (const auto& [lane, column] : pairs) cells.push_back({lane, column});
        return cells;
    }
    std::vector<TensorMemory> blocks_;
};

// Multiplies and waits; returns the addresses that it read of the shared memory of each block.
std::vector<Addresses> run_tcgen05_mma(SharedArray& memory, TensorMemories& tensor, const Modifiers& modifiers,
                                       uint32_t says, const std::array<uint64_t, 3>& d_a_b, bool a_in_tensor,
                                       const std::array<uint32_t, 2>& scales, const std::vector<uint32_t>& disabled,
                                       bool adds, int shift) {
    const TensorMultiply form = tensor_multiply_form(modifiers);
    const TensorOperands operands{uint32_t(d_a_b[0]),
                                  a_in_tensor,
                                  d_a_b[1],
                                  d_a_b[2],
                                  scales[0],
                                  scales[1],
                                  disabled.empty() ? nullptr : disabled.data(),
                                  adds,
                                  shift};
    const TensorOperation operation =
        tcgen05_mma(memory, form, instruction_descriptor(says, form), operands, tensor.first(uint32_t(form.ctas)),
                    tensor.begin());
    tensor.end(operation);
    return operation.shared_bytes;
}

void run_tcgen05_cp(SharedArray& memory, TensorMemories& tensor, const Modifiers& modifiers, uint32_t address,
                    uint64_t descriptor) {
    const TensorCopy form = tensor_copy_form(modifiers);
    tensor.end(tcgen05_cp(memory, form, address, descriptor, tensor.first(uint32_t(form.ctas)), tensor.begin()));
}

// --- Tensor maps: offsets in bytes of each element, and whether it is inside ---

using Elements = std::pair<std::vector<int64_t>, std::vector<bool>>;

Elements elements_of(const std::vector<CopyRun>& runs, uint32_t size) {
    Elements elements;
    for (const CopyRun& run : runs)
        for (uint32_t byte = 0; byte < run.bytes; byte += size) {
            elements.first.push_back(run.offset + byte);
            elements.second.push_back(run.inside);
        }
    return elements;
}

TensorMap map_of(const Bytes& bytes) {
    const TensorMap map = decode_tensor_map(bytes.data());
    map.check();
    return map;
}

// Mbarriers of one thread block in an array.
class BarrierArray {
 public:
    explicit BarrierArray(Bytes bytes)
        : bytes_(bytes),
          barriers([this](SharedPlace place) { return bytes_.data() + place.byte; },
                   [this](SharedPlace place) { completed.push_back(place.byte); }) {}

 private:
    Bytes bytes_;

 public:
    std::vector<uint32_t> completed;
    Mbarriers barriers;
};

Image image_of(const Bytes& data, const std::vector<int64_t>& extents, const std::string& element,
               const std::array<int64_t, 3>& counts, const std::string& address, const std::array<bool, 3>& marks) {
    Image image{
        data.data(), 0, uint32_t(extents.size()), {1, 1, 1}, number_type(element), uint32_t(counts[0]), counts[1],
        counts[2],   {}};
    std::copy(extents.begin(), extents.end(), image.extents.begin());
    const AddressMode mode = address == "wrap"     ? AddressMode::kWrap
                             : address == "mirror" ? AddressMode::kMirror
                             : address == "border" ? AddressMode::kBorder
                                                   : AddressMode::kClamp;
    image.sampler = {marks[0], mode, marks[1], marks[2]};
    return image;
}

using Fetched = std::pair<std::array<double, 4>, std::vector<int64_t>>;

Fetched run_fetch(const Image& image, const std::string& shape, const std::array<double, 3>& coordinates, int64_t layer,
                  const std::array<double, 3>& offset, double level, bool whole) {
    std::vector<int64_t> stored;
    const ImagePlace place = image_place(image, geometry({shape}), coordinates, layer);
    const auto values = fetch(image, place, offset, nearest_level(image, level), whole, stored);
    return {values, stored};
}

Fetched run_gather(const Image& image, const std::string& shape, const std::array<double, 3>& coordinates,
                   int64_t layer, uint32_t channel) {
    std::vector<int64_t> stored;
    const auto values = gather(image, image_place(image, geometry({shape}), coordinates, layer), channel, stored);
    return {values, stored};
}

void bind_tensor_cores(nb::module_& m) {
    nb::class_<SharedArray>(m, "SharedArray").def(nb::init<Bytes, uint32_t>()).def_ro("counts", &SharedArray::counts);
    m.def("read_tile", run_read_tile);
    m.def("wgmma", run_wgmma);
    m.def("instruction_descriptor", run_instruction_descriptor);
    m.def("tensor_move_cells", [](const Modifiers& modifiers, uint32_t address, uint32_t split) {
        return pairs_of(tensor_move_cells(tensor_move_form(modifiers), address, split));
    });
    nb::class_<TensorMemories>(m, "TensorMemories")
        .def(nb::init<uint32_t>())
        .def("allocate", &TensorMemories::allocate)
        .def("release", &TensorMemories::release)
        .def("load", &TensorMemories::load)
        .def("store", &TensorMemories::store)
        .def("finish", &TensorMemories::finish)
        .def("put", &TensorMemories::put)
        .def("get", &TensorMemories::get);
    m.def("tcgen05_mma", run_tcgen05_mma);
    m.def("tcgen05_cp", run_tcgen05_cp);
}

void bind_async_copies(nb::module_& m) {
    m.def("box_elements", [](const Bytes& bytes, const std::array<int32_t, kMostRank>& corner) {
        const TensorMap map = map_of(bytes);
        return elements_of(box_runs(map, corner), map.element_bytes());
    });
    m.def("row_elements", [](const Bytes& bytes, const std::array<int32_t, kMostRank>& rows) {
        const TensorMap map = with_four_rows(map_of(bytes));
        return elements_of(row_runs(map, rows), map.element_bytes());
    });
    m.def("shared_elements", [](const Bytes& bytes, uint32_t start) {
        const TensorMap map = map_of(bytes);
        return elements_of(shared_runs(map, start), map.element_bytes()).first;
    });
    m.def("tensor_map_sizes", [](const Bytes& bytes) {
        const TensorMap map = map_of(bytes);
        return std::make_tuple(map.box_bytes(), map.shared_bytes(), map.fill());
    });
    m.def("replace_tensor_map_field",
          [](const Bytes& bytes, const std::string& field, int64_t ordinal, uint64_t value) {
              replace_tensor_map_field(bytes.data(), field, ordinal, value);
          });
    m.def("map_to_rank", map_to_rank);
    m.def("rank_of_address", rank_of_address);
    m.def("reduce", [](const std::string& reduction, const std::string& type, uint64_t old, uint64_t value) {
        return reduce(reduction_of(reduction), number_type(type), old, value);
    });
    nb::class_<BarrierArray>(m, "BarrierArray")
        .def(nb::init<Bytes>())
        .def_ro("completed", &BarrierArray::completed)
        .def("initialize",
             [](BarrierArray& self, uint32_t byte, int64_t count) { self.barriers.initialize({0, byte}, count); })
        .def("invalidate", [](BarrierArray& self, uint32_t byte) { self.barriers.invalidate({0, byte}); })
        .def("expect", [](BarrierArray& self, uint32_t byte, int64_t bytes) { self.barriers.expect({0, byte}, bytes); })
        .def("await_more",
             [](BarrierArray& self, uint32_t byte, int64_t count) { self.barriers.await_more({0, byte}, count); })
        .def("arrive", [](BarrierArray& self, uint32_t byte, int64_t count, bool drop,
                          bool completes) { return self.barriers.arrive({0, byte}, count, drop, completes); })
        .def("passed", [](BarrierArray& self, uint32_t byte, uint32_t parity) {
            return self.barriers.passed({0, byte}, parity);
        });
    nb::class_<Image>(m, "Image");
    m.def("image", image_of, nb::keep_alive<0, 1>());
    m.def("fetch", run_fetch);
    m.def("gather", run_gather);
    m.def("level_of_gradients", level_of_gradients);
    m.def("channel_bits", [](const std::string& type, double value) { return channel_bits(number_type(type), value); });
    m.def("surface_place",
          [](const Image& image, const std::array<int64_t, 3>& at, int64_t layer, uint32_t bytes, int mode) {
              const SurfacePlace place = surface_place(image, at, layer, bytes, OutsideMode(mode));
              return std::make_tuple(place.byte, place.stored, place.outside);
          });
}

}  // namespace

void bind_formats(nb::module_& m) {
    nb::register_exception_translator([](const std::exception_ptr& error, void*) {
        try {
            std::rethrow_exception(error);
        } catch (const UnsupportedForm& form) {
            PyErr_SetString(PyExc_NotImplementedError, form.what());
        } catch (const std::invalid_argument& refused) {
            PyErr_SetString(PyExc_ValueError, refused.what());
        }
    });
    m.def("convert", run_convert);
    m.def("convert_pair", run_convert_pair);
    m.def("convert_packed", run_convert_packed);
    m.def("mma", run_mma, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("times") = 1);
    m.def("mma_f64", run_mma_f64);
    m.def("scaled_mma", run_scaled_mma);
    m.def("wmma_mma", run_wmma);
    bind_tensor_cores(m);
    bind_async_copies(m);
}

}  // namespace kernrec
