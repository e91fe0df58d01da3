"""Small kernels for testing `kernrec check`: some have a planted bug, and similar ones are correct.

The comment `// BUG` marks the line of each planted bug.
"""

from typing import NamedTuple


class Case(NamedTuple):
    """A kernel with one launch."""

    name: str
    source: str
    arguments: tuple[str, ...]
    grid: int = 1
    block: int = 64
    shared: int = 0
    kind: str = ""
    """Kind of the finding that `kernrec check` must report; empty for a correct kernel."""
    memory: str = ""
    """Name of the buffer or array that the finding must report."""


BUGS = (
    Case("read past the end", """
__global__ void f(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] + x[i + 1];  // BUG
}""", ("x=f32[100]", "y=f32[100]", "i32:100"), 2, kind="out-of-bounds", memory="x"),
    Case("read before the first buffer", """
__global__ void f(const float *in, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = in[i - 1];  // BUG
}""", ("in=f32[100]", "y=f32[100]", "i32:100"), 2, kind="out-of-bounds", memory="in"),
    Case("write before the second buffer", """
__global__ void f(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i - 1] = x[i];  // BUG
}""", ("x=f32[100]", "y=f32[100]", "i32:100"), 2, kind="out-of-bounds", memory="y"),
    Case("write past the end", """
__global__ void f(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        y[i] = 1;  // BUG
}""", ("y=f32[100]", "i32:100"), 2, kind="out-of-bounds", memory="y"),
    Case("misaligned vector", """
__global__ void f(const float *x, float4 *y) {
    y[threadIdx.x] = *(const float4 *)(x + 4 * threadIdx.x + 1);  // BUG
}""", ("x=f32[260]", "y=f32[256]"), kind="misaligned"),
    Case("neighbor in shared memory", """
__global__ void f(const float *x, float *y) {
    __shared__ float a[64], b[64];
    a[threadIdx.x] = x[threadIdx.x];
    b[threadIdx.x] = 2 * x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x + 1] + b[63 - threadIdx.x];  // BUG
}""", ("x=f32[64]", "y=f32[64]"), kind="outside-array", memory="a"),
    Case("past dynamic shared memory", """
__global__ void f(const float *x, float *y) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];  // BUG
    __syncthreads();
    y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}""", ("x=f32[64]", "y=f32[64]"), shared=128, kind="out-of-bounds", memory="shared memory"),
    Case("past a local array", """
__global__ void f(float *y, int n) {
    float a[8];
    for (int i = 0; i < n; i++)
        a[i] = i * y[threadIdx.x];  // BUG
    y[threadIdx.x] = a[n % 7] + a[n % 5];
}""", ("y=f32[64]", "i32:40"), kind="out-of-bounds", memory="local memory"),
    Case("past constant memory", """
__constant__ float c[16];
__global__ void f(float *y) {
    y[threadIdx.x] = c[threadIdx.x];  // BUG
}""", ("y=f32[64]",), kind="out-of-bounds", memory="constant memory"),
    Case("null pointer", """
__global__ void f(const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x];  // BUG
}""", ("i64:0", "y=f32[64]"), kind="null-pointer"),
    Case("unwritten shared memory", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[64];
    if (threadIdx.x < 32)
        s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];  // BUG
}""", ("x=f32[64]", "y=f32[64]"), kind="uninitialized-shared", memory="s"),
    Case("histogram that is not cleared", """
__global__ void f(const int *x, int *y) {
    __shared__ int bins[64];
    atomicAdd(&bins[x[threadIdx.x] & 63], 1);  // BUG
    __syncthreads();
    y[threadIdx.x] = bins[threadIdx.x];
}""", ("x=i32[64]", "y=i32[64]"), kind="uninitialized-shared", memory="bins"),
    Case("unwritten buffer", """
