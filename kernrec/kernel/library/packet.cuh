// Packets: neighbouring elements that one instruction loads or stores, kept as 32-bit words. Every access is under a
// predicate, without a branch: a load whose predicate is false reads nothing and gives the fill value, a store writes
// nothing. So an access at an edge costs the same instructions as any other.
//
// The predicate comes in two forms: `place` < `end`, compared by the access itself, or a truth value.

// BYTES of elements. Two bytes (one 16-bit element) are the lower half of a word.
template <unsigned BYTES>
struct Packet {
    static constexpr unsigned WORDS = BYTES < 4 ? 1 : BYTES / 4;
    static_assert(BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16, "one load instruction");
    alignas(BYTES < 4 ? 4 : BYTES) unsigned word[WORDS];
};

// Zeros unless `place` is before `end`.
template <unsigned BYTES, class Element>
__device__ __forceinline__ Packet<BYTES> load_packet(const Element* source, unsigned place, unsigned end) {
    Packet<BYTES> p;
    if constexpr (BYTES == 16)
        asm volatile(
            "{ .reg .pred p; setp.lt.u32 p, %5, %6;\n"
            "  mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
            "  @p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
            : "=&r"(p.word[0]), "=&r"(p.word[1]), "=&r"(p.word[2]), "=&r"(p.word[3])
            : "l"(source), "r"(place), "r"(end));
    else if constexpr (BYTES == 8)
        asm volatile(
            "{ .reg .pred p; setp.lt.u32 p, %3, %4;\n"
            "  mov.b32 %0, 0; mov.b32 %1, 0;\n"
            "  @p ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
            : "=&r"(p.word[0]), "=&r"(p.word[1])
            : "l"(source), "r"(place), "r"(end));
    else if constexpr (BYTES == 4)
        asm volatile("{ .reg .pred p; setp.lt.u32 p, %2, %3; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
                     : "=&r"(p.word[0])
                     : "l"(source), "r"(place), "r"(end));
    else
        asm volatile(
            "{ .reg .pred p; .reg .b16 half; setp.lt.u32 p, %2, %3; mov.b16 half, 0;\n"
            "  @p ld.global.nc.b16 half, [%1]; cvt.u32.u16 %0, half; }"
            : "=r"(p.word[0])
            : "l"(source), "r"(place), "r"(end));
    return p;
}

// FILL in every word unless `inside`; a packet of two bytes takes the lower half of FILL.
template <unsigned BYTES, unsigned FILL = 0, class Element>
__device__ __forceinline__ Packet<BYTES> load_packet(const Element* source, bool inside) {
    static_assert(BYTES != 8, "not needed so far");
    Packet<BYTES> p;
    if constexpr (BYTES == 16)
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
            "  mov.b32 %0, %6; mov.b32 %1, %6; mov.b32 %2, %6; mov.b32 %3, %6;\n"
            "  @p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
            : "=&r"(p.word[0]), "=&r"(p.word[1]), "=&r"(p.word[2]), "=&r"(p.word[3])
            : "l"(source), "r"(unsigned(inside)), "n"(FILL));
    else if constexpr (BYTES == 4)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, %3; @p ld.global.nc.b32 %0, [%1]; }"
                     : "=&r"(p.word[0])
                     : "l"(source), "r"(unsigned(inside)), "n"(FILL));
    else
        asm volatile(
            "{ .reg .pred p; .reg .b16 half; setp.ne.u32 p, %2, 0; mov.b16 half, %3;\n"
            "  @p ld.global.nc.b16 half, [%1]; cvt.u32.u16 %0, half; }"
            : "=&r"(p.word[0])
            : "l"(source), "r"(unsigned(inside)), "n"(FILL & 0xffff));
    return p;
}

