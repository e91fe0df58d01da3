// Asynchronous copies, tensor maps and barriers: see the header.
#include "async_copy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "text.h"

namespace kernrec {
namespace {

constexpr int kTransactionBits = 21;
constexpr uint64_t kLow20 = (1 << 20) - 1;
constexpr uint32_t kMostBox = 256;
constexpr char kMapMark[] = "tile";

[[noreturn]] void invalid(const std::string& text) { throw std::invalid_argument(text); }

template <class Number>
Number load_at(const uint8_t* bytes) {
    Number value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
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

// --- mbarrier ---

uint64_t BarrierPhase::word() const {
    const uint64_t transactions = uint64_t(bytes) & ((1 << kTransactionBits) - 1);
    return uint64_t(pending) | uint64_t(expected) << 20 | transactions << 40 | uint64_t(parity) << 61 |
           uint64_t(1) << 62;
}

BarrierPhase barrier_phase(uint64_t word) {
    if (word >> 62 != 1) invalid("which holds no initialized barrier");
    const int64_t transactions = int64_t(word << (64 - 40 - kTransactionBits)) >> (64 - kTransactionBits);
    return {int64_t(word & kLow20), int64_t(word >> 20 & kLow20), transactions, uint32_t(word >> 61 & 1)};
}

uint64_t Mbarriers::load(SharedPlace place) const { return load_at<uint64_t>(word_at_(place)); }

void Mbarriers::store(SharedPlace place, uint64_t word) { std::memcpy(word_at_(place), &word, sizeof word); }

void Mbarriers::initialize(SharedPlace place, int64_t count) {
    if (initialized_.count(place.key()) && load(place) >> 62 == 1)
        invalid("which is initialized already, with no mbarrier.inval since");
    initialized_.insert(place.key());
    if (count < 1 || count > kMostArrivals)
        invalid("which it initializes with " + std::to_string(count) + " arrivals; expected 1 to " +
                std::to_string(kMostArrivals));
    store(place, BarrierPhase{count, count, 0, 0}.word());
}

void Mbarriers::invalidate(SharedPlace place) {
    phase(place);
    initialized_.erase(place.key());
    store(place, 0);
}

void Mbarriers::expect(SharedPlace place, int64_t bytes) {
    BarrierPhase state = phase(place);
    state.bytes += bytes;
    if (state.bytes < -kMostArrivals || state.bytes > kMostArrivals)
        invalid("whose transaction count would be " + std::to_string(state.bytes) + ", beyond " +
                std::to_string(kMostArrivals) + " bytes");
    settle(place, state);
}

uint64_t Mbarriers::arrive(SharedPlace place, int64_t count, bool drops, bool completes) {
    const uint64_t word = load(place);
    BarrierPhase state = barrier_phase(word);
    if (count < 1 || count > state.pending)
        invalid("whose phase still expects " + std::to_string(state.pending) + " arrivals, but " +
                std::to_string(count) + " came");
    if (!completes && count == state.pending && !state.bytes)
        invalid("whose phase an arrival with .noComplete would complete");
    if (drops && state.expected < count)
        invalid("that expects " + std::to_string(state.expected) + " arrivals, of which " + std::to_string(count) +
                " would be dropped");
    if (drops) state.expected -= count;
    state.pending -= count;
    settle(place, state);
    return word;
}

void Mbarriers::await_more(SharedPlace place, int64_t count) {
    BarrierPhase state = phase(place);
    state.pending += count;
    if (state.pending > kMostArrivals) invalid("whose pending arrivals would be " + std::to_string(state.pending));
    store(place, state.word());
}

bool Mbarriers::passed(SharedPlace place, uint32_t parity) const { return phase(place).parity != (parity & 1); }

void Mbarriers::settle(SharedPlace place, BarrierPhase state) {
    if (state.pending || state.bytes) return store(place, state.word());
    ++completed_;
    if (on_completion_) on_completion_(place);
    store(place, BarrierPhase{state.expected, state.expected, 0, state.parity ^ 1}.word());
}

// --- Tensor maps ---

const char* tensor_element_name(TensorElement type) {
    static constexpr const char* kNames[] = {"u8",  "u16", "u32", "s32",  "u64",  "s64", "f16",
                                             "f32", "f32", "f64", "bf16", "tf32", "tf32"};
    return kNames[size_t(type)];
}

uint32_t TensorMap::element_bytes() const {
    static constexpr uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
    return kBytes[size_t(type)];
}

uint64_t TensorMap::elements() const {
    uint64_t count = 1;
    for (uint32_t axis = 0; axis < rank; ++axis) count *= moved(axis);
    return count;
}

uint64_t TensorMap::fill() const {
    if (!fill_nan) return 0;
    switch (type) {
        case TensorElement::kF16:
        case TensorElement::kBf16: return 0x7FFF;
        case TensorElement::kF32:
        case TensorElement::kF32Ftz:
        case TensorElement::kTf32: return 0x7FFFFFFF;
        default: return 0;
    }
}

namespace {

// Format numbers like a Python tuple: "(1, 2)", "(1,)".
template <class Numbers>
std::string tuple_text(const Numbers& numbers, uint32_t count) {
    std::string text = "(";
    for (uint32_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
    return text + (count == 1 ? ",)" : ")");
}

}  // namespace

void TensorMap::check() const {
    // CUDA Driver API, `cuTensorMapEncodeTiled`, lists these limits.
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
    const uint32_t row = moved(0) * element_bytes();
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
    if (rank > kMostRank || type > uint32_t(TensorElement::kTf32Ftz) || swizzle > 3 || interleave > 2 || fill > 1)
        invalid("rank " + std::to_string(rank) + ", element type " + std::to_string(type) + ", swizzle " +
                std::to_string(swizzle) + ", interleave " + std::to_string(interleave) + ", fill " +
                std::to_string(fill));
    TensorMap map;
    map.address = load_at<uint64_t>(bytes);
    map.rank = rank;
    map.type = TensorElement(type);
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

void replace_tensor_map_field(uint8_t* bytes, const std::string& field, int64_t ordinal, uint64_t value) {
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
        return;
    }
    invalid("there is no " + field + " of dimension " + std::to_string(ordinal));
}

std::vector<CopyRun> box_runs(const TensorMap& map, const std::array<int32_t, kMostRank>& corner) {
    std::vector<CopyRun> runs;
    const uint32_t size = map.element_bytes();
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

TensorMap with_four_rows(TensorMap map) {
    map.box[1] = 4;
    return map;
}

std::vector<CopyRun> row_runs(const TensorMap& map, const std::array<int32_t, kMostRank>& column_and_rows) {
    TensorMap row = map;
    row.box[1] = 1;
    std::vector<CopyRun> runs;
    for (uint32_t i = 1; i < kMostRank; ++i) {
        const auto part = box_runs(row, {column_and_rows[0], column_and_rows[i]});
        runs.insert(runs.end(), part.begin(), part.end());
    }
    return runs;
}

std::vector<CopyRun> shared_runs(const TensorMap& map, uint32_t start) {
    std::vector<CopyRun> runs;
    const uint64_t rows = map.elements() / map.moved(0);
    const uint32_t row_bytes = map.moved(0) * map.element_bytes();
    for (uint64_t row = 0; row < rows; ++row)
        for (uint32_t byte = 0; byte < row_bytes; byte += 16)
            runs.push_back({swizzled(start + uint32_t(row) * map.row_pitch() + byte, map.swizzle_bytes), 16});
    return runs;
}

// --- Reductions ---

Reduction reduction_of(const std::string& name) {
    static constexpr const char* kNames[] = {"", "add", "min", "max", "inc", "dec", "and", "or", "xor"};
    for (size_t i = 1; i < std::size(kNames); ++i)
        if (name == kNames[i]) return Reduction(i);
    return Reduction::kNone;
}

NumberType reducible_type(TensorElement type, bool& reducible) {
    using Element = TensorElement;
    static const std::pair<Element, NumberType> kTypes[] = {
        {Element::kU32, NumberType::kU32},    {Element::kS32, NumberType::kS32}, {Element::kU64, NumberType::kU64},
        {Element::kS64, NumberType::kS64},    {Element::kF16, NumberType::kF16}, {Element::kF32, NumberType::kF32},
        {Element::kF32Ftz, NumberType::kF32}, {Element::kF64, NumberType::kF64}, {Element::kBf16, NumberType::kBf16}};
    reducible = true;
    for (const auto& [element, number] : kTypes)
        if (type == element) return number;
    reducible = false;
    return NumberType::kU8;
}

namespace {

template <class Number>
Number reduced_integer(Reduction reduction, Number old, Number value) {
    using Bits = std::make_unsigned_t<Number>;
    switch (reduction) {
        case Reduction::kAdd: return Number(Bits(old) + Bits(value));
        case Reduction::kMin: return std::min(old, value);
        case Reduction::kMax: return std::max(old, value);
        case Reduction::kInc: return old >= value ? Number(0) : Number(old + 1);
        case Reduction::kDec: return old == 0 || old > value ? value : Number(old - 1);
        case Reduction::kAnd: return old & value;
        case Reduction::kOr: return old | value;
        case Reduction::kXor: return old ^ value;
        case Reduction::kNone: break;
    }
    return value;
}

template <class Number>
Number reduced_float(Reduction reduction, Number old, Number value) {
    switch (reduction) {
        case Reduction::kAdd: return old + value;
        case Reduction::kMin: return std::fmin(old, value);
        case Reduction::kMax: return std::fmax(old, value);
        default: return value;
    }
}

}  // namespace

uint64_t reduce(Reduction reduction, NumberType type, uint64_t old, uint64_t value) {
    switch (type) {
        case NumberType::kU32: return reduced_integer(reduction, uint32_t(old), uint32_t(value));
        case NumberType::kS32: return uint32_t(reduced_integer(reduction, int32_t(old), int32_t(value)));
        case NumberType::kU64: return reduced_integer(reduction, old, value);
        case NumberType::kS64: return uint64_t(reduced_integer(reduction, int64_t(old), int64_t(value)));
        case NumberType::kF32:
            return bit_cast<uint32_t>(
                reduced_float(reduction, bit_cast<float>(uint32_t(old)), bit_cast<float>(uint32_t(value))));
        case NumberType::kF64:
            return bit_cast<uint64_t>(reduced_float(reduction, bit_cast<double>(old), bit_cast<double>(value)));
        case NumberType::kF16:
        case NumberType::kBf16: {
            // A sum of two halves fits in float64, so it is rounded once. If the exponents are far apart, the smaller
            // number does not affect the last bit.
            const double sum = reduced_float(reduction, to_double(type, old), to_double(type, value));
            return convert({type, NumberType::kF64}, bit_cast<uint64_t>(sum));
        }
        default: return value;
    }
}

// --- Bulk copies ---

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

void BulkGroups::commit(uint32_t thread) {
    committed_[thread].push_back(std::move(open_[thread]));
    open_.erase(thread);
}

void BulkGroups::wait(uint32_t thread, size_t allowed, bool only_read) {
    auto& groups = committed_[thread];
    const size_t waited = groups.size() > allowed ? groups.size() - allowed : 0;
    for (size_t i = 0; i < waited; ++i)
        for (BulkCopy& copy : groups[i]) only_read ? copy.fetch() : copy.store();
    if (!only_read) groups.erase(groups.begin(), groups.begin() + int64_t(waited));
}

void BulkGroups::finish_all() {
    for (auto& [thread, groups] : committed_)
        for (auto& group : groups)
            for (BulkCopy& copy : group) copy.store();
    for (auto& [thread, group] : open_)
        for (BulkCopy& copy : group) copy.store();
    clear();
}

const BulkCopy* BulkGroups::unfinished() const {
    const auto reading = [](const std::vector<BulkCopy>& group) -> const BulkCopy* {
        for (const BulkCopy& copy : group)
            if (!copy.fetched && !copy.reading.empty()) return &copy;
        return nullptr;
    };
    for (const auto& [thread, group] : open_)
        if (const BulkCopy* copy = reading(group)) return copy;
    for (const auto& [thread, groups] : committed_)
        for (const auto& group : groups)
            if (const BulkCopy* copy = reading(group)) return copy;
    return nullptr;
}

void AsyncEngine::start(std::function<void()> finish, std::vector<SharedPlace> barriers) {
    under_way_.push_back({std::move(finish), std::move(barriers)});
}

bool AsyncEngine::finish_one(const std::set<SharedPlace>& awaited) {
    if (under_way_.empty()) return false;
    const auto counts = [&](const Operation& operation) {
        return std::any_of(operation.barriers.begin(), operation.barriers.end(),
                           [&](SharedPlace place) { return awaited.count(place) != 0; });
    };
    auto next = std::find_if(under_way_.begin(), under_way_.end(), counts);
    if (next == under_way_.end()) next = under_way_.begin();
    const std::function<void()> finish = std::move(next->finish);
    under_way_.erase(next);
    finish();
    return true;
}

// --- Fences of tensor maps ---

void MapFences::write(uint64_t address, bool released) {
    released_[address] = released;
    for (auto entry = acquired_.lower_bound({address, 0}); entry != acquired_.end() && entry->first == address;)
        entry = acquired_.erase(entry);
}

void MapFences::release() {
    for (auto& [address, released] : released_) released = true;
}

void MapFences::acquire(uint64_t address, uint32_t block) {
    const auto state = released_.find(address);
    if (state != released_.end() && state->second) acquired_.insert({address, block});
}

std::string MapFences::missing(uint64_t address, uint32_t block) const {
    const auto state = released_.find(address);
    if (state == released_.end() || acquired_.count({address, block})) return "";
    return std::string("fence.proxy.tensormap::generic.") + (state->second ? "acquire" : "release");
}

}  // namespace kernrec
