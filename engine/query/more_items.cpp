// Limits predicted times so that n items never take longer than n + 1. A backend can always pad its input.
//
// Trees are not monotonic: they may predict less time for more rows. So they are only evaluated at item counts that
// recordings usually contain (`chosen`). The time at such a count is the minimum of the predictions at this count and
// at larger counts. Between two counts, a monotonic bound interpolates.
//
// This minimum considers all larger counts up to the next point of a coarse grid, and then only points of the grid.
#include <algorithm>

#include "trees.h"

namespace kernrec::query {
namespace {

// The coarse grid has all powers of two. From `kFirstHalf` to `kLastHalf`, it also has 1.5 times each power.
constexpr int64_t kFirstHalf = 256, kLastHalf = 1024;
constexpr size_t kAhead = 4;          // minimum number of grid points after the next grid point to evaluate
constexpr int64_t kEvery = 17;        // recordings contain all item counts up to this one
// Beyond `kEvery`, recordings contain p, 1.25 p, 1.5 p and 1.75 p for powers of two p, and each of these plus 1. Steps
// are at least `kLeastQuarter`.
constexpr int64_t kLeastQuarter = 16;

bool has_half(int64_t power) { return power >= kFirstHalf && power < kLastHalf; }

int64_t power_of_two_below(int64_t number) {
    int64_t power = 1;
    while (power <= number / 2) power *= 2;
    return power;
}

// Return the largest grid point at or below a number of items.
int64_t grid_point(int64_t items) {
    const int64_t power = power_of_two_below(items);
    return has_half(power) && 3 * power <= 2 * items ? power + power / 2 : power;
}

int64_t next_grid_point(int64_t point) {
    if (point & (point - 1)) return point / 3 * 4;
    return has_half(point) ? point + point / 2 : 2 * point;
}

// Return the item counts that recordings usually contain, from `low` to `high`, ascending.
std::vector<int64_t> chosen(int64_t low, int64_t high) {
    std::vector<int64_t> numbers;
    for (int64_t number = low; number <= std::min(high, kEvery); number++) numbers.push_back(number);
    for (int64_t power = std::max(power_of_two_below(low), kLeastQuarter); power <= high; power *= 2)
        for (int64_t number = power; number < 2 * power; number += std::max(power / 4, kLeastQuarter))
            for (const int64_t each : {number, number + 1})
                if (each > kEvery && each >= low && each <= high) numbers.push_back(each);
    return numbers;
}

// Item counts whose predictions determine the time of an item count.
struct Points {
    // Largest grid point at or below the item count, then `near` chosen counts up to the next grid point, then further
    // grid points.
    std::vector<int64_t> numbers;
    size_t near = 0;  // 0 if the item count is a grid point
    bool between = false;  // strictly between the first two of the `near` counts

    Points(int64_t items, int64_t farthest) {
        const int64_t low = grid_point(items);
        std::vector<int64_t> grid{low};
        while (grid.size() < 2 + kAhead || grid.back() < farthest) grid.push_back(next_grid_point(grid.back()));
        if (low == items) {
            numbers = std::move(grid);
            return;
        }
        const std::vector<int64_t> every = chosen(low, grid[1]);
        auto first = std::lower_bound(every.begin(), every.end(), items);
        between = first == every.end() || *first != items;
        if (between) --first;
        numbers.push_back(low);
        numbers.insert(numbers.end(), first, every.end());
        near = numbers.size() - 1;
        numbers.insert(numbers.end(), grid.begin() + 2, grid.end());
    }

