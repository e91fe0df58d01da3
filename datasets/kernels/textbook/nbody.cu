// Accelerations of bodies by all others, staged through shared memory.
extern "C" __global__ void nbody(const float4 *bodies, float4 *accelerations, int size)
{
    __shared__ float4 others[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float4 me = bodies[i];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int start = 0; start < size; start += BLOCK) {
        others[threadIdx.x] = bodies[start + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < BLOCK; ++k) {
            float dx = others[k].x - me.x, dy = others[k].y - me.y, dz = others[k].z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-6f);
            float pull = others[k].w * inverse * inverse * inverse;
            ax += dx * pull;
            ay += dy * pull;
            az += dz * pull;
        }
        __syncthreads();
    }
    accelerations[i] = make_float4(ax, ay, az, 0.0f);
}