__global__ void f(const float *x, float *y) {
    y[threadIdx.x] += x[threadIdx.x];  // BUG
}""", ("x=f32[64]", "y=unwritten:f32[64]"), kind="uninitialized-global", memory="y"),
    Case("missing __syncthreads", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[63 - threadIdx.x];  // BUG
}""", ("x=f32[64]", "y=f32[64]"), kind="race-shared", memory="s"),
    Case("missing second __syncthreads", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[64];
    float sum = 0;
    for (int k = 0; k < 4; k++) {
        s[threadIdx.x] = x[64 * k + threadIdx.x];  // BUG
        __syncthreads();
        sum += s[63 - threadIdx.x];
    }
    y[threadIdx.x] = sum;
}""", ("x=f32[256]", "y=f32[64]"), kind="race-shared", memory="s"),
    Case("missing __syncwarp", """
__global__ void f(float *y) {
    __shared__ float s[32];
    s[threadIdx.x] = y[threadIdx.x];
    __syncwarp();
    if (threadIdx.x < 16) {
        s[threadIdx.x] += s[threadIdx.x + 16];
        s[threadIdx.x] += s[threadIdx.x ^ 8];  // BUG
    }
    __syncwarp();
    y[threadIdx.x] = s[0];
}""", ("y=f32[32]",), block=32, kind="race-warp", memory="s"),
    Case("all threads write one word", """
__global__ void f(int *y) {
    __shared__ int last;
    last = threadIdx.x;  // BUG
    __syncthreads();
    y[threadIdx.x] = last;
}""", ("y=i32[64]",), kind="race-warp", memory="last"),
    Case("stencil in place", """
__global__ void f(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 1 < n)
        x[i] = 0.5f * (x[i] + x[i + 1]);  // BUG
}""", ("x=f32[256]", "i32:256"), 4, kind="race-global", memory="x"),
    Case("sum without atomics", """
__global__ void f(const float *x, float *sum) {
    if (threadIdx.x == 0)
        *sum += x[blockIdx.x];  // BUG
}""", ("x=f32[16]", "sum=f32[1]"), 16, kind="race-global", memory="sum"),
    Case("barrier in a branch", """
__global__ void f(float *y) {
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    if (threadIdx.x < 40) {
        __syncthreads();  // BUG
        y[threadIdx.x] = s[39 - threadIdx.x];
    }
    __syncthreads();
    y[threadIdx.x] += s[63 - threadIdx.x];
}""", ("y=f32[64]",), kind="divergent-barrier"),
    Case("two barriers in one warp", """
__global__ void f(float *y, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    if (threadIdx.x < 16) {
        y[threadIdx.x] = n;
        __syncthreads();  // BUG
        y[threadIdx.x] += s[63 - threadIdx.x];
    } else {
        y[threadIdx.x] = -n;
        __syncthreads();
        y[threadIdx.x] *= s[63 - threadIdx.x];
    }
}""", ("y=f32[64]", "i32:3"), kind="divergent-barrier"),
    Case("shuffle that half a warp skips", """
__global__ void f(float *y) {
    float v = y[threadIdx.x];
    if (threadIdx.x < 16)
        v += __shfl_down_sync(0xffffffff, v, 8);  // BUG
    __syncthreads();
    y[threadIdx.x] = v;
}""", ("y=f32[32]",), block=32, kind="mask"),
    Case("mask without the own lane", """
__global__ void f(float *y) {
    float v = y[threadIdx.x];
    if (threadIdx.x >= 16)
        v += __shfl_xor_sync(0xffff, v, 1);  // BUG
    y[threadIdx.x] = v;
}""", ("y=f32[32]",), block=32, kind="mask"),
    Case("wait for a later block", """
__global__ void f(int *flag, int *y) {
    if (blockIdx.x == 0) {
        while (*(volatile int *)flag == 0)  // BUG
            ;
        y[threadIdx.x] = 1;
    } else {
        y[threadIdx.x] = 2;
    }
}""", ("flag=zeros:i32[1]", "y=i32[64]"), 2, kind="deadlock"),
    Case("loop without a step", """
