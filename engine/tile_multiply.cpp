// Arithmetic of tensor cores: see the header. Functions are inlined into one function per instruction set, where
// compilers vectorize their loops.
#include "tile_multiply.h"

#include <cmath>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")  // GCC vectorizes loops of unknown length only at this level
#endif

namespace kernrec {
namespace {

using Type = NumberType;

constexpr int kMostTileNumbers = 16 * 256;  // for A: m16n8k256 of bits

template <bool kFused>
[[gnu::always_inline]] inline double plus_product(double sum, double x, double y) {
    return kFused ? std::fma(x, y, sum) : sum + x * y;
}

// Compilers inline this function into one function per instruction set. Four rows of sums stay in vector registers.
template <bool kFused>
[[gnu::always_inline]] inline void multiply_rows(const TileA& a, const double* b, double* sums) {
    const int high = a.m / 8, blocks = a.k / a.width, width = a.width;
    for (int row = 0; row < a.m; row += 4) {
        double sum0[8] = {}, sum1[8] = {}, sum2[8] = {}, sum3[8] = {};
        for (int block = 0; block < blocks; ++block) {
            const double* part = a.numbers + ((block * high + row / 8) * 8 + row % 8) * width;
            const double* rows = b + block * width * 8;
            for (int k = 0; k < width; ++k) {
                const double x0 = part[k], x1 = part[width + k], x2 = part[2 * width + k], x3 = part[3 * width + k];
                for (int j = 0; j < 8; ++j) {
                    const double y = rows[8 * k + j];
                    sum0[j] = plus_product<kFused>(sum0[j], x0, y);
                    sum1[j] = plus_product<kFused>(sum1[j], x1, y);
                    sum2[j] = plus_product<kFused>(sum2[j], x2, y);
                    sum3[j] = plus_product<kFused>(sum3[j], x3, y);
                }
            }
        }
        std::memcpy(sums + 8 * row, sum0, sizeof sum0);
        std::memcpy(sums + 8 * row + 8, sum1, sizeof sum1);
        std::memcpy(sums + 8 * row + 16, sum2, sizeof sum2);
        std::memcpy(sums + 8 * row + 24, sum3, sizeof sum3);
    }
}

[[gnu::always_inline]] inline void decode_bytes_inline(Type type, const uint8_t* bytes, int count, double* numbers) {
    const auto each = [&](auto sample, auto decode) {
        for (int i = 0; i < count; ++i) {
            decltype(sample) code;
            std::memcpy(&code, bytes + i * sizeof code, sizeof code);
            numbers[i] = decode(code);
        }
    };
    switch (type) {
        case Type::kF16: each(uint16_t(), [](uint16_t code) { return f16_to_f32(code); }); break;
        case Type::kBf16: each(uint16_t(), [](uint16_t code) { return bf16_to_f32(code); }); break;
        // Tensor cores ignore the last 13 bits of a tf32 operand.
        case Type::kTf32: each(uint32_t(), [](uint32_t code) { return bit_cast<float>(code & 0xFFFFE000u); }); break;
        case Type::kS8: each(int8_t(), [](int8_t code) { return code; }); break;
        case Type::kU8: each(uint8_t(), [](uint8_t code) { return code; }); break;
        case Type::kB1:
            for (int i = 0; i < count; ++i) numbers[i] = bytes[i / 8] >> i % 8 & 1;
            break;
        default: {
            const float* values = small_float_values(type);
            each(uint8_t(), [values](uint8_t code) { return values[code]; });
        }
    }
}

// Decode 32 words, one per lane. Each word holds one or more numbers. With `signs`, a bit represents 1 or -1.
[[gnu::always_inline]] inline void decode_words(Type type, const uint32_t* words, bool signs, double* out) {
    if (type == Type::kB1) {
        for (int lane = 0; lane < 32; ++lane)
            for (int bit = 0; bit < 32; ++bit) {
                const int value = int(words[lane] >> bit & 1);
                out[32 * lane + bit] = signs ? 1 - 2 * value : value;
            }
    } else if (type == Type::kS4 || type == Type::kU4) {
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 8; ++i) {
                const int code = int(words[lane] >> 4 * i & 15);
                out[8 * lane + i] = type == Type::kS4 && code > 7 ? code - 16 : code;
            }
    } else {
        decode_bytes_inline(type, reinterpret_cast<const uint8_t*>(words), 1024 / number_bits(type), out);
    }
}

// Decode 32 words of numbers that take a byte each, or half a byte if `packed`.
void decode_small_words(Type type, bool packed, const uint32_t* words, double* out) {
    const float* values = small_float_values(type);
    const auto* bytes = reinterpret_cast<const uint8_t*>(words);
    for (int i = 0; i < (packed ? 256 : 128); ++i) {
        const int code = packed                ? bytes[i / 2] >> 4 * (i % 2) & 15
                         : type == Type::kE2m1 ? bytes[i] >> 2 & 15  // an e2m1 in its own byte is in bits 2 to 5
                         : is_narrow(type)     ? bytes[i] & 63
                                               : bytes[i];
        out[i] = values[code];
    }
}

// Transpose one register of B, 8 columns of `width` numbers each, into rows.
[[gnu::always_inline]] inline void transpose_block(const double* block, int width, double* rows) {
    for (int k = 0; k < width; ++k)
        for (int column = 0; column < 8; ++column) rows[8 * k + column] = block[column * width + k];
}

[[gnu::always_inline]] inline uint16_t to_f16(double value) {
    const uint64_t bits = bit_cast<uint64_t>(value), magnitude = bits & 0x7FFFFFFFFFFFFFFF;
    const auto sign = uint16_t(bits >> 48 & 0x8000);
    if (magnitude > 0x7FF0000000000000) return 0x7FFF;
    if (magnitude >= 0x40EFFE0000000000) return sign | 0x7C00;  // 65520 or more: infinity
    if (magnitude < 0x3F10000000000000) {                       // below 2^-14: a multiple of 2^-24
        const double shifted = std::fabs(value) + 0x1.8p28;
        return sign | uint16_t(bit_cast<uint64_t>(shifted) & 0x7FF);
    }
    const uint64_t rounded = magnitude + 0x1FFFFFFFFFF + (magnitude >> 42 & 1);
    return sign | uint16_t((rounded >> 42) - (uint64_t(1023 - 15) << 10));
}

[[gnu::always_inline]] inline uint32_t to_f32(double value) {
    const auto bits = bit_cast<uint32_t>(float(value));
    return value == value ? bits : 0x7FFFFFFF;
}

[[gnu::always_inline]] inline uint32_t to_s32(double value, bool saturates) {
    if (saturates) value = value < -2147483648.0 ? -2147483648.0 : value > 2147483647.0 ? 2147483647.0 : value;
    return uint32_t(int64_t(value));
}

[[gnu::always_inline]] inline void decode_a_inline(Type type, int registers, const uint32_t* const* fragment,
                                                   bool signs, double* numbers) {
    const int per_word = 32 / number_bits(type);
    for (int r = 0; r < registers; ++r) decode_words(type, fragment[r], signs, numbers + 32 * per_word * r);
}

[[gnu::always_inline]] inline void decode_b(Type type, int registers, const uint32_t* const* fragment, bool signs,
                                            double* numbers) {
    const int per_word = 32 / number_bits(type);
    alignas(64) double block[1024];
    for (int r = 0; r < registers; ++r) {
        decode_words(type, fragment[r], signs, block);
        transpose_block(block, 4 * per_word, numbers + 32 * per_word * r);
    }
}

// Multiply the rows of A, or the columns of B, by the scale factors along K. In each group of four lanes,
// `scale.thread` selects the lanes that provide the factors.
void scale_numbers(const MatrixMultiply& form, const ScaleFactors& scale, bool is_b, double* numbers) {
    const int rows_of_thread = is_b ? 1 : 2, per_factor = form.k / form.factors;
    const int width = 128 / element_bits(form.a, form.packed);
    for (int row = 0; row < 8 * rows_of_thread; ++row) {
        const int lane = 4 * (row % 8) + int(scale.thread) * rows_of_thread + row / 8;
        for (int k = 0; k < form.k; ++k) {
            const uint32_t code = scale.factors[lane & 31] >> 8 * ((scale.byte + uint32_t(k / per_factor)) & 3) & 0xFF;
            const int i = is_b ? k * 8 + row : ((k / width * 2 + row / 8) * 8 + row % 8) * width + k % width;
            numbers[i] *= to_double(form.scale, code);
        }
    }
}

[[gnu::always_inline]] inline void add_c_inline(Type type, int m, const uint32_t* const* fragment, double* sums) {
    for (int high = 0; high < m / 8; ++high) {
        double* part = sums + 64 * high;
        if (type == Type::kF16) {
            for (int lane = 0; lane < 32; ++lane) {
                part[2 * lane] += f16_to_f32(uint16_t(fragment[high][lane]));
                part[2 * lane + 1] += f16_to_f32(uint16_t(fragment[high][lane] >> 16));
            }
            continue;
        }
        for (int e = 0; e < 2; ++e) {
            const uint32_t* words = fragment[2 * high + e];
            if (type == Type::kF32)
                for (int lane = 0; lane < 32; ++lane) part[2 * lane + e] += bit_cast<float>(words[lane]);
            else
                for (int lane = 0; lane < 32; ++lane) part[2 * lane + e] += int32_t(words[lane]);
        }
    }
}

[[gnu::always_inline]] inline void write_d_inline(Type type, int m, bool saturates, const double* sums,
                                                  uint32_t* const* fragment) {
    for (int high = 0; high < m / 8; ++high) {
        const double* part = sums + 64 * high;
        if (type == Type::kF16) {
            for (int lane = 0; lane < 32; ++lane)
                fragment[high][lane] = to_f16(part[2 * lane]) | uint32_t(to_f16(part[2 * lane + 1])) << 16;
            continue;
        }
        for (int e = 0; e < 2; ++e) {
            uint32_t* words = fragment[2 * high + e];
            if (type == Type::kF32)
                for (int lane = 0; lane < 32; ++lane) words[lane] = to_f32(part[2 * lane + e]);
            else
                for (int lane = 0; lane < 32; ++lane) words[lane] = to_s32(part[2 * lane + e], saturates);
        }
    }
}

template <bool kFused>
[[gnu::always_inline]] inline void multiply_fragments_inline(const FragmentProduct& product) {
    const MatrixMultiply form = product.form;  // copied, so that compilers need not reload it after stores
    alignas(64) double a[kMostTileNumbers], b[kMostTileNumbers / 2], sums[32 * 8];
    const int per_register = 32 / number_bits(form.a), width = 4 * per_register;
    decode_a_inline(form.a, form.m * form.k / (32 * per_register), product.a, form.counts_xor, a);
    decode_b(form.b, 8 * form.k / (32 * per_register), product.b, form.counts_xor, b);
    multiply_rows<kFused>({a, form.m, form.k, width}, b, sums);
    if (form.counts_xor)  // a bit represents 1 or -1: equal bits add 1, different bits -1
        for (int i = 0; i < form.m * 8; ++i) sums[i] = (form.k - sums[i]) / 2;
    add_c_inline(form.c, form.m, product.c, sums);
    write_d_inline(form.d, form.m, form.saturates, sums, product.d);
}

struct Kernels {
    void (*tile)(const TileA&, const double*, double*);
    void (*fragments)(const FragmentProduct&);
};

void tile_plain(const TileA& a, const double* b, double* sums) { multiply_rows<false>(a, b, sums); }
void tile_fused(const TileA& a, const double* b, double* sums) { multiply_rows<true>(a, b, sums); }
void fragments_plain(const FragmentProduct& product) { multiply_fragments_inline<false>(product); }

#if defined(__GNUC__) && defined(__x86_64__)
[[gnu::target("avx2,fma")]] void tile_avx2(const TileA& a, const double* b, double* sums) {
    multiply_rows<true>(a, b, sums);
}
[[gnu::target("avx2,fma")]] void fragments_avx2(const FragmentProduct& product) {
    multiply_fragments_inline<true>(product);
}
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma")]] void tile_avx512(const TileA& a, const double* b,
                                                                           double* sums) {
    multiply_rows<true>(a, b, sums);
}
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma")]] void fragments_avx512(const FragmentProduct& product) {
    multiply_fragments_inline<true>(product);
}
const Kernels& kernels() {
    static const Kernels chosen = [] {
        const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        if (avx512) return Kernels{tile_avx512, fragments_avx512};
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Kernels{tile_avx2, fragments_avx2};
        return Kernels{tile_plain, fragments_plain};
    }();
    return chosen;
}
#else
const Kernels& kernels() {
    static const Kernels chosen{tile_plain, fragments_plain};
    return chosen;
}
#endif

}  // namespace

