// Textures and surfaces: see the header.
#include "texture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace kernrec {
namespace {

struct Texel {
    std::array<int64_t, 3> at;
    int64_t layer;
    int64_t level;
};

struct Corner {
    Texel texel;
    bool inside;  // if false, the texel reads as the border
    double weight;
};

constexpr double kFurthest = double(int64_t(1) << 40);  // all larger coordinates map to the same texel

// Position of a texel along one axis, whether the texel exists, and its weight in a fetch.
struct AxisTexel {
    int64_t index;
    bool inside;
    double weight;
};

int64_t modulo(int64_t value, int64_t extent) {
    const int64_t rest = value % extent;
    return rest < 0 ? rest + extent : rest;
}

AxisTexel addressed(const Sampler& sampler, int64_t index, int64_t extent, double weight) {
    AddressMode mode = sampler.address;
    if ((mode == AddressMode::kWrap || mode == AddressMode::kMirror) && !sampler.normalized) mode = AddressMode::kClamp;
    if (mode == AddressMode::kWrap) return {modulo(index, extent), true, weight};
    if (mode == AddressMode::kMirror) {
        const int64_t turn = modulo(index, 2 * extent);
        return {turn < extent ? turn : 2 * extent - 1 - turn, true, weight};
    }
    const bool inside = index >= 0 && index < extent;
    return {std::clamp<int64_t>(index, 0, extent - 1), inside || mode != AddressMode::kBorder, weight};
}

double bounded(double value) { return std::isnan(value) ? 0.0 : std::clamp(value, -kFurthest, kFurthest); }

// Return the texel of a fetch along one axis, or the two texels that a linear filter blends.
int axis_texels(const Sampler& sampler, double coordinate, int64_t extent, bool linear, bool whole, AxisTexel* texels) {
    if (whole) {
        const auto index = int64_t(bounded(coordinate));
        texels[0] = {std::clamp<int64_t>(index, 0, extent - 1), index >= 0 && index < extent, 1.0};
        return 1;
    }
    double place = bounded(coordinate);
    if (sampler.normalized) place = bounded(place * double(extent));
    if (!linear) {
        texels[0] = addressed(sampler, int64_t(std::floor(place)), extent, 1.0);
        return 1;
    }
    const double first = std::floor(place - 0.5);
    const double share = std::floor((place - 0.5 - first) * 256.0 + 0.5) / 256.0;  // 8 bits
    texels[0] = addressed(sampler, int64_t(first), extent, 1.0 - share);
    texels[1] = addressed(sampler, int64_t(first) + 1, extent, share);
    return 2;
}

double stored_number(NumberType type, const uint8_t* bytes) {
    uint64_t bits = 0;
    const int size = number_bits(type) / 8;
    std::memcpy(&bits, bytes, size_t(size));
    switch (type) {
        case NumberType::kS8: return int8_t(bits);
        case NumberType::kS16: return int16_t(bits);
        case NumberType::kS32: return int32_t(bits);
        case NumberType::kF16:
        case NumberType::kF32: return to_double(type, bits);
        default: return double(bits);
    }
}

bool is_signed(NumberType type) {
    return type == NumberType::kS8 || type == NumberType::kS16 || type == NumberType::kS32;
}

int64_t texel_number(const Image& image, const Texel& texel) {
    const auto [width, height, depth] = image.extents_at(texel.level);
    return image.first_texel(texel.level) + ((texel.layer * depth + texel.at[2]) * height + texel.at[1]) * width +
           texel.at[0];
}

// Return the offset of a texel in the hardware's layout, to count sectors. The offset is less than `image.bytes()`.
int64_t stored_byte(const Image& image, const Texel& texel) {
    const int64_t size = image.texel_bytes();
    if (image.axes == 1) return texel_number(image, texel) * size;
    const auto [width, height, depth] = image.extents_at(texel.level);
    const int64_t column = texel.at[0] * size, y = texel.at[1];
    const int64_t across = (width * size + 63) / 64, down = (height + 7) / 8;
    const int64_t block = ((texel.layer * depth + texel.at[2]) * down + y / 8) * across + column / 64;
    const int64_t inside = column % 64 / 32 * 256 + y % 8 / 2 * 64 + column % 32 / 16 * 32 + y % 2 * 16 + column % 16;
    return (image.first_texel(texel.level) * size + block * 512 + inside) % image.bytes();
}

// Return the texels of a fetch, last axis fastest. `whole` is true if the coordinates are texel indices.
std::vector<Corner> corners(const Image& image, const ImagePlace& place, int64_t level, bool linear, bool whole) {
    const auto extents = image.extents_at(level);
    std::vector<Corner> result{{{{0, 0, 0}, place.layer, level}, true, 1.0}};
    for (uint32_t axis = 0; axis < image.axes; ++axis) {
        AxisTexel texels[2];
        const int count = axis_texels(image.sampler, place.coordinates[axis], extents[axis], linear, whole, texels);
        std::vector<Corner> next;
        for (const Corner& corner : result)
            for (int i = 0; i < count; ++i) {
                Corner more = corner;
                more.texel.at[axis] = texels[i].index;
                more.inside = corner.inside && texels[i].inside;
                more.weight = corner.weight * texels[i].weight;
                next.push_back(more);
            }
        result = std::move(next);
    }
    return result;
}

// Read four channels of a texel, as stored or as numbers up to 1. Missing channels are 0.
std::array<double, 4> read_texel(const Image& image, const Corner& corner) {
    std::array<double, 4> values{};
    if (!corner.inside) return values;
    const int64_t bytes = number_bits(image.element) / 8;
    const uint8_t* texel = image.data + texel_number(image, corner.texel) * image.texel_bytes();
    const bool is_float = image.element == NumberType::kF16 || image.element == NumberType::kF32;
    const int value_bits = number_bits(image.element) - (is_signed(image.element) ? 1 : 0);
    const double largest = std::ldexp(1.0, value_bits) - 1;
    for (uint32_t i = 0; i < image.channels; ++i) {
        values[i] = stored_number(image.element, texel + i * bytes);
        if (image.sampler.unit_range && !is_float) values[i] = std::max(values[i] / largest, -1.0);
    }
    return values;
}

}  // namespace

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

