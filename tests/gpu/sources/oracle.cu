#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda_occupancy.h"
int main(void) {
    int sm, warps, per_sm, optin, reserved, threads, registers, smem;
    while (scanf("%d %d %d %d %d", &sm, &warps, &per_sm, &optin, &reserved) == 5 &&
           scanf("%d %d %d", &threads, &registers, &smem) == 3) {
        struct cudaOccDeviceProp device;
        struct cudaOccFuncAttributes kernel;
        struct cudaOccDeviceState state;
        cudaOccResult result;
        memset(&device, 0, sizeof device), memset(&kernel, 0, sizeof kernel), memset(&state, 0, sizeof state);
        device.computeMajor = sm / 10, device.computeMinor = sm % 10, device.numSms = 1, device.warpSize = 32;
        device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = warps * 32;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.sharedMemPerBlock = 49152, device.sharedMemPerBlockOptin = optin;
        device.sharedMemPerMultiprocessor = per_sm, device.reservedSharedMemPerBlock = reserved;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers;
        kernel.maxDynamicSharedSizeBytes = INT_MAX, kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, smem);
        printf("%d\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
    }
    return 0;
}
