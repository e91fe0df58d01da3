// The cost of one warp's access to memory: sectors of global memory, wavefronts of shared memory.
//
// Rules as in the CUDA Programming Guide and the metrics of Nsight Compute: a request moves the distinct 32-byte sectors
// that its lanes touch. Shared memory has 32 banks of 4 bytes. Lanes that read the same word share it. Accesses of 8
// bytes per lane go half a warp at a time, of 16 bytes a quarter. A load whose lanes agree pairwise (n and n^1, or n and
// n^2) goes in groups twice as large (NVIDIA developer forum, "Unexpected shared memory bank conflict"). Atomic
// operations share no word (Gomez-Luna et al., IEEE TPDS 24(11), 2013).
#pragma once

#include <cstdint>

namespace kernrec {

// Distinct values of `addresses >> shift` among the lanes of a mask.
uint32_t distinct(const int64_t* addresses, uint32_t mask, uint32_t shift);

struct Wavefronts {
    uint32_t count, ideal;
};

Wavefronts wavefronts(const int64_t* addresses, uint32_t mask, uint32_t bytes, bool load, bool atomic);

// Turns that atomic operations on elements of some bytes take: lanes at one element take turns, elements of a sector are
// operated on together.
uint32_t atomic_turns(const int64_t* addresses, uint32_t mask, uint32_t bytes);

// Sectors of local memory: a word of it is stored lane after lane.
uint32_t local_sectors(const int64_t* addresses, uint32_t mask, uint32_t bytes);

}  // namespace kernrec