    // Return the time of the item count. own_s, bounds: monotonic bound of the item count and at each of the points.
    double seconds(double own_s, const double* bounds, const Row<const double>& at_points) const {
        const auto least = [&](size_t first, size_t end) {
            double result = kInfinity;
            for (size_t i = first; i < end; i++) result = minimum(result, at_points[int64_t(i)]);
            return result;
        };
        const double upper = least(std::max(near, size_t(1)), numbers.size());
        const double lower = minimum(at_points[0], upper);
        if (near == 0) return lower;
        const auto from = [&](size_t first) {
            return first == near ? upper : maximum(minimum(least(first, near), upper), lower);
        };
        if (!between) return from(1);
        const double below = bounds[1], above = bounds[2];
        const double share = above > below ? std::min(std::max((own_s - below) / (above - below), 0.0), 1.0) : 1.0;
        return from(1) + share * (from(2) - from(1));
    }
};

// N problems of an op, each followed by its points.
class MoreItems {
  public:
    // sizes: (N, D). alone: dimension that counts the items if the first size is 1; -1 if there is none. together: the
    // same for a larger first size. farthest: largest grid point to evaluate. It must not depend on the item count:
    // every further point can lower the predicted time.
    MoreItems(Array<const double, 2> sizes_of, int64_t alone, int64_t together, int64_t farthest) {
        const Table<const double> sizes(sizes_of);
        columns_ = sizes.columns;
        require(alone < columns_ && together < columns_ && farthest > 0, "items: expected a dimension of the problems");
        for (int64_t problem = 0; problem < sizes.rows; problem++) {
            starts_.push_back(int64_t(rows_.size()) / columns_);
            const int64_t place = sizes(problem, 0) > 1.0 ? together : alone;
            const auto add = [&] {
                for (int64_t i = 0; i < columns_; i++) rows_.push_back(sizes(problem, i));
            };
            add();
            points_.emplace_back();
            if (place < 0) continue;
            require(sizes(problem, place) >= 1.0 && sizes(problem, place) < 9e15, "items: expected at least one");
            for (const int64_t number : points_.back().emplace(int64_t(sizes(problem, place)), farthest).numbers) {
                add();
                rows_[rows_.size() - size_t(columns_ - place)] = double(number);
            }
        }
    }

    nb::object sizes() const {
        const size_t columns = size_t(columns_);
        return numpy(rows_, std::array<size_t, 2>{rows_.size() / columns, columns});
    }
    nb::object starts() const { return numpy(starts_); }

    // Fill the seconds of N problems, (S, N). The inputs have P columns: each problem is followed by its points. table:
    // features, (F, P). base: times to correct, (S, P). bounds: monotonic bounds, (P,). least: minimum times, (P,).
    void fill(const TreeReader& reader, Array<const double, 2> table, Array<const double, 2> base,
              Array<const double, 1> bounds_of, Array<const double, 1> least, Array<double, 2> filled) const {
        const std::vector<double> bounds = copied(Row<const double>(bounds_of));
        const int64_t count = int64_t(bounds.size());
        const Table<double> seconds(filled);
        require(count * columns_ == int64_t(rows_.size()) && seconds.rows == reader.backends() &&
                    seconds.columns == int64_t(starts_.size()),
                "items: expected seconds of each point");
        const TreeReader::Inputs inputs{table, base, least, kInfinity, std::nullopt};
        std::vector<double> room(size_t(seconds.rows * count));
        const Table<double> at_points(room.data(), seconds.rows, count, count, 1);
        // A far point can only lower the time, so trees stop as soon as a point is slower than the last near point.
        std::vector<TreeReader::Cell> near, far;
        const auto each = [&](auto apply) {
            for (size_t i = 0; i < starts_.size(); i++)
                for (int64_t row = 0; row < seconds.rows; row++) apply(row, starts_[i], points_[i], int64_t(i));
        };
        each([&](int64_t row, int64_t start, const auto& points, int64_t) {
            for (int64_t at = start + (points ? 1 : 0); at <= start + (points ? 1 + int64_t(points->near) : 0); at++)
                near.push_back({row, at, kInfinity});
        });
        reader.fill(inputs, near, at_points);
        each([&](int64_t row, int64_t start, const auto& points, int64_t) {
            if (!points) return;
            const int64_t last = start + 1 + int64_t(points->near);
            for (int64_t at = last + 1; at < start + 1 + int64_t(points->numbers.size()); at++)
                far.push_back({row, at, at_points(row, last)});
        });
        reader.fill(inputs, far, at_points);
        each([&](int64_t row, int64_t start, const auto& points, int64_t i) {
            const double* const first = &at_points(row, start);
            seconds(row, i) = !points ? *first
                                      : points->seconds(bounds[size_t(start)], bounds.data() + start + 1,
                                                        {first + 1, count - start - 1, 1});
        });
    }

  private:
    int64_t columns_ = 0;
    std::vector<double> rows_;
    std::vector<int64_t> starts_;  // row of each problem
    std::vector<std::optional<Points>> points_;
};

}  // namespace

void bind_more_items(nb::module_& module) {
    const auto exact = [] { return nb::arg().noconvert(); };
    nb::class_<MoreItems>(module, "MoreItems")
        .def(nb::init<Array<const double, 2>, int64_t, int64_t, int64_t>(), exact(), nb::arg(), nb::arg(), nb::arg())
        .def_prop_ro("sizes", &MoreItems::sizes)
        .def_prop_ro("starts", &MoreItems::starts)
        .def("fill", &MoreItems::fill, nb::arg(), exact(), exact(), exact(), exact(), exact());
}

}  // namespace kernrec::query
