// Computes a bound on the time of a library's matmuls, and the features with which trees correct the bound.
//
// kernrec/model/baselines/features/matmul.py and simt_products.py compute the figures and cite their sources.
#include "bound.h"

namespace kernrec::query {
namespace {

enum Size : int64_t { kBatch, kM, kN, kK, kSizes };
// Further rows of `Bound::work`. kMemoryS: seconds of DRAM and L2 at a library's rates. kTilesS: seconds of the best
// tile. kMoved to kResult: bytes.
enum Work : int64_t { kMemoryS = kBoundRows, kTilesS, kMoved, kWeights, kResult, kWorkRows };
// Rows of tiles. kSplit: number of parts of a split reduction. kRate: FLOP/s. kReadBytes, kTileFlops: bytes and FLOPs
// of a tile per element of k. kJoined: 1 if another kernel adds the parts, or else 0. kFew: maximum number of
// concurrent tiles per SM. kShare: fraction of the peak rate that these tiles reach.
enum TensorTile : int64_t { kRows, kColumns, kSplit, kRate, kReadBytes, kTileFlops, kJoined, kTensorRows };
enum SimtTile : int64_t { kFew = 3, kShare, kSimtRows };
// First rows of features. Rows before `kFull` are logarithms.
enum Figure : int64_t {
    kShares = 0,
    kFirstSize = 4,
    kTotal = 8,
    kMovedOverL2 = 9,
    kTiles = 12,
    kAreas = 13,
    kFirstWaves = 16,
    kFirstTime = 22,
    kAligned = 29,
    kStored = 32,
    kFull = 35,
    kFilled = 41,
    kRest = 43,
    kFigures = 45,
};
// kWaves, kTimed: number of tiles whose waves or times are features. kSquares: indices of the two square tiles.
constexpr int64_t kWaves = 6, kSquares[] = {2, 5}, kTimed = 7;
constexpr double kLeastSplit = 256.0;  // minimum elements of a part in a split reduction
constexpr double kLeastShare = 0x1p-40, kLeastSize = 0.5;  // replace 0 in logarithms
constexpr int64_t kMostAligned = 64, kMostAlignedRows = 256;  // largest alignments of sizes and of rows
// Rows that are aligned to more than 16 elements load no faster: 16 elements fill a load of 16 bytes.
constexpr int64_t kMostStored = 16;
constexpr double kFullWarps = 16.0;       // warps per SM that reach the full rate
constexpr double kFewWarps = 0.3;         // rate with fewer warps / full rate = (warps / kFullWarps)^kFewWarps
constexpr double kReread = 0.5;           // fraction of operands beyond L2 that every tile reads again
constexpr double kOverlap = 3.4;          // exponent of the smooth maximum of math and memory without tensor cores
// Slowdown of DRAM if rows of the second operand are k elements apart: kStrided + (k / strided_k)^kStridedPower.
constexpr double kStrided = 1.86, kStridedPower = 0.54;
// Calls that are timed one at a time reach the sustained clock only if they are long compared with the pause between
// two calls.
constexpr double kThermalS = 300e-6, kThermalPower = 1.4;

// Return the largest power of two, up to `most`, that divides a size.
double aligned(double size, int64_t most) {
    const int64_t whole = size > 0.0 && size < 9e18 ? int64_t(size) : 0;
    while (whole % most) most /= 2;
    return double(most);
}

// Figures of a data type's matmuls on a GPU, and the tiles of its library.
struct Products {
    double a_bytes, b_bytes, c_bytes;  // bytes per element of A (to read and quantize), weights and result
    double peak_flops, bandwidth;      // from the data sheet
    double dram, l2;                   // achieved bytes per second
    double l2_bytes, sms;
    double launch_s;       // seconds of an empty launch
    double working_sets;   // copies of the weights in the timed loop
    double transposed_a, transposed_b;  // 1 if the operand is stored transposed, or else 0
    double fill_s;  // seconds to fill a tile's pipeline and write its results
    // On tensor cores: bytes per second at which an SM reads operands.
    double read_rate = 0.0;
    // Without tensor cores: tiles of single matmuls start at index kTimed, tiles of batched matmuls at index `batched`.
    // strided_k: length in `kStrided`; 0 if distant rows do not slow down DRAM. slower: relative slowdown at the clock
    // under the power limit. reread: 1 if operands beyond L2 are read again, or else 0. alone: 1 if calls were timed
    // one at a time, or else 0.
    double batched = 0.0, element_bytes = 0.0, simt_dram = 0.0, strided_k = 0.0, slower = 0.0, reread = 0.0,
           alone = 0.0;

