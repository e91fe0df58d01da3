__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define SET(field, ...) asm volatile("tensormap.replace.tile." field :: "r"(at(map)), __VA_ARGS__ : "memory")
extern "C" __global__ void k(const short* x, char* made, short* out, int row) {
    __shared__ __align__(1024) short tile[16 * 32];
    __shared__ __align__(128) int map[32];
    __shared__ unsigned long long bar;
    map[threadIdx.x] = 0;
    __syncwarp();
    if (threadIdx.x == 0) {
        SET("global_address.shared::cta.b1024.b64 [%0], %1;", "l"(x));
        SET("rank.shared::cta.b1024.b32 [%0], 1;", "n"(0));
        SET("box_dim.shared::cta.b1024.b32 [%0], 0, %1;", "r"(32));
        SET("box_dim.shared::cta.b1024.b32 [%0], 1, %1;", "r"(16));
        SET("global_dim.shared::cta.b1024.b32 [%0], 0, %1;", "r"(40));
        SET("global_dim.shared::cta.b1024.b32 [%0], 1, %1;", "r"(24));
        SET("global_stride.shared::cta.b1024.b64 [%0], 0, %1;", "l"(80l));
        SET("element_stride.shared::cta.b1024.b32 [%0], 0, %1;", "r"(1));
        SET("element_stride.shared::cta.b1024.b32 [%0], 1, %1;", "r"(1));
        SET("elemtype.shared::cta.b1024.b32 [%0], 1;", "n"(0));
        SET("interleave_layout.shared::cta.b1024.b32 [%0], 0;", "n"(0));
        SET("swizzle_mode.shared::cta.b1024.b32 [%0], 2;", "n"(0));
        SET("fill_mode.shared::cta.b1024.b32 [%0], 0;", "n"(0));
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                 " [%0], [%1], 128;"
                 :: "l"(made), "r"(at(map)) : "memory");
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(made) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(at(&bar)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(at(tile)), "l"(made), "r"(0), "r"(row), "r"(at(&bar)) : "memory");
    }
    __syncwarp();
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }"
                 :: "r"(at(&bar)) : "memory");
    for (int i = threadIdx.x; i < 512; i += 32) out[i] = tile[i];
}
