// Tensor maps in memory, as copies read them.
#pragma once

#include "batch.h"

namespace kernrec {

// The tensor map at a generic address that a lane uses; throws Fault if no copy can use it.
TensorMap tensor_map_at(Batch& batch, uint32_t lane, uint64_t address);

std::string hex_address(uint64_t address);

}  // namespace kernrec
