// Bulk copies: `cp.async.bulk`, `cp.reduce.async.bulk` and their tensor forms (PTX ISA, sections 9.7.9.25.4 and
// 9.7.9.25.5). One thread, usually one per block, starts a copy, and `Pending` finishes it.
#include <algorithm>

#include "dispatch.h"
#include "pending.h"
#include "text.h"

namespace kernrec {
namespace {

constexpr uint32_t kUnit = 16;              // alignment of addresses and sizes
constexpr uint32_t kTensorAlignment = 128;  // alignment of a box in shared memory

using Position = std::array<int32_t, kMostRank>;

struct BulkForm {
    bool to_shared = false, from_shared = false, has_barrier = false;
    Instruction target, source, barrier, map;  // for a tensor, `target` is the address in shared memory
    Row size, mask;
    Reduction reduction = Reduction::kNone;
    NumberType type = NumberType::kU64;
    uint32_t unit = 8;
    // Fields of tensor copies. Other copies have rank 0. A tensor copy with a barrier is a load.
    uint32_t rank = 0;
    bool four_rows = false;
    std::vector<Row> coordinates;
};

SharedPlace place_in_shared(Batch& batch, uint32_t lane, uint64_t address, uint64_t bytes) {
    const Resolved at = batch.resolve_lane(Space::kShared, address, bytes == 8 ? 8 : kUnit, lane, false);
    const SharedPlace place = batch.shared_place(at, lane);
    if (place.byte + bytes > batch.launch.shared_bytes)
        batch.fail_lane(lane, joined("moves ", bytes, " bytes at byte ", place.byte, " of shared memory, ",
                                     batch.launch.shared_bytes, " bytes"));
    return place;
}

// Check a span of global memory and return its bytes.
uint8_t* bytes_in_global(Batch& batch, uint32_t lane, uint64_t first, uint64_t end, bool write) {
    const Resolved low = batch.resolve_lane(Space::kGlobal, first, kUnit, lane, write);
    const Resolved high = batch.resolve_lane(Space::kGlobal, end - kUnit, kUnit, lane, write);
    if (low.buffer != high.buffer || end < first)
        batch.fail_lane(lane, "copies bytes of several buffers, from " + batch.launch.buffers[low.buffer].name + " on");
    return low.places[lane % kWarp];
}

CopySide linear_side(Batch& batch, const BulkForm& form, const BulkCopy& copy, const Instruction& access,
                     bool is_shared, bool write) {
    CopySide made;
    made.is_shared = is_shared;
    made.element_bytes = form.unit;
    made.address = address_at(batch, access, copy.lane);
    made.runs = {{0, uint32_t(copy.bytes)}};
    if (is_shared) {
        const size_t first = batch.flat(place_in_shared(batch, copy.lane, made.address, copy.bytes));
        made.span = {first, first + copy.bytes};
        made.start = batch.shared(0) + first;
    } else {
        made.start = bytes_in_global(batch, copy.lane, made.address, made.address + copy.bytes, write);
    }
    return made;
}

// Set source, targets and bytes of a copy of contiguous bytes.
void prepare_linear(Batch& batch, const BulkForm& form, BulkCopy& copy) {
    copy.bytes = uint32_t(batch.value(form.size, copy.lane));
    if (copy.bytes % kUnit || !copy.bytes)
        batch.fail_lane(copy.lane,
                        joined("copies ", copy.bytes, " bytes in bulk; a multiple of ", kUnit, " is needed"));
    copy.targets = {linear_side(batch, form, copy, form.target, form.to_shared, true)};
    copy.source = linear_side(batch, form, copy, form.source, form.from_shared, false);
    copy.type = form.type;
}

// Return the elements of a box, dimension 0 fastest. `corner` is the position of the first element, or one column
// and four rows of a matrix (.tile::gather4, .tile::scatter4). The caller must check that the box fits in shared
// memory: a malicious map may describe terabytes, and a list of all locations would fill the CPU's memory.
std::vector<CopySide::Run> box_runs(const TensorMap& map, const Position& corner, bool four_rows) {
    std::vector<CopySide::Run> runs;
    const uint32_t size = map.element->bytes;
    for (uint64_t row = 0; row < map.rows(); ++row) {
        uint64_t rest = row;
        int64_t start = 0;
        bool is_row_inside = true;
        const auto is_inside = [&](uint32_t axis, int64_t place) {
            return place >= 0 && place < int64_t(map.extents[axis]);
        };
        for (uint32_t axis = 1; axis < map.rank; rest /= map.moved(axis++)) {
            const uint64_t i = rest % map.moved(axis);
            const bool is_listed = four_rows && axis == 1;
            const int64_t place = is_listed ? corner[1 + i] : corner[axis] + int64_t(i) * map.steps[axis];
            is_row_inside &= is_inside(axis, place);
            start += place * int64_t(map.strides_bytes[axis - 1]);
        }
        for (uint32_t i = 0; i < map.moved(0); ++i) {
            const int64_t place = corner[0] + int64_t(i) * map.steps[0], offset = start + place * size;
            const bool inside = is_row_inside && is_inside(0, place);
            CopySide::Run* last = runs.empty() ? nullptr : &runs.back();
            if (last && last->inside == inside && last->offset + last->bytes == offset) last->bytes += size;
            else runs.push_back({offset, size, inside});
        }
    }
    return runs;
}

// Return a box's elements in shared memory, starting at byte `start`.
std::vector<CopySide::Run> shared_runs(const TensorMap& map, uint32_t start) {
    std::vector<CopySide::Run> runs;
    for (uint64_t row = 0; row < map.rows(); ++row)
        for (uint32_t byte = 0; byte < map.row_bytes(); byte += 16) {
            // Swap the 16-byte pieces (PTX ISA, section "Swizzling modes").
            const uint32_t address = start + uint32_t(row) * map.row_pitch() + byte, span = map.swizzle_bytes;
            runs.push_back({span ? address ^ (address >> 3 & (span - 16)) : address, 16});
        }
    return runs;
}

CopySide box_side(Batch& batch, uint32_t lane, const TensorMap& map, std::vector<CopySide::Run> runs, bool write) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (const auto& [offset, bytes, inside] : runs)
        if (inside) low = std::min(low, offset), high = std::max(high, offset + int64_t(bytes));
    if (low > high) low = 0, high = kUnit;
    low &= -int64_t(kUnit);
    high = (high + kUnit - 1) & -int64_t(kUnit);
    CopySide made;
    made.element_bytes = map.element->bytes;
    made.fill = map.fill_nan ? map.element->nan : 0;
    made.address = map.address;
    made.start = bytes_in_global(batch, lane, map.address + uint64_t(low), map.address + uint64_t(high), write) - low;
    made.runs = std::move(runs);
    return made;
}

// Set source, targets and bytes of a copy of a tensor's box.
void prepare_tensor(Batch& batch, const BulkForm& form, BulkCopy& copy) {
    const uint32_t lane = copy.lane;
    const bool is_load = form.has_barrier;
    TensorMap map = tensor_map_at(batch, lane, address_at(batch, form.map, lane));
    if (map.rank != form.rank)
        batch.fail_lane(lane, joined("gives ", form.rank, " coordinates for a tensor map of rank ", map.rank));
    Position corner{};
    for (size_t i = 0; i < form.coordinates.size(); i++) corner[i] = int32_t(batch.value(form.coordinates[i], lane));
    if (form.four_rows) {
        if (map.box[1] != 1)
            batch.fail_lane(lane, joined("moves four rows with a tensor map whose box has ", map.box[1]));
        map.box[1] = 4;
    }
    const uint64_t address = address_at(batch, form.target, lane);
    if (address % kTensorAlignment)
        batch.fail_lane(
            lane, joined("gives shared address ", hex(address), ", which is not a multiple of ", kTensorAlignment));
    const SharedPlace place = place_in_shared(batch, lane, address, map.shared_bytes());
    CopySide box = box_side(batch, lane, map, box_runs(map, corner, form.four_rows), !is_load);
    CopySide tile;
    tile.is_shared = true;
    tile.element_bytes = map.element->bytes;
    tile.start = batch.shared(place.block);
    tile.runs = shared_runs(map, place.byte);
    tile.span = {SIZE_MAX, 0};
    for (const auto& [offset, bytes, inside] : tile.runs) {
        // Swizzled addresses may lie outside of the box, so check the end of the batch's memory.
        if (size_t(offset) + bytes > batch.shared_stride())
            batch.fail_lane(lane, "moves bytes beyond shared memory by a swizzle");
        const size_t first = batch.flat({place.block, uint32_t(offset)});
        tile.span = {std::min(tile.span.first, first), std::max(tile.span.end, first + bytes)};
    }
    if (form.reduction != Reduction::kNone && !map.element->reducible)
        batch.fail_lane(lane, joined("combines elements of .", map.element->name, ", for which there is no reduction"));
    copy.bytes = map.rows() * map.row_bytes();
    copy.type = map.element->reducible.value_or(NumberType::kU8);
    copy.source = is_load ? box : tile;
    copy.targets = {is_load ? std::move(tile) : std::move(box)};
}

// Copy to each block in a mask, instead of one block. Targets and barriers have the same offsets in all blocks.
void multicast(Batch& batch, const BulkForm& form, BulkCopy& copy) {
    const uint32_t mask = uint32_t(batch.value(form.mask, copy.lane) & 0xFFFF), blocks = batch.cluster_blocks();
    if (!mask || mask >> blocks)
        batch.fail_lane(copy.lane, joined("multicasts to mask ", hex(mask), " in a cluster of ", blocks, " blocks"));
    const SharedPlace barrier = copy.barriers[0].place;
    const CopySide target = copy.targets[0];
    const uint32_t own = barrier.block % blocks;
    copy.barriers.clear();
    copy.targets.clear();
    for (const uint32_t rank : LanesOf(mask)) {
        copy.barriers.push_back({copy.lane, {barrier.block - own + rank, barrier.byte}});
        CopySide moved = target;
        const int64_t by = (int64_t(rank) - own) * int64_t(batch.shared_stride());
        const int64_t last = int64_t(batch.shared_stride()) * batch.launch.blocks_per_batch;
        if (int64_t(moved.span.first) + by < 0 || int64_t(moved.span.end) + by > last)
            batch.fail_lane(copy.lane, "multicasts beyond the shared memory of its cluster");
        moved.span = {size_t(int64_t(moved.span.first) + by), size_t(int64_t(moved.span.end) + by)};
        moved.start += by;
        copy.targets.push_back(std::move(moved));
    }
}

std::shared_ptr<BulkCopy> prepared(Batch& batch, const BulkForm& form, uint32_t lane) {
    auto copy = std::make_shared<BulkCopy>();
    copy->lane = lane;
    copy->reduction = form.reduction;
    form.rank ? prepare_tensor(batch, form, *copy) : prepare_linear(batch, form, *copy);
    if (!form.has_barrier) return copy;
    const SharedPlace barrier = place_in_shared(batch, lane, address_at(batch, form.barrier, lane), 8);
    copy->barriers = {{lane, barrier}};
    if (RaceDetector* races = batch.races()) races->use_barriers(batch.source, copy->barriers, false);
    if (form.mask) multicast(batch, form, *copy);
    for (const LanePlace& use : copy->barriers) batch.work().mbarriers.phase(use);  // fails if not initialized
    return copy;
}

void start_bulk(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BulkForm>(ins);
    std::vector<std::shared_ptr<BulkCopy>> copies;
    each_lane(batch, ins, [&](uint32_t lane) { copies.push_back(prepared(batch, form, lane)); });
    const AccessKind kind = form.reduction == Reduction::kNone ? AccessKind::kWrite : AccessKind::kAtomic;
    for (const std::shared_ptr<BulkCopy>& copy : copies) {
        copy->source.count(batch, copy->lane, AccessKind::kRead);
        for (const CopySide& target : copy->targets) target.count(batch, copy->lane, kind);
    }
    batch.work().start(copies);
}

void commit_bulk(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { batch.work().commit_group(lane); });
}

