// Bulk copies: `cp.async.bulk`, `cp.reduce.async.bulk` and their tensor forms (PTX ISA, sections 9.7.9.25.4 and
// 9.7.9.25.5). One thread, usually one per block, starts a copy, and the asynchronous engine finishes it.
#include <algorithm>

#include "dispatch.h"
#include "pending.h"
#include "text.h"

namespace kernrec {
namespace {

constexpr uint32_t kUnit = 16;           // alignment of addresses and sizes
constexpr uint32_t kTensorAlignment = 128;  // alignment of a box in shared memory

struct BulkForm {
    bool to_shared = false, from_shared = false, tensor = false, four_rows = false, is_load = false;
    Instruction target, source, barrier, map;  // for a tensor, `target` is the address in shared memory
    Row size, mask;
    bool has_barrier = false;
    Reduction reduction = Reduction::kNone;
    NumberType type = NumberType::kU64;
    uint32_t unit = 8;
    std::vector<Row> coordinates;
    uint32_t rank = 0;
};

SharedPlace place_in_shared(Batch& batch, uint32_t lane, uint64_t address, uint64_t bytes) {
    const Resolved at = batch.resolve_lane(Space::kShared, address, bytes == 8 ? 8 : kUnit, lane, false);
    const SharedPlace place = batch.shared_place(at, lane);
    if (place.byte + bytes > batch.launch.shared_bytes)
        batch.fail_lane(lane, "moves " + std::to_string(bytes) + " bytes at byte " + std::to_string(place.byte) +
                                  " of shared memory, " + std::to_string(batch.launch.shared_bytes) + " bytes");
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

CopySide linear_side(Batch& batch, const BulkForm& form, uint32_t lane, uint64_t address, uint64_t bytes,
                     bool is_shared, bool write) {
    CopySide made;
    made.is_shared = is_shared;
    made.bytes = bytes;
    made.element_bytes = form.unit;
    if (is_shared) {
        made.place = place_in_shared(batch, lane, address, bytes);
        const size_t first = batch.flat(made.place);
        made.span = {first, first + bytes};
        made.runs.push_back({batch.bytes_at(made.place), uint32_t(bytes)});
    } else {
        made.runs.push_back({bytes_in_global(batch, lane, address, address + bytes, write), uint32_t(bytes)});
        made.moved.push_back({address, bytes});
    }
    return made;
}

// Set source, targets and bytes of a copy of contiguous bytes.
void prepare_linear(Batch& batch, const BulkForm& form, BulkCopy& copy) {
    const uint32_t lane = copy.lane;
    copy.bytes = uint32_t(batch.value(form.size, lane));
    if (copy.bytes % kUnit || !copy.bytes)
        batch.fail_lane(lane, "copies " + std::to_string(copy.bytes) + " bytes in bulk; a multiple of " +
                                  std::to_string(kUnit) + " is needed");
    const uint64_t to = address_at(batch, form.target, lane), from = address_at(batch, form.source, lane);
    copy.targets = {linear_side(batch, form, lane, to, copy.bytes, form.to_shared, true)};
    copy.source = linear_side(batch, form, lane, from, copy.bytes, form.from_shared, false);
    copy.type = form.type;
}

CopySide box_side(Batch& batch, uint32_t lane, const TensorMap& map, const std::vector<CopyRun>& runs, bool write) {
    CopySide made;
    made.element_bytes = map.element->bytes;
    made.fill = map.fill_nan ? map.element->nan : 0;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (const CopyRun& run : runs)
        if (run.inside) low = std::min(low, run.offset), high = std::max(high, run.offset + int64_t(run.bytes));
    if (low > high) low = 0, high = kUnit;
    low &= -int64_t(kUnit);
    high = (high + kUnit - 1) & -int64_t(kUnit);
    uint8_t* first = bytes_in_global(batch, lane, map.address + uint64_t(low), map.address + uint64_t(high), write);
    for (const CopyRun& run : runs) {
        made.runs.push_back({run.inside ? first + (run.offset - low) : nullptr, run.bytes});
        if (!run.inside) continue;
        made.moved.push_back({map.address + uint64_t(run.offset), run.bytes});
        made.bytes += run.bytes;
    }
    return made;
}

// Set source, targets and bytes of a copy of a tensor's box.
void prepare_tensor(Batch& batch, const BulkForm& form, BulkCopy& copy) {
    const uint32_t lane = copy.lane;
    TensorMap map = tensor_map_at(batch, lane, address_at(batch, form.map, lane));
    if (map.rank != form.rank)
        batch.fail_lane(lane, "gives " + std::to_string(form.rank) + " coordinates for a tensor map of rank " +
                                  std::to_string(map.rank));
    std::array<int32_t, kMostRank> corner{};
    for (size_t i = 0; i < form.coordinates.size(); i++) corner[i] = int32_t(batch.value(form.coordinates[i], lane));
    if (form.four_rows) {
        if (map.box[1] != 1)
            batch.fail_lane(lane, "moves four rows with a tensor map whose box has " + std::to_string(map.box[1]));
        map.box[1] = 4;
    }
    const uint64_t address = address_at(batch, form.target, lane);
    const auto check_shared = [&] {
        if (address % kTensorAlignment)
            batch.fail_lane(lane, "gives shared address " + hex(address) + ", which is not a multiple of " +
                                      std::to_string(kTensorAlignment));
        return place_in_shared(batch, lane, address, map.shared_bytes());
    };
    if (map.shared_bytes() > batch.launch.shared_bytes) check_shared();  // before `box_runs`, which needs a small box
    CopySide box =
        box_side(batch, lane, map, form.four_rows ? row_runs(map, corner) : box_runs(map, corner), !form.is_load);
    CopySide tile;
    tile.is_shared = true;
    tile.place = check_shared();
    tile.bytes = copy.bytes = map.box_bytes();
    tile.element_bytes = map.element->bytes;
    const size_t block = batch.flat({tile.place.block, 0});
    tile.span = {SIZE_MAX, 0};
    for (const CopyRun& run : shared_runs(map, tile.place.byte)) {
        const size_t place = block + size_t(run.offset);
        // Swizzled addresses may lie outside of the box, so check the end of the batch's memory.
        if (size_t(run.offset) + run.bytes > batch.shared_stride())
            batch.fail_lane(lane, "moves bytes beyond shared memory by a swizzle");
        tile.span = {std::min(tile.span.first, place), std::max(tile.span.end, place + run.bytes)};
        tile.runs.push_back({batch.bytes_at({tile.place.block, uint32_t(run.offset)}), run.bytes});
    }
    if (form.reduction != Reduction::kNone && !map.element->reducible)
        batch.fail_lane(
            lane, std::string("combines elements of .") + map.element->name + ", for which there is no reduction");
    copy.type = map.element->reducible.value_or(NumberType::kU8);
    copy.source = form.is_load ? box : tile;
    copy.targets = {form.is_load ? std::move(tile) : std::move(box)};
}

// Copy to each block in a mask, instead of one block. Targets and barriers have the same offsets in all blocks.
void multicast(Batch& batch, const BulkForm& form, BulkCopy& copy) {
    const uint32_t mask = uint32_t(batch.value(form.mask, copy.lane) & 0xFFFF), blocks = batch.cluster_blocks();
    if (!mask || mask >> blocks)
        batch.fail_lane(copy.lane,
                        "multicasts to mask " + hex(mask) + " in a cluster of " + std::to_string(blocks) + " blocks");
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
        for (CopySide::Run& run : moved.runs) run.at += by;
        copy.targets.push_back(std::move(moved));
    }
}

std::shared_ptr<BulkCopy> prepared(Batch& batch, const BulkForm& form, uint32_t lane) {
    auto copy = std::make_shared<BulkCopy>();
    copy->lane = lane;
    copy->reduction = form.reduction;
    form.tensor ? prepare_tensor(batch, form, *copy) : prepare_linear(batch, form, *copy);
    if (!form.has_barrier) return copy;
    const SharedPlace barrier = place_in_shared(batch, lane, address_at(batch, form.barrier, lane), 8);
    copy->barriers = {{lane, barrier}};
    if (PhaseRaces* races = batch.phase_races()) races->use(batch.source, {{lane / kWarp, batch.flat(barrier)}});
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
    each_lane(batch, ins, [&](uint32_t lane) { batch.work().bulk.commit(lane); });
}

void wait_bulk(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { batch.work().bulk.wait(lane, size_t(ins.immediate), ins.mode); });
}

// Decode the barrier and the mask of blocks, which follow the other operands.
void decode_ends(Decoder& decoder, const Source& ins, const Operands& operands, size_t next, BulkForm& form) {
    if (operands.size() < next + form.has_barrier + ins.has("multicast")) refuse();
    if (form.has_barrier) form.barrier = decoder.access(operands[next++], Space::kShared);
    if (ins.has("multicast")) form.mask = decoder.value(operands[next], "u16");
}

void decode_linear(Decoder& decoder, const Source& ins, const Operands& operands, BulkForm& form) {
    std::vector<bool> shared;
    for (const std::string& mark : ins.modifiers)
        if (mark == "shared" || mark == "global") shared.push_back(mark == "shared");
    if (shared.size() != 2 || (!shared[0] && !shared[1]) || ins.has("cp_mask") || operands.size() < 3) refuse();
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
    if (ins.has("im2col") || ins.has("im2col_no_offs") || operands.size() < 2) refuse();
    form.tensor = true;
    form.is_load = form.has_barrier;
    form.four_rows = ins.has("gather4") || ins.has("scatter4");
    const Operand &texel = operands[form.is_load ? 1 : 0], &shared = operands[form.is_load ? 0 : 1];
    if (texel.kind != OperandKind::kTexel || shared.kind != OperandKind::kAddress) refuse("operands");
    decode_ends(decoder, ins, operands, 2, form);
    Operand map;
    map.kind = OperandKind::kAddress;
    map.items = {texel.items[0]};
    form.map = decoder.access(map, Space::kGeneric);
    for (size_t i = 1; i < texel.items.size(); i++)
        for (const Operand& item : elements(texel.items[i])) form.coordinates.push_back(decoder.value(item, "s32"));
    form.target = decoder.access(shared, Space::kShared);
    for (const std::string& mark : ins.modifiers)
        if (mark.size() == 2 && mark[1] == 'd' && mark[0] >= '1' && mark[0] <= '5') form.rank = uint32_t(mark[0] - '0');
    if (!form.rank || form.coordinates.size() != (form.four_rows ? kMostRank : form.rank))
        refuse(std::to_string(form.coordinates.size()) + " coordinates of " + std::to_string(form.rank) +
               " dimensions");
}

}  // namespace

void decode_bulk(Decoder& decoder, const Source& ins) {
    if (ins.has("prefetch")) {
        decoder.emit(nothing);
    } else if (ins.has("commit_group")) {
        decoder.emit(commit_bulk);
    } else if (ins.has("wait_group")) {
        if (ins.operands.empty() || ins.operands[0].kind != OperandKind::kInteger)
            refuse("wait_group without a literal");
        Instruction& made = decoder.emit(wait_bulk);
        made.immediate = ins.operands[0].value;
        made.mode = ins.has("read");
    } else {
        decoder.need_lane_address();
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
