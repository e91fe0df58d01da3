// Shared code of the instructions on tensor cores: mma, wmma, wgmma and tcgen05.
#pragma once

#include <array>
#include <set>
#include <vector>

#include "batch.h"
#include "decoder.h"
#include "tile_multiply.h"

namespace kernrec {

// Parse m<number>n<number>k<number>. The numbers of another text are -1.
std::array<int, 3> extents_of(const std::string& shape);
Modifiers without(const Modifiers& modifiers, const std::set<std::string>& names);

// Return the registers of a fragment.
std::vector<Row> fragment(Decoder& decoder, const Operand& operand, NumberType type, int registers, bool write);

// Return whether products of type `a` can be summed in type `d`.
bool sums_in(NumberType a, NumberType d);
bool may_multiply(NumberType a, NumberType b);

// Count operations as `<unit>.<type>`.
void count_operations(Batch& batch, const char* unit, NumberType type, uint64_t operations, bool packed = false);

// Bytes of A and B along K that one wgmma or tcgen05.mma reads.
constexpr uint32_t kTileRowBytes = 32;

// Extents of a tile that an instruction reads: `extent` elements along M or N, `depth` along K.
struct TileShape {
    uint32_t extent;
    uint32_t depth;
    uint32_t element_bytes;
    bool mn_major = false;  // rows run along M or N
};

// Read a tile of a thread block's shared memory, in the order (extent, depth). Fail if the descriptor is invalid or if
// the tile exceeds shared memory. pieces: receives the pieces of the batch's shared memory that the tile occupies.
std::vector<uint8_t> read_tile(Batch& batch, uint32_t block, bool is_tcgen05, uint64_t descriptor,
                               const TileShape& shape, Pieces& pieces);

}  // namespace kernrec
