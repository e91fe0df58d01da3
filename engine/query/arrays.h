// NumPy arrays as function arguments, and elementary functions that compilers vectorize.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../instruction_sets.h"

namespace kernrec::query {

namespace nb = nanobind;

// Python array with N axes and any strides.
template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::device::cpu>;

// Values at equal distances in memory. As the argument of a bound function, it views a NumPy array.
template <class T>
struct Row {
    using Values = std::vector<std::remove_const_t<T>>;
    T* data = nullptr;
    int64_t size = 0, step = 1;

    Row() = default;
    Row(T* data, int64_t size, int64_t step = 1) : data(data), size(size), step(step) {}
    Row(Values& from) : data(from.data()), size(int64_t(from.size())) {}
    Row(const Values& from) : data(from.data()), size(int64_t(from.size())) {}
    explicit Row(const Array<T, 1>& from) : data(from.data()), size(int64_t(from.shape(0))), step(from.stride(0)) {}
    T& operator[](int64_t i) const { return data[i * step]; }
};

template <class T>
struct Table {
    T* data = nullptr;
    int64_t rows = 0, columns = 0, row_step = 0, step = 1;

    Table() = default;
    Table(T* data, int64_t rows, int64_t columns) : Table(data, rows, columns, columns, 1) {}
    Table(T* data, int64_t rows, int64_t columns, int64_t row_step, int64_t step)
        : data(data), rows(rows), columns(columns), row_step(row_step), step(step) {}
    template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
    Table(const Table<U>& from) : Table(from.data, from.rows, from.columns, from.row_step, from.step) {}
    explicit Table(const Array<T, 2>& from)
        : Table(from.data(), int64_t(from.shape(0)), int64_t(from.shape(1)), from.stride(0), from.stride(1)) {}
    T& operator()(int64_t row, int64_t i) const { return data[row * row_step + i * step]; }
    Row<T> operator[](int64_t row) const { return {data + row * row_step, columns, step}; }
};

// Like in NumPy, the result is NaN if an operand is NaN. Compilers vectorize two `?:`, but not `a < b || b != b`.
KERNREC_INLINE double minimum(double a, double b) {
    const double least = b < a ? b : a;
    return b != b ? b : least;
}
KERNREC_INLINE double maximum(double a, double b) {
    const double most = b > a ? b : a;
    return b != b ? b : most;
}

KERNREC_INLINE double fourth_power(double value) {
    const double squared = value * value;
    return squared * squared;
}
KERNREC_INLINE double fourth_root(double value) { return std::sqrt(std::sqrt(value)); }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int64_t kLanes = 16;  // launches that are computed together, so that compilers vectorize over them
using Lanes = double[kLanes];

// Throw ValueError if a condition fails.
inline void require(bool condition, const char* message) {
    if (!condition) throw nb::value_error(message);
}

// Return whether every number is at least `low` and below `high`.
template <class T>
bool all_within(const Row<T>& row, int64_t low, int64_t high) {
    for (int64_t i = 0; i < row.size; i++)
        if (int64_t(row[i]) < low || int64_t(row[i]) >= high) return false;
    return true;
}

template <class T>
std::vector<std::remove_const_t<T>> copied(const Row<T>& row) {
    std::vector<std::remove_const_t<T>> result(size_t(row.size));
    for (int64_t i = 0; i < row.size; i++) result[i] = row[i];
    return result;
}

// Return the values of all rows, one after another.
template <class T>
std::vector<std::remove_const_t<T>> copied(const Table<T>& table) {
    std::vector<std::remove_const_t<T>> result;
    for (int64_t row = 0; row < table.rows; row++)
        for (int64_t i = 0; i < table.columns; i++) result.push_back(table(row, i));
    return result;
}

// Return the ascending places of the true values.
template <class T>
std::vector<int64_t> true_places(const Row<T>& row) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < row.size; i++)
        if (row[i]) places.push_back(i);
    return places;
}

// Move values to a NumPy array, which owns them.
template <class T, size_t N>
nb::object numpy(std::vector<T> values, const std::array<size_t, N>& shape) {
    auto* const kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<N>>(kept->data(), N, shape.data(), owner));
}

template <class T>
nb::object numpy(std::vector<T> values) {
    const std::array<size_t, 1> shape{values.size()};
    return numpy(std::move(values), shape);
}

// Array that views memory of a C++ object. A bound property that returns it keeps the object alive.
template <class T>
using View = nb::ndarray<nb::numpy, T>;

template <class T>
View<T> view_of(const Table<T>& table) {
    return View<T>(table.data, {size_t(table.rows), size_t(table.columns)}, {}, {table.row_step, table.step});
}

// Function that adds to the module `kernrec._engine.query`.
struct Binding {
    using Function = void (*)(nb::module_&);

    explicit Binding(Function function) { all().push_back(function); }
    static std::vector<Function>& all() {
        static std::vector<Function> every;
        return every;
    }
};

}  // namespace kernrec::query

namespace nanobind::detail {

// Caster that never converts an array, because a bound function would then fill a copy.
template <class View, class Array>
struct view_caster {
    NB_TYPE_CASTER(View, make_caster<Array>::Name)

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        make_caster<Array> array;
        if (!array.from_python(source, flags & ~uint32_t(cast_flags::convert), cleanup)) return false;
        value = View(array.value);
        return true;
    }
};
template <class T>
struct type_caster<kernrec::query::Row<T>> : view_caster<kernrec::query::Row<T>, kernrec::query::Array<T, 1>> {};
template <class T>
struct type_caster<kernrec::query::Table<T>> : view_caster<kernrec::query::Table<T>, kernrec::query::Array<T, 2>> {};

}  // namespace nanobind::detail
