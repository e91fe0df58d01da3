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

// Python array with N axes and any strides. Never convert an argument, because the function would fill the copy instead
// of the array.
template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::device::cpu>;

template <class T>
struct Row {
    T* data = nullptr;
    int64_t size = 0, step = 1;

    Row() = default;
    Row(T* data, int64_t size, int64_t step = 1) : data(data), size(size), step(step) {}
    Row(const Array<T, 1>& from) : data(from.data()), size(int64_t(from.shape(0))), step(from.stride(0)) {}
    T& operator[](int64_t i) const { return data[i * step]; }
};

template <class T>
struct Table {
    T* data = nullptr;
    int64_t rows = 0, columns = 0, row_step = 0, step = 1;

    Table() = default;
    Table(T* data, int64_t rows, int64_t columns, int64_t row_step, int64_t step)
        : data(data), rows(rows), columns(columns), row_step(row_step), step(step) {}
    Table(const Array<T, 2>& from)
        : data(from.data()),
          rows(int64_t(from.shape(0))),
          columns(int64_t(from.shape(1))),
          row_step(from.stride(0)),
          step(from.stride(1)) {}
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
    for (int64_t i = 0; i < row.size; i++) result[size_t(i)] = row[i];
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

void bind_features(nb::module_& module);
void bind_trees(nb::module_& module);
void bind_products(nb::module_& module);
void bind_more_items(nb::module_& module);
void bind_dram_traffic(nb::module_& module);
void bind_launches(nb::module_& module);
void bind_power_limits(nb::module_& module);
void bind_spaces(nb::module_& module);
void bind_costs(nb::module_& module);
void bind_learned_models(nb::module_& module);
void bind_rankings(nb::module_& module);

}  // namespace kernrec::query