void multiply_tile(const TileA& a, const double* b, double* sums) { kernels().tile(a, b, sums); }

void multiply_tile_f64(const TileA& a, const double* b, double* sums) {
    // Use fused operations everywhere, so that results do not depend on the machine.
    kernels().tile == tile_plain ? tile_fused(a, b, sums) : kernels().tile(a, b, sums);
}

// Multiply numbers of 4 to 8 bits, with or without block scaling. Branches for these types in `multiply_fragments`
// would keep compilers from vectorizing its loops.
static void multiply_small(const FragmentProduct& product) {
    const MatrixMultiply& form = product.form;
    alignas(64) double a[16 * 64], b[8 * 64], block[256], sums[16 * 8];
    const int width = form.packed ? 32 : 16;
    for (int r = 0; r < 4; ++r) decode_small_words(form.a, form.packed, product.a[r], a + 8 * width * r);
    for (int r = 0; r < 2; ++r) {
        decode_small_words(form.b, form.packed, product.b[r], block);
        transpose_block(block, width, b + 8 * width * r);
    }
    if (form.factors) {
        scale_numbers(form, product.scales[0], false, a);
        scale_numbers(form, product.scales[1], true, b);
    }
    multiply_tile({a, 16, form.k, width}, b, sums);
    add_c(form.c, 16, product.c, sums);
    write_d(form.d, 16, false, sums, product.d);
}

void multiply_fragments(const FragmentProduct& product) {
    const MatrixMultiply& form = product.form;
    if (form.factors || is_narrow(form.a) || is_narrow(form.b)) return multiply_small(product);
    kernels().fragments(product);
}

void decode_bytes(Type type, const uint8_t* bytes, int count, double* numbers) {
    decode_bytes_inline(type, bytes, count, numbers);
}

void decode_a(Type type, int registers, const uint32_t* const* fragment, double* numbers) {
    decode_a_inline(type, registers, fragment, false, numbers);
}

void add_c(Type type, int m, const uint32_t* const* fragment, double* sums) { add_c_inline(type, m, fragment, sums); }

void write_d(Type type, int m, bool saturates, const double* sums, uint32_t* const* fragment) {
    write_d_inline(type, m, saturates, sums, fragment);
}

uint32_t rounded_sum(Type type, bool saturates, double sum) {
    return type == Type::kF16 ? to_f16(sum) : type == Type::kF32 ? to_f32(sum) : to_s32(sum, saturates);
}

}  // namespace kernrec