    std::vector<double> tiles, wave_tiles;  // rows, then columns
    int64_t tile_count, tile_rows;
    nb::object names, constants;  // of the features

    double tile(int64_t row, int64_t t) const { return tiles[row * tile_count + t]; }

    // figures: the numbers above, in their order. On tensor cores, `read_rate` is the last. Otherwise it is missing.
    Products(const std::vector<double>& figures, const Table<const double>& tiles_of, const Table<const double>& waves,
             nb::object names_of, nb::object constants_of)
        : tiles(copied(tiles_of)),
          wave_tiles(copied(waves)),
          tile_count(tiles_of.columns),
          tile_rows(tiles_of.rows),
          names(names_of),
          constants(constants_of) {
        const bool tensor = tile_rows == kTensorRows;
        require(figures.size() == (tensor ? 15 : 21) && (tensor || tile_rows == kSimtRows) && tile_count > kTimed &&
                    waves.rows == 2 && waves.columns == kWaves,
                "products: expected the figures and tiles of either kind");
        const double* next = figures.data();
        for (double* figure : {&a_bytes, &b_bytes, &c_bytes, &peak_flops, &bandwidth, &dram, &l2, &l2_bytes, &sms,
                               &launch_s, &working_sets, &transposed_a, &transposed_b, &fill_s})
            *figure = *next++;
        if (tensor) {
            read_rate = *next;
            return;
        }
        for (double* figure : {&batched, &element_bytes, &simt_dram, &strided_k, &slower, &reread, &alone})
            *figure = *next++;
        require(batched > kTimed && batched < double(tile_count), "batched: expected tiles of both kinds");
    }

    // Return the bound of matmuls with these sizes, (kSizes, N).
    Bound bound(const Table<const double>& sizes) const {
        require(sizes.rows == kSizes && sizes.columns > 0, "sizes: expected (4, N)");
        const int64_t count = sizes.columns;
        Bound result{names, constants, count, kFirstSize, kSizes, {}, {}};
        result.work.resize(size_t(kWorkRows * count)), result.table.resize(size_t(kFigures * count));
        const Table<double> work(result.work.data(), kWorkRows, count), figures(result.table.data(), kFigures, count);
        ByCpu<kFill>()(this, sizes, work, figures);
        return result;
    }

  private:
    static constexpr auto kFill =
        [](const auto* products, Table<const double> sizes, Table<double> work, Table<double> figures)
            __attribute__((always_inline)) { products->fill(sizes, work, figures); };

    KERNREC_INLINE void fill(const Table<const double>& sizes, const Table<double>& work,
                             const Table<double>& figures) const {
        std::vector<double> seconds(static_cast<size_t>(tile_count));
        for (int64_t i = 0; i < sizes.columns; i++) {
            fill_work(sizes, work, i);
            if (tile_rows == kTensorRows) fill_tensor_tiles(sizes, seconds, work, i);
            else fill_simt_tiles(sizes, seconds, work, i);
            fill_figures(sizes, seconds, work, figures, i);
        }
    }

    // Fill the rows of `work` that do not depend on tiles.
    KERNREC_INLINE void fill_work(const Table<const double>& sizes, const Table<double>& work, int64_t i) const {
        const double batch = sizes(kBatch, i), m = sizes(kM, i), n = sizes(kN, i), k = sizes(kK, i);
        const double weights = b_bytes * batch * n * k, result = c_bytes * batch * m * n;
        const double moved = a_bytes * batch * m * k + weights + result;
        const double resident = minimum(maximum(2.0 - working_sets * weights / l2_bytes, 0.0), 1.0);
        work(kMathS, i) = 2.0 * batch * m * n * k / peak_flops;
        work(kDramS, i) = moved / bandwidth;
        work(kL2S, i) = moved / l2;
        work(kOverheadS, i) = launch_s;
        work(kMemoryS, i) = maximum((moved - resident * weights) / dram, moved / l2);
        work(kMoved, i) = moved;
        work(kWeights, i) = weights;
        work(kResult, i) = result;
    }

