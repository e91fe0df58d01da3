// Textures and surfaces: mapping of coordinates to texels, and results of fetches.
//
// Sources: CUDA C++ Programming Guide, appendix "Texture Fetching"; PTX ISA, sections "tex", "tld4", "suld" and "sust".
// Linear filters have weights with 8 fractional bits. An image is dense in its buffer: x fastest, with a texel's
// channels together, then layers (cube faces are layers), then levels of detail. Accesses are counted in the hardware's
// layout of 2-D images: blocks of 64 bytes x 8 rows, with sectors of 16 bytes x 2 rows (NVIDIA's block linear layout,
// `drm_fourcc.h` of the Linux kernel).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

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
    bool writable = true;
    std::string name = {};

    int64_t texel_bytes() const { return int64_t(channels) * number_bits(element) / 8; }
    std::array<int64_t, 3> extents_at(int64_t level) const;
    int64_t first_texel(int64_t level) const;  // index of a level's first texel
    int64_t bytes() const { return first_texel(levels) * texel_bytes(); }
};

// Geometry of an instruction: `1d`, `2d`, `3d`, `a1d`, `a2d`, `cube`, `acube`.
struct Geometry {
    uint32_t axes;
    bool layered = false;
    bool cube = false;
};
Geometry geometry(const Modifiers& modifiers);

// Location in an image or in a face of a cube.
struct ImagePlace {
    std::array<double, 3> coordinates;
    int64_t layer;
};
// Return layer and coordinates for an instruction's operands; for a cube, the coordinates on the face.
ImagePlace image_place(const Image& image, const Geometry& geometry, const std::array<double, 3>& coordinates,
                       int64_t layer);

// Return the nearest level of detail, or the level of gradients: the logarithm of the longer gradient in texels.
int64_t nearest_level(const Image& image, double level);
double level_of_gradients(const Image& image, const std::array<double, 3>& x, const std::array<double, 3>& y);

// Filter one fetch (PTX ISA, section "tex"). `offset` is added to the coordinates in texels. `stored` receives the
// bytes of texels in the hardware's layout, -1 for the border.
std::array<double, 4> fetch(const Image& image, ImagePlace place, const std::array<double, 3>& offset, int64_t level,
                            bool whole, std::vector<int64_t>& stored);

// Read one channel of the four texels that a linear filter would blend (PTX ISA, section "tld4").
std::array<double, 4> gather(const Image& image, const ImagePlace& place, uint32_t channel,
                             std::vector<int64_t>& stored);

// Return the bits of a channel for a result of type f32, f16, u32 or s32.
uint32_t channel_bits(NumberType type, double value);

// Result of a surface access outside of the image: an error (.trap), the nearest texel (.clamp), or zeros (.zero).
enum class OutsideMode : uint8_t { kTrap, kClamp, kZero };
struct SurfacePlace {
    int64_t byte;  // byte offset in the buffer
    int64_t stored;  // byte offset in the hardware's layout; -1 outside with .zero
    bool outside;  // reads zeros and writes nothing
};
// coordinates: (x in bytes, y, z). Throw std::invalid_argument if the access is misaligned, or outside with .trap.
SurfacePlace surface_place(const Image& image, const std::array<int64_t, 3>& coordinates, int64_t layer,
                           uint32_t access_bytes, OutsideMode mode);

}  // namespace kernrec
