// What products of 8-bit numbers do with their sums: scale them, add the bias, apply the activation, and store them as
// bf16, f16 or f32, whichever is chosen when the kernel is launched.
//
// After matmul_tiles.cuh, whose `Sums` these are, with DTYPE_I8 where they are the bits of s32.

enum Output : unsigned { BF16, F16, F32 };  // `OUTPUTS` of kernrec/op/matmul.py

// As PackElements, which makes f16 here.
struct PackBf16 {
    __device__ __forceinline__ unsigned operator()(float first, float second) const {
        unsigned word;
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
#else
        word = rounded(first) >> 16 | (rounded(second) & 0xffff0000u);
#endif
        return word;
    }

    // The upper half is the bf16; a NaN, whose mantissa might overflow, keeps its upper half and stays one.
    __device__ __forceinline__ static unsigned rounded(float x) {
        const unsigned bits = __float_as_uint(x);
        return x != x ? bits | 0x10000u : bits + 0x7fffu + (bits >> 16 & 1u);
    }
};

// The scales of the rows and columns of C: one for a whole matrix, or one for each row or column.
struct Scales {
    const float* first;
    unsigned extent;  // of rows or columns; 1: one for all

    // From those of a batch's product. `each`: whether every one of `all` rows or columns has its own.
    __device__ __forceinline__ Scales(const float* scales, unsigned each, unsigned all)
        : first(scales + blockIdx.z * (each ? all : 1)), extent(each ? all : 1) {}

    __device__ __forceinline__ float at(unsigned place) const { return first[min(place, extent - 1)]; }
};

// The sums as numbers, scaled; `row` and `column` are the lane's first.
__device__ __forceinline__ void scale(Sums& sums, const Scales& of_rows, const Scales& of_columns, unsigned row,
                                      unsigned column) {
    float factor[WARP_N / 8][2];
#pragma unroll
    for (unsigned j = 0; j < WARP_N / 8; ++j)
#pragma unroll
        for (unsigned e = 0; e < 2; ++e) factor[j][e] = of_columns.at(column + j * 8 + e);
#pragma unroll
    for (unsigned i = 0; i < WARP_M / 8; ++i) {
        const float of_row = of_rows.at(row + i * 8);
#pragma unroll
        for (unsigned j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (unsigned e = 0; e < 2; ++e) {
                float& sum = sums[i / 2][j][i % 2 * 2 + e];
#if DTYPE_I8
                sum = float(__float_as_int(sum));
#endif
                sum *= of_row * factor[j][e];
            }
    }
}

// Bias and activation of scaled sums, and their stores to the block's product of a batch; `row` and `lane_column` are
// the lane's first, `column` the warp's.
__device__ __forceinline__ void store_scaled(Sums& sums, const float* __restrict__ bias, unsigned activation, void* c,
                                             unsigned output, unsigned row, unsigned column, unsigned lane_column,
                                             unsigned m, unsigned n) {
    finish(sums, bias, activation, lane_column, n);
    const size_t skipped = blockIdx.z * (size_t(m) * n);
    if (output == F32) {
        store_sums(sums, Matrix<float>{static_cast<float*>(c) + skipped, row, m, n}, lane_column);
    } else {
        const Matrix<Element> target{static_cast<Element*>(c) + skipped, row, m, n};
        if (output == BF16)
            store_rounded(sums, target, column, PackBf16());
        else
            store_rounded(sums, target, column);
    }
}

// Stores N successive numbers of C in 16 bits.
template <unsigned N, class Pack>
__device__ __forceinline__ void store_words(Element* target, const Floats<N>& numbers, bool inside, const Pack& packed) {
    if constexpr (N == 1) {
        store_half(target, Element(packed(numbers.value[0], 0.0f)), inside);
    } else {
        Packet<2 * N> words;
#pragma unroll
        for (unsigned i = 0; i < N / 2; ++i) words.word[i] = packed(numbers.value[2 * i], numbers.value[2 * i + 1]);
        store_packet(target, words, inside);
    }
}

// Stores N successive numbers of C from element `first` on, if they are `inside` it.
template <unsigned N>
__device__ __forceinline__ void store_result(void* c, unsigned output, unsigned first, const Floats<N>& numbers,
                                             bool inside) {
    if (output == F32)
        store_floats<N>(static_cast<float*>(c) + first, numbers.value, inside);
    else if (output == BF16)
        store_words<N>(static_cast<Element*>(c) + first, numbers, inside, PackBf16());
    else
        store_words<N>(static_cast<Element*>(c) + first, numbers, inside, PackElements());
}
