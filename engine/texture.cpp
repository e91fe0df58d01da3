// Textures and surfaces: `tex tld4 txq suld sust sured suq` (PTX ISA, sections 9.7.10 and 9.7.11; CUDA C++ Programming
// Guide, appendix "Texture Fetching").
//
// Linear filters have weights with 8 fractional bits. A fetch counts as one read of its buffer: a request per warp,
// with the distinct sectors of all texels that its lanes filter. Sectors are those of the hardware's layout of 2-D
// images: blocks of 64 bytes x 8 rows, with sectors of 16 bytes x 2 rows (NVIDIA's block linear layout, `drm_fourcc.h`
// of the Linux kernel). Depth comparison, multi-sample textures and sparse residency are not supported.
#include "texture.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "dispatch.h"
#include "reductions.h"
#include "text.h"

namespace kernrec {

std::array<int64_t, 3> Image::extents_at(int64_t level) const {
    std::array<int64_t, 3> result{};
    for (size_t i = 0; i < 3; ++i) result[i] = std::max<int64_t>(extents[i] >> std::min<int64_t>(level, 62), 1);
    return result;
}

int64_t Image::first_texel(int64_t level) const {
    int64_t texels = 0;
    for (int64_t i = 0; i < level; ++i) {
        const auto [x, y, z] = extents_at(i);
        texels += x * y * z * layers;
    }
    return texels;
}

namespace {

// Geometry of an instruction.
struct Geometry {
    const char* name;
    uint32_t axes;
    bool layered = false;
    bool cube = false;
};
constexpr Geometry kGeometries[] = {{"1d", 1},
                                    {"2d", 2},
                                    {"3d", 3},
                                    {"a1d", 1, true},
                                    {"a2d", 2, true},
                                    {"cube", 3, false, true},
                                    {"acube", 3, true, true}};

// Result of a surface access outside of the image: an error (.trap), the nearest texel (.clamp), or zeros (.zero).
enum class OutsideMode : uint8_t { kTrap, kClamp, kZero };

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

// --- Texels ---

constexpr double kFurthest = double(int64_t(1) << 40);  // all larger coordinates map to the same texel

struct Texel {
    std::array<int64_t, 3> at;
    int64_t layer, level;
    bool inside = true;  // if false, the texel reads as the border
    double weight = 1;
};

int64_t texel_number(const Image& image, const Texel& texel) {
    const auto [width, height, depth] = image.extents_at(texel.level);
    return image.first_texel(texel.level) + ((texel.layer * depth + texel.at[2]) * height + texel.at[1]) * width +
           texel.at[0];
}

// Return the address of a texel in the hardware's layout, to count sectors. It is inside the image's buffer.
int64_t stored_address(const Image& image, const Texel& texel) {
    const int64_t size = image.texel_bytes();
    const auto first = int64_t(image.address);
    if (image.axes == 1) return first + texel_number(image, texel) * size;
    const auto [width, height, depth] = image.extents_at(texel.level);
    const int64_t column = texel.at[0] * size, y = texel.at[1];
    const int64_t across = (width * size + 63) / 64, down = (height + 7) / 8;
    const int64_t block = ((texel.layer * depth + texel.at[2]) * down + y / 8) * across + column / 64;
    const int64_t inside = column % 64 / 32 * 256 + y % 8 / 2 * 64 + column % 32 / 16 * 32 + y % 2 * 16 + column % 16;
    return first + (image.first_texel(texel.level) * size + block * 512 + inside) % image.bytes();
}

// Return the index of a texel along one axis, and whether the texel exists. `whole`: the coordinate is an index.
std::pair<int64_t, bool> addressed(const Sampler& sampler, int64_t index, int64_t extent, bool whole) {
    const auto modulo = [index](int64_t by) { return (index % by + by) % by; };
    const AddressMode mode = whole ? AddressMode::kBorder : sampler.address;
    if (mode == AddressMode::kWrap && sampler.normalized) return {modulo(extent), true};
    if (mode == AddressMode::kMirror && sampler.normalized)
        return {std::min(modulo(2 * extent), 2 * extent - 1 - modulo(2 * extent)), true};
    const bool inside = index >= 0 && index < extent;
    return {std::clamp<int64_t>(index, 0, extent - 1), inside || mode != AddressMode::kBorder};
}

// Location in an image, or on a face of a cube.
struct ImagePlace {
    std::array<double, 3> coordinates;
    int64_t layer;
};

// Return the texels of a fetch, last axis fastest. A linear filter blends two texels along each axis.
std::vector<Texel> texels_of(const Image& image, const ImagePlace& place, int64_t level, bool linear, bool whole) {
    const auto bounded = [](double value) { return std::isnan(value) ? 0 : std::clamp(value, -kFurthest, kFurthest); };
    const auto extents = image.extents_at(level);
    std::vector<Texel> texels{{{0, 0, 0}, place.layer, level}};
    for (uint32_t axis = 0; axis < image.axes; ++axis) {
        double at = bounded(place.coordinates[axis]);
        if (image.sampler.normalized && !whole) at = bounded(at * double(extents[axis]));
        if (linear) at -= 0.5;
        const double first = whole ? at : std::floor(at);
        const double share = linear ? std::floor((at - first) * 256.0 + 0.5) / 256.0 : 0;  // 8 bits
        std::vector<Texel> next;
        for (const Texel& texel : texels)
            for (int i = 0; i <= int(linear); ++i) {
                const auto [index, inside] = addressed(image.sampler, int64_t(first) + i, extents[axis], whole);
                Texel& more = next.emplace_back(texel);
                more.at[axis] = index;
                more.inside &= inside;
                more.weight *= i ? share : 1 - share;
            }
        texels = std::move(next);
    }
    return texels;
}

// Read four channels of a texel, as stored or as numbers up to 1. Missing channels are 0.
std::array<double, 4> read_texel(const Image& image, const Texel& texel) {
    const NumberType type = image.element;
    const int bits = number_bits(type);
    const bool is_float = type >= NumberType::kF16, is_signed = number_name(type)[0] == 's';
    const double largest = std::ldexp(1.0, bits - int(is_signed)) - 1;
    std::array<double, 4> values{};
    for (uint32_t i = 0; i < image.channels && texel.inside; ++i) {
        uint64_t code = 0;
        std::memcpy(&code, image.data + texel_number(image, texel) * image.texel_bytes() + i * bits / 8,
                    size_t(bits) / 8);
        values[i] = to_double(type, code);
        if (image.sampler.unit_range && !is_float) values[i] = std::max(values[i] / largest, -1.0);
    }
    return values;
}

// Return the bits of a channel for a result of type f32, f16, u32 or s32.
uint32_t channel_bits(NumberType type, double value) {
    if (type == NumberType::kF32) return bit_cast<uint32_t>(float(value));
    if (type == NumberType::kF16)
        return uint32_t(convert({NumberType::kF16, NumberType::kF64}, bit_cast<uint64_t>(value)));
    constexpr double kLimit = 9223372036854775808.0;
    if (!(value >= -kLimit && value < kLimit)) return 0;
    return uint32_t(int64_t(value));
}

// Return the image that a lane accesses.
const Image& image_at(Batch& batch, uint64_t handle, uint32_t lane) {
    const auto image = batch.launch.images.find(handle);
    if (image == batch.launch.images.end())
        batch.fail_lane(lane, "uses " + hex(handle) + ", which is not the handle of a texture or surface");
    return *image->second;
}

void require_axes(Batch& batch, const Image& image, const Geometry& geometry) {
    if (image.axes != (geometry.cube ? 2 : geometry.axes))
        batch.fail(joined("the image over ", image.name, " has ", image.axes, " axes"));
}

// Accesses of a warp to a level of an image, with addresses in the hardware's layout.
struct Request {
    std::vector<int64_t> addresses;
    uint32_t bytes = 0;      // per access
    size_t texels = 1;       // that a lane filters
};
using Requests = std::map<std::tuple<uint64_t, int64_t, uint32_t>, Request>;  // keyed by handle, level and warp

// Clocks of a warp's request. An SM has four texture units. Each unit filters four texels to one sample per clock
// (NVIDIA A100 Tensor Core GPU Architecture, "4 texture units per SM"; NVIDIA Turing GPU Architecture states the same).
constexpr uint32_t kTextureClocks = 8;

void count_requests(Batch& batch, const Requests& requests, AccessKind kind) {
    for (const auto& [key, request] : requests) {
        const auto [handle, level, warp] = key;
        const auto number = uint32_t((batch.launch.images.at(handle)->address >> kBufferShift) - 1);
        std::set<int64_t> distinct;
        for (const int64_t address : request.addresses) {
            distinct.insert(address / kSectorBytes);
            if (BlockWatch* watch = batch.watch_of(warp)) batch.touch(*watch, number, kind, &address, 1, request.bytes);
        }
        const std::vector<int64_t> sectors(distinct.begin(), distinct.end());
        batch.watch_request(warp, kind == AccessKind::kAtomic ? request.addresses : sectors, kind);
        if (!batch.launch.count) continue;
        BufferCounts& buffer = batch.counts.buffers[number];
        if (batch.launch.watch)
            buffer[kPasses + size_t(kind)].add(kTextureClocks * std::max<size_t>(request.texels / 4, 1));
        buffer[kSectors + size_t(kind)].add(sectors.size());
        buffer[kRequests + size_t(kind)].add(1);
        buffer[kBytes + size_t(kind)].add(request.addresses.size() * request.bytes);
        if (kind == AccessKind::kAtomic) buffer[kAtomics].add(request.addresses.size());
    }
}

double number_at(Batch& batch, const Row& row, uint32_t lane, bool is_float) {
    const uint32_t bits = uint32_t(batch.value(row, lane));
    return is_float ? double(bit_cast<float>(bits)) : double(int32_t(bits));
}

std::array<double, 3> numbers_at(Batch& batch, const std::vector<Row>& rows, uint32_t lane, bool are_floats) {
    std::array<double, 3> numbers{};
    for (size_t i = 0; i < rows.size(); i++) numbers[i] = number_at(batch, rows[i], lane, are_floats);
    return numbers;
}

ImagePlace place_of(Batch& batch, const ImageForm& form, const Image& image, uint32_t lane) {
    ImagePlace place{numbers_at(batch, form.coordinates, lane, !form.whole), uint32_t(batch.value(form.layer, lane))};
    if (form.geometry.cube) {
        // CUDA C++ Programming Guide, appendix "Cubemap Textures".
        const auto [x, y, z] = place.coordinates;
        const double across = std::fabs(x), up = std::fabs(y), far = std::fabs(z);
        const int axis = across >= up && across >= far ? 0 : up >= far ? 1 : 2;
        const double along = place.coordinates[size_t(axis)], side = along < 0 ? -1.0 : 1.0;
        const double s = axis == 0 ? -side * z : axis == 1 ? x : side * x, t = axis == 1 ? side * z : -y;
        const double length = along == 0 ? 1.0 : std::fabs(along);
        place = {{(s / length + 1) / 2, (t / length + 1) / 2, 0}, place.layer * 6 + 2 * axis + (along < 0)};
    }
    place.layer = std::clamp<int64_t>(place.layer, 0, image.layers - 1);
    return place;
}

// Return the nearest level of detail. With gradients, the level is log2 of the longer gradient in texels.
int64_t level_of(Batch& batch, const ImageForm& form, const Image& image, uint32_t lane) {
    double level = form.level ? number_at(batch, form.level, lane, !form.whole) : 0;
    if (!form.slopes[0].empty()) {
        const auto length = [&](const std::vector<Row>& rows) {
            const std::array<double, 3> slope = numbers_at(batch, rows, lane, true);
            double sum = 0;
            for (uint32_t axis = 0; axis < image.axes; ++axis) {
                const double scaled = slope[axis] * (image.sampler.normalized ? double(image.extents[axis]) : 1.0);
                sum += scaled * scaled;
            }
            return std::sqrt(sum);
        };
        level = std::log2(std::max(std::max(length(form.slopes[0]), length(form.slopes[1])), 1.0));
    }
    const double nearest = std::isnan(level) ? 0.0 : std::floor(level + 0.5);
    return int64_t(std::clamp(nearest, 0.0, double(image.levels - 1)));
}

void put_channels(Batch& batch, const ImageForm& form, uint32_t lane, const std::array<double, 4>& values) {
    for (size_t i = 0; i < form.targets.size(); i++) {
        if (!form.targets[i]) continue;
        uint32_t& target = batch.row<uint32_t>(form.targets[i])[lane];
        if (!form.packed) target = channel_bits(form.type, values[i]);
        else target = channel_bits(form.type, values[2 * i]) | channel_bits(form.type, values[2 * i + 1]) << 16;
    }
}

void fetch_texels(Batch& batch, const Instruction& ins) {
    const auto& form = form_of<ImageForm>(ins);
    Requests requests;
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint64_t handle = batch.value(form.handle, lane);
        const Image& image = image_at(batch, handle, lane);
        require_axes(batch, image, form.geometry);
        const int64_t level = level_of(batch, form, image, lane);
        const std::array<double, 3> offset = numbers_at(batch, form.offset, lane, false);
        ImagePlace place = place_of(batch, form, image, lane);
        for (uint32_t axis = 0; axis < image.axes; ++axis)
            place.coordinates[axis] +=
                offset[axis] / (image.sampler.normalized ? double(image.extents_at(level)[axis]) : 1.0);
        const bool linear = form.channel || (image.sampler.linear && !form.whole);
        const std::vector<Texel> texels = texels_of(image, place, level, linear, form.whole);
        Request& request = requests[{handle, level, lane / kWarp}];
        request.bytes = uint32_t(image.texel_bytes());
        request.texels = texels.size();
        for (const Texel& texel : texels)
            if (texel.inside) request.addresses.push_back(stored_address(image, texel));
        std::array<double, 4> values{};
        if (form.channel) {  // `texels` has (x, y) = 00, 01, 10, 11 (PTX ISA, section "tld4")
            constexpr size_t kOrder[] = {1, 3, 2, 0};
            for (size_t i = 0; i < 4; ++i) values[i] = read_texel(image, texels[kOrder[i]])[*form.channel];
        } else if (texels.size() == 1) {
            values = read_texel(image, texels[0]);
        } else {
            for (const Texel& texel : texels)
                for (size_t i = 0; i < 4; ++i) values[i] += read_texel(image, texel)[i] * texel.weight;
        }
        put_channels(batch, form, lane, values);
    });
    count_requests(batch, requests, AccessKind::kRead);
}