__global__ void f(float *y, int n) {
    int i = threadIdx.x;
    while (i < n) {  // BUG
        y[i] *= 2;
        if (y[i] > 1e30f) y[i] = 1;
    }
}""", ("y=f32[64]", "i32:64"), kind="endless-loop"),
    Case("assertion", """
#include <assert.h>
__global__ void f(const int *x, int *y) {
    if (x[threadIdx.x] < 1000)
        __trap();  // BUG
    y[threadIdx.x] = x[threadIdx.x];
}""", ("x=i32[64]", "y=i32[64]"), kind="trap"),
    Case("too many threads", """
__global__ void f(float *y) { y[threadIdx.x] = 1; }""", ("y=f32[2048]",), block=2048, kind="launch"),
    Case("more threads than bounds", """
__global__ void __launch_bounds__(128) f(float *y) { y[threadIdx.x] = 1; }""", ("y=f32[256]",), block=256,
         kind="launch"),
    Case("too much shared memory", """
__global__ void f(float *y) { extern __shared__ float s[]; s[threadIdx.x] = 1; y[threadIdx.x] = s[threadIdx.x]; }""",
         ("y=f32[64]",), shared=200_000, kind="launch"),
)  # fmt: skip

CLEAN = (
    Case("saxpy", """
__global__ void f(const float *x, float *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += 2 * x[i];
}""", ("x=f32[1000]", "y=f32[1000]", "i32:1000"), 4),
    Case("maximum over the warps that exist", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[32];
    float best = x[threadIdx.x];
    for (int k = 16; k; k /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, k));
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int w = 1; w < 32; w++)
            if (w * 32 < blockDim.x && best <= s[w]) best = s[w];
        y[0] = best;
    }
}""", ("x=f32[64]", "y=f32[1]"), 1, 64),
    Case("reduction in shared memory", """
__global__ void f(const float *x, float *y, int n) {
    __shared__ float s[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (int k = 64; k; k /= 2) {
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}""", ("x=f32[500]", "y=f32[4]", "i32:500"), 4, 128),
    Case("reduction with warps at the end", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[128];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int k = 96; k; k -= 32) s[threadIdx.x] += s[threadIdx.x + k];
        __syncwarp();
        for (int k = 16; k; k /= 2) {
            float v = s[threadIdx.x ^ k];
            __syncwarp();
            s[threadIdx.x] += v;
            __syncwarp();
        }
        if (threadIdx.x == 0) y[0] = s[0];
    }
}""", ("x=f32[128]", "y=f32[1]"), 1, 128),
    Case("shuffles", """
__global__ void f(const float *x, float *y, int n) {
    __shared__ float s[32];
    float v = threadIdx.x < n ? x[threadIdx.x] : 0;
    for (int k = 16; k; k /= 2) v += __shfl_down_sync(0xffffffff, v, k);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0;
        for (int k = 16; k; k /= 2) v += __shfl_down_sync(0xffffffff, v, k);
        if (threadIdx.x == 0) y[0] = v;
    }
}""", ("x=f32[250]", "y=f32[1]", "i32:250"), 1, 256),
    Case("threads that return early", """
__global__ void f(const float *x, float *y, int n) {
    if (threadIdx.x >= n) return;
    float v = x[threadIdx.x];
    unsigned mask = __activemask();
    for (int k = 4; k; k /= 2) v += __shfl_xor_sync(mask, v, k);
    y[threadIdx.x] = v;
}""", ("x=f32[24]", "y=f32[24]", "i32:24"), 1, 32),
    Case("return before a barrier", """
