// Tensor maps: their layout, kernels that write them (`tensormap.replace`, `tensormap.cp_fenceproxy`), and proxy fences
// (PTX ISA, sections 9.7.9.27 and 9.7.13.7).
#include "tensor_maps.h"

#include <algorithm>
#include <stdexcept>

#include "dispatch.h"
#include "pending.h"
#include "text.h"

namespace kernrec {

namespace {

constexpr uint32_t kMapBytes = 128, kPart = 16, kMostBox = 256;
constexpr char kMapMark[] = "tile";

template <class... Parts>
[[noreturn]] void invalid(const Parts&... parts) {
    throw std::invalid_argument(joined(parts...));
}

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

// Fail if a number does not fit. Format the numbers like a Python tuple: "(1, 2)", "(1,)".
template <class Numbers, class Fits>
void require_all(const Numbers& numbers, uint32_t count, Fits fits, const char* name, const std::string& rule) {
    if (std::all_of(numbers.begin(), numbers.begin() + count, fits)) return;
    std::string text;
    for (uint32_t i = 0; i < count; ++i) text += joined(i ? ", " : "", numbers[i]);
    invalid(name, "(", text, count == 1 ? ",)" : ")", rule);
}

struct Field {
    const char* name;
    uint32_t first_byte, bytes, count = 1;
};
constexpr Field kFields[] = {{"global_address", 0, 8},
                             {"rank", 12, 1},
                             {"elemtype", 13, 1},
                             {"interleave_layout", 14, 1},
                             {"swizzle_mode", 15, 1},
                             {"fill_mode", 16, 1},
                             {"global_dim", 20, 4, kMostRank},
                             {"global_stride", 44, 8, kMostRank - 1},
                             {"box_dim", 76, 2, kMostRank},
                             {"element_stride", 86, 2, kMostRank}};

struct MapBytes {
    uint8_t* bytes;
    Space space;
};

// Check and return the 128 bytes of a lane's map.
MapBytes map_bytes(Batch& batch, Space space, uint32_t lane, uint64_t address, bool write) {
    if (address % 64) batch.fail_lane(lane, "uses a tensor map at " + hex(address) + ", which is not a multiple of 64");
    batch.resolve_lane(space, address + kMapBytes - kPart, kPart, lane, write);
    const Resolved at = batch.resolve_lane(space, address, kPart, lane, write);
    return {at.places[lane % kWarp], at.space};
}

struct ReplaceForm {
    Instruction map;
    const Field* field;
    int64_t ordinal;
    Row value;
};

void replace_field(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ReplaceForm>(ins);
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint64_t address = address_at(batch, form.map, lane), value = batch.value(form.value, lane);
        const MapBytes map = map_bytes(batch, form.map.space, lane, address, true);
        if (form.ordinal < 0 || form.ordinal >= form.field->count)
            batch.fail(joined("there is no ", form.field->name, " of dimension ", form.ordinal));
        std::memcpy(map.bytes + 8, kMapMark, 4);
        std::memcpy(map.bytes + form.field->first_byte + form.ordinal * form.field->bytes, &value, form.field->bytes);
        if (map.space == Space::kGlobal) batch.work().maps[address] = {false, {}};
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
        std::memmove(map_bytes(batch, Space::kGlobal, lane, address, true).bytes, source.bytes, kMapBytes);
        batch.work().maps[address] = {true, {}};
    });
}

const Registration kTensormap({"tensormap"}, [](Decoder& decoder, const Source& ins) {
    if (ins.modifiers[0] == "replace" && ins.modifiers[1] == "tile") {
        const Field& field = entry_of(
            kFields, [&](const Field& each) { return ins.modifiers[2] == each.name; }, "the field " + ins.modifiers[2]);
        const int64_t ordinal =
            ins.operands.size() == 3 ? literal(ins.operands[1], "a dimension that is no literal") : 0;
        emit_form(decoder, replace_field,
                  ReplaceForm{decoder.access(ins.operands[0], space_of(ins)), &field, ordinal,
                              decoder.value(ins.operands.back(), ins.type())});
        return;
    }
    if (ins.modifiers[0] != "cp_fenceproxy") refuse();
    literal(ins.operands[2]);
    emit_form(
        decoder, copy_and_release,
        CopyForm{decoder.access(ins.operands[0], Space::kGlobal), decoder.access(ins.operands[1], Space::kShared)});
});

// --- Fences: only proxy fences have an effect, because accesses are in order here ---

void release_maps(Batch& batch, const Instruction&) {
    for (auto& [address, map] : batch.work().maps) map.is_released = true;
}

void acquire_map(Batch& batch, const Instruction& ins) {
    each_lane(batch, ins, [&](uint32_t lane) {
        const auto map = batch.work().maps.find(address_at(batch, ins, lane));
        if (map != batch.work().maps.end() && map->second.is_released)
            map->second.acquired.insert(batch.lane_block(lane));
    });
}

