// Textures and surfaces: `tex tld4 txq suld sust sured suq` (PTX ISA, sections 9.7.10 and 9.7.11). texture.cpp maps
// coordinates to texels.
//
// A fetch counts as one read of its buffer: a request per warp, with the distinct sectors of all texels that its lanes
// filter. Depth comparison, multi-sample textures and sparse residency are not supported.
#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

#include "async_copy.h"
#include "dispatch.h"
#include "text.h"
#include "texture.h"

namespace kernrec {
namespace {

struct ImageForm {
    Row handle;
    Geometry geometry{};
    Row layer;
    std::vector<Row> coordinates;
    std::vector<Row> targets;  // result or source registers; none if discarded
    NumberType type = NumberType::kF32;
    bool packed = false;  // two f16 results per register
    bool whole = false;   // whether coordinates are texel indices
    // For fetches: level of detail, gradients along x and y, and texel offset.
    Row level;
    std::vector<Row> slopes[2], offset;
    std::optional<uint32_t> channel;  // channel of a gather
    // For surfaces: bytes per element, and behavior for accesses outside of the image.
    uint32_t unit = 4;
    OutsideMode outside = OutsideMode::kTrap;
    Reduction reduction = Reduction::kNone;
};

struct Part {
    const Image* image;
    std::vector<uint32_t> lanes;
};

// Group the active lanes by the image that they access.
std::vector<Part> parts_of(Batch& batch, const Instruction& ins, const Row& handles) {
    std::map<uint64_t, Part> parts;
    each_lane(batch, ins, [&](uint32_t lane) { parts[batch.value(handles, lane)].lanes.push_back(lane); });
    std::vector<Part> made;
    for (auto& [handle, part] : parts) {
        const auto image = batch.launch.images.find(handle);
        if (image == batch.launch.images.end())
            batch.fail_lane(part.lanes[0], "uses " + hex(handle) + ", which is not the handle of a texture or surface");
        part.image = image->second.get();
        made.push_back(std::move(part));
    }
    return made;
}

void require_axes(Batch& batch, const Image& image, const Geometry& geometry) {
    if (image.axes != (geometry.cube ? 2 : geometry.axes))
        batch.fail("the image over " + image.name + " has " + std::to_string(image.axes) + " axes");
}

// Location of accessed texels in the hardware's layout: bytes in the buffer, -1 for none.
struct Stored {
    uint32_t lane;
    std::vector<int64_t> bytes;
};

// Clocks of a warp's request. An SM has four texture units. Each unit filters four texels to one sample per clock
// (NVIDIA A100 Tensor Core GPU Architecture, "4 texture units per SM"; NVIDIA Turing GPU Architecture states the same).
constexpr uint32_t kTextureClocks = 8;

void count_image(Batch& batch, const Image& image, const std::vector<Stored>& all, AccessKind kind, uint32_t size) {
    const uint32_t number = uint32_t((image.address >> kBufferShift) - 1);
    std::map<uint32_t, std::vector<int64_t>> requests;  // keyed by warp: addresses
    size_t corners = 0;
    for (const Stored& one : all) {
        std::vector<int64_t>& addresses = requests[one.lane / kWarp];
        corners = std::max(corners, one.bytes.size());
        for (const int64_t byte : one.bytes)
            if (byte >= 0) addresses.push_back(int64_t(image.address) + byte);
    }
    uint64_t texels = 0, sectors = 0;
    for (auto& [warp, addresses] : requests) {
        std::set<int64_t> distinct;
        for (const int64_t address : addresses) {
            distinct.insert(address / kSectorBytes);
            if (BlockWatch* watch = batch.watch_of(warp)) batch.touch(*watch, number, kind, &address, 1, size);
        }
        texels += addresses.size();
        sectors += distinct.size();
        std::vector<int64_t> places(distinct.begin(), distinct.end());
        batch.watch_request(warp, kind == AccessKind::kAtomic ? addresses : places, kind);
    }
    if (!batch.launch.count) return;
    BufferCounts& buffer = batch.counts.buffers[number];
    if (batch.launch.watch)
        buffer[kPasses + size_t(kind)].add(requests.size() * kTextureClocks * std::max<size_t>(corners / 4, 1));
    buffer[kSectors + size_t(kind)].add(sectors);
    buffer[kRequests + size_t(kind)].add(requests.size());
    buffer[kBytes + size_t(kind)].add(texels * size);
}

double number_at(Batch& batch, const Row& row, uint32_t lane, bool is_float) {
    const uint32_t bits = uint32_t(batch.value(row, lane));
    return is_float ? double(bit_cast<float>(bits)) : double(int32_t(bits));
}

ImagePlace place_of(Batch& batch, const ImageForm& form, const Image& image, uint32_t lane) {
    std::array<double, 3> coordinates{};
    for (size_t i = 0; i < form.coordinates.size(); i++)
        coordinates[i] = number_at(batch, form.coordinates[i], lane, !form.whole);
    const int64_t layer = form.layer ? int64_t(uint32_t(batch.value(form.layer, lane))) : 0;
    return image_place(image, form.geometry, coordinates, layer);
}

void put_channels(Batch& batch, const ImageForm& form, uint32_t lane, const std::array<double, 4>& values) {
    if (form.packed) {
        for (size_t i = 0; i < 2; i++)
            if (form.targets[i])
                batch.row<uint32_t>(form.targets[i])[lane] = channel_bits(NumberType::kF16, values[2 * i]) |
                                                             channel_bits(NumberType::kF16, values[2 * i + 1]) << 16;
        return;
    }
    for (size_t i = 0; i < 4; i++)
        if (form.targets[i]) batch.row<uint32_t>(form.targets[i])[lane] = channel_bits(form.type, values[i]);
}

void fetch_texels(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ImageForm>(ins);
    for (const Part& part : parts_of(batch, ins, form.handle)) {
        const Image& image = *part.image;
        require_axes(batch, image, form.geometry);
        std::map<int64_t, std::vector<Stored>> levels;  // texels keyed by mipmap level
        for (const uint32_t lane : part.lanes) {
            double level = 0;
            if (form.level) {
                level = number_at(batch, form.level, lane, !form.whole);
            } else if (!form.slopes[0].empty()) {
                std::array<double, 3> slopes[2] = {};
                for (int which = 0; which < 2; which++)
                    for (size_t i = 0; i < form.slopes[which].size(); i++)
                        slopes[which][i] = number_at(batch, form.slopes[which][i], lane, true);
                level = level_of_gradients(image, slopes[0], slopes[1]);
            }
            std::array<double, 3> offset{};
            for (size_t i = 0; i < form.offset.size(); i++) offset[i] = number_at(batch, form.offset[i], lane, false);
            const int64_t nearest = nearest_level(image, level);
            Stored stored{lane, {}};
            const ImagePlace place = place_of(batch, form, image, lane);
            put_channels(batch, form, lane,
                         form.channel ? gather(image, place, *form.channel, stored.bytes)
                                      : fetch(image, place, offset, nearest, form.whole, stored.bytes));
            levels[nearest].push_back(std::move(stored));
        }
        for (const auto& [level, stored] : levels)
            count_image(batch, image, stored, AccessKind::kRead, uint32_t(image.texel_bytes()));
    }
}

void decode_place(Decoder& decoder, const Source& ins, const Operand& place, const char* type, ImageForm& form) {
    if (place.kind != OperandKind::kTexel || place.items.empty()) refuse();
    form.geometry = geometry(ins.modifiers);
    form.handle = decoder.value(place.items[0], "b64");
    Operands coordinates(place.items.begin() + 1, place.items.end());
    if (coordinates.size() < form.geometry.axes + form.geometry.layered)
        refuse(std::to_string(coordinates.size()) + " coordinates");
    if (form.geometry.layered) {
        form.layer = decoder.value(coordinates[0], "u32");
        coordinates.erase(coordinates.begin());
    }
    for (uint32_t i = 0; i < form.geometry.axes; i++) form.coordinates.push_back(decoder.value(coordinates[i], type));
}

void decode_results(Decoder& decoder, const Source& ins, const Operand& results, ImageForm& form) {
    if (ins.modifiers.size() < 2 || results.kind != OperandKind::kVector) refuse();
    const std::string& type = ins.modifiers[ins.modifiers.size() - 2];
    form.packed = type == "f16x2";
    form.type = form.packed ? NumberType::kF16 : type_among(type, {"f32", "u32", "s32"});
    if (results.items.size() != (form.packed ? 2u : 4u)) refuse(std::to_string(results.items.size()) + " results");
    for (const Operand& item : results.items)
        form.targets.push_back(item.kind == OperandKind::kNone ? Row{}
                                                               : decoder.write(item, form.packed ? "b32" : type));
}

std::vector<Row> vector_rows(Decoder& decoder, const Operand& operand, uint32_t axes, const char* type) {
    const Operands items = elements(operand);
    if (items.size() < axes) refuse(std::to_string(items.size()) + " elements for " + std::to_string(axes) + " axes");
    std::vector<Row> rows;
    for (uint32_t i = 0; i < axes; i++) rows.push_back(decoder.value(items[i], type));
    return rows;
}

const Registration kTex({"tex"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() < 2 || ins.modifiers.empty()) refuse();
    const std::string& type = ins.type();
    if (type != "f32" && type != "s32") refuse();
    ImageForm form;
    form.whole = type == "s32";
    decode_results(decoder, ins, ins.operands[0], form);
    decode_place(decoder, ins, ins.operands[1], type.c_str(), form);
    size_t next = 2;
    const auto take = [&]() -> const Operand& {
        if (next >= ins.operands.size()) refuse();
        return ins.operands[next++];
    };
    if (ins.has("level")) form.level = decoder.value(take(), type);
    if (ins.has("grad"))
        for (std::vector<Row>& slope : form.slopes) slope = vector_rows(decoder, take(), form.geometry.axes, "f32");
    if (next < ins.operands.size() && ins.operands[next].kind == OperandKind::kVector)
        form.offset = vector_rows(decoder, take(), form.geometry.axes, "s32");
    if (next != ins.operands.size()) refuse("a depth comparison");
    emit_form(decoder, fetch_texels, std::move(form));
});

const Registration kGather({"tld4"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2 || ins.modifiers.empty() || ins.type() != "f32" || ins.modifiers[0].size() != 1)
        refuse();
    const size_t channel = std::string("rgba").find(ins.modifiers[0]);
    if (channel == std::string::npos) refuse();
    ImageForm form;
    form.channel = uint32_t(channel);
    decode_results(decoder, ins, ins.operands[0], form);
    decode_place(decoder, ins, ins.operands[1], "f32", form);
    if (form.geometry.axes != 2 && !form.geometry.cube) refuse();
    emit_form(decoder, fetch_texels, std::move(form));
});

