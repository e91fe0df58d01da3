// Tensor maps in memory, for copies.
#pragma once

#include "batch.h"

namespace kernrec {

// Return the tensor map at a lane's generic address; throw Fault if no copy can use it.
TensorMap tensor_map_at(Batch& batch, uint32_t lane, uint64_t address);

std::string hex_address(uint64_t address);

}  // namespace kernrec