__global__ void f(float *y, int n) {
    __shared__ float s[64];
    if (threadIdx.x >= n) return;
    s[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}""", ("y=f32[40]", "i32:40")),
    Case("transpose", """
__global__ void f(const float *x, float *y, int n) {
    __shared__ float tile[32][33];
    int column = threadIdx.x % 32, row = threadIdx.x / 32;
    for (int r = row; r < 32; r += 8) tile[r][column] = x[(blockIdx.x * 32 + r) * 32 + column];
    __syncthreads();
    for (int r = row; r < 32; r += 8) y[r * n + blockIdx.x * 32 + column] = tile[column][r];
}""", ("x=f32[4096]", "y=f32[4096]", "i32:128"), 4, 256),
    Case("matmul in tiles", """
__global__ void f(const float *a, const float *b, float *c, int n) {
    __shared__ float s[16][16], t[16][16];
    int x = threadIdx.x % 16, y = threadIdx.x / 16, row = blockIdx.x * 16 + y;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        s[y][x] = a[row * n + k + x];
        t[y][x] = b[(k + y) * 16 + x];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += s[y][i] * t[i][x];
        __syncthreads();
    }
    c[row * 16 + x] = sum;
}""", ("a=f32[4096]", "b=f32[1024]", "c=f32[1024]", "i32:64"), 4, 256),
    Case("two buffers in turn", """
__global__ void f(const float *x, float *y) {
    __shared__ float s[2][64];
    s[0][threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 4; k++) {
        if (k < 3) s[(k + 1) % 2][threadIdx.x] = x[64 * (k + 1) + threadIdx.x];
        sum += s[k % 2][63 - threadIdx.x];
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}""", ("x=f32[256]", "y=f32[64]")),
    Case("planes that move in shared memory", """
__global__ void f(const float *x, float *y, int n) {
    __shared__ float s[3][64];
    s[2][threadIdx.x] = x[threadIdx.x];
    for (int k = 1; k < n; k++) {
        s[0][threadIdx.x] = s[1][threadIdx.x];
        s[1][threadIdx.x] = s[2][threadIdx.x];
        s[2][threadIdx.x] = x[64 * k + threadIdx.x];
        __syncthreads();
        if (k > 1)
            y[64 * k + threadIdx.x] = s[0][63 - threadIdx.x] + s[2][threadIdx.x];
        __syncthreads();
    }
}""", ("x=f32[512]", "y=f32[512]", "i32:8")),
    Case("scan", """
__global__ void f(float *y) {
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    for (int k = 1; k < 64; k *= 2) {
        float v = threadIdx.x >= k ? s[threadIdx.x - k] : 0;
        __syncthreads();
        s[threadIdx.x] += v;
        __syncthreads();
    }
    y[threadIdx.x] = s[threadIdx.x];
}""", ("y=f32[64]",)),
    Case("histogram", """
__global__ void f(const int *x, int *y, int n) {
    __shared__ int bins[64];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) atomicAdd(&bins[x[i] & 63], 1);
    __syncthreads();
    atomicAdd(&y[threadIdx.x], bins[threadIdx.x]);
}""", ("x=i32[1000]", "y=zeros:i32[64]", "i32:1000"), 4),
    Case("last block adds up", """
__global__ void f(const float *x, float *partial, int *count, float *y) {
    __shared__ bool last;
    float v = x[blockIdx.x * 32 + threadIdx.x];
    for (int k = 16; k; k /= 2) v += __shfl_down_sync(0xffffffff, v, k);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
        __threadfence();
        last = atomicAdd(count, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < gridDim.x; i++) sum += ((volatile float *)partial)[i];
        *y = sum;
    }
}""", ("x=f32[256]", "partial=f32[8]", "count=zeros:i32[1]", "y=f32[1]"), 8, 32),
    Case("lock", """
__global__ void f(int *lock, volatile float *y) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) ;
        __threadfence();
        *y += 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}""", ("lock=zeros:i32[1]", "y=zeros:f32[1]"), 8, 32),
    Case("flag that blocks write alike", """
__global__ void f(const float *x, int *found) {
    if (x[blockIdx.x * 32 + threadIdx.x] > 0) *found = 1;
}""", ("x=f32[256]", "found=zeros:i32[1]"), 8, 32),
    Case("flag that threads write alike", """
__global__ void f(const float *x, int *y) {
    __shared__ int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if (x[threadIdx.x] > 0) any = 1;
    __syncthreads();
    y[threadIdx.x] = any;
}""", ("x=f32[64]", "y=i32[64]")),
    Case("bytes of neighbors", """
