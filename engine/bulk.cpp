// Bulk copies: `cp.async.bulk`, `cp.reduce.async.bulk` and their tensor forms (PTX ISA, sections 9.7.9.25.4 and
// 9.7.9.25.5). One thread, usually one per block, starts a copy, and the asynchronous engine finishes it.
#include <algorithm>
#include <stdexcept>

#include "dispatch.h"
#include "pending.h"
#include "tensor_maps.h"

namespace kernrec {
namespace {

constexpr uint32_t kUnit = 16;           // alignment of addresses and sizes
constexpr uint32_t kTensorAlignment = 128;  // alignment of a box in shared memory

struct BulkForm {
    bool to_shared = false, from_shared = false, tensor = false, four_rows = false, is_load = false;
    Instruction target, source, barrier, map;  // for a tensor, `target` is the address in shared memory
    Row size, mask;
    bool has_barrier = false, is_reduction = false;
    Reduction reduction = Reduction::kNone;
    NumberType type = NumberType::kU64;
    uint32_t unit = 8;
    std::vector<Row> coordinates;
    uint32_t rank = 0;
};

// One side of a copy, with its counts and watched memory.
struct Side {
    CopySide side;
    bool is_shared = false;
    SharedPlace place{};
    std::pair<size_t, size_t> span{};   // in shared memory
    std::vector<Batch::Moved> moved;    // in global memory
    uint64_t bytes = 0;                 // bytes inside the tensor

