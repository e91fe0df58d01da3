// Reductions that combine an element in memory, or of another lane, with a value: `atom`, `red`, `cp.reduce`,
// `red.async`, `sured`, `redux`.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "number_formats.h"

namespace kernrec {

enum class Reduction : uint8_t { kNone, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };
constexpr const char* kReductions[] = {"", "add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"};

// Return the reduction with a name, or kNone. Consider only reductions up to `last`.
inline Reduction reduction_of(const std::string& name, Reduction last = Reduction::kXor) {
    for (size_t i = 1; i <= size_t(last); ++i)
        if (name == kReductions[i]) return Reduction(i);
    return Reduction::kNone;
}

// Return the new value of an element. A minimum or maximum prefers numbers over NaN. `c` is the value that `.cas`
// stores.
template <class T>
T reduced(Reduction reduction, T old, T b, T c = T()) {
    if constexpr (std::is_floating_point_v<T>) {
        switch (reduction) {
            case Reduction::kAdd: return old + b;
            case Reduction::kMin: return std::isnan(b) || old < b ? old : b;
            case Reduction::kMax: return std::isnan(b) || old > b ? old : b;
            default: return b;
        }
    } else {
        using U = std::make_unsigned_t<T>;
        switch (reduction) {
            case Reduction::kAdd: return T(U(U(old) + U(b)));
            case Reduction::kMin: return old < b ? old : b;
            case Reduction::kMax: return old > b ? old : b;
            case Reduction::kInc: return old >= b ? T(0) : T(U(U(old) + 1));
            case Reduction::kDec: return old == 0 || old > b ? b : T(U(U(old) - 1));
            case Reduction::kAnd: return old & b;
            case Reduction::kOr: return old | b;
            case Reduction::kXor: return old ^ b;
            case Reduction::kCas: return old == b ? c : old;
            default: return b;
        }
    }
}

// Return the bits of an element of `type` after a reduction. Ignore bits above the element.
inline uint64_t reduce(Reduction reduction, NumberType type, uint64_t old, uint64_t value, uint64_t swapped = 0) {
    const auto as = [&](auto number) {
        using T = decltype(number);
        T a, b, c;
        std::memcpy(&a, &old, sizeof a);
        std::memcpy(&b, &value, sizeof b);
        std::memcpy(&c, &swapped, sizeof c);
        const T result = reduced(reduction, a, b, c);
        uint64_t bits = 0;
        std::memcpy(&bits, &result, sizeof result);
        return bits;
    };
    switch (type) {
        case NumberType::kU16: return as(uint16_t());
        case NumberType::kU32: return as(uint32_t());
        case NumberType::kS32: return as(int32_t());
        case NumberType::kU64: return as(uint64_t());
        case NumberType::kS64: return as(int64_t());
        case NumberType::kF32: return as(float());
        case NumberType::kF64: return as(double());
        case NumberType::kF16:
        case NumberType::kBf16: {
            if (reduction == Reduction::kExch) return value & 0xFFFF;
            // Only `from_double` rounds: float64 holds the exact sum of two 16-bit numbers, unless their exponents are
            // so far apart that the smaller number cannot change the result.
            return from_double(type, reduced(reduction, to_double(type, old), to_double(type, value)));
        }
        default: return value;
    }
}

}  // namespace kernrec