struct Property {
    const char* name;
    int64_t (*of)(const Image&);
};
const Property kProperties[] = {
    {"width", [](const Image& image) { return image.extents[0]; }},
    {"height", [](const Image& image) { return image.axes > 1 ? image.extents[1] : 0; }},
    {"depth", [](const Image& image) { return image.axes > 2 ? image.extents[2] : 0; }},
    {"array_size", [](const Image& image) { return image.layers; }},
    {"num_mipmap_levels", [](const Image& image) { return image.levels; }},
    {"normalized_coords", [](const Image& image) { return int64_t(image.sampler.normalized); }},
};

void query(Batch& batch, const Instruction& ins) {
    for (const Part& part : parts_of(batch, ins, ins.a))
        for (const uint32_t lane : part.lanes)
            batch.row<uint32_t>(ins.d)[lane] = uint32_t(kProperties[ins.mode].of(*part.image));
}

const Registration kQuery({"txq", "suq"}, [](Decoder& decoder, const Source& ins) {
    const auto property = std::find_if(std::begin(kProperties), std::end(kProperties),
                                       [&](const Property& each) { return ins.has(each.name); });
    if (property == std::end(kProperties) || ins.has("level")) refuse("this property");
    if (ins.operands.size() != 2 || ins.operands[1].kind != OperandKind::kAddress || ins.operands[1].items.empty())
        refuse();
    const Row a = decoder.value(ins.operands[1].items[0], "b64"), d = decoder.write(ins.operands[0], "u32");
    decoder.emit(query, d, a).mode = uint32_t(property - kProperties);
});

