// What attention in e4m3 does besides that in 16 bits: values turned so that keys are contiguous, as tensor cores want
// them of 8 bits; weights of 8 bits; scales; results in bf16 or f16.
//
// Turned, keys and columns of values lie in an order of their own, which costs nothing. Of 16 keys, word c of a row has
// keys 2c, 2c + 1, 2c + 8 and 2c + 9: those whose scores lane c of four has, so that weights are an operand as they are.
// Of 16 columns, the even ones come first: eight rows that a matrix is stored to are then one behind the other, in all
// banks, and a lane has four neighbouring columns of the result.
//
// Defined before the include: BLOCK_K, HEAD, ROW_BYTES and K_BOX of the tile of values.

constexpr unsigned VALUES_ROW = BLOCK_K % 128 == 0 ? 128 : 64;  // bytes of a row of a turned tile, swizzled over them
constexpr unsigned VALUES_BOX = HEAD * VALUES_ROW;              // and of all rows of as many keys
// log2 of what weights, at most 1, are multiplied by: e4m3 has numbers from 2^-9 to 448.
constexpr float WEIGHT_SHIFT = 8;

static_assert(BLOCK_K % 64 == 0 && HEAD % 64 == 0, "four warps turn as much each");
static_assert(VALUES_BOX % 1024 == 0, "boxes begin where a swizzle does");

// What the 16-byte pieces of a row are exchanged by in a swizzle over `bytes`, in bytes.
__device__ __forceinline__ unsigned swizzle(unsigned row, unsigned bytes) {
    return (bytes == 128 ? row % 8 : row / 2 % 4) * 16;
}

__device__ __forceinline__ unsigned four_bytes(unsigned first, unsigned second, unsigned which) {
    unsigned word;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(first), "r"(second), "r"(which));
    return word;
}

// Turns a tile of BLOCK_K tokens of HEAD bytes: `target` gets HEAD rows of keys. By four warps, each 16 of 64 columns.
__device__ __forceinline__ void turn_values(unsigned source, unsigned target) {
    const unsigned warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = lane % 16;
    const unsigned from = source + lane * ROW_BYTES, from_piece = warp * 16 ^ swizzle(lane, ROW_BYTES);
    const unsigned to = target + (warp * 16 + row) * VALUES_ROW, to_piece = lane / 16 * 16 ^ swizzle(row, VALUES_ROW);
#pragma unroll
    for (unsigned column = 0; column < HEAD; column += 64)
#pragma unroll
        for (unsigned key = 0; key < BLOCK_K; key += 32) {
            const unsigned address = from + column / ROW_BYTES * K_BOX + key * ROW_BYTES +
                                     (from_piece ^ column % ROW_BYTES);
            unsigned pairs[4];  // two columns of two keys each, of keys 0, 8, 16 and 24
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                         : "r"(address)
                         : "memory");
            unsigned turned[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
                turned[i] = four_bytes(pairs[i / 2 * 2], pairs[i / 2 * 2 + 1], i % 2 ? 0x7531 : 0x6420);
            const unsigned place =
                to + column * VALUES_ROW + key / VALUES_ROW * VALUES_BOX + (to_piece ^ key % VALUES_ROW);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place),
                         "r"(turned[0]), "r"(turned[1]), "r"(turned[2]), "r"(turned[3])
                         : "memory");
        }
}

// Four e4m3 in a word, the first in its lowest byte, each rounded to nearest.
__device__ __forceinline__ unsigned pack_bytes(float first, float second, float third, float fourth) {
    unsigned word;
    asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"
        : "=r"(word)
        : "f"(first), "f"(second), "f"(third), "f"(fourth));
    return word;
}

// Two results in a word.
template <bool HALVES>
__device__ __forceinline__ unsigned pack_results(float first, float second) {
    unsigned word;
    if constexpr (HALVES)
        asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    else
        asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    return word;
}

// Stores a row of results, of which this lane has 4 of 16, times `over`; `start`: where the row begins.
template <bool HALVES>
__device__ __forceinline__ void store_row(unsigned short* start, const float (&result)[HEAD / 8][4], unsigned half,
                                          float over, unsigned head_dim, bool inside) {
#pragma unroll
    for (unsigned j = 0; j < HEAD / 8; j += 2) {
        Packet<8> four;
#pragma unroll
        for (unsigned e = 0; e < 2; ++e)
            four.word[e] =
                pack_results<HALVES>(result[j][2 * half + e] * over, result[j + 1][2 * half + e] * over);
        const unsigned at = j * 8 + threadIdx.x % 4 * 4;
        store_packet(start + at, four, inside && at < head_dim);
    }
}