void decode_place(Decoder& decoder, const Source& ins, const Operand& place, const char* type, ImageForm& form) {
    if (place.kind != OperandKind::kTexel) refuse();
    form.geometry = entry_of(kGeometries, [&](const Geometry& each) { return ins.has(each.name); }, "its geometry");
    form.handle = decoder.value(place.items[0], "b64");
    const size_t first = form.geometry.layered ? 2 : 1;
    if (place.items.size() < first + form.geometry.axes) refuse(joined(place.items.size() - 1, " coordinates"));
    form.layer = form.geometry.layered ? decoder.value(place.items[1], "u32") : decoder.constant(32, 0);
    for (uint32_t i = 0; i < form.geometry.axes; i++)
        form.coordinates.push_back(decoder.value(place.items[first + i], type));
}

void decode_results(Decoder& decoder, const Source& ins, const Operand& results, ImageForm& form) {
    if (results.kind != OperandKind::kVector) refuse();
    const std::string& type = ins.modifiers[ins.modifiers.size() - 2];
    form.packed = type == "f16x2";
    form.type = form.packed ? NumberType::kF16 : type_among(type, {"f32", "u32", "s32"});
    if (results.items.size() != (form.packed ? 2u : 4u)) refuse(joined(results.items.size(), " results"));
    for (const Operand& item : results.items)
        form.targets.push_back(item.kind == OperandKind::kNone ? Row{}
                                                               : decoder.write(item, form.packed ? "b32" : type));
}

