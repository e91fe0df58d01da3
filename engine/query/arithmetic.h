// Arithmetic of expressions on 64-bit integers and on reals. Integers wrap. No operation fails: x // 0 is 0.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

namespace kernrec::query::arithmetic {

// Apply a function object, such as `std::less<>`.
template <class Function, class R, class T>
R applied(T a, T b) {
    return Function()(a, b);
}
template <bool wanted, class T>
int64_t is_true(T a) {
    return (a != T(0)) == wanted;
}

inline int64_t add(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
inline int64_t subtract(int64_t a, int64_t b) { return int64_t(uint64_t(a) - uint64_t(b)); }
inline int64_t multiply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
inline int64_t minimum(int64_t a, int64_t b) { return b < a ? b : a; }
inline int64_t maximum(int64_t a, int64_t b) { return a < b ? b : a; }
inline int64_t absolute(int64_t a) { return a < 0 ? subtract(0, a) : a; }
inline int64_t floor_divide(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return subtract(0, a);  // the smallest integer has no negation
    const int64_t quotient = a / b;
    return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
inline int64_t modulo(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
inline int64_t ceil_div(int64_t a, int64_t b) { return subtract(0, floor_divide(subtract(0, a), b)); }
inline int64_t power(int64_t a, int64_t b) {
    if (b < 0) return 0;
    int64_t result = 1;
    for (; b > 0; b >>= 1, a = multiply(a, a))
        if (b & 1) result = multiply(result, a);
    return result;
}
inline int64_t log2(int64_t a) {
    int64_t exponent = 0;
    for (; a > 1; a >>= 1) exponent++;
    return exponent;
}
inline int64_t power_of_two(int64_t a) { return a > 0 && (a & (a - 1)) == 0; }
inline bool has_magic(int64_t d) { return d >= 2 && d <= int64_t(1) << 31; }
inline int64_t magic_shift(int64_t d) { return has_magic(d) ? log2(d - 1) : 0; }
inline int64_t magic_mul(int64_t d) { return has_magic(d) ? ceil_div(int64_t(1) << (log2(d - 1) + 32), d) : 0; }

// Return the sum of (step * i + start) // divisor for i < n, by Euclid's algorithm (Graham, Knuth and Patashnik,
// "Concrete Mathematics", section 3.5). Return 0 for n <= 0, step < 0, divisor <= 0 or an operand of 2**31 or more.
inline int64_t floor_sum(int64_t n, int64_t step, int64_t start, int64_t divisor) {
    constexpr int64_t kLimit = int64_t(1) << 31;
    if (n <= 0 || step < 0 || divisor <= 0 || start <= -kLimit) return 0;
    if (n >= kLimit || step >= kLimit || divisor >= kLimit || start >= kLimit) return 0;
    for (int64_t total = 0;;) {
        const int64_t pairs = multiply(n, n - 1) / 2;
        const int64_t whole_steps = multiply(pairs, floor_divide(step, divisor));
        total = add(total, add(whole_steps, multiply(n, floor_divide(start, divisor))));
        step = modulo(step, divisor), start = modulo(start, divisor);
        const int64_t beyond = add(multiply(step, n), start);
        n = floor_divide(beyond, divisor);
        if (n == 0) return total;
        start = modulo(beyond, divisor);
        std::swap(step, divisor);
    }
}

namespace reals {

inline double divide(double a, double b) { return b == 0.0 ? 0.0 : a / b; }
inline double absolute(double a) { return std::fabs(a); }
inline double modulo(double a, double b) {
    if (b == 0.0) return 0.0;
    const double rest = std::fmod(a, b);
    if (rest == 0.0) return std::copysign(0.0, b);
    return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
// Python and NumPy also subtract the remainder before they divide and round.
inline double floor_divide(double a, double b) {
    if (b == 0.0) return 0.0;
    const double quotient = (a - modulo(a, b)) / b;
    if (quotient == 0.0) return std::copysign(0.0, a / b);
    const double whole = std::floor(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}
inline double ceil_div(double a, double b) { return 0.0 - floor_divide(0.0 - a, b); }

}  // namespace reals
}  // namespace kernrec::query::arithmetic