Geometry geometry(const Modifiers& modifiers) {
    static const std::pair<const char*, Geometry> kGeometries[] = {{"1d", {1}},
                                                                   {"2d", {2}},
                                                                   {"3d", {3}},
                                                                   {"a1d", {1, true}},
                                                                   {"a2d", {2, true}},
                                                                   {"cube", {3, false, true}},
                                                                   {"acube", {3, true, true}}};
    for (const std::string& modifier : modifiers)
        for (const auto& [name, result] : kGeometries)
            if (modifier == name) return result;
    refuse("its geometry");
}

ImagePlace image_place(const Image& image, const Geometry& geometry, const std::array<double, 3>& coordinates,
                       int64_t layer) {
    ImagePlace place{coordinates, layer};
    if (geometry.cube) {
        // CUDA C++ Programming Guide, appendix "Cubemap Textures".
        const auto [x, y, z] = coordinates;
        const double across = std::fabs(x), up = std::fabs(y), far = std::fabs(z);
        const int axis = across >= up && across >= far ? 0 : up >= far ? 1 : 2;
        const double along = coordinates[size_t(axis)], side = along < 0 ? -1.0 : 1.0;
        const double s = axis == 0 ? -side * z : axis == 1 ? x : side * x, t = axis == 1 ? side * z : -y;
        const double length = along == 0 ? 1.0 : std::fabs(along);
        place = {{(s / length + 1) / 2, (t / length + 1) / 2, 0}, layer * 6 + 2 * axis + (along < 0)};
    }
    place.layer = std::clamp<int64_t>(place.layer, 0, image.layers - 1);
    return place;
}

int64_t nearest_level(const Image& image, double level) {
    const double nearest = std::isnan(level) ? 0.0 : std::floor(level + 0.5);
    return int64_t(std::clamp(nearest, 0.0, double(image.levels - 1)));
}