    void count(Batch& batch, uint32_t lane, AccessKind kind) const {
        if (is_shared) batch.count_bulk_shared(bytes, kind);
        else batch.count_bulk(moved, lane, kind);
    }
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

Side linear_side(Batch& batch, const BulkForm& form, uint32_t lane, uint64_t address, uint64_t bytes, bool is_shared,
                 bool write) {
    Side made;
    made.is_shared = is_shared;
    made.bytes = bytes;
    made.side.element_bytes = form.unit;
    if (is_shared) {
        made.place = place_in_shared(batch, lane, address, bytes);
        const size_t first = batch.flat(made.place);
        made.span = {first, first + bytes};
        made.side.runs.push_back({batch.bytes_at(made.place), uint32_t(bytes)});
    } else {
        made.side.runs.push_back({bytes_in_global(batch, lane, address, address + bytes, write), uint32_t(bytes)});
        made.moved.push_back({address, bytes});
    }
    return made;
}

struct Sides {
    Side source, target;
    uint64_t bytes;  // bytes that a barrier counts
    NumberType type;
};

Sides linear_sides(Batch& batch, const BulkForm& form, uint32_t lane) {
    const uint64_t bytes = uint32_t(batch.value(form.size, lane));
    if (bytes % kUnit || !bytes)
        batch.fail_lane(lane, "copies " + std::to_string(bytes) + " bytes in bulk; a multiple of " +
                                  std::to_string(kUnit) + " is needed");
    Side target = linear_side(batch, form, lane, address_at(batch, form.target, lane), bytes, form.to_shared, true);
    Side source = linear_side(batch, form, lane, address_at(batch, form.source, lane), bytes, form.from_shared, false);
    return {std::move(source), std::move(target), bytes, form.type};
}

// Return the box of a tensor in global memory.
Side box_side(Batch& batch, uint32_t lane, const TensorMap& map, const std::vector<CopyRun>& runs, bool write) {
    Side made;
    made.side.element_bytes = map.element_bytes();
    made.side.fill = map.fill();
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (const CopyRun& run : runs)
        if (run.inside) low = std::min(low, run.offset), high = std::max(high, run.offset + int64_t(run.bytes));
    if (low > high) low = 0, high = kUnit;
    low &= -int64_t(kUnit);
    high = (high + kUnit - 1) & -int64_t(kUnit);
    uint8_t* first = bytes_in_global(batch, lane, map.address + uint64_t(low), map.address + uint64_t(high), write);
    for (const CopyRun& run : runs) {
        made.side.runs.push_back({run.inside ? first + (run.offset - low) : nullptr, run.bytes});
        if (!run.inside) continue;
        made.moved.push_back({map.address + uint64_t(run.offset), run.bytes});
        made.bytes += run.bytes;
    }
    return made;
}

Sides tensor_sides(Batch& batch, const BulkForm& form, uint32_t lane) {
    TensorMap map = tensor_map_at(batch, lane, address_at(batch, form.map, lane));
    if (map.rank != form.rank)
        batch.fail_lane(lane, "gives " + std::to_string(form.rank) + " coordinates for a tensor map of rank " +
                                  std::to_string(map.rank));
    std::array<int32_t, kMostRank> corner{};
    for (size_t i = 0; i < form.coordinates.size(); i++) corner[i] = int32_t(batch.value(form.coordinates[i], lane));
    if (form.four_rows) {
        if (map.box[1] != 1)
            batch.fail_lane(lane, "moves four rows with a tensor map whose box has " + std::to_string(map.box[1]));
        map = with_four_rows(map);
    }
    const uint64_t address = address_at(batch, form.target, lane);
    const bool too_large = map.shared_bytes() > batch.launch.shared_bytes;  // malicious maps describe terabytes
    const auto check_shared = [&] {
        if (address % kTensorAlignment)
            batch.fail_lane(lane, "gives shared address " + hex_address(address) + ", which is not a multiple of " +
                                      std::to_string(kTensorAlignment));
        return place_in_shared(batch, lane, address, map.shared_bytes());
    };
    if (too_large) check_shared();
    Side box =
        box_side(batch, lane, map, form.four_rows ? row_runs(map, corner) : box_runs(map, corner), !form.is_load);
    Side tile;
    tile.is_shared = true;
    tile.place = check_shared();
    tile.bytes = map.box_bytes();
    tile.side.element_bytes = map.element_bytes();
    const size_t block = batch.flat({tile.place.block, 0});
    size_t first = SIZE_MAX, end = 0;
    for (const CopyRun& run : shared_runs(map, tile.place.byte)) {
        const size_t place = block + size_t(run.offset);
        // Swizzled addresses may lie outside of the box, so check the end of the batch's memory.
        if (size_t(run.offset) + run.bytes > batch.shared_stride())
            batch.fail_lane(lane, "moves bytes beyond shared memory by a swizzle");
        first = std::min(first, place);
        end = std::max(end, place + run.bytes);
        tile.side.runs.push_back({batch.bytes_at({tile.place.block, uint32_t(run.offset)}), run.bytes});
    }
    tile.span = {first, end};
    bool reducible = false;
    const NumberType type = reducible_type(map.type, reducible);
    if (form.is_reduction && !reducible)
        batch.fail_lane(lane, std::string("combines elements of .") + tensor_element_name(map.type) +
                                  ", for which there is no reduction");
    const uint64_t bytes = map.box_bytes();
    if (form.is_load) return {std::move(box), std::move(tile), bytes, type};
    return {std::move(tile), std::move(box), bytes, type};
}

void misuse(Batch& batch, uint32_t lane, SharedPlace place, const std::invalid_argument& error) {
    batch.fail_lane(lane, "uses the barrier at " + batch.place_name(place) + ", " + error.what());
}

std::shared_ptr<BulkCopy> prepared(Batch& batch, const BulkForm& form, uint32_t lane, std::vector<Side>& targets,
                                   Side& source) {
    Sides sides = form.tensor ? tensor_sides(batch, form, lane) : linear_sides(batch, form, lane);
    auto copy = std::make_shared<BulkCopy>();
    copy->lane = lane;
    copy->site = batch.source;
    copy->bytes = sides.bytes;
    copy->reduction = form.reduction;
    copy->type = sides.type;
    source = sides.source;
    targets = {sides.target};
    if (form.has_barrier) {
        const SharedPlace barrier = place_in_shared(batch, lane, address_at(batch, form.barrier, lane), 8);
        copy->barriers = {barrier};
        if (PhaseRaces* races = batch.phase_races()) races->use(batch.source, {{lane / kWarp, batch.flat(barrier)}});
        if (form.mask) {
            const uint32_t mask = uint32_t(batch.value(form.mask, lane) & 0xFFFF), blocks = batch.cluster_blocks();
            if (!mask || mask >> blocks)
                batch.fail_lane(lane, "multicasts to mask " + hex_address(mask) + " in a cluster of " +
                                          std::to_string(blocks) + " blocks");
            const uint32_t own = barrier.block % blocks;
            copy->barriers.clear();
            targets.clear();
            for (uint32_t rank = 0; rank < blocks; rank++) {
                if (!(mask >> rank & 1)) continue;
                copy->barriers.push_back({barrier.block - own + rank, barrier.byte});
                // Return the address at the same offset in another block, relative to the barrier's block.
                Side moved = sides.target;
                const int64_t by = (int64_t(rank) - own) * int64_t(batch.shared_stride());
                const int64_t last = int64_t(batch.shared_stride()) * batch.launch.blocks_per_batch;
                if (int64_t(moved.span.first) + by < 0 || int64_t(moved.span.second) + by > last)
                    batch.fail_lane(lane, "multicasts beyond the shared memory of its cluster");
                moved.span.first = size_t(int64_t(moved.span.first) + by);
                moved.span.second = size_t(int64_t(moved.span.second) + by);
                for (CopySide::Run& run : moved.side.runs) run.at += by;
                targets.push_back(std::move(moved));
            }
        }
        for (const SharedPlace place : copy->barriers) {
            try {
                batch.work().mbarriers.phase(place);
            } catch (const std::invalid_argument& error) {
                misuse(batch, lane, place, error);
            }
        }
    }
    copy->source = sides.source.side;
    if (source.is_shared) copy->source_span = source.span;
    for (const Side& target : targets) {
        copy->targets.push_back(target.side);
        copy->target_spans.push_back(target.span);
    }
    return copy;
}

void start_bulk(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<BulkForm>(ins);
    struct Prepared {
        std::shared_ptr<BulkCopy> copy;
        std::vector<Side> targets;
        Side source;
    };
    std::vector<Prepared> all;
    each_lane(batch, ins, [&](uint32_t lane) {
        Prepared& one = all.emplace_back();
        one.copy = prepared(batch, form, lane, one.targets, one.source);
    });
    const AccessKind kind = form.reduction == Reduction::kNone ? AccessKind::kWrite : AccessKind::kAtomic;
    std::vector<std::shared_ptr<BulkCopy>> copies;
    std::vector<SharedPlace> places;
    for (Prepared& one : all) {
        one.source.count(batch, one.copy->lane, AccessKind::kRead);
        for (const Side& target : one.targets) target.count(batch, one.copy->lane, kind);
        if (!form.has_barrier) {
            batch.work().start_copy(*one.copy);
            continue;
        }
        batch.work().start_tracked(one.copy);
        copies.push_back(one.copy);
        places.insert(places.end(), one.copy->barriers.begin(), one.copy->barriers.end());
    }
    if (copies.empty()) return;
    batch.work().engine.start(
        [&batch, copies, source = batch.source] {
            const AsInstruction as(batch, source);
            for (const std::shared_ptr<BulkCopy>& copy : copies) {
                batch.work().finish_tracked(*copy);
                for (const SharedPlace place : copy->barriers) {
                    try {
                        batch.work().mbarriers.expect(place, -int64_t(copy->bytes));
                    } catch (const std::invalid_argument& error) {
                        misuse(batch, copy->lane, place, error);
                    }
                }
            }
        },
        std::move(places));
}

void nothing(Batch&, const Instruction&) {}

void commit_bulk(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { batch.work().bulk.commit(lane); });
}

void wait_bulk(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) { batch.work().bulk.wait(lane, size_t(ins.immediate), ins.mode); });
}

