// Bulk copies and tensor maps: see the header.
#include "async_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "text.h"

namespace kernrec {
namespace {

constexpr uint32_t kMostBox = 256;
constexpr char kMapMark[] = "tile";

[[noreturn]] void invalid(const std::string& text) { throw std::invalid_argument(text); }

template <class Number>
Number load_at(const uint8_t* bytes) {
    Number value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

constexpr uint64_t kHalfNan = 0x7FFF, kFloatNan = 0x7FFFFFFF;
const TensorElement kElements[] = {
    {"u8", 1, 0, {}},
    {"u16", 2, 0, {}},
    {"u32", 4, 0, NumberType::kU32},
    {"s32", 4, 0, NumberType::kS32},
    {"u64", 8, 0, NumberType::kU64},
    {"s64", 8, 0, NumberType::kS64},
    {"f16", 2, kHalfNan, NumberType::kF16},
    {"f32", 4, kFloatNan, NumberType::kF32},
    {"f32", 4, kFloatNan, NumberType::kF32},  // f32.ftz
    {"f64", 8, 0, NumberType::kF64},
    {"bf16", 2, kHalfNan, NumberType::kBf16},
    {"tf32", 4, kFloatNan, {}},
    {"tf32", 4, 0, {}},  // tf32.ftz
};

// Format numbers like a Python tuple: "(1, 2)", "(1,)".
template <class Numbers>
std::string tuple_text(const Numbers& numbers, uint32_t count) {
    std::string text = "(";
    for (uint32_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
    return text + (count == 1 ? ",)" : ")");
}

}  // namespace

// --- Addresses in a cluster ---

uint64_t map_to_rank(uint64_t address, uint32_t rank) {
    constexpr uint64_t kAbove = ~((uint64_t(1) << (kRankShift + kRankBits)) - 1);  // window bits of a generic address
    return (address & kAbove) | (address & ((1u << kRankShift) - 1)) | (uint64_t(rank) + 1) << kRankShift;
}

uint32_t rank_of_address(uint64_t address, uint32_t own_rank) {
    const uint32_t above = uint32_t(address >> kRankShift) & ((1u << kRankBits) - 1);
    return above ? above - 1 : own_rank;
}

// --- Tensor maps ---

uint64_t TensorMap::elements() const {
    uint64_t count = 1;
    for (uint32_t axis = 0; axis < rank; ++axis) count *= moved(axis);
    return count;
}

void TensorMap::check() const {
    // Limits: CUDA Driver API, `cuTensorMapEncodeTiled`.
    const auto all = [&](const auto& numbers, uint32_t count, auto fits) {
        return std::all_of(numbers.begin(), numbers.begin() + count, fits);
    };
    if (interleave_bytes) invalid("interleave of " + std::to_string(interleave_bytes) + " bytes is not emulated");
    if (address % 16 || !address) invalid("address " + hex(address) + " is not a multiple of 16");
    if (!all(extents, rank, [](uint32_t extent) { return extent >= 1; }))
        invalid("extents " + tuple_text(extents, rank) + " are not from 1 to 2^32 - 1");
    if (!all(strides_bytes, rank - 1, [](uint64_t stride) { return stride % 16 == 0 && stride < uint64_t(1) << 40; }))
        invalid("strides of " + tuple_text(strides_bytes, rank - 1) + " bytes are not multiples of 16 below 2^40");
    if (!all(box, rank, [](uint32_t extent) { return extent >= 1 && extent <= kMostBox; }))
        invalid("box " + tuple_text(box, rank) + " must have 1 to " + std::to_string(kMostBox) +
                " elements along each dimension");
    if (!all(steps, rank, [](uint32_t step) { return step >= 1 && step <= 8; }))
        invalid("element strides " + tuple_text(steps, rank) + " are not from 1 to 8");
    const uint32_t row = moved(0) * element->bytes;
    if (row % 16) invalid("a row of the box has " + std::to_string(row) + " bytes, not a multiple of 16");
    if (swizzle_bytes && row > swizzle_bytes)
        invalid("a row of the box has " + std::to_string(row) + " bytes, more than the swizzle of " +
                std::to_string(swizzle_bytes));
}

TensorMap decode_tensor_map(const uint8_t* bytes) {
    if (std::memcmp(bytes + 8, kMapMark, 4) != 0)
        invalid("these 128 bytes are not a tensor map (kernrec.ptx.TensorMap builds one)");
    const uint32_t rank = bytes[12] + 1u, type = bytes[13], interleave = bytes[14], swizzle = bytes[15],
                   fill = bytes[16];
    if (rank > kMostRank || type >= std::size(kElements) || swizzle > 3 || interleave > 2 || fill > 1)
        invalid("rank " + std::to_string(rank) + ", element type " + std::to_string(type) + ", swizzle " +
                std::to_string(swizzle) + ", interleave " + std::to_string(interleave) + ", fill " +
                std::to_string(fill));
    TensorMap map;
    map.address = load_at<uint64_t>(bytes);
    map.rank = rank;
    map.element = &kElements[type];
    map.interleave_bytes = 16 * interleave;
    map.swizzle_bytes = swizzle ? 16u << swizzle : 0;
    map.fill_nan = fill;
    for (uint32_t axis = 0; axis < rank; ++axis) {
        map.extents[axis] = load_at<uint32_t>(bytes + 20 + 4 * axis);
        map.box[axis] = load_at<uint16_t>(bytes + 76 + 2 * axis);
        map.steps[axis] = load_at<uint16_t>(bytes + 86 + 2 * axis);
        if (axis + 1 < rank) map.strides_bytes[axis] = load_at<uint64_t>(bytes + 44 + 8 * axis);
    }
    map.check();
    return map;
}

bool replace_tensor_map_field(uint8_t* bytes, const std::string& field, int64_t ordinal, uint64_t value) {
    struct Field {
        const char* name;
        uint32_t first_byte, bytes, pitch_bytes;
    };
    static constexpr Field kFields[] = {{"global_address", 0, 8, 0}, {"rank", 12, 1, 0},
                                        {"elemtype", 13, 1, 0},      {"interleave_layout", 14, 1, 0},
                                        {"swizzle_mode", 15, 1, 0},  {"fill_mode", 16, 1, 0},
                                        {"global_dim", 20, 4, 4},    {"global_stride", 44, 8, 8},
                                        {"box_dim", 76, 2, 2},       {"element_stride", 86, 2, 2}};
    for (const Field& known : kFields) {
        if (field != known.name || ordinal < 0 || ordinal >= (field == "global_stride" ? kMostRank - 1 : kMostRank))
            continue;
        std::memcpy(bytes + 8, kMapMark, 4);
        std::memcpy(bytes + known.first_byte + uint32_t(ordinal) * known.pitch_bytes, &value, known.bytes);
        return true;
    }
    return false;
}

std::vector<CopyRun> box_runs(const TensorMap& map, const std::array<int32_t, kMostRank>& corner) {
    std::vector<CopyRun> runs;
    const uint32_t size = map.element->bytes;
    const auto add = [&](int64_t offset, bool inside) {
        CopyRun* last = runs.empty() ? nullptr : &runs.back();
        if (last && last->inside == inside && last->offset + last->bytes == offset) last->bytes += size;
        else runs.push_back({offset, size, inside});
    };
    const auto visit = [&](auto&& self, uint32_t axis, int64_t offset, bool inside) -> void {
        const int64_t stride = axis ? int64_t(map.strides_bytes[axis - 1]) : size;
        for (uint32_t i = 0; i < map.moved(axis); ++i) {
            const int64_t place = corner[axis] + int64_t(i) * map.steps[axis];
            const bool within = inside && place >= 0 && place < int64_t(map.extents[axis]);
            if (axis) self(self, axis - 1, offset + place * stride, within);
            else add(offset + place * stride, within);
        }
    };
    visit(visit, map.rank - 1, 0, true);
    return runs;
}

std::vector<CopyRun> row_runs(TensorMap map, const std::array<int32_t, kMostRank>& column_and_rows) {
    map.box[1] = 1;
    std::vector<CopyRun> runs;
    for (uint32_t i = 1; i < kMostRank; ++i) {
        const auto part = box_runs(map, {column_and_rows[0], column_and_rows[i]});
        runs.insert(runs.end(), part.begin(), part.end());
    }
    return runs;
}

std::vector<CopyRun> shared_runs(const TensorMap& map, uint32_t start) {
    std::vector<CopyRun> runs;
    const uint64_t rows = map.elements() / map.moved(0);
    const uint32_t row_bytes = map.moved(0) * map.element->bytes;
    for (uint64_t row = 0; row < rows; ++row)
        for (uint32_t byte = 0; byte < row_bytes; byte += 16) {
            // Swap the 16-byte pieces (PTX ISA, section "Swizzling modes").
            const uint32_t address = start + uint32_t(row) * map.row_pitch() + byte, span = map.swizzle_bytes;
            runs.push_back({span ? address ^ (address >> 3 & (span - 16)) : address, 16});
        }
    return runs;
}

uint64_t reduce(Reduction reduction, NumberType type, uint64_t old, uint64_t value) {
    const auto as = [&](auto number) {
        using T = decltype(number);
        T a, b;
        std::memcpy(&a, &old, sizeof a);
        std::memcpy(&b, &value, sizeof b);
        const T result = reduced(reduction, a, b);
        uint64_t bits = 0;
        std::memcpy(&bits, &result, sizeof result);
        return bits;
    };
    switch (type) {
        case NumberType::kU32: return as(uint32_t());
        case NumberType::kS32: return as(int32_t());
        case NumberType::kU64: return as(uint64_t());
        case NumberType::kS64: return as(int64_t());
        case NumberType::kF32: return as(float());
        case NumberType::kF64: return as(double());
        case NumberType::kF16:
        case NumberType::kBf16: {
            // float64 holds the exact sum of two 16-bit numbers, so only `convert` rounds. If the exponents are too far
            // apart for an exact sum, the smaller number is too small to change the result.
            const double sum = reduced(reduction, to_double(type, old), to_double(type, value));
            return convert({type, NumberType::kF64}, bit_cast<uint64_t>(sum));
        }
        default: return value;
    }
}

std::vector<uint8_t> CopySide::read() const {
    size_t size = 0;
    for (const Run& run : runs) size += run.bytes;
    std::vector<uint8_t> data(size);
    size_t position = 0;
    for (const Run& run : runs) {
        if (run.at) std::memcpy(&data[position], run.at, run.bytes);
        else
            for (uint32_t i = 0; i < run.bytes; i += element_bytes)
                std::memcpy(&data[position + i], &fill, element_bytes);
        position += run.bytes;
    }
    return data;
}

void CopySide::write(const std::vector<uint8_t>& data, Reduction reduction, NumberType type) const {
    size_t position = 0;
    for (const Run& run : runs) {
        const uint8_t* values = &data[position];
        position += run.bytes;
        if (!run.at) continue;
        if (reduction == Reduction::kNone) {
            std::memcpy(run.at, values, run.bytes);
            continue;
        }
        for (uint32_t i = 0; i < run.bytes; i += element_bytes) {
            uint64_t old = 0, value = 0;
            std::memcpy(&old, run.at + i, element_bytes);
            std::memcpy(&value, values + i, element_bytes);
            const uint64_t result = reduce(reduction, type, old, value);
            std::memcpy(run.at + i, &result, element_bytes);
        }
    }
}

void BulkCopy::fetch() {
    if (fetched) return;
    data = source.read();
    fetched = true;
    if (on_fetch) on_fetch();
}

void BulkCopy::store() {
    fetch();
    for (const CopySide& target : targets) target.write(data, reduction, type);
}

void BulkGroups::start(std::shared_ptr<BulkCopy> copy) {
    std::deque<Group>& groups = groups_[copy->lane];
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back(std::move(copy));
}

void BulkGroups::commit(uint32_t thread) {
    std::deque<Group>& groups = groups_[thread];
    groups.resize(std::max<size_t>(groups.size(), 1) + 1);
}

void BulkGroups::wait(uint32_t thread, size_t allowed, bool only_read) {
    std::deque<Group>& groups = groups_[thread];
    const size_t committed = groups.empty() ? 0 : groups.size() - 1;
    const size_t waited = committed > allowed ? committed - allowed : 0;
    for (size_t i = 0; i < waited; ++i)
        for (const auto& copy : groups[i]) only_read ? copy->fetch() : copy->store();
    if (!only_read) groups.erase(groups.begin(), groups.begin() + int64_t(waited));
}

void BulkGroups::finish_all() {
    for (const auto& [thread, groups] : groups_)
        for (const Group& group : groups)
            for (const auto& copy : group) copy->store();
    clear();
}

const BulkCopy* BulkGroups::unfinished() const {
    for (const auto& [thread, groups] : groups_)
        for (const Group& group : groups)
            for (const auto& copy : group)
                if (!copy->fetched && copy->source.is_shared) return copy.get();
    return nullptr;
}

// --- Fences of tensor maps ---

void MapFences::write(uint64_t address, bool released) { maps_[address] = {released, {}}; }

void MapFences::release() {
    for (auto& [address, state] : maps_) state.released = true;
}

void MapFences::acquire(uint64_t address, uint32_t block) {
    const auto state = maps_.find(address);
    if (state != maps_.end() && state->second.released) state->second.acquired.push_back(block);
}

std::string MapFences::missing(uint64_t address, uint32_t block) const {
    const auto state = maps_.find(address);
    if (state == maps_.end()) return "";
    const auto& [released, acquired] = state->second;
    if (std::find(acquired.begin(), acquired.end(), block) != acquired.end()) return "";
    return std::string("fence.proxy.tensormap::generic.") + (released ? "acquire" : "release");
}

}  // namespace kernrec
