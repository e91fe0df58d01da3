// Memory from the view of instructions: state spaces, kinds of accesses, lanes of a warp, and errors.
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

// Thrown for an unsupported form of an instruction; the text names the unsupported part.
struct Unsupported : Error {
    using Error::Error;
};
[[noreturn]] void refuse(const std::string& text = "");

}  // namespace kernrec
