#include "cost.h"

#include <algorithm>
#include <utility>

#include "instruction_sets.h"

namespace kernrec {

namespace {

// Sort the values of the lanes of a mask, divided by 2^`shift`, and return their number.
uint32_t sorted(const int64_t* values, uint32_t mask, int64_t* out, uint32_t shift = 0) {
    uint32_t count = 0;
    for (const uint32_t bit : LanesOf(mask)) out[count++] = values[bit] >> shift;
    if (!std::is_sorted(out, out + count)) std::sort(out, out + count);
    return count;
}

uint32_t distinct_sorted(int64_t* values, uint32_t count) {
    return uint32_t(std::unique(values, values + count) - values);
}

// Return how many distinct units (address / bank width) are in the busiest bank. With `every`, count every lane.
uint32_t busiest_bank(const int64_t* units, uint32_t mask, uint32_t banks, bool every) {
    int64_t values[32];
    uint32_t count = 0;
    if (every) {
        for (const uint32_t bit : LanesOf(mask)) values[count++] = units[bit];
    } else {  // usually, each bank has at most one unit
        int64_t of_bank[32];
        uint64_t conflict = 0;
        for (const uint32_t bit : LanesOf(mask)) of_bank[uint32_t(units[bit]) & (banks - 1)] = units[bit];
        for (const uint32_t bit : LanesOf(mask))
            conflict |= uint64_t(of_bank[uint32_t(units[bit]) & (banks - 1)] ^ units[bit]);
        if (!conflict) return 1;
        count = distinct_sorted(values, sorted(units, mask, values));
    }
    uint8_t load[32] = {};
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) most = std::max<uint32_t>(most, ++load[values[i] & (banks - 1)]);
    return most;
}

bool paired(const int64_t* units, uint32_t mask, uint32_t distance) {
    for (uint32_t lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && (mask >> (lane ^ distance) & 1) && units[lane] != units[lane ^ distance])
            return false;
    return true;
}

// Addresses of a warp's lanes, divided by 2^`shift`, and their pattern.
struct Units {
    int64_t units[32];
    bool consecutive, same, ascending;
    uint64_t apart;  // bits in which the units differ
    int64_t span;    // from the first to the last unit
};
constexpr auto kUnits = [](const int64_t* addresses, uint32_t shift) __attribute__((always_inline)) {
    Units to;
    const int64_t first = addresses[0] >> shift;
    uint64_t apart = 0, gaps = 0, descends = 0;
    int64_t low = first, high = first;
    for (uint32_t lane = 0; lane < 32; lane++) {
        const int64_t unit = addresses[lane] >> shift;
        to.units[lane] = unit;
        apart |= uint64_t(unit ^ first);
        gaps |= uint64_t(unit - first) ^ lane;
        low = unit < low ? unit : low;
        high = unit > high ? unit : high;
    }
    for (uint32_t lane = 1; lane < 32; lane++) descends |= uint64_t(to.units[lane] - to.units[lane - 1] - 1) >> 63;
    to.consecutive = gaps == 0, to.same = apart == 0, to.ascending = !descends;
    to.apart = apart, to.span = high - low;
    return to;
};
constexpr ByCpu<kUnits> units_of;

// Return the number of distinct units of a warp whose addresses ascend, or 0 if they do not.
constexpr auto kDistinct = [](const int64_t* addresses, uint32_t shift) __attribute__((always_inline)) {
    uint64_t number = 1, descends = 0;
    for (uint32_t lane = 1; lane < 32; lane++) {
        const int64_t step = (addresses[lane] >> shift) - (addresses[lane - 1] >> shift);
        number += step != 0;
        descends |= uint64_t(step) >> 63;
    }
    return descends ? 0 : uint32_t(number);
};
constexpr ByCpu<kDistinct> distinct_ascending;

}  // namespace

uint32_t distinct(const int64_t* addresses, uint32_t mask, uint32_t shift) {
    if (const uint32_t number = mask == ~0u ? distinct_ascending(addresses, shift) : 0) return number;
    const int64_t first = addresses[__builtin_ctz(mask)] >> shift;
    uint64_t near = 0;  // bit i: unit `first - 32 + i` was accessed
    bool all_near = true;
    for (const uint32_t bit : LanesOf(mask)) {
        const uint64_t distance = uint64_t((addresses[bit] >> shift) - first + 32);
        near |= uint64_t(1) << (distance & 63);
        all_near &= distance < 64;
    }
    if (all_near) return __builtin_popcountll(near);
    int64_t units[32];
    return distinct_sorted(units, sorted(addresses, mask, units, shift));
}

Wavefronts wavefronts(const int64_t* addresses, uint32_t mask, uint32_t bytes, bool load, bool atomic) {
    const uint32_t unit = std::max(bytes, 4u), banks = 128 / unit, shift = __builtin_ctz(unit);
    const bool whole = mask == ~0u;
    const Units all = units_of(addresses, shift);
    const int64_t* units = all.units;
    const bool same = whole && all.same;
    uint32_t group = banks;
    if (load && unit > 4 && (same || paired(units, mask, 1) || paired(units, mask, 2))) group = 2 * banks;
    // There are no conflicts if all units lie in a range of `banks` units: each is in a different bank.
    if (whole && (all.consecutive || (!atomic && all.span < int64_t(banks)))) return {32 / group, 32 / group};
    const bool all_differ = whole && all.ascending;
    if (all_differ && !(all.apart & (banks - 1))) return {32, 32 / group};  // all units are in one bank
    Wavefronts result{0, 0};
    const uint32_t group_mask = group == 32 ? ~0u : (1u << group) - 1;
    for (uint32_t first = 0; first < 32; first += group) {
        const uint32_t part = mask >> first & group_mask;
        if (!part) continue;
        result.count += busiest_bank(units + first, part, banks, atomic || all_differ);
        result.ideal++;
    }
    return result;
}

uint32_t atomic_turns(const int64_t* addresses, uint32_t mask, uint32_t bytes) {
    int64_t values[32];
    const uint32_t count = sorted(addresses, mask, values);
    uint32_t turns = 0, most = 0, same = 0;
    for (uint32_t i = 0; i < count; i++) {
        const bool new_sector = i > 0 && values[i] >> 5 != values[i - 1] >> 5;
        const bool new_element = i > 0 && values[i] / bytes != values[i - 1] / bytes;
        if (new_sector) turns += std::exchange(most, 0);
        same = new_element ? 1 : same + 1;
        most = std::max(most, same);
    }
    return turns + most;
}

uint32_t local_sectors(const int64_t* addresses, uint32_t mask, uint32_t bytes) {
    const uint32_t words = std::max(1u, bytes / 4);
    int64_t units[32 * 8];
    uint32_t count = 0;
    for (const uint32_t lane : LanesOf(mask)) {
        for (uint32_t word = 0; word < words && count < 256; word++)
            units[count++] = ((addresses[lane] >> 2) + word) * 4 + lane / 8;
    }
    std::sort(units, units + count);
    return distinct_sorted(units, count);
}

}  // namespace kernrec