// Decode the barrier and the mask of blocks, which follow the other operands.
void decode_ends(Decoder& decoder, const Source& ins, const std::vector<Operand>& operands, size_t next,
                 BulkForm& form) {
    if (form.has_barrier) {
        if (operands.size() <= next) refuse();
        form.barrier = decoder.access(operands[next++], Space::kShared);
    }
    if (ins.has("multicast")) {
        if (operands.size() <= next) refuse();
        form.mask = decoder.value(operands[next], "u16");
    }
}

void decode_linear(Decoder& decoder, const Source& ins, std::vector<Operand> operands, BulkForm& form) {
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
    if (!form.is_reduction) return;
    static const std::map<std::string, NumberType> types = {
        {"f16", NumberType::kF16}, {"bf16", NumberType::kBf16}, {"u32", NumberType::kU32}, {"s32", NumberType::kS32},
        {"u64", NumberType::kU64}, {"s64", NumberType::kS64},   {"f32", NumberType::kF32}, {"f64", NumberType::kF64},
        {"b32", NumberType::kU32}, {"b64", NumberType::kU64}};
    const auto type = types.find(ins.type());
    if (type == types.end()) refuse("a reduction of ." + ins.type());
    form.type = type->second;
    form.unit = uint32_t(number_bits(form.type)) / 8;
    const bool is_float = ins.type().find('f') != std::string::npos;
    if (is_float && form.reduction != Reduction::kAdd && form.reduction != Reduction::kMin &&
        form.reduction != Reduction::kMax)
        refuse();
}

void decode_tensor(Decoder& decoder, const Source& ins, std::vector<Operand> operands, BulkForm& form) {
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
        return;
    }
    if (ins.has("commit_group")) {
        decoder.emit(commit_bulk);
        return;
    }
    if (ins.has("wait_group")) {
        if (ins.operands.empty() || ins.operands[0].kind != OperandKind::kInteger)
            refuse("wait_group without a literal");
        Instruction& made = decoder.emit(wait_bulk);
        made.immediate = ins.operands[0].value;
        made.mode = ins.has("read");
        return;
    }
    decoder.need_lane_address();
    if (ins.modifiers[0] == "reduce") decoder.note_atomic(Space::kGlobal);
    BulkForm form;
    std::vector<Operand> operands = ins.operands;
    if (ins.has("cache_hint") && !operands.empty()) operands.pop_back();
    form.has_barrier = ins.has("mbarrier");
    form.is_reduction = ins.modifiers[0] == "reduce";
    if (form.is_reduction) {
        for (const std::string& mark : ins.modifiers)
            if (form.reduction == Reduction::kNone) form.reduction = reduction_of(mark);
        if (form.reduction == Reduction::kNone) refuse();
    }
    ins.has("tensor") ? decode_tensor(decoder, ins, operands, form) : decode_linear(decoder, ins, operands, form);
    emit_form(decoder, start_bulk, std::move(form));
}

}  // namespace kernrec
