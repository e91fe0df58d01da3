// Memory from the view of instructions: state spaces, kinds of accesses, lanes of a warp, and errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace kernrec {

using std::size_t;

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

constexpr const char* space_name(Space space) {
    constexpr const char* names[] = {"generic", "global", "shared", "local", "const", "param", "argument"};
    return names[size_t(space)];
}

enum class AccessKind : uint8_t { kRead, kWrite, kAtomic };

// A shared address below 2^24 is in the block's own memory. For another block of the cluster, `mapa` adds
// (rank + 1) * 2^24 to the address. NVIDIA does not publish how a GPU encodes the rank.
constexpr uint32_t kRankShift = 24;
constexpr uint32_t kRankBits = 5;

// Byte of the shared memory of a batch of thread blocks.
struct SharedPlace {
    uint32_t block;  // number of the block in the batch
    uint32_t byte;

    uint64_t key() const { return uint64_t(block) << 32 | byte; }
    bool operator<(const SharedPlace& other) const { return key() < other.key(); }
};

// Byte of shared memory that a lane accesses, in its own block or another block of the cluster.
struct LanePlace {
    uint32_t lane;  // number of the lane in the batch
    SharedPlace place;

    uint32_t warp() const { return lane / kWarp; }
};

// Lanes of a warp that wait at a barrier, and the basic block that follows the barrier.
struct Waiting {
    uint32_t warp, mask;
    int32_t after;
};

// Byte range of the batch's shared memory.
struct Span {
    std::size_t first, end;
};

// Thrown for an unsupported form of an instruction; the text names the unsupported part.
struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};
[[noreturn]] void refuse(const std::string& text = "");

}  // namespace kernrec