void wait_bulk(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { batch.work().wait_for_groups(lane, size_t(ins.immediate), ins.mode); });
}

// Decode the barrier and the mask of blocks, which follow the other operands.
void decode_ends(Decoder& decoder, const Source& ins, const Operands& operands, size_t next, BulkForm& form) {
    if (form.has_barrier) form.barrier = decoder.access(operands[next++], Space::kShared);
    if (ins.has("multicast")) form.mask = decoder.value(operands[next], "u16");
}

void decode_linear(Decoder& decoder, const Source& ins, const Operands& operands, BulkForm& form) {
    std::vector<bool> shared;
    for (const std::string& mark : ins.modifiers)
        if (mark == "shared" || mark == "global") shared.push_back(mark == "shared");
    if (shared.size() != 2 || (!shared[0] && !shared[1]) || ins.has("cp_mask")) refuse();
    form.to_shared = shared[0];
    form.from_shared = shared[1];
    form.target = decoder.access(operands[0], Space::kGeneric);
    form.source = decoder.access(operands[1], Space::kGeneric);
    form.size = decoder.value(operands[2], "u32");
    decode_ends(decoder, ins, operands, 3, form);
    if (form.reduction == Reduction::kNone) return;
    form.type = type_among(ins.type(), {"f16", "bf16", "f32", "f64", "u32", "s32", "b32", "u64", "s64", "b64"});
    form.unit = uint32_t(number_bits(form.type)) / 8;
    if (ins.type().find('f') != std::string::npos && form.reduction > Reduction::kMax) refuse();
}

