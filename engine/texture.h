// Textures and surfaces: how a coordinate finds its texels, and what a fetch returns.
//
// Sources: CUDA C++ Programming Guide, appendix "Texture Fetching"; PTX ISA, sections "tex", "tld4", "suld" and "sust".
// A linear filter weighs with fractions of 8 bits. An image lies in its buffer densely, x fastest, the channels of a
// texel together, then layers (faces of a cube are layers), then levels of detail. Accesses are counted where the
// hardware keeps a 2-D image: in blocks of 64 bytes x 8 rows, whose sectors are 16 bytes x 2 rows (NVIDIA's block
// linear layout, `drm_fourcc.h` of the Linux kernel).
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
    bool normalized = false;  // coordinates go from 0 to 1 over the image
    bool unit_range = false;  // integers are read as numbers from 0 (signed ones: -1) to 1
};

struct Image {
    uint8_t* data;     // of its buffer
    uint64_t address;  // of its buffer in global memory
    uint32_t axes;
    std::array<int64_t, 3> extents;  // texels along x, y and z; 1 for axes that it does not have
    NumberType element;
    uint32_t channels;
    int64_t layers;
    int64_t levels;
    Sampler sampler;
    bool writable = true;
    std::string name = {};

    int64_t texel_bytes() const { return int64_t(channels) * number_bits(element) / 8; }
    std::array<int64_t, 3> extents_at(int64_t level) const;
    int64_t first_texel(int64_t level) const;  // texels before a level
    int64_t bytes() const { return first_texel(levels) * texel_bytes(); }
};

// Whole coordinates of a texel.
struct Texel {
    std::array<int64_t, 3> at;
    int64_t layer;
    int64_t level;
};
int64_t texel_number(const Image& image, const Texel& texel);
// Byte where the hardware keeps a texel, for counting sectors; below `bytes()`.
int64_t stored_byte(const Image& image, const Texel& texel);

// How an instruction names a place: `1d`, `2d`, `3d`, `a1d`, `a2d`, `cube`, `acube`.
struct Geometry {
    uint32_t axes;
    bool layered = false;
    bool cube = false;
};
Geometry geometry(const Modifiers& modifiers);

// A texel that a fetch reads.
struct Corner {
    Texel texel;
    bool inside;  // else it reads as the border
    double weight;
};

// A place in an image: coordinates with the axes of a face for a cube.
struct ImagePlace {
    std::array<double, 3> coordinates;
    int64_t layer;
};
// Find layer and coordinates from what an instruction names; of a cube, those on the face that a direction points to.
ImagePlace image_place(const Image& image, const Geometry& geometry, const std::array<double, 3>& coordinates,
                       int64_t layer);

// Return the texels that make a fetch, with the last axis fastest. `whole`: the coordinates are numbers of texels.
std::vector<Corner> corners(const Image& image, const ImagePlace& place, int64_t level, bool linear, bool whole);

// Read four channels of a texel: as stored, or as numbers up to 1. Missing channels are 0.
std::array<double, 4> read_texel(const Image& image, const Corner& corner);

// The nearest level of detail, and that of gradients: the logarithm of the longer one in texels.
int64_t nearest_level(const Image& image, double level);
double level_of_gradients(const Image& image, const std::array<double, 3>& x, const std::array<double, 3>& y);

// Filter one fetch (PTX ISA, section "tex"). `offset`: texels to add to the coordinates. `stored` gets the bytes that
// it reads as the hardware keeps them, -1 for the border.
std::array<double, 4> fetch(const Image& image, ImagePlace place, const std::array<double, 3>& offset, int64_t level,
                            bool whole, std::vector<int64_t>& stored);

// Read one channel of the four texels that a linear filter would mix (PTX ISA, section "tld4").
std::array<double, 4> gather(const Image& image, const ImagePlace& place, uint32_t channel,
                             std::vector<int64_t>& stored);

// Return the bits of a channel for a result of type f32, f16, u32 or s32.
uint32_t channel_bits(NumberType type, double value);

// An access to a surface: outside of it an error (.trap), the nearest place (.clamp), or zeros (.zero).
enum class OutsideMode : uint8_t { kTrap, kClamp, kZero };
struct SurfacePlace {
    int64_t byte;    // in the buffer
    int64_t stored;  // as the hardware keeps it, -1 outside with .zero
    bool outside;    // reads zeros and writes nothing
};
// Find a place; x is in bytes. Raises std::invalid_argument for a misaligned or, with .trap, outside access.
SurfacePlace surface_place(const Image& image, const std::array<int64_t, 3>& coordinates, int64_t layer,
                           uint32_t access_bytes, OutsideMode mode);

// Clocks that the texture units take for a warp's request: an SM filters four lanes a clock, one sample of four texels
// each (NVIDIA A100 Tensor Core GPU Architecture, "4 texture units per SM").
constexpr uint32_t kTextureClocks = 8;

}  // namespace kernrec