std::vector<Row> vector_rows(Decoder& decoder, const Operand& operand, uint32_t axes, const char* type) {
    const Operands items = elements(operand);
    if (items.size() < axes) refuse(joined(items.size(), " elements for ", axes, " axes"));
    std::vector<Row> rows;
    for (uint32_t i = 0; i < axes; i++) rows.push_back(decoder.value(items[i], type));
    return rows;
}

const Registration kTex({"tex"}, [](Decoder& decoder, const Source& ins) {
    const std::string& type = ins.type();
    if (type != "f32" && type != "s32") refuse();
    ImageForm form;
    form.whole = type == "s32";
    decode_results(decoder, ins, ins.operands[0], form);
    decode_place(decoder, ins, ins.operands[1], type.c_str(), form);
    size_t next = 2;
    if (ins.has("level")) form.level = decoder.value(ins.operands[next++], type);
    if (ins.has("grad"))
        for (std::vector<Row>& slope : form.slopes)
            slope = vector_rows(decoder, ins.operands[next++], form.geometry.axes, "f32");
    if (next < ins.operands.size() && ins.operands[next].kind == OperandKind::kVector)
        form.offset = vector_rows(decoder, ins.operands[next++], form.geometry.axes, "s32");
    if (next != ins.operands.size()) refuse("a depth comparison");
    emit_form(decoder, fetch_texels, std::move(form));
});