// Stores if `place` is before `end`.
template <unsigned BYTES, class Element>
__device__ __forceinline__ void store_packet(Element* target, const Packet<BYTES>& p, unsigned place, unsigned end) {
    if constexpr (BYTES == 16)
        asm volatile("{ .reg .pred p; setp.lt.u32 p, %5, %6; @p st.global.v4.b32 [%4], {%0, %1, %2, %3}; }" ::"r"(
                         p.word[0]),
                     "r"(p.word[1]), "r"(p.word[2]), "r"(p.word[3]), "l"(target), "r"(place), "r"(end)
                     : "memory");
    else if constexpr (BYTES == 8)
        asm volatile("{ .reg .pred p; setp.lt.u32 p, %3, %4; @p st.global.v2.b32 [%2], {%0, %1}; }" ::"r"(p.word[0]),
                     "r"(p.word[1]), "l"(target), "r"(place), "r"(end)
                     : "memory");
    else if constexpr (BYTES == 4)
        asm volatile("{ .reg .pred p; setp.lt.u32 p, %2, %3; @p st.global.b32 [%1], %0; }" ::"r"(p.word[0]),
                     "l"(target), "r"(place), "r"(end)
                     : "memory");
    else
        asm volatile(
            "{ .reg .pred p; .reg .b16 half; setp.lt.u32 p, %2, %3; cvt.u16.u32 half, %0;\n"
            "  @p st.global.b16 [%1], half; }" ::"r"(p.word[0]),
            "l"(target), "r"(place), "r"(end)
            : "memory");
}

// Stores if `inside`.
template <unsigned BYTES, class Element>
__device__ __forceinline__ void store_packet(Element* target, const Packet<BYTES>& p, bool inside) {
    static_assert(BYTES != 2, "see store_half");
    if constexpr (BYTES == 16)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(
                         target),
                     "r"(p.word[0]), "r"(p.word[1]), "r"(p.word[2]), "r"(p.word[3]), "r"(unsigned(inside))
                     : "memory");
    else if constexpr (BYTES == 8)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.b32 [%0], {%1, %2}; }" ::"l"(target),
                     "r"(p.word[0]), "r"(p.word[1]), "r"(unsigned(inside))
                     : "memory");
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.b32 [%0], %1; }" ::"l"(target),
                     "r"(p.word[0]), "r"(unsigned(inside))
                     : "memory");
}

// The same for floats in float registers, and for single 16-bit elements.

template <unsigned N>
struct alignas(4 * N) Floats {
    float value[N];
};

// Zeros unless `inside`.
template <unsigned N>
__device__ __forceinline__ Floats<N> load_floats(const float* source, bool inside) {
    static_assert(N == 1 || N == 4, "one load instruction");
    Floats<N> p;
    if constexpr (N == 4)
        asm volatile(
            "{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
            "  mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000; mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000;\n"
            "  @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4]; }"
            : "=&f"(p.value[0]), "=&f"(p.value[1]), "=&f"(p.value[2]), "=&f"(p.value[3])
            : "l"(source), "r"(unsigned(inside)));
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.f32 %0, 0f00000000; @p ld.global.nc.f32 %0, [%1]; }"
                     : "=&f"(p.value[0])
                     : "l"(source), "r"(unsigned(inside)));
    return p;
}

// Stores the first N floats from `value` on if `inside`.
template <unsigned N>
__device__ __forceinline__ void store_floats(float* target, const float* value, bool inside) {
    static_assert(N == 1 || N == 2 || N == 4, "one store instruction");
    if constexpr (N == 4)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4}; }" ::"l"(
                         target),
                     "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "r"(unsigned(inside))
                     : "memory");
    else if constexpr (N == 2)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2}; }" ::"l"(target),
                     "f"(value[0]), "f"(value[1]), "r"(unsigned(inside))
                     : "memory");
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.f32 [%0], %1; }" ::"l"(target),
                     "f"(value[0]), "r"(unsigned(inside))
                     : "memory");
}

// Stores the bits of one 16-bit element if `inside`.
__device__ __forceinline__ void store_half(unsigned short* target, unsigned short bits, bool inside) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.b16 [%0], %1; }" ::"l"(target), "h"(bits),
                 "r"(unsigned(inside))
                 : "memory");
}
