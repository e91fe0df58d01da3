// Boosted trees as complete binary trees, for trained models.
#pragma once

#include "arrays.h"

namespace kernrec::query {

// Trees of L levels over F features, padded to a multiple of eight. Nodes are numbered level by level, with the trees
// side by side: the children of node n are 2 n + T and 2 n + T + 1.
class Forest {
  public:
    template <class T>
    using Flat = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

    Forest(int64_t features, int64_t trees, int64_t levels, Flat<uint16_t> columns, Flat<float> values, double base);
    // Fill `sums` (C,) with the prediction of each row of features (C, F), whose NaNs are missing values.
    void predict(const Table<const float>& rows, const Row<double>& sums) const;

  private:
    double leaves(const float* row, int64_t first) const;

    int64_t features_, trees_, levels_;
    double base_;
    Flat<uint16_t> kept_columns_;  // keep Python's arrays alive
    Flat<float> kept_values_;
    Row<const uint16_t> columns_;
    Row<const float> values_;
};

}  // namespace kernrec::query