const Registration kGather({"tld4"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2 || ins.type() != "f32" || ins.modifiers[0].size() != 1) refuse();
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
    each_lane(batch, ins, [&](uint32_t lane) {
        const Image& image = image_at(batch, batch.value(ins.a, lane), lane);
        batch.row<uint32_t>(ins.d)[lane] = uint32_t(kProperties[ins.mode].of(image));
    });
}

const Registration kQuery({"txq", "suq"}, [](Decoder& decoder, const Source& ins) {
    const Property& property = entry_of(
        kProperties, [&](const Property& each) { return ins.has(each.name) && !ins.has("level"); }, "this property");
    if (ins.operands.size() != 2 || ins.operands[1].kind != OperandKind::kAddress) refuse();
    const Row a = decoder.value(ins.operands[1].items[0], "b64"), d = decoder.write(ins.operands[0], "u32");
    decoder.emit(query, d, a).mode = uint32_t(&property - kProperties);
});

// --- Surfaces ---

struct SurfaceAccess {
    uint32_t lane;
    uint8_t* bytes;
    bool outside;  // reads zeros and writes nothing
};

// Return and count the lanes' accesses to a surface. The x coordinate is in bytes. Fail if an access is misaligned, or
// if an access with .trap is outside of the surface.
std::vector<SurfaceAccess> surface_accesses(Batch& batch, const Instruction& ins, const ImageForm& form,
                                            AccessKind kind) {
    std::vector<SurfaceAccess> accesses;
    const int64_t size = int64_t(form.unit) * int64_t(form.targets.size());
    Requests requests;
    each_lane(batch, ins, [&](uint32_t lane) {
        const uint64_t handle = batch.value(form.handle, lane);
        const Image& image = image_at(batch, handle, lane);
        require_axes(batch, image, form.geometry);
        if (kind != AccessKind::kRead && !image.writable)
            batch.fail("writes to " + image.name + ", which is read-only");
        const int64_t row_bytes = image.extents[0] * image.texel_bytes();
        const std::array<int64_t, 3> last{row_bytes - size, image.extents[1] - 1, image.extents[2] - 1};
        const auto fail = [&](const std::string& text) { batch.fail(batch.coordinates(lane) + ": " + text); };
        if (last[0] < 0)
            fail(joined("moves ", size, " bytes, but a row of the surface ", image.name, " has only ", row_bytes));
        const std::array<double, 3> coordinates = numbers_at(batch, form.coordinates, lane, false);
        std::array<int64_t, 3> at{};
        const int64_t layer = uint32_t(batch.value(form.layer, lane));
        bool inside = layer < image.layers;
        std::string shown;
        for (uint32_t axis = 0; axis < image.axes; ++axis) {
            const auto coordinate = int64_t(coordinates[axis]);
            at[axis] = std::clamp<int64_t>(coordinate, 0, last[axis]);
            inside &= at[axis] == coordinate;
            shown += joined(axis ? ", " : "", coordinate);
        }
        if (inside && at[0] % size) fail(joined("x is not a multiple of ", size, " bytes"));
        if (!inside && form.outside == OutsideMode::kTrap)
            fail(joined("(", shown, ") is outside of the surface ", image.name));
        const int64_t x = at[0] / size * size;
        const Texel texel{{x / image.texel_bytes(), at[1], at[2]}, std::min(layer, image.layers - 1), 0};
        const bool is_nowhere = !inside && form.outside == OutsideMode::kZero;
        Request& request = requests[{handle, 0, lane / kWarp}];
        request.bytes = uint32_t(size);
        if (!is_nowhere) request.addresses.push_back(stored_address(image, texel));
        const int64_t byte = texel_number(image, texel) * image.texel_bytes() + x % image.texel_bytes();
        accesses.push_back({lane, image.data + byte, is_nowhere});
    });
    count_requests(batch, requests, kind);
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
    for (const SurfaceAccess& at : surface_accesses(batch, ins, form, AccessKind::kAtomic)) {
        if (at.outside) continue;
        uint64_t old = 0;
        std::memcpy(&old, at.bytes, form.unit);
        const uint64_t made = reduce(form.reduction, form.type, old, batch.value(form.targets[0], at.lane));
        std::memcpy(at.bytes, &made, form.unit);
    }
}

