// Arithmetic of tensor cores: see the header.
#include "tile_multiply.h"

#include <cmath>
#include <cstring>

#include "instruction_sets.h"

namespace kernrec {
namespace {

using Type = NumberType;

constexpr int kMostNumbersA = 16 * 256;  // m16n8k256 of bits
constexpr int kMostNumbersB = 8 * 256;   // m16n8k256 of bits, or 32 columns of k16
constexpr int kMostSums = 16 * 256;      // rows of a warp in m64n256 of a warpgroup

constexpr auto kDecode = [](Type type, int bits, const uint8_t* codes, int count,
                            double* numbers) __attribute__((always_inline)) {
    const auto each = [&](auto sample, auto value) __attribute__((always_inline)) {
#pragma GCC ivdep
        for (int i = 0; i < count; ++i) {
            decltype(sample) code;
            std::memcpy(&code, codes + i * sizeof code, sizeof code);
            numbers[i] = value(code);
        }
    };
    const auto same = [](auto number) { return number; };
    switch (type) {
        case Type::kF16: return each(uint16_t(), [](uint16_t code) { return f16_to_f32(code); });
        case Type::kBf16: return each(uint16_t(), [](uint16_t code) { return bf16_to_f32(code); });
        // Tensor cores ignore the last 13 bits of a tf32 operand.
        case Type::kTf32: return each(uint32_t(), [](uint32_t code) { return bit_cast<float>(code & 0xFFFFE000u); });
        case Type::kF32: return each(float(), same);
        case Type::kF64: return each(double(), same);
        case Type::kS32: return each(int32_t(), same);
        case Type::kS8: return each(int8_t(), same);
        case Type::kU8: return each(uint8_t(), same);
        default: break;
    }
    const float* const values = small_values(type);
    if (number_bits(type) == 8) return each(uint8_t(), [values](uint8_t code) { return values[code]; });
    const int lowest = type == Type::kE2m1 && bits == 8 ? 2 : 0;  // an e2m1 in its own byte is in bits 2 to 5
    const int mask = (1 << number_bits(type)) - 1;
    for (int i = 0; i < count; ++i) {
        const int first = i * bits;
        int code = codes[first / 8];
        if (first % 8 + bits > 8) code |= codes[first / 8 + 1] << 8;
        numbers[i] = values[code >> (first % 8 + lowest) & mask];
    }
};
constexpr ByCpu<kDecode> decode_by_cpu;

template <bool fused>
KERNREC_INLINE void multiply_rows(const TileA& a, const double* b, double* sums) {
    const int high = a.m / 8, blocks = a.k / a.width, width = a.width;
    for (int row = 0; row < a.m; row += 4) {
        double sum[4][8] = {};  // four rows stay in vector registers
        for (int block = 0; block < blocks; ++block) {
            const double* part = a.numbers + ((block * high + row / 8) * 8 + row % 8) * width;
            const double* rows = b + block * width * 8;
            for (int k = 0; k < width; ++k)
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i)
                    for (int j = 0; j < 8; ++j) {
                        const double x = part[i * width + k], y = rows[8 * k + j];
                        sum[i][j] = fused ? std::fma(x, y, sum[i][j]) : sum[i][j] + x * y;
                    }
        }
        std::memcpy(sums + 8 * row, sum, sizeof sum);
    }
}
constexpr auto kMultiplyTile = [](const TileA* a, const double* b, bool fused, double* sums)
                                   __attribute__((always_inline)) {
                                       fused ? multiply_rows<true>(*a, b, sums) : multiply_rows<false>(*a, b, sums);
                                   };
constexpr ByCpu<kMultiplyTile> multiply_by_cpu;

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

int numbers_per_lane(Type type) { return register_bits(type) / number_bits(type); }

int registers_of_tile(Type type, int m) { return m / 4 / numbers_per_lane(type); }

// Call a function with each register of C or D, its first sum, and the distance of its sums.
template <class Sum, class Each>
KERNREC_INLINE void each_register(Type type, int m, Registers fragment, Sum* sums, Each each) {
    const bool is_pair = numbers_per_lane(type) == 2;
    for (int i = 0; i < registers_of_tile(type, m); ++i)
        each(fragment[i], is_pair ? sums + 64 * i : sums + 64 * (i / 2) + i % 2, is_pair ? 1 : 2);
}

void add_c(Type type, int m, Registers fragment, double* sums) {
    each_register(type, m, fragment, sums, [type](const uint8_t* codes, double* first, int step) {
        double numbers[64];
        decode(type, number_bits(type), codes, 64 / step, numbers);
        for (int i = 0; i < 64 / step; ++i) first[i * step] += numbers[i];
    });
}

float to_f32(double sum) { return sum == sum ? float(sum) : bit_cast<float>(0x7FFFFFFF); }

void write_d(Type type, int m, bool saturates, const double* sums, Registers fragment) {
    const auto write = [&](auto rounded) {
        each_register(type, m, fragment, sums, [&](uint8_t* codes, const double* first, int step) {
            for (int i = 0; i < 64 / step; ++i) {
                const auto code = rounded(first[i * step]);
                std::memcpy(codes + i * sizeof code, &code, sizeof code);
            }
        });
    };
    if (type == Type::kF16) write([&](double sum) { return uint16_t(rounded_sum(type, saturates, sum)); });
    else if (type == Type::kF32) write(to_f32);
    else if (type == Type::kF64) write([](double sum) { return sum; });
    else write([&](double sum) { return uint32_t(rounded_sum(type, saturates, sum)); });
}

}  // namespace

