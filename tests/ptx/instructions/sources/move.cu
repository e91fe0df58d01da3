extern "C" __global__ void k(const unsigned short* x, unsigned* out, const unsigned* at) {{
    __shared__ __align__(16) unsigned short s[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) s[i] = x[blockIdx.x * 2048 + i];
    __syncthreads();
    unsigned a = (unsigned)__cvta_generic_to_shared(s) + at[threadIdx.x], r[{n}];
    asm volatile("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {names}, [%{n}];" : {outputs} : "r"(a) : "memory");
    for (int i = 0; i < {n}; i++) out[(blockIdx.x * blockDim.x + threadIdx.x) * {n} + i] = r[i];
}}
