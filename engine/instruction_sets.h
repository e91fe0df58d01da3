// Compiles further versions of a function for processors with AVX2 or AVX-512.
//
// A function marked KERNREC_AVX2 and a plain one share an always-inlined body. The caller selects one by `kAvx2`.
#pragma once

#include <cstdint>

namespace kernrec {

#if defined(__GNUC__) && defined(__x86_64__)
#define KERNREC_AVX2 [[gnu::target("avx2,fma")]]
inline const bool kAvx2 = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}();
#define KERNREC_AVX512 [[gnu::target("avx2,fma,avx512f,avx512dq,avx512vl")]]
// Older processors with AVX-512 lower their clock for it.
inline const bool kAvx512 = kAvx2 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vbmi2");
#else
#define KERNREC_AVX2
#define KERNREC_AVX512
inline constexpr bool kAvx2 = false, kAvx512 = false;
#endif
#define KERNREC_INLINE [[gnu::always_inline]] inline

// Function compiled for AVX-512, AVX2 and any CPU. `function` is a lambda with the attribute `always_inline`.
template <const auto& function>
struct ByCpu {
    template <class... A>
    static auto plain(A... arguments) {
        return function(arguments...);
    }
    template <class... A>
    KERNREC_AVX2 static auto avx2(A... arguments) {
        return function(arguments...);
    }
    template <class... A>
    KERNREC_AVX512 static auto avx512(A... arguments) {
        return function(arguments...);
    }
    template <class... A>
    auto operator()(A... arguments) const {
        return kAvx512 ? avx512(arguments...) : kAvx2 ? avx2(arguments...) : plain(arguments...);
    }
};

}  // namespace kernrec