// --- Surfaces ---

struct SurfaceAccess {
    uint32_t lane;
    uint8_t* bytes;
    bool outside;
};

// Return and count the lanes' accesses to a surface, whose x coordinate is in bytes.
std::vector<SurfaceAccess> surface_accesses(Batch& batch, const Instruction& ins, const ImageForm& form,
                                            AccessKind kind, uint64_t* atomics = nullptr) {
    std::vector<SurfaceAccess> accesses;
    const uint32_t size = form.unit * uint32_t(form.targets.size());
    for (const Part& part : parts_of(batch, ins, form.handle)) {
        const Image& image = *part.image;
        require_axes(batch, image, form.geometry);
        if (kind != AccessKind::kRead && !image.writable)
            batch.fail("writes to " + image.name + ", which is read-only");
        std::vector<Stored> stored;
        for (const uint32_t lane : part.lanes) {
            std::array<int64_t, 3> coordinates{};
            for (size_t i = 0; i < form.coordinates.size(); i++)
                coordinates[i] = int32_t(batch.value(form.coordinates[i], lane));
            const int64_t layer = form.layer ? int64_t(uint32_t(batch.value(form.layer, lane))) : 0;
            try {
                const SurfacePlace place = surface_place(image, coordinates, layer, size, form.outside);
                stored.push_back({lane, {place.stored}});
                accesses.push_back({lane, image.data + place.byte, place.outside});
            } catch (const std::invalid_argument& error) {
                throw Fault(FaultKind::kEmulation, ins.source, batch.coordinates(lane) + ": " + error.what());
            }
        }
        count_image(batch, image, stored, kind, size);
        if (atomics && batch.launch.count)
            batch.counts.buffers[(image.address >> kBufferShift) - 1][kAtomics].add(uint64_t(
                std::count_if(stored.begin(), stored.end(), [](const Stored& one) { return one.bytes[0] >= 0; })));
    }
    return accesses;
}