void make_visible(Batch& batch, const Instruction& ins) {
    if (RaceDetector* races = batch.races())
        each_warp(batch, ins, [&](uint32_t warp, uint32_t, uint32_t) { races->fence(warp); });
}

const Registration kFence({"fence"}, [](Decoder& decoder, const Source& ins) {
    const bool of_proxies = ins.modifiers.size() > 1 && ins.modifiers[0] == "proxy";
    if (of_proxies && ins.modifiers[1] == "tensormap") {
        if (ins.has("release")) {
            decoder.emit(release_maps);
            return;
        }
        decoder.emit_access(acquire_map, ins.operands[0], Space::kGeneric, {});
        return;
    }
    decoder.emit(of_proxies && ins.modifiers[1] == "async" ? make_visible : nothing);
});

}  // namespace

TensorMap decode_tensor_map(const uint8_t* bytes) {
    if (std::memcmp(bytes + 8, kMapMark, 4) != 0)
        invalid("these 128 bytes are not a tensor map (kernrec.ptx.TensorMap builds one)");
    const uint32_t rank = bytes[12] + 1u, type = bytes[13], interleave = bytes[14], swizzle = bytes[15],
                   fill = bytes[16];
    if (rank > kMostRank || type >= std::size(kElements) || swizzle > 3 || interleave > 2 || fill > 1)
        invalid("rank ", rank, ", element type ", type, ", swizzle ", swizzle, ", interleave ", interleave, ", fill ",
                fill);
    TensorMap map;
    map.address = load_at<uint64_t>(bytes);
    map.rank = rank;
    map.element = &kElements[type];
    map.swizzle_bytes = swizzle ? 16u << swizzle : 0;
    map.fill_nan = fill;
    for (uint32_t axis = 0; axis < rank; ++axis) {
        map.extents[axis] = load_at<uint32_t>(bytes + 20 + 4 * axis);
        map.box[axis] = load_at<uint16_t>(bytes + 76 + 2 * axis);
        map.steps[axis] = load_at<uint16_t>(bytes + 86 + 2 * axis);
        if (axis + 1 < rank) map.strides_bytes[axis] = load_at<uint64_t>(bytes + 44 + 8 * axis);
    }
    // Limits: CUDA Driver API, `cuTensorMapEncodeTiled`.
    if (interleave) invalid("interleave of ", 16 * interleave, " bytes is not emulated");
    if (map.address % 16 || !map.address) invalid("address ", hex(map.address), " is not a multiple of 16");
    const auto in_box = [](uint32_t extent) { return extent >= 1 && extent <= kMostBox; };
    const auto is_stride = [](uint64_t stride) { return stride % 16 == 0 && stride < uint64_t(1) << 40; };
    require_all(
        map.extents, rank, [](uint32_t extent) { return extent >= 1; }, "extents ", " are not from 1 to 2^32 - 1");
    require_all(map.strides_bytes, rank - 1, is_stride, "strides of ", " bytes are not multiples of 16 below 2^40");
    require_all(map.box, rank, in_box, "box ", joined(" must have 1 to ", kMostBox, " elements along each dimension"));
    require_all(
        map.steps, rank, [](uint32_t step) { return step >= 1 && step <= 8; }, "element strides ",
        " are not from 1 to 8");
    const uint32_t row = map.row_bytes();
    if (row % 16) invalid("a row of the box has ", row, " bytes, not a multiple of 16");
    if (swizzle && row > map.swizzle_bytes)
        invalid("a row of the box has ", row, " bytes, more than the swizzle of ", map.swizzle_bytes);
    return map;
}

TensorMap tensor_map_at(Batch& batch, uint32_t lane, uint64_t address) {
    const MapBytes map = map_bytes(batch, Space::kGeneric, lane, address, false);
    if (map.space != Space::kGlobal && map.space != Space::kConst && map.space != Space::kParam)
        batch.fail_lane(lane, std::string("uses a tensor map in ") + space_name(map.space) +
                                  " memory, where no copy reads one (a parameter has to be __grid_constant__)");
    const auto written = batch.work().maps.find(address);
    if (batch.races() && written != batch.work().maps.end() && !written->second.acquired.count(batch.lane_block(lane)))
        batch.fail_lane(lane,
                        joined("uses a tensor map after a write by the kernel, without fence.proxy.tensormap::generic.",
                               written->second.is_released ? "acquire" : "release", " in between"));
    try {
        return decode_tensor_map(map.bytes);
    } catch (const std::invalid_argument& error) {
        batch.fail_lane(lane, std::string("uses a tensor map that no copy can use: ") + error.what());
    }
}

}  // namespace kernrec
