// Tensor maps that the kernel writes, and proxy fences: `tensormap.replace`, `tensormap.cp_fenceproxy`, `fence` (PTX
// ISA, sections 9.7.9.27 and 9.7.13.7).
#include <stdexcept>

#include "dispatch.h"
#include "pending.h"
#include "text.h"

namespace kernrec {

namespace {

constexpr uint32_t kPart = 16;

struct MapBytes {
    uint8_t* bytes;
    Space space;
};

// Check and return the 128 bytes of a lane's map.
MapBytes map_bytes(Batch& batch, Space space, uint32_t lane, uint64_t address, bool write) {
    if (address % 64) batch.fail_lane(lane, "uses a tensor map at " + hex(address) + ", which is not a multiple of 64");
    batch.resolve_lane(space, address + kTensorMapBytes - kPart, kPart, lane, write);
    const Resolved at = batch.resolve_lane(space, address, kPart, lane, write);
    return {at.places[lane % kWarp], at.space};
}

struct ReplaceForm {
    Instruction map;
    std::string field;
    int64_t ordinal = 0;
    Row value;
};

void replace_field(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ReplaceForm>(ins);
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint64_t address = address_at(batch, form.map, lane);
        const MapBytes map = map_bytes(batch, form.map.space, lane, address, true);
        if (!replace_tensor_map_field(map.bytes, form.field, form.ordinal, batch.value(form.value, lane)))
            batch.fail("there is no " + form.field + " of dimension " + std::to_string(form.ordinal));
        if (map.space == Space::kGlobal) batch.work().maps.write(address, false);
    });
}

struct CopyForm {
    Instruction target, source;
};

// Together, the threads of a warp copy a map from shared to global memory and release it.
void copy_and_release(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<CopyForm>(ins);
    each_warp(batch, ins, [&](uint32_t, uint32_t lane, uint32_t) {
        const uint64_t address = address_at(batch, form.target, lane);
        const MapBytes source = map_bytes(batch, Space::kShared, lane, address_at(batch, form.source, lane), false);
        std::memmove(map_bytes(batch, Space::kGlobal, lane, address, true).bytes, source.bytes, kTensorMapBytes);
        batch.work().maps.write(address, true);
    });
}

const Registration kTensormap({"tensormap"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers.size() < 3 || ins.operands.size() < 2) refuse();
    decoder.need_lane_address();
    if (ins.modifiers[0] == "replace" && ins.modifiers[1] == "tile") {
        ReplaceForm form;
        form.map = decoder.access(ins.operands[0], space_of(ins));
        form.field = ins.modifiers[2];
        form.value = decoder.value(ins.operands.back(), ins.type());
        if (ins.operands.size() == 3) {
            if (ins.operands[1].kind != OperandKind::kInteger) refuse("a dimension that is no literal");
            form.ordinal = ins.operands[1].value;
        }
        emit_form(decoder, replace_field, std::move(form));
        return;
    }
    if (ins.modifiers[0] != "cp_fenceproxy" || ins.operands.size() != 3 ||
        ins.operands[2].kind != OperandKind::kInteger)
        refuse();
    emit_form(
        decoder, copy_and_release,
        CopyForm{decoder.access(ins.operands[0], Space::kGlobal), decoder.access(ins.operands[1], Space::kShared)});
});

// --- Fences: only proxy fences have an effect, because accesses are in order here ---

void release_maps(Batch& batch, const Instruction&) { batch.work().maps.release(); }

void acquire_map(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins,
              [&](uint32_t lane) { batch.work().maps.acquire(address_at(batch, ins, lane), batch.lane_block(lane)); });
}

void make_visible(Batch& batch, const Instruction& ins) {
    RaceDetector* races = batch.race_detector();
    if (!races) return;
    std::map<uint32_t, std::vector<uint32_t>> warps;  // keyed by block
    each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) { warps[batch.block_of(warp)].push_back(warp); });
    for (const auto& [block, of_block] : warps) races->tensor_reads.fence(block, of_block);
}

const Registration kFence({"fence"}, [](Decoder& decoder, const Source& ins) {
    const bool of_proxies = ins.modifiers.size() > 1 && ins.modifiers[0] == "proxy";
    if (of_proxies && ins.modifiers[1] == "tensormap") {
        if (ins.has("release")) {
            decoder.emit(release_maps);
            return;
        }
        if (ins.operands.empty()) refuse();
        const Instruction access = decoder.access(ins.operands[0], Space::kGeneric);
        decoder.emit(acquire_map, {}, access.a).immediate = access.immediate;
        return;
    }
    decoder.emit(of_proxies && ins.modifiers[1] == "async" ? make_visible : nothing);
});

}  // namespace

TensorMap tensor_map_at(Batch& batch, uint32_t lane, uint64_t address) {
    const MapBytes map = map_bytes(batch, Space::kGeneric, lane, address, false);
    if (map.space != Space::kGlobal && map.space != Space::kConst && map.space != Space::kParam)
        batch.fail_lane(lane, std::string("uses a tensor map in ") + space_name(map.space) +
                                  " memory, where no copy reads one (a parameter has to be __grid_constant__)");
    if (batch.races()) {
        const std::string fence = batch.work().maps.missing(address, batch.lane_block(lane));
        if (!fence.empty())
            batch.fail_lane(lane, "uses a tensor map after a write by the kernel, without " + fence + " in between");
    }
    try {
        return decode_tensor_map(map.bytes);
    } catch (const std::invalid_argument& error) {
        batch.fail_lane(lane, std::string("uses a tensor map that no copy can use: ") + error.what());
    }
}

}  // namespace kernrec
