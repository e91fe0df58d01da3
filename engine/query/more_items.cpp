// Predicts times so that n items never take longer than n + 1. A backend can always pad its input.
//
// Trees are not monotonic: they may predict less time for more rows. So they are only evaluated at item counts that
// recordings usually contain (`chosen`). The time at such a count is the minimum of the predictions at this count and
// at larger counts. Between two counts, a monotonic bound interpolates.
//
// Beyond the next point of a coarse grid, only points of the grid are evaluated.
#include <algorithm>

#include "bound.h"
#include "learned_model.h"

namespace kernrec::query {
namespace {

// The coarse grid has all powers of two. From `kFirstHalf` to `kLastHalf`, it also has 1.5 times each power.
constexpr int64_t kFirstHalf = 256, kLastHalf = 1024;
constexpr size_t kAhead = 4;          // minimum number of grid points after the first two
constexpr int64_t kEvery = 17;        // recordings contain all item counts up to `kEvery`
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

// Item counts at which trees are evaluated, to predict the time of a given item count.
struct ItemPoints {
    // Largest grid point at or below the item count, then `near` chosen counts up to the next grid point, then further
    // grid points.
    std::vector<int64_t> numbers{1};
    size_t near = 0;  // 0 if the item count is a grid point
    bool between = false;  // strictly between the first two of the `near` counts

    ItemPoints() = default;  // only the problem itself
    ItemPoints(int64_t items, int64_t farthest) {
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
        numbers = {low};
        numbers.insert(numbers.end(), first, every.end());
        near = numbers.size() - 1;
        numbers.insert(numbers.end(), grid.begin() + 2, grid.end());
    }

    // own_s: monotonic bound at the given item count. bounds, at_points: bounds and predictions at `numbers`.
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

// N problems of an op, each followed by the same problem with other numbers of items (rows, images or sequences). The
// times at these points limit the time of the problem.
struct MoreItems {
    // flat: D sizes of each of the N problems. alone, together: dimension that counts the items if the first size
    // is 1, or larger than 1 (-1: none). farthest: largest grid point to evaluate. It must not depend on the item
    // count, because every further point can lower the predicted time.
    MoreItems(const std::vector<double>& flat, int64_t problems, int64_t alone, int64_t together, int64_t farthest) {
        require(problems > 0 && !flat.empty() && int64_t(flat.size()) % problems == 0,
                "sizes: expected equally many for each problem");
        dims = int64_t(flat.size()) / problems;
        require(alone < dims && together < dims && farthest > 0, "items: expected a dimension of the problems");
        for (int64_t problem = 0; problem < problems; problem++) {
            const double* const own = flat.data() + problem * dims;
            const int64_t place = own[0] > 1.0 ? together : alone;
            starts.push_back(int64_t(rows.size()) / dims);
            rows.insert(rows.end(), own, own + dims);
            require(place < 0 || (own[place] >= 1.0 && own[place] < 9e15), "items: expected at least one");
            points.push_back(place < 0 ? ItemPoints() : ItemPoints(int64_t(own[place]), farthest));
            for (const int64_t number : points.back().numbers) {
                rows.insert(rows.end(), own, own + dims);
                if (place >= 0) rows[rows.size() - size_t(dims - place)] = double(number);
            }
        }
    }

    // Return the extents of the D dimensions, (D, P). Columns are problems and grid points.
    Table<const double> sizes() const { return {rows.data(), dims, int64_t(rows.size()) / dims, 1, dims}; }

