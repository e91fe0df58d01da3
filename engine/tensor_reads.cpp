#include "tensor_reads.h"

#include <algorithm>

#include "program.h"

namespace kernrec {

void TensorReads::start_batch() {
    std::fill(readers_.begin(), readers_.end(), 0);
    std::fill(stored_.begin(), stored_.end(), 0);
    in_flight_ = 0;
}

void TensorReads::pass_barrier(uint32_t block) {
    const auto first = stored_.begin() + size_t(block) * pieces_per_block_;
    std::transform(first, first + pieces_per_block_, first, [](int16_t by) { return by > 0 ? int16_t(-1) : by; });
}

void TensorReads::fence(uint32_t block, const std::vector<uint32_t>& warps) {
    for (size_t i = size_t(block) * pieces_per_block_; i < size_t(block + 1) * pieces_per_block_; i++)
        if (stored_[i] == -1 || (stored_[i] > 0 && std::count(warps.begin(), warps.end(), uint32_t(stored_[i] - 1))))
            stored_[i] = 0;
}

void TensorReads::write(uint32_t source, size_t place, uint32_t warp, bool is_copy) {
    const size_t piece = place / kPiece;
    if (in_flight_ && readers_[piece])
        throw Fault(FaultKind::kEmulation, source,
                    "writes shared memory that an unfinished operation reads; wait for the operation first");
    if (!is_copy) stored_[piece] = int16_t(warp + 1);
}

void TensorReads::begin(uint32_t source, const Pieces& pieces) {
    for (const uint32_t piece : pieces)
        if (stored_[piece])
            throw Fault(FaultKind::kEmulation, source,
                        "reads shared memory that threads stored to with no fence.proxy.async in between");
    for (const uint32_t piece : pieces) readers_[piece]++;
    in_flight_++;
}

void TensorReads::end(const Pieces& pieces) {
    for (const uint32_t piece : pieces) readers_[piece]--;
    in_flight_--;
}

void TensorReads::fill(size_t first_byte, size_t end_byte) {
    for (const uint32_t piece : pieces_of(first_byte, end_byte)) stored_[piece] = 0;
}

Pieces TensorReads::pieces_of(size_t first_byte, size_t end_byte) {
    Pieces pieces;
    for (size_t piece = first_byte / kPiece; piece * kPiece < end_byte; piece++) pieces.push_back(uint32_t(piece));
    return pieces;
}

Pieces TensorReads::pieces_of(const std::vector<size_t>& places) const {
    std::vector<bool> present(readers_.size());
    for (const size_t place : places) present[place / kPiece] = true;
    Pieces pieces;
    for (size_t piece = 0; piece < present.size(); piece++)
        if (present[piece]) pieces.push_back(uint32_t(piece));
    return pieces;
}

}  // namespace kernrec
