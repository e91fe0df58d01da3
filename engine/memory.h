// Memory of a batch of thread blocks from the view of instructions.
//
// Instructions in other files (tensor cores, asynchronous copies, textures) access memory only through this interface.
// It checks each access, counts it, and reports it to the race detectors. Pure functions on lane arrays do not need it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kernrec {

constexpr uint32_t kWarp = 32;  // lanes of a warp

// Lanes of a mask in ascending order, for range-based loops.
struct LanesOf {
    struct Iterator {
        uint32_t rest;
        uint32_t operator*() const { return uint32_t(__builtin_ctz(rest)); }
        void operator++() { rest &= rest - 1; }
        bool operator!=(const Iterator& other) const { return rest != other.rest; }
    };
    explicit LanesOf(uint32_t mask) : mask(mask) {}
    Iterator begin() const { return {mask}; }
    Iterator end() const { return {0}; }
    uint32_t mask;
};

// State spaces of PTX (PTX ISA, section 5.1). `kGeneric` addresses are resolved to one of the others.
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam, kArgument };

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

// Thrown for all errors. The text is complete, with instruction, line, block and thread.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Access of one warp: the lanes that take part, and the byte address of each.
struct WarpAccess {
    uint32_t warp;  // number of the warp in the batch
    uint32_t mask;  // mask of the lanes that take part
    const uint64_t* addresses;  // 32 addresses, including the instruction's offset
    uint32_t bytes;  // bytes per lane; each address is a multiple of this number
    uint32_t unit;  // bytes of an element; less than `bytes` for a vector
    Space space;
    AccessKind kind;
    bool rows_of_matrices = false;  // each lane moves a matrix row (ldmatrix, stmatrix); 8 lanes form a wavefront
    bool is_async_copy = false;  // cp.async: tensor cores see its writes without a fence
};

struct Memory {
    virtual ~Memory() = default;

    // Check an access and return the location of each lane's bytes; null for lanes outside of the mask. Throw Error for
    // a misaligned, unknown or read-only address. Each pointer refers to `bytes` bytes.
    virtual void resolve(const WarpAccess& access, uint8_t* (&places)[kWarp]) = 0;

    // Count an access that `resolve` checked, and report it to the race detector. Call it after moving the bytes,
    // because writes compare the stored values.
    virtual void record(const WarpAccess& access) = 0;

    // Return the shared memory of the thread block at a batch position, `shared_bytes()` long.
    virtual uint8_t* shared(uint32_t block) = 0;
    virtual uint32_t shared_bytes() const = 0;

    // Return the batch position of a warp's thread block.
    virtual uint32_t block_of(uint32_t warp) const = 0;

    // Check `bytes` bytes at a global address (for bulk copies and tensors). Return a pointer, or throw Error for the
    // lane.
    virtual uint8_t* global(uint32_t warp, uint32_t lane, uint64_t address, uint64_t bytes, bool write) = 0;

    // Add to a counter by name, such as `mma.f16`.
    virtual void count(const char* metric, uint64_t by) = 0;

    // Fail the current instruction with "<kernel>, PTX line <n>: <text>", and the block and thread of a lane if given.
    [[noreturn]] virtual void fail(const std::string& text) = 0;
    [[noreturn]] virtual void fail(uint32_t warp, uint32_t lane, const std::string& text) = 0;
};

}  // namespace kernrec