    int64_t dims = 0;
    std::vector<double> rows;
    std::vector<int64_t> starts;  // column of each problem
    std::vector<ItemPoints> points;
};

// Predicted seconds of N problems in S backends.
class BackendTimes {
  public:
    // overheads: seconds that each backend adds to the bound, (S,). math_share: fraction of `kMathS` below
    // which no time is possible. sizes, work: range of the recorded sizes, and of log2(seconds of work) unless null.
    BackendTimes(const MoreItems& more, const Bound& bound, const TreeReader& reader,
                 const Row<const double>& overheads, double math_share, const Extent& sizes, const Extent* work)
        : backends_(reader.backends) {
        const int64_t count = bound.count;
        const Row<const double> bounds = bound.row(kTotalS), math = bound.row(kMathS);
        const Table<const double> features = bound.features();
        require(count == more.sizes().columns && overheads.size == backends_ && backends_ > 0,
                "bound: expected one of each point, and a backend");
        std::vector<double> base, least, room(size_t(backends_ * count));
        for (int64_t row = 0; row < backends_; row++)
            for (int64_t at = 0; at < count; at++) base.push_back(bounds[at] + overheads[row]);
        for (int64_t at = 0; at < count; at++) least.push_back(math_share > 0.0 ? math[at] * math_share : 0.0);
        const TreeReader::Inputs inputs{features, {base.data(), backends_, count}, least, kInfinity, {}};
        const Table<double> at_points(room.data(), backends_, count);
        // A far point only matters if it is faster than the last near point. Other far points need no exact time.
        std::vector<TreeReader::Cell> near, far;
        const auto each = [&](auto apply) {
            for (size_t i = 0; i < more.starts.size(); i++)
                for (int64_t row = 0; row < backends_; row++) apply(row, more.starts[i], more.points[i]);
        };
        each([&](int64_t row, int64_t start, const ItemPoints& points) {
            for (int64_t at = start + 1; at <= start + 1 + int64_t(points.near); at++)
                near.push_back({row, at, kInfinity});
        });
        reader.fill(inputs, near, at_points);
        each([&](int64_t row, int64_t start, const ItemPoints& points) {
            const int64_t last = start + 1 + int64_t(points.near);
            for (int64_t at = last + 1; at < start + 1 + int64_t(points.numbers.size()); at++)
                far.push_back({row, at, at_points(row, last)});
        });
        reader.fill(inputs, far, at_points);
        each([&](int64_t row, int64_t start, const ItemPoints& points) {
            seconds_.push_back(
                points.seconds(bounds[start], &bounds[start + 1], {&at_points(row, start + 1), count - start - 1, 1}));
        });
        for (const int64_t start : more.starts) {
            Problem problem{0.0, bound.row(kOverheadS)[start], bound.row(kWorkS)[start]};
            sizes.fill<double>({&features(bound.first_size, start), 1, bound.sizes, 0, features.row_step},
                               {&problem.distance, 1});
            if (work != nullptr) {
                const double log_s = std::log2(problem.work_s);
                double distance = 0.0;
                work->fill<double>({&log_s, 1, 1, 0, 1}, {&distance, 1});
                problem.distance = maximum(problem.distance, distance);
            }
            problems_.push_back(problem);
        }
    }

    // Return the seconds of each problem and backend, (N, S).
    nb::object seconds() const { return numpy(seconds_, std::array<size_t, 2>{problems_.size(), size_t(backends_)}); }
    // Return a backend and its seconds, and the seconds of the launch and of the work, for a problem. The backend is
    // the fastest if `place` is negative.
    nb::tuple of(int64_t place, size_t number) const {
        require(number < problems_.size() && place < backends_, "of: expected a backend and a problem");
        const double* const own = seconds_.data() + number * size_t(backends_);
        if (place < 0) place = std::min_element(own, own + backends_) - own;
        return nb::make_tuple(place, own[place], problems_[number].launch_s, problems_[number].work_s);
    }
    // Return the factor between each problem's prediction and either end of its interval. off_grid: whether each
    // problem has an unrecorded size. recorded, between: logarithmic half-width for recorded and for unrecorded sizes.
    // prior: half-width of the analytical model.
    std::vector<double> factors(const std::vector<bool>& off_grid, double recorded, double between,
                                double prior) const {
        require(off_grid.size() == problems_.size(), "off_grid: expected one of each problem");
        std::vector<double> result;
        for (size_t i = 0; i < problems_.size(); i++) {
            const double width = off_grid[i] ? between : recorded;
            result.push_back(std::exp(widened(width, problems_[i].distance, prior)));
        }
        return result;
    }

  private:
    struct Problem {
        double distance;  // from the range of the recorded problems
        double launch_s, work_s;
    };

    int64_t backends_;
    std::vector<double> seconds_;  // (N, S)
    std::vector<Problem> problems_;
};

const Binding kBinding([](nb::module_& module) {
    nb::class_<Bound>(module, "Bound")
        .def("__init__",
             [](Bound* self, nb::object names, nb::object constants, const Table<const double>& work,
                const Table<const double>& table, int64_t first_size, int64_t sizes) {
                 require(work.rows == kBoundRows && work.columns == table.columns && table.columns > 0 &&
                             first_size >= 0 && sizes >= 0 && first_size + sizes <= table.rows,
                         "bound: expected features of each problem");
                 new (self) Bound{names, constants, table.columns, first_size, sizes, copied(work), copied(table)};
             })
        .def_ro("names", &Bound::names)
        .def_ro("constants", &Bound::constants)
        .def_ro("first_size", &Bound::first_size)
        .def_ro("sizes", &Bound::sizes)
        .def_prop_ro("work",
                     [](const Bound& of) { return view_of(Table<const double>(of.work.data(), kBoundRows, of.count)); })
        .def_prop_ro("table", [](const Bound& of) { return view_of(of.features()); });
    nb::class_<MoreItems>(module, "MoreItems")
        .def(nb::init<const std::vector<double>&, int64_t, int64_t, int64_t, int64_t>())
        .def_prop_ro("sizes", [](const MoreItems& of) { return view_of(of.sizes()); })
        .def_prop_ro("starts", [](const MoreItems& of) { return numpy(of.starts); });
    nb::class_<BackendTimes>(module, "BackendTimes")
        .def(nb::init<const MoreItems&, const Bound&, const TreeReader&, Row<const double>, double, const Extent&,
                      const Extent*>(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
        .def_prop_ro("seconds", &BackendTimes::seconds)
        .def("of", &BackendTimes::of)
        .def("factors", &BackendTimes::factors);
});

}  // namespace
}  // namespace kernrec::query