__global__ void f(unsigned char *y) {
    __shared__ unsigned char s[64];
    s[threadIdx.x] = y[blockIdx.x * 63 + threadIdx.x % 63];
    __syncthreads();
    if (threadIdx.x < 63) y[blockIdx.x * 63 + threadIdx.x] = s[62 - threadIdx.x];
}""", ("y=u8[252]",), 4),
    Case("vectors", """
__global__ void f(const float4 *x, float4 *y) {
    __shared__ float4 s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float4 v = s[63 - threadIdx.x];
    v.x += 1;
    y[threadIdx.x] = v;
}""", ("x=f32[256]", "y=f32[256]")),
    Case("sort in shared memory", """
__global__ void f(float *y) {
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    for (int size = 2; size <= 64; size *= 2)
        for (int k = size / 2; k; k /= 2) {
            __syncthreads();
            int other = threadIdx.x ^ k;
            if (other > threadIdx.x) {
                float a = s[threadIdx.x], b = s[other];
                if ((a > b) == !(threadIdx.x & size)) { s[threadIdx.x] = b; s[other] = a; }
            }
        }
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}""", ("y=f32[64]",)),
    Case("votes", """
__global__ void f(const float *x, int *y) {
    __shared__ int base[2];
    bool keep = x[threadIdx.x] > 0;
    unsigned mask = __ballot_sync(0xffffffff, keep);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) base[warp] = __popc(mask);
    __syncthreads();
    int place = (warp ? base[0] : 0) + __popc(mask & ((1u << lane) - 1));
    if (keep) y[place] = threadIdx.x;
}""", ("x=f32[64]", "y=i32[64]")),
    Case("halves of a warp", """
__global__ void f(float *y) {
    float v = y[threadIdx.x];
    unsigned mask = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
    for (int k = 8; k; k /= 2) v += __shfl_xor_sync(mask, v, k);
    y[threadIdx.x] = v;
}""", ("y=f32[64]",)),
    Case("groups of a warp", """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void f(float *y) {
    __shared__ float s[64];
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    s[threadIdx.x] = y[threadIdx.x];
    tile.sync();
    float v = s[threadIdx.x / 8 * 8 + (threadIdx.x + 1) % 8];
    tile.sync();
    s[threadIdx.x] = v + tile.shfl_xor(v, 4);
    block.sync();
    y[threadIdx.x] = s[63 - threadIdx.x];
}""", ("y=f32[64]",)),
    Case("asynchronous copy", """
#include <cuda_pipeline.h>
__global__ void f(const float4 *x, float4 *y) {
    __shared__ float4 s[2][64];
    for (int k = 0; k < 2; k++) {
        __pipeline_memcpy_async(&s[k][threadIdx.x], &x[64 * k + threadIdx.x], 16);
        __pipeline_commit();
    }
    for (int k = 0; k < 2; k++) {
        __pipeline_wait_prior(k ? 0 : 1);
        __syncthreads();
        y[64 * k + threadIdx.x] = s[k][63 - threadIdx.x];
    }
}""", ("x=f32[512]", "y=f32[512]")),
    Case("local array", """
__global__ void f(float *y, int n) {
    float a[8];
    for (int i = 0; i < 8; i++) a[i] = y[threadIdx.x] * i;
    y[threadIdx.x] = a[n & 7];
}""", ("y=f32[64]", "i32:12")),
    Case("constants", """
__constant__ float c[64];
__global__ void f(float *y) { y[threadIdx.x] += c[threadIdx.x]; }""", ("y=f32[64]",)),
    Case("dynamic shared memory in two parts", """
__global__ void f(const float *x, float *y) {
    extern __shared__ float s[];
    int *order = (int *)(s + 64);
    s[threadIdx.x] = x[threadIdx.x];
    order[threadIdx.x] = 63 - threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[order[threadIdx.x]];
}""", ("x=f32[64]", "y=f32[64]"), 1, 64, 512),
)  # fmt: skip