    // Compute the time of tiles in waves over the SMs for each tile and split, and store the best in `work`.
    KERNREC_INLINE void fill_tensor_tiles(const Table<const double>& sizes, std::vector<double>& seconds,
                                          const Table<double>& work, int64_t i) const {
        const double batch = sizes(kBatch, i), m = sizes(kM, i), n = sizes(kN, i), k = sizes(kK, i);
        for (int64_t t = 0; t < tile_count; t++) {
            const double split = tile(kSplit, t);
            const double depth = std::ceil(k / split / 32.0) * 32.0;
            const double read_s = tile(kReadBytes, t) * depth / read_rate;
            const double tile_s = maximum(tile(kTileFlops, t) * depth / tile(kRate, t), read_s);
            const double joined_s = (8.0 * batch * m * n * split / l2 + fill_s) * tile(kJoined, t);
            const double waves =
                std::ceil(batch * std::ceil(m / tile(kRows, t)) * std::ceil(n / tile(kColumns, t)) * split / sms);
            const double whole_s = waves * (tile_s + fill_s) + joined_s;
            seconds[t] = tile(kJoined, t) == 0.0 || k >= kLeastSplit * split ? whole_s : kInfinity;
        }
        double best_s = kInfinity;
        for (const double tile_s : seconds) best_s = minimum(best_s, tile_s);
        // Math and memory overlap, so combine their times by a smooth maximum.
        const double busy_s = fourth_root(fourth_power(best_s) + fourth_power(work(kMemoryS, i)));
        work(kTilesS, i) = best_s;
        work(kWorkS, i) = busy_s;
        work(kTotalS, i) = launch_s + busy_s;
    }

    // Like `fill_tensor_tiles`, but for GPUs or data types without tensor cores.
    KERNREC_INLINE void fill_simt_tiles(const Table<const double>& sizes, std::vector<double>& seconds,
                                        const Table<double>& work, int64_t i) const {
        const double batch = sizes(kBatch, i), m = sizes(kM, i), n = sizes(kN, i), k = sizes(kK, i);
        const double operands = element_bytes * batch * (m * k + n * k);
        const double once = operands + element_bytes * batch * m * n;
        const double beyond_l2 = minimum(maximum(operands / l2_bytes - 1.0, 0.0), 1.0);
        const double strided = strided_k > 0.0 ? kStrided + std::pow(k / strided_k, kStridedPower) : 1.0;
        const bool many = sizes(kBatch, i) > 1.0;
        const int64_t first_used = many ? int64_t(batched) : kTimed, end_used = many ? tile_count : int64_t(batched);
        double best_s = kInfinity;
        for (int64_t t = 0; t < end_used; t++) {
            if (t == kTimed) t = first_used;
            const double rows = tile(kRows, t), across = tile(kColumns, t), split = tile(kSplit, t);
            const double launched = batch * std::ceil(m / rows) * std::ceil(n / across) * split;
            // Tiles of the busiest SM, how many of them run concurrently, and the fraction of the rate that they reach.
            const double per_sm = std::ceil(launched / sms);
            const double resident = minimum(maximum(tile(kFew, t), 1.0), per_sm);
            const double filled = resident * (rows * across / 2048.0) / kFullWarps;
            const double depth = std::ceil(k / split / 8.0) * 8.0;
            const auto math_seconds = [&](double reached) {
                const double rate = peak_flops * (tile(kShare, t) * reached);
                return per_sm * 2.0 * rows * across * depth * sms / rate + std::ceil(per_sm / resident) * fill_s;
            };
            // Skip a tile if its lower bound is not faster than the best tile: computing `std::pow` is slow.
            if (t >= kTimed && math_seconds(1.0) >= best_s) continue;
            const double math_s = math_seconds(filled < 1.0 ? std::pow(filled, kFewWarps) : 1.0);
            const double read = launched * (rows + across) * element_bytes * depth;
            double again = 0.0;
            if (reread > 0.0) {
                // Bytes of the operands in use at one time; L2 may hold only a part of them.
                const double in_use = sms * resident * (rows + across) * element_bytes * 4096.0;
                again = beyond_l2 * (1.0 - minimum(l2_bytes / in_use, 1.0));
            }
            const double moved = once + maximum(read - once, 0.0) * kReread * again;
            const double memory_s = maximum(moved / simt_dram * strided, read / l2);
            const double longer_s = maximum(math_s, memory_s);
            if (t >= kTimed && longer_s >= best_s) continue;
            const double overlapped = std::pow(minimum(math_s, memory_s) / longer_s, kOverlap);
            const double whole_s = longer_s * std::pow(1.0 + overlapped, 1.0 / kOverlap);
            const double joined_s = 8.0 * batch * m * n * split / l2 + fill_s;
            const double parts_s = k >= kLeastSplit * split ? whole_s + joined_s : kInfinity;
            const double tile_s = split == 1.0 ? whole_s : parts_s;
            if (t < kTimed) seconds[t] = tile_s;
            else best_s = minimum(best_s, tile_s);
        }
        const double held = alone > 0.0 ? std::pow(best_s / (best_s + kThermalS), kThermalPower) : 1.0;
        const double sustained_s = best_s * (1.0 + held * slower);
        work(kTilesS, i) = best_s;
        work(kWorkS, i) = sustained_s;
        work(kTotalS, i) = launch_s + sustained_s;
    }

