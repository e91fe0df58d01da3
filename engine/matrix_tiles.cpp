// Matrices in shared memory given by descriptors (PTX ISA, sections "Matrix Descriptor Format" and "Shared memory
// descriptor").
#include <algorithm>
#include <cstring>

#include "tensor_core.h"
#include "text.h"

namespace kernrec {
namespace {

// Location of a matrix in shared memory, in tiles of eight rows (four rows if `piece_bytes` is 32). Rows longer than
// 16 bytes are swizzled in pieces of `piece_bytes` bytes.
struct MatrixDescriptor {
    uint32_t start;
    uint32_t leading_bytes;
    uint32_t stride_bytes;
    uint32_t base_offset;
    uint32_t row_bytes;
    uint32_t piece_bytes;

    // Return the address of byte `along` of row `across`.
    uint32_t address(bool mn_major, uint32_t across, uint32_t along) const {
        const uint32_t rows = piece_bytes == 32 ? 4 : 8;
        uint32_t behind, next_rows = stride_bytes;
        if (row_bytes == 16) {
            if (mn_major) next_rows = leading_bytes;
            behind = along / 16 * (mn_major ? stride_bytes : leading_bytes) + along % 16;
        } else {
            behind = mn_major ? along / row_bytes * leading_bytes + along % row_bytes : along;
        }
        const uint32_t address = start + behind + across / rows * next_rows + across % rows * row_bytes;
        if (row_bytes == 16) return address;
        const uint32_t turn = ((address >> 7) - base_offset) & (row_bytes / piece_bytes - 1);
        return address ^ turn * piece_bytes;
    }
};

MatrixDescriptor descriptor_of(Batch& batch, bool is_tcgen05, uint64_t bits) {
    using BitFields = std::vector<std::pair<int, int>>;  // lowest bit, number of bits
    static const BitFields kReserved[] = {{{14, 2}, {30, 2}, {46, 3}, {52, 10}}, {{14, 2}, {30, 2}, {53, 8}}};
    const auto field = [&](int low, int count) { return uint32_t(bits >> low & ((uint64_t(1) << count) - 1)); };
    const auto name = [&] { return "matrix descriptor " + hex(bits, 16); };
    for (const auto& [low, count] : kReserved[is_tcgen05])
        if (field(low, count))
            batch.fail(joined("bits ", low, " to ", low + count - 1, " of ", name(), " are reserved and must be 0"));
    constexpr uint32_t kRowBytes[] = {16, 128, 64, 32};
    uint32_t row_bytes = kRowBytes[field(62, 2)], piece_bytes = 16;
    if (is_tcgen05) {
        const uint32_t mode = field(61, 3);
        row_bytes = mode == 1 || mode == 2 ? 128 : mode == 4 ? 64 : mode == 6 ? 32 : 16;
        if (mode == 1) piece_bytes = 32;
        if (field(46, 3) != 1) batch.fail(joined("bits 46 to 48 of ", name(), " are ", field(46, 3), ", not 1"));
        if (field(52, 1)) batch.fail("the leading offset of " + name() + " is an address: not supported");
        if (mode == 3 || mode == 5 || mode == 7)
            batch.fail(joined(name(), " has swizzle mode ", mode, ", which does not exist"));
    }
    if (field(49, 3) && row_bytes == 16) batch.fail(name() + " has a base offset but no swizzling");
    return {field(0, 14) << 4, field(16, 14) << 4, field(32, 14) << 4, field(49, 3), row_bytes, piece_bytes};
}

}  // namespace

std::vector<uint8_t> read_tile(Batch& batch, uint32_t block, bool is_tcgen05, uint64_t bits, const TileShape& shape,
                               Pieces& pieces) {
    const MatrixDescriptor descriptor = descriptor_of(batch, is_tcgen05, bits);
    const uint32_t size = shape.element_bytes;
    const uint32_t along_bytes = (shape.mn_major ? shape.extent : shape.depth) * size;
    const uint32_t across_rows = shape.mn_major ? shape.depth : shape.extent;
    const auto each_piece = [&](auto&& visit) {
        for (uint32_t across = 0; across < across_rows; ++across)
            for (uint32_t along = 0; along < along_bytes; along += 16) {
                const uint32_t bytes = std::min(16u, along_bytes - along);
                visit(across, along, bytes, descriptor.address(shape.mn_major, across, along));
            }
    };
    uint32_t end = 0;
    each_piece([&](uint32_t, uint32_t, uint32_t bytes, uint32_t address) { end = std::max(end, address + bytes); });
    const uint32_t shared_bytes = batch.launch.shared_bytes;
    if (end > shared_bytes)
        batch.fail(joined("matrix descriptor ", hex(bits, 16), " describes ", shape.extent, " rows up to byte ",
                          end - 1, " of shared memory, of which the block has ", shared_bytes, " bytes"));
    std::vector<uint8_t> tile(size_t(shape.extent) * shape.depth * size);
    const uint8_t* shared = batch.shared(block);
    each_piece([&](uint32_t across, uint32_t along, uint32_t bytes, uint32_t address) {
        if (!shape.mn_major) std::memcpy(&tile[size_t(across) * along_bytes + along], shared + address, bytes);
        for (uint32_t i = 0; i < bytes && shape.mn_major; i += size)
            std::memcpy(&tile[(size_t((along + i) / size) * shape.depth + across) * size], shared + address + i, size);
        pieces.push_back(uint32_t(batch.flat({block, address}) / kPiece));
    });
    return tile;
}

}  // namespace kernrec
