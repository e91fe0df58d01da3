// Images of textures and surfaces. An image is dense in its buffer: x fastest, with a texel's channels together, then
// layers (cube faces are layers), then levels of detail.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "memory.h"
#include "number_formats.h"

namespace kernrec {

enum class AddressMode : uint8_t { kWrap, kClamp, kMirror, kBorder };

struct Sampler {
    bool linear = false;
    AddressMode address = AddressMode::kClamp;
    bool normalized = false;  // coordinates from 0 to 1 span the image
    bool unit_range = false;  // integers are read as fractions from 0 (signed: -1) to 1
};

struct Image {
    uint8_t* data;  // start of the buffer
    uint64_t address;  // address of the buffer in global memory
    uint32_t axes;
    std::array<int64_t, 3> extents;  // texels along x, y and z; 1 for missing axes
    NumberType element;
    uint32_t channels;
    int64_t layers;
    int64_t levels;
    Sampler sampler;
    bool writable;
    std::string name;

    int64_t texel_bytes() const { return int64_t(channels) * number_bits(element) / 8; }
    std::array<int64_t, 3> extents_at(int64_t level) const;
    int64_t first_texel(int64_t level) const;  // index of a level's first texel
    int64_t bytes() const { return first_texel(levels) * texel_bytes(); }
};

}  // namespace kernrec