uint8_t* bytes_of(uint64_t& value) { return reinterpret_cast<uint8_t*>(&value); }

template <bool stores>
void move_surface(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ImageForm>(ins);
    for (const SurfaceAccess& at : surface_accesses(batch, ins, form, stores ? AccessKind::kWrite : AccessKind::kRead))
        for (size_t i = 0; i < form.targets.size(); i++) {
            if (!form.targets[i]) continue;
            uint8_t* const place = at.bytes + i * form.unit;
            uint64_t value = stores ? batch.value(form.targets[i], at.lane) : 0;
            if (!at.outside) std::memcpy(stores ? place : bytes_of(value), stores ? bytes_of(value) : place, form.unit);
            if (!stores) batch.put_value(form.targets[i], at.lane, value);
        }
}

void reduce_surface(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ImageForm>(ins);
    uint64_t atomics = 0;
    for (const SurfaceAccess& at : surface_accesses(batch, ins, form, AccessKind::kAtomic, &atomics)) {
        if (at.outside) continue;
        uint64_t old = 0;
        std::memcpy(&old, at.bytes, form.unit);
        const uint64_t made = reduce(form.reduction, form.type, old, batch.value(form.targets[0], at.lane));
        std::memcpy(at.bytes, &made, form.unit);
    }
}

ImageForm surface_form(Decoder& decoder, const Source& ins, const Operand& place) {
    if (ins.modifiers.empty() || ins.modifiers[0] != "b") refuse();
    ImageForm form;
    form.whole = true;
    decode_place(decoder, ins, place, "s32", form);
    if (form.geometry.cube) refuse("its geometry");
    form.outside = ins.has("clamp") ? OutsideMode::kClamp : ins.has("zero") ? OutsideMode::kZero : OutsideMode::kTrap;
    return form;
}

uint32_t unit_of(const Source& ins) {
    for (const auto& [name, bytes] : {std::pair{"b8", 1u}, {"b16", 2u}, {"b32", 4u}, {"b64", 8u}})
        if (ins.has(name)) return bytes;
    refuse();
}

std::vector<Row> surface_registers(Decoder& decoder, const Operand& operand, uint32_t unit) {
    std::vector<Row> rows;
    for (const Operand& item : elements(operand)) {
        if (item.kind == OperandKind::kNone) rows.push_back({});
        else rows.push_back(decoder.value(item, unit == 1 ? "b16" : "b" + std::to_string(8 * unit)));
    }
    if (rows.size() != 1 && rows.size() != 2 && rows.size() != 4) refuse("registers");
    return rows;
}

const Registration kSurfaceMove({"suld", "sust"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2) refuse();
    const bool loads = ins.opcode == "suld";
    const Operand& registers = ins.operands[loads ? 0 : 1];
    ImageForm form = surface_form(decoder, ins, ins.operands[loads ? 1 : 0]);
    form.unit = unit_of(ins);
    for (const Operand& item : elements(registers))
        if (loads && item.kind != OperandKind::kNone && item.kind != OperandKind::kRegister) refuse();
    form.targets = surface_registers(decoder, registers, form.unit);
    emit_form(decoder, loads ? move_surface<false> : move_surface<true>, std::move(form));
});

const Registration kSurfaceReduction({"sured"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2 || ins.modifiers.size() < 2) refuse();
    const std::string& name = ins.modifiers[1];
    if (name != "add" && name != "min" && name != "max" && name != "and" && name != "or") refuse();
    ImageForm form = surface_form(decoder, ins, ins.operands[0]);
    form.reduction = reduction_of(name);
    constexpr const char* names[] = {"b32", "b64", "u32", "s32", "u64", "s64"};
    const auto* const type = std::find_if(std::begin(names), std::end(names), [&](auto each) { return ins.has(each); });
    if (type == std::end(names)) refuse();
    form.type = number_type(*type);
    form.unit = uint32_t(number_bits(form.type)) / 8;
    form.targets = {decoder.value(ins.operands[1], *type)};
    decoder.note_atomic(Space::kGlobal);
    emit_form(decoder, reduce_surface, std::move(form));
});

}  // namespace
}  // namespace kernrec
