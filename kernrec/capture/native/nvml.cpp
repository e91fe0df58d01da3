// Replacement for `libnvidia-ml.so.1`. It reports the name, memory and architecture of the GPU, because some packages
// ask NVML before they use CUDA. The library lacks all other functions of NVML. NVML's Python bindings report them as
// unsupported.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#define API extern "C" __attribute__((visibility("default")))
extern "C" int cuInit(unsigned), cuDeviceGetName(char*, int, int), cuDeviceTotalMem_v2(size_t*, int),
    cuDeviceGetAttribute(int*, int, int);

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kSize = 7;
constexpr int kMajor = 75, kMinor = 76;
char gpu;  // There is only one GPU. Its handle is the address of this variable.
const char* const kUuid = "GPU-00000000-0000-0000-0000-000000000000";

int put(const std::string& text, char* buffer, unsigned length) {
    if (text.size() + 1 > length) return kSize;
    return strcpy(buffer, text.c_str()), kSuccess;
}
size_t memory() {
    size_t bytes = 0;
    return cuInit(0), cuDeviceTotalMem_v2(&bytes, 0), bytes;
}

}  // namespace

API int nvmlInit_v2() { return kSuccess; }
API int nvmlInitWithFlags(unsigned) { return kSuccess; }
API int nvmlShutdown() { return kSuccess; }
API const char* nvmlErrorString(int error) { return error ? "kernrec's NVML has no such value" : "Success"; }
API int nvmlSystemGetDriverVersion(char* text, unsigned length) { return put("580.0", text, length); }
API int nvmlSystemGetNVMLVersion(char* text, unsigned length) { return put("13.580.0", text, length); }
API int nvmlSystemGetCudaDriverVersion(int* version) { return *version = 13000, kSuccess; }
API int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, kSuccess; }
API int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 1, kSuccess; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    return index ? kInvalidArgument : (*device = &gpu, kSuccess);
}
API int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    return strcmp(uuid, kUuid) ? kNotFound : (*device = &gpu, kSuccess);
}
API int nvmlDeviceGetIndex(void*, unsigned* index) { return *index = 0, kSuccess; }
API int nvmlDeviceGetUUID(void*, char* text, unsigned length) { return put(kUuid, text, length); }
API int nvmlDeviceGetName(void*, char* text, unsigned length) {
    char name[256] = "";
    cuInit(0), cuDeviceGetName(name, sizeof name, 0);
    const std::string whole = name;
    // Packages name their files after the GPU, so drop "(emulated ...)".
    return put(whole.substr(0, whole.find(" (emulated")), text, length);
}
API int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
    cuInit(0), cuDeviceGetAttribute(major, kMajor, 0);
    return cuDeviceGetAttribute(minor, kMinor, 0);
}
struct Memory {
    unsigned long long total, free, used;
};
API int nvmlDeviceGetMemoryInfo(void*, Memory* info) { return *info = {memory(), memory(), 0}, kSuccess; }
struct MemoryV2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
API int nvmlDeviceGetMemoryInfo_v2(void*, MemoryV2* info) {
    return info->total = info->free = memory(), info->reserved = info->used = 0, kSuccess;
}
struct Utilization {
    unsigned gpu, memory;
};
API int nvmlDeviceGetUtilizationRates(void*, Utilization* rates) { return *rates = {0, 0}, kSuccess; }
