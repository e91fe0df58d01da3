// Barriers in shared memory on which copies arrive, and the tensor maps that describe what these copies move (sm_90).

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ void barrier_start(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Waits for the phase of this parity to complete.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Arrives, and says how many bytes will.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// The stage in use of a ring of STAGES, and how often all were.
struct Stage {
    unsigned number = 0, parity = 0;

    __device__ __forceinline__ void next() {
        number = number + 1 == STAGES ? 0 : number + 1;
        parity ^= number == 0;
    }
};
