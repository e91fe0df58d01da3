// The CUDA runtime API: devices and errors.
#include <cstring>
#include <utility>

#include "runtime.h"

using namespace capture;

namespace {
thread_local int last_error = kSuccess;
int failed_kernel = kSuccess;  // After a failed kernel, each synchronization also fails.
}  // namespace

int capture::done(int error) {
    if (error) last_error = error;
    for (int lasting : {700, 702, 710, 719})
        if (error == lasting) failed_kernel = error;
    return error;
}
int capture::synchronize() { return done(failed_kernel); }

// Devices.

API int cudaSetDevice(int device) { return done(device ? kInvalidDevice : kSuccess); }
API int cudaDeviceSynchronize() { return synchronize(); }
API int cudaDeviceGetLimit(size_t* value, int limit) {
    // Bytes of the stack, the printf buffer and the heap.
    const size_t defaults[] = {1024, size_t(1) << 20, size_t(8) << 20};
    return *value = limit < 3 ? defaults[limit] : 0, kSuccess;
}
API int cudaDeviceGetAttribute(int* value, int name, int device) {
    return *value = attribute(name), done(device ? kInvalidDevice : kSuccess);
}
API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, kSuccess; }
API int cudaDeviceGetPCIBusId(char* text, int size, int) { return snprintf(text, size, "0000:00:00.0"), kSuccess; }
API int cudaDeviceEnablePeerAccess(int, unsigned) { return done(kInvalidDevice); }
API int cudaDeviceDisablePeerAccess(int) { return done(kInvalidDevice); }
API int cudaRuntimeGetVersion(int* version) { return *version = 1000 * RUNTIME_MAJOR, kSuccess; }
static int properties(void* to, int device) {
    if (device) return done(kInvalidDevice);
    const std::string& bytes = device_properties(RUNTIME_MAJOR);
    memcpy(to, bytes.data(), bytes.size());
    return kSuccess;
}
API int cudaGetDeviceProperties(void* to, int device) { return properties(to, device); }

// Errors.

namespace {
struct Named {
    int error;
    const char *name, *text;
};
const Named kErrors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {910, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed"},
};
const Named& named(int error) {
    static const Named unknown = {999, "cudaErrorUnknown", "unknown error"};
    for (const Named& each : kErrors)
        if (each.error == error) return each;
    return unknown;
}
}  // namespace
API int cudaGetLastError() { return std::exchange(last_error, int(kSuccess)); }
API int cudaPeekAtLastError() { return last_error; }
API const char* cudaGetErrorName(int error) { return named(error).name; }
API const char* cudaGetErrorString(int error) { return named(error).text; }