double level_of_gradients(const Image& image, const std::array<double, 3>& x, const std::array<double, 3>& y) {
    const auto length = [&](const std::array<double, 3>& slope) {
        double sum = 0;
        for (uint32_t axis = 0; axis < image.axes; ++axis) {
            const double scaled = slope[axis] * (image.sampler.normalized ? double(image.extents[axis]) : 1.0);
            sum += scaled * scaled;
        }
        return std::sqrt(sum);
    };
    return std::log2(std::max(std::max(length(x), length(y)), 1.0));
}

std::array<double, 4> fetch(const Image& image, ImagePlace place, const std::array<double, 3>& offset, int64_t level,
                            bool whole, std::vector<int64_t>& stored) {
    const auto extents = image.extents_at(level);
    for (uint32_t axis = 0; axis < image.axes; ++axis)
        place.coordinates[axis] += offset[axis] / (image.sampler.normalized ? double(extents[axis]) : 1.0);
    const auto read = corners(image, place, level, image.sampler.linear && !whole, whole);
    std::array<double, 4> sum{};
    for (const Corner& corner : read) {
        stored.push_back(corner.inside ? stored_byte(image, corner.texel) : -1);
        const auto values = read_texel(image, corner);
        if (read.size() == 1) return values;
        for (size_t i = 0; i < 4; ++i) sum[i] += values[i] * corner.weight;
    }
    return sum;
}

std::array<double, 4> gather(const Image& image, const ImagePlace& place, uint32_t channel,
                             std::vector<int64_t>& stored) {
    const auto read = corners(image, place, 0, true, false);  // by x and y: 00, 01, 10, 11
    for (const Corner& corner : read) stored.push_back(corner.inside ? stored_byte(image, corner.texel) : -1);
    return {read_texel(image, read[1])[channel], read_texel(image, read[3])[channel],
            read_texel(image, read[2])[channel], read_texel(image, read[0])[channel]};
}

uint32_t channel_bits(NumberType type, double value) {
    if (type == NumberType::kF32) return bit_cast<uint32_t>(float(value));
    if (type == NumberType::kF16)
        return uint32_t(convert({NumberType::kF16, NumberType::kF64}, bit_cast<uint64_t>(value)));
    constexpr double kLimit = 9223372036854775808.0;
    if (!(value >= -kLimit && value < kLimit)) return 0;
    return uint32_t(int64_t(value));
}

SurfacePlace surface_place(const Image& image, const std::array<int64_t, 3>& coordinates, int64_t layer,
                           uint32_t access_bytes, OutsideMode mode) {
    const int64_t size = access_bytes, texel_bytes = image.texel_bytes();
    const std::array<int64_t, 3> last{image.extents[0] * texel_bytes - size, image.extents[1] - 1,
                                      image.extents[2] - 1};
    if (last[0] < 0)
        throw std::invalid_argument("moves " + std::to_string(size) + " bytes of a row of " +
                                    std::to_string(last[0] + size) + " bytes of the surface " + image.name);
    bool inside = layer >= 0 && layer < image.layers;
    for (uint32_t axis = 0; axis < image.axes; ++axis)
        inside = inside && coordinates[axis] >= 0 && coordinates[axis] <= last[axis];
    if (inside && coordinates[0] % size)
        throw std::invalid_argument("x is not a multiple of " + std::to_string(size) + " bytes");
    if (!inside && mode == OutsideMode::kTrap) {
        std::string shown;
        for (uint32_t axis = 0; axis < image.axes; ++axis)
            shown += (axis ? ", " : "") + std::to_string(coordinates[axis]);
        throw std::invalid_argument("(" + shown + ") is outside of the surface " + image.name);
    }
    Texel texel{{0, 0, 0}, std::clamp<int64_t>(layer, 0, image.layers - 1), 0};
    for (uint32_t axis = 1; axis < image.axes; ++axis)
        texel.at[axis] = std::clamp<int64_t>(coordinates[axis], 0, last[axis]);
    const int64_t x = std::clamp<int64_t>(coordinates[0], 0, last[0]) / size * size;
    texel.at[0] = x / texel_bytes;
    const bool reads_zero = !inside && mode == OutsideMode::kZero;
    return {texel_number(image, texel) * texel_bytes + x % texel_bytes, reads_zero ? -1 : stored_byte(image, texel),
            reads_zero};
}

}  // namespace kernrec
