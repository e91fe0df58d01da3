// The memory of a batch of thread blocks, as instructions see it.
//
// Instructions in other files (tensor cores, asynchronous copies, textures) reach memory only through this interface:
// it checks each access, counts it, and reports it to the race detectors. Pure functions on lane arrays need none of it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kernrec {

constexpr uint32_t kWarp = 32;  // lanes of a warp

// State spaces of PTX (PTX ISA, section 5.1). `kGeneric` addresses are resolved to one of the others.
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam, kArgument };

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

// Raised for everything that the emulator refuses: the text is complete, with instruction, line, block and thread.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// One access of one warp: which lanes take part, and at which byte address each.
struct WarpAccess {
    uint32_t warp;                // position in the batch
    uint32_t mask;                // lanes that take part
    const uint64_t* addresses;    // 32 of them, the offset of the instruction included
    uint32_t bytes;               // per lane; addresses are multiples of it
    uint32_t unit;                // bytes of one element, less than `bytes` for a vector
    Space space;
    AccessKind kind;
    bool rows_of_matrices = false;  // each lane moves a row of a matrix (ldmatrix, stmatrix): 8 lanes make a wavefront
    bool is_async_copy = false;     // cp.async: tensor cores see what is written without a fence
};

struct Memory {
    virtual ~Memory() = default;

    // Check an access and return where the bytes of each lane are; null for lanes that are not in the mask.
    // Throws Error for a misaligned, unknown or read-only address. The pointers hold `bytes` bytes each.
    virtual void resolve(const WarpAccess& access, uint8_t* (&places)[kWarp]) = 0;

    // Count an access that `resolve` checked, and report it to the race detector.
    // Call this after the bytes moved: a write compares what lanes stored at the same place.
    virtual void record(const WarpAccess& access) = 0;

    // All shared memory of the thread block at a position of the batch, `shared_bytes()` long.
    virtual uint8_t* shared(uint32_t block) = 0;
    virtual uint32_t shared_bytes() const = 0;

    // Position in the batch of a warp's thread block.
    virtual uint32_t block_of(uint32_t warp) const = 0;

    // Check `bytes` bytes at any global address (a bulk copy, a tensor): a pointer, or Error for `lane` of `warp`.
    virtual uint8_t* global(uint32_t warp, uint32_t lane, uint64_t address, uint64_t bytes, bool write) = 0;

    // Add to a counter by its name, such as `mma.f16`.
    virtual void count(const char* metric, uint64_t by) = 0;

    // Fail the instruction that runs: "<kernel>, PTX line <n>: <text>", with the block and thread of a lane if given.
    [[noreturn]] virtual void fail(const std::string& text) = 0;
    [[noreturn]] virtual void fail(uint32_t warp, uint32_t lane, const std::string& text) = 0;
};

}  // namespace kernrec
