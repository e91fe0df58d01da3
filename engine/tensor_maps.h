// Tensor maps of bulk copies (PTX ISA, sections "Tensors", "Tensor-map" and "tensormap.replace").
#pragma once

#include <array>
#include <optional>
#include <set>

#include "number_formats.h"

namespace kernrec {

constexpr uint32_t kMostRank = 5;

struct TensorElement {
    const char* name;  // without `.ftz`
    uint32_t bytes;
    uint64_t nan;  // bits of elements outside of the tensor, if the map asks for NaN
    std::optional<NumberType> reducible;  // type of reductions, if there are any
};

// Tensor in global memory, and the box that one copy moves. Dimension 0 is contiguous.
struct TensorMap {
    uint64_t address = 0;
    uint32_t rank = 1;
    const TensorElement* element = nullptr;
    uint32_t swizzle_bytes = 0;  // span in which 16-byte pieces of shared memory are permuted: 0, 32, 64 or 128
    bool fill_nan = false;       // whether elements outside of the tensor are NaN, not zero
    std::array<uint32_t, kMostRank> extents{};
    std::array<uint64_t, kMostRank - 1> strides_bytes{};
    std::array<uint32_t, kMostRank> box{};
    std::array<uint32_t, kMostRank> steps{};  // element stride of each dimension

    uint32_t moved(uint32_t axis) const { return (box[axis] + steps[axis] - 1) / steps[axis]; }
    uint32_t row_bytes() const { return moved(0) * element->bytes; }
    uint64_t rows() const {
        uint64_t count = 1;
        for (uint32_t axis = 1; axis < rank; ++axis) count *= moved(axis);
        return count;
    }
    // Distance in bytes between the starts of two rows of the box in shared memory.
    uint32_t row_pitch() const { return swizzle_bytes ? swizzle_bytes : row_bytes(); }
    uint64_t shared_bytes() const { return rows() * row_pitch(); }
};

// Decode and check the 128 bytes of a tensor map, in the layout of `kernrec.ptx.TensorMap`. NVIDIA does not publish the
// driver's layout. Throw std::invalid_argument with the reason if no copy can use the map.
TensorMap decode_tensor_map(const uint8_t* bytes);
// Return the tensor map at a lane's generic address; throw Fault if no copy can use it.
TensorMap tensor_map_at(Batch& batch, uint32_t lane, uint64_t address);

// Tensor map that a kernel wrote to global memory (PTX ISA, section "fence.proxy.tensormap").
struct WrittenMap {
    bool is_released;
    std::set<uint32_t> acquired;  // blocks that acquired the map since the last write
};

}  // namespace kernrec