void decode(Type type, int bits, const uint8_t* codes, int count, double* numbers) {
    decode_by_cpu(type, bits, codes, count, numbers);
}

void decode_registers(Type type, int bits, Registers registers, int count, double* numbers) {
    const int per_register = 32 * register_bits(type) / bits;
    for (int i = 0; i < count; ++i) decode(type, bits, registers[i], per_register, numbers + i * per_register);
}

void transpose(const double* rows, int width, double* columns) {
    for (int k = 0; k < width; ++k)
        for (int row = 0; row < 8; ++row) columns[8 * k + row] = rows[row * width + k];
}

void multiply_tile(const TileA& a, const double* b, bool fused, double* sums) { multiply_by_cpu(&a, b, fused, sums); }

void multiply_tiles(const MatrixMultiply& form, const TileA& a, const double* b, Registers c, Registers d) {
    alignas(64) double all[kMostSums];
    // D may share registers with C, so write the results after all tiles.
    for (int tile = 0; tile < form.n / 8; ++tile) {
        double* const sums = all + tile * 8 * a.m;
        multiply_tile(a, b + tile * 8 * a.k, form.a == Type::kF64, sums);
        for (int i = 0; i < 8 * a.m && form.counts_xor; ++i) sums[i] = (form.k - sums[i]) / 2;
        for (int i = 0; i < 8 * a.m && form.sign < 0; ++i) sums[i] = -sums[i];
        if (c) add_c(form.c, a.m, c + tile * registers_of_tile(form.c, a.m), sums);
    }
    for (int tile = 0; tile < form.n / 8; ++tile)
        write_d(form.d, a.m, form.saturates, all + tile * 8 * a.m, d + tile * registers_of_tile(form.d, a.m));
}

void multiply_fragments(const MatrixMultiply& form, Registers fragment_a, Registers fragment_b, Registers c,
                        Registers d, const ScaleFactors* scales) {
    alignas(64) double a[kMostNumbersA], b[kMostNumbersB], block[1024];
    const int bits = element_bits(form.a, form.packed), width = 4 * register_bits(form.a) / bits;
    const int numbers_a = form.m * form.k, numbers_b = form.n * form.k;
    decode_registers(form.a, bits, fragment_a, numbers_a / (8 * width), a);
    for (int i = 0; i < numbers_b / (8 * width); ++i) {
        decode_registers(form.b, bits, fragment_b + i, 1, block);
        transpose(block, width, b + 8 * width * i);
    }
    // A bit represents 1 or -1: equal bits add 1, different bits -1.
    for (int i = 0; i < numbers_a && form.counts_xor; ++i) a[i] = 1 - 2 * a[i];
    for (int i = 0; i < numbers_b && form.counts_xor; ++i) b[i] = 1 - 2 * b[i];
    if (form.factors) {
        scale_numbers(form, scales[0], false, a);
        scale_numbers(form, scales[1], true, b);
    }
    multiply_tiles(form, {a, form.m, form.k, width}, b, c, d);
}

uint64_t rounded_sum(Type type, bool saturates, double sum) {
    if (type != Type::kS32) return from_double(type, sum);
    if (saturates) sum = sum < -2147483648.0 ? -2147483648.0 : sum > 2147483647.0 ? 2147483647.0 : sum;
    return uint32_t(int64_t(sum));
}

}  // namespace kernrec