    KERNREC_INLINE void fill_figures(const Table<const double>& sizes, const std::vector<double>& seconds,
                                     const Table<double>& work, const Table<double>& figures, int64_t i) const {
        const double batch = sizes(kBatch, i), m = sizes(kM, i), n = sizes(kN, i), k = sizes(kK, i);
        const double total = work(kTotalS, i), best_s = work(kTilesS, i);
        auto figure = [&](int64_t row) -> double& { return figures(row, i); };
        const auto waved = [&](int64_t wave) __attribute__((always_inline)) {
            return batch * std::ceil(m / wave_tiles[wave]) * std::ceil(n / wave_tiles[kWaves + wave]);
        };
        figure(kShares) = maximum(best_s / total, kLeastShare);
        figure(kShares + 1) = maximum(work(kMemoryS, i) / total, kLeastShare);
        figure(kShares + 2) = maximum(work(kMathS, i) / total, kLeastShare);
        figure(kShares + 3) = maximum(work(kDramS, i) / total, kLeastShare);
        for (int64_t size = 0; size < kSizes; size++) figure(kFirstSize + size) = maximum(sizes(size, i), kLeastSize);
        figure(kTotal) = total * 1e6;
        figure(kMovedOverL2) = work(kMoved, i) / l2_bytes;
        figure(kMovedOverL2 + 1) = work(kWeights, i) / l2_bytes;
        figure(kMovedOverL2 + 2) = work(kResult, i) / l2_bytes;
        figure(kTiles) = batch * std::ceil(m / 128.0) * std::ceil(n / 128.0) / sms;
        figure(kAreas) = m * n;
        figure(kAreas + 1) = m * k;
        figure(kAreas + 2) = n * k;
        for (int64_t wave = 0; wave < kWaves; wave++) {
            const double launched = waved(wave);
            figure(kFirstWaves + wave) = launched / sms;
            figure(kFull + wave) = launched / (std::ceil(launched / sms) * sms);
        }
        for (int64_t square = 0; square < 2; square++) {
            const int64_t wave = kSquares[square];
            const double area = wave_tiles[wave] * wave_tiles[kWaves + wave];
            figure(kFilled + square) = m * n / (waved(wave) / batch * area);
        }
        for (int64_t t = 0; t < kTimed; t++)
            figure(kFirstTime + t) = (seconds[t] < kInfinity ? seconds[t] : best_s) / total;
        figure(kAligned) = aligned(m, kMostAlignedRows);
        figure(kAligned + 1) = aligned(n, kMostAligned);
        figure(kAligned + 2) = aligned(k, kMostAligned);
        figure(kStored) = aligned(transposed_a > 0.0 ? m : k, kMostStored);
        figure(kStored + 1) = aligned(transposed_b > 0.0 ? k : n, kMostStored);
        const double operands = std::min(figure(kStored), figure(kStored + 1));
        figure(kStored + 2) = std::min(operands, aligned(n, kMostStored));
        figure(kRest) = m - std::floor(m / 128.0) * 128.0;
        figure(kRest + 1) = n - std::floor(n / 128.0) * 128.0;
        for (int64_t row = 0; row < kFull; row++) figure(row) = std::log2(figure(row));
    }
};

const Binding kBinding([](nb::module_& module) {
    nb::class_<Products>(module, "Products")
        .def(nb::init<const std::vector<double>&, Table<const double>, Table<const double>, nb::object, nb::object>())
        .def("bound", &Products::bound);
    module.attr("PRODUCT_FIGURES") = int(kFigures);
    module.attr("TIMED_TILES") = kTimed;
    module.attr("WAVE_TILES") = kWaves;
    module.attr("LEAST_SHARE") = kLeastShare;
    module.attr("LEAST_SIZE") = kLeastSize;
    module.attr("FULL_WARPS") = kFullWarps;
});

}  // namespace
}  // namespace kernrec::query