void decode_tensor(Decoder& decoder, const Source& ins, const Operands& operands, BulkForm& form) {
    if (ins.has("im2col") || ins.has("im2col_no_offs")) refuse();
    form.four_rows = ins.has("gather4") || ins.has("scatter4");
    const Operand &texel = operands[form.has_barrier ? 1 : 0], &shared = operands[form.has_barrier ? 0 : 1];
    if (texel.kind != OperandKind::kTexel || shared.kind != OperandKind::kAddress) refuse("operands");
    decode_ends(decoder, ins, operands, 2, form);
    form.map = decoder.access(as_address(texel.items[0]), Space::kGeneric);
    for (size_t i = 1; i < texel.items.size(); i++)
        for (const Operand& item : elements(texel.items[i])) form.coordinates.push_back(decoder.value(item, "s32"));
    form.target = decoder.access(shared, Space::kShared);
    for (const std::string& mark : ins.modifiers)
        if (mark.size() == 2 && mark[1] == 'd' && mark[0] >= '1' && mark[0] <= '5') form.rank = uint32_t(mark[0] - '0');
    if (!form.rank || form.coordinates.size() != (form.four_rows ? kMostRank : form.rank))
        refuse(joined(form.coordinates.size(), " coordinates of ", form.rank, " dimensions"));
}

}  // namespace

void decode_bulk(Decoder& decoder, const Source& ins) {
    if (ins.has("prefetch")) {
        decoder.emit(nothing);
    } else if (ins.has("commit_group")) {
        decoder.emit(commit_bulk);
    } else if (ins.has("wait_group")) {
        Instruction& made = decoder.emit(wait_bulk);
        made.immediate = literal(ins.operands[0], "wait_group without a literal");
        made.mode = ins.has("read");
    } else {
        BulkForm form;
        Operands operands = ins.operands;
        if (ins.has("cache_hint") && !operands.empty()) operands.pop_back();
        form.has_barrier = ins.has("mbarrier");
        if (ins.modifiers[0] == "reduce") {
            decoder.note_atomic(Space::kGlobal);
            for (const std::string& mark : ins.modifiers)
                if (form.reduction == Reduction::kNone) form.reduction = reduction_of(mark);
            if (form.reduction == Reduction::kNone) refuse();
        }
        ins.has("tensor") ? decode_tensor(decoder, ins, operands, form) : decode_linear(decoder, ins, operands, form);
        emit_form(decoder, start_bulk, std::move(form));
    }
}

}  // namespace kernrec
