// Python bindings of number formats, tensor cores and asynchronous copies, for tests: lane arrays in, lane arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "number_formats.h"
#include "tensor_core.h"

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
                 const_cast<const uint64_t* const*>(rb.data()), const_cast<const uint64_t* const*>(rc.data()), rd.data());
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

}  // namespace

void bind_formats(nb::module_& m) {
    nb::register_exception_translator([](const std::exception_ptr& error, void*) {
        try {
            std::rethrow_exception(error);
        } catch (const UnsupportedForm& form) {
            PyErr_SetString(PyExc_NotImplementedError, form.what());
        }
    });
    m.def("convert", run_convert);
    m.def("convert_pair", run_convert_pair);
    m.def("convert_packed", run_convert_packed);
    m.def("mma", run_mma, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("times") = 1);
    m.def("mma_f64", run_mma_f64);
    m.def("scaled_mma", run_scaled_mma);
    m.def("wmma_mma", run_wmma);
}

}  // namespace kernrec
