// Cost of one warp's memory access: sectors of global memory, wavefronts of shared memory.
//
// The rules follow the CUDA Programming Guide and the metrics of Nsight Compute. A request moves the distinct 32-byte
// sectors that its lanes access. Shared memory has 32 banks of 4 bytes. Lanes that read the same word share it.
// Accesses of 8 bytes per lane run for half a warp at a time, and accesses of 16 bytes for a quarter. These groups are
// twice as large in loads where lanes n and n^1, or n and n^2, read the same address (NVIDIA developer forum,
// "Unexpected shared memory bank conflict"). Lanes of atomic operations never share a word (Gomez-Luna et al., IEEE
// TPDS 24(11), 2013).
#pragma once

#include <cstdint>

#include "memory.h"

namespace kernrec {

// Return the number of distinct values of `addresses >> shift` among the lanes of a mask.
uint32_t distinct(const int64_t* addresses, uint32_t mask, uint32_t shift);

struct Wavefronts {
    uint32_t count, ideal;
};

Wavefronts wavefronts(const int64_t* addresses, uint32_t mask, uint32_t bytes, bool load, bool atomic);

// Return the number of serial steps of an atomic operation on elements of `bytes` bytes. Lanes that update the same
// element run one after another. Lanes that update different elements of a sector run in the same step.
uint32_t atomic_turns(const int64_t* addresses, uint32_t mask, uint32_t bytes);

// Return the number of sectors of an access to local memory, where words of the lanes are interleaved.
uint32_t local_sectors(const int64_t* addresses, uint32_t mask, uint32_t bytes);

}  // namespace kernrec
