extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {
    __shared__ int s[32];
    unsigned a = (unsigned)__cvta_generic_to_shared(s), b;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(2));
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(b), "r"(1));
    out[0] = s[0];
}