ImageForm surface_form(Decoder& decoder, const Source& ins, const Operand& place) {
    if (ins.modifiers[0] != "b") refuse();
    ImageForm form;
    form.whole = true;
    decode_place(decoder, ins, place, "s32", form);
    if (form.geometry.cube) refuse("its geometry");
    form.outside = ins.has("clamp") ? OutsideMode::kClamp : ins.has("zero") ? OutsideMode::kZero : OutsideMode::kTrap;
    return form;
}

const Registration kSurfaceMove({"suld", "sust"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2) refuse();
    const bool loads = ins.opcode == "suld";
    const Operand& registers = ins.operands[loads ? 0 : 1];
    ImageForm form = surface_form(decoder, ins, ins.operands[loads ? 1 : 0]);
    constexpr std::pair<const char*, uint32_t> kUnits[] = {{"b8", 1}, {"b16", 2}, {"b32", 4}, {"b64", 8}};
    form.unit = entry_of(kUnits, [&](const auto& each) { return ins.has(each.first); }).second;
    for (const Operand& item : elements(registers)) {
        const bool is_none = item.kind == OperandKind::kNone;
        if (loads && !is_none && item.kind != OperandKind::kRegister) refuse();
        const std::string type = form.unit == 1 ? "b16" : joined("b", 8 * form.unit);
        form.targets.push_back(is_none ? Row{} : decoder.value(item, type));
    }
    const size_t count = form.targets.size();
    if (count != 1 && count != 2 && count != 4) refuse("registers");
    emit_form(decoder, loads ? move_surface<false> : move_surface<true>, std::move(form));
});

const Registration kSurfaceReduction({"sured"}, [](Decoder& decoder, const Source& ins) {
    if (ins.operands.size() != 2) refuse();
    const std::string& name = ins.modifiers[1];
    if (name != "add" && name != "min" && name != "max" && name != "and" && name != "or") refuse();
    ImageForm form = surface_form(decoder, ins, ins.operands[0]);
    form.reduction = reduction_of(name);
    constexpr const char* names[] = {"b32", "b64", "u32", "s32", "u64", "s64"};
    const char* const type = entry_of(names, [&](const char* each) { return ins.has(each); });
    form.type = number_type(type);
    form.unit = uint32_t(number_bits(form.type)) / 8;
    form.targets = {decoder.value(ins.operands[1], type)};
    decoder.note_atomic(Space::kGlobal);
    emit_form(decoder, reduce_surface, std::move(form));
});

}  // namespace
}  // namespace kernrec
