// The functions of the CUDA driver API (libcuda.so.1) that Numba and PyCUDA use.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core.h"

using namespace capture;

namespace {

using Pointer = uint64_t;

char context;  // There is only one context. Its handle is the address of this variable.
thread_local std::vector<void*> contexts;
void* current() { return contexts.empty() ? nullptr : contexts.back(); }

void* host(Pointer address) { return reinterpret_cast<void*>(address); }

int allocate_to(Pointer* pointer, size_t bytes, Kind kind) {
    if (!bytes) return kInvalidValue;
    *pointer = reinterpret_cast<Pointer>(allocate(bytes, kind));
    return *pointer ? kSuccess : kOutOfMemory;
}
int release_from(void* pointer) { return !pointer || release(pointer) ? kSuccess : kInvalidValue; }

int load_to(void** module, const void* image) {
    Module* made = load(image);
    if (made->failed) return 218;  // CUDA_ERROR_INVALID_PTX
    return *module = made, kSuccess;
}

// Handle of a function, which also holds its module.
int function_to(void** function, void* module, const char* name) {
    Function& found = function_of(*static_cast<Module*>(module), name);
    const int error = describe(found);
    return *function = &found, error == kInvalidDeviceFunction ? int(kNotFound) : error;
}

int packed_launch(void* function, const Launch& shape, void* stream, void** arguments, void** extra) {
    Function& called = *static_cast<Function*>(function);
    if (!extra || arguments) return launch(called, shape, arguments, stream);
    const void* data = nullptr;  // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
    size_t bytes = 0;
    for (; *extra; extra += 2) {
        if (*extra == reinterpret_cast<void*>(1)) data = extra[1];
        if (*extra == reinterpret_cast<void*>(2)) bytes = *static_cast<size_t*>(extra[1]);
    }
    return launch_packed(called, shape, data, bytes, stream);
}

struct Copy2D {
    size_t source_x, source_y;
    int source_type;
    const void* source_host;
    Pointer source;
    Array* source_array;
    size_t source_pitch, target_x, target_y;
    int target_type;
    void* target_host;
    Pointer target;
    Array* target_array;
    size_t target_pitch, bytes, rows;
};
struct Side {
    char* first;
    size_t pitch;
};
Side side_of(int type, const void* memory, Pointer address, const Array* array, size_t pitch, size_t x, size_t y) {
    char* first = type == 1 ? static_cast<char*>(const_cast<void*>(memory)) : static_cast<char*>(host(address));
    if (type == 3) first = static_cast<char*>(array->memory), pitch = array->width * array->texel();
    return {first + y * pitch + x, pitch};
}
int copy_2d(const Copy2D& c) {
    const Side from =
        side_of(c.source_type, c.source_host, c.source, c.source_array, c.source_pitch, c.source_x, c.source_y);
    const Side to =
        side_of(c.target_type, c.target_host, c.target, c.target_array, c.target_pitch, c.target_x, c.target_y);
    for (size_t row = 0; row < c.rows; row++)
        if (const int error = copy(to.first + row * to.pitch, from.first + row * from.pitch, c.bytes)) return error;
    return kSuccess;
}

struct Link {
    std::string ptx;
};

}  // namespace

// Initialization, devices and contexts.

API int cuInit(unsigned) { return attribute(16) > 0 ? kSuccess : kInvalidDevice; }
API int cuDeviceGet(int* device, int number) { return *device = 0, number ? kInvalidDevice : kSuccess; }
API int cuDeviceGetName(char* text, int size, int) {
    return snprintf(text, size_t(size), "%s", device_name().c_str()), kSuccess;
}
API int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = device_memory(), kSuccess; }
API int cuDeviceGetAttribute(int* value, int name, int) { return *value = attribute(name), kSuccess; }
API int cuDeviceComputeCapability(int* major, int* minor, int) {
    return *major = attribute(75), *minor = attribute(76), kSuccess;
}
API int cuDeviceGetUuid(char* uuid, int) { return memcpy(uuid, "kernrec-emulated", 16), kSuccess; }
API int cuDeviceGetPCIBusId(char* text, int size, int) {
    return snprintf(text, size_t(size), "0000:00:00.0"), kSuccess;
}
API int cuMemPoolGetAttribute(void*, int, void* value) { return *static_cast<uint64_t*>(value) = 0, kSuccess; }
API int cuDevicePrimaryCtxRetain(void** made, int) { return *made = &context, kSuccess; }
API int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, kSuccess; }
API int cuCtxCreate_v2(void** made, unsigned, int) { return *made = &context, contexts.push_back(*made), kSuccess; }
API int cuCtxDestroy_v2(void*) {
    if (!contexts.empty()) contexts.pop_back();
    return kSuccess;
}
API int cuCtxPushCurrent_v2(void* pushed) { return contexts.push_back(pushed), kSuccess; }
API int cuCtxPopCurrent_v2(void** popped) {
    if (popped) *popped = current();
    if (contexts.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
    return contexts.pop_back(), kSuccess;
}
API int cuCtxSetCurrent(void* set) {
    if (!contexts.empty()) contexts.pop_back();
    if (set) contexts.push_back(set);
    return kSuccess;
}
API int cuCtxGetCurrent(void** found) { return *found = current(), kSuccess; }
API int cuCtxGetDevice(int* device) { return *device = 0, current() ? kSuccess : 201; }
API int cuCtxGetId(void*, unsigned long long* id) { return *id = 1, kSuccess; }
API int cuCtxGetApiVersion(void*, unsigned* version) { return *version = 3020, kSuccess; }
API int cuCtxGetLimit(size_t* value, int) { return *value = 1024, kSuccess; }
API int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, kSuccess; }
API int cuGetErrorName(int error, const char** text) {
    static thread_local std::string name;
    return name = error ? "CUDA_ERROR_" + std::to_string(error) : "CUDA_SUCCESS", *text = name.c_str(), kSuccess;
}
API int cuGetErrorString(int error, const char** text) {
    return *text = error ? "kernrec printed the reason" : "no error", kSuccess;
}
API int cuGetExportTable(const void**, const void*) {
    Dl_info caller{};
    const bool known = dladdr(__builtin_return_address(0), &caller);
    if (known && strstr(caller.dli_fname, "libnvrtc")) return kNotFound;  // NVRTC works without export tables.
    // kernrec simulates a device in Python, so the CUDA runtime inside a package such as PyTorch must find no device.
    if (known && strstr(caller.dli_fname, "libcudart.so.")) return kNoDevice;
    stop("the program, or a package that it loads (CuPy), has the CUDA runtime inside; rebuild it with -cudart shared");
}
API int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t, int* status) {
    // Return a function's newest variant in the requested CUDA version. `since` is the variant's first version.
    static const struct {
        const char* name;
        int since;
    } kLater[] = {{"cuCtxCreate_v4", 12050},    {"cuEventElapsedTime_v2", 12080}, {"cuMemPrefetchAsync_v2", 12020},
                  {"cuMemAdvise_v2", 12020},    {"cuGetProcAddress_v2", 12000},   {"cuStreamGetCaptureInfo_v3", 12030},
                  {"cuCtxGetDevice_v2", 13000}, {"cuCtxSynchronize_v2", 13000}};
    const std::string base = symbol;
    *function = nullptr;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
        const std::string name = base + suffix;
        if (std::any_of(std::begin(kLater), std::end(kLater),
                        [&](auto& each) { return name == each.name && version < each.since; }))
            continue;
        if ((*function = dlsym(RTLD_DEFAULT, name.c_str()))) break;
    }
    if (status) *status = *function ? 0 : 1;
    return *function || status ? kSuccess : kNotFound;
}
API int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

// Code. The linker joins PTX files to a single PTX file.

API int cuModuleLoadData(void** module, const void* image) { return load_to(module, image); }
API int cuModuleLoad(void** module, const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return 301;  // CUDA_ERROR_FILE_NOT_FOUND
    std::stringstream content;
    content << file.rdbuf();
    return load_to(module, content.str().c_str());
}
API int cuModuleGetFunction(void** function, void* module, const char* name) {
    return function_to(function, module, name);
}
API int cuModuleGetGlobal_v2(Pointer* pointer, size_t* bytes, void* handle, const char* name) {
    Module& module = *static_cast<Module*>(handle);
    if (!module.variables.count(name)) {
        const Reply size = ask({"variable", join(module.id), name});
        if (size.error) return kNotFound;
        Variable& variable = module.variables[name];
        variable.name = name, variable.size = size_t(size.number(0)), variable.constant = size.number(1) != 0;
        variable.memory = allocate(variable.size, Kind::kDevice, variable.constant);
        if (!variable.memory) return kOutOfMemory;
        ask({"managed", join(module.id), name, join(reinterpret_cast<uint64_t>(variable.memory), variable.size)});
    }
    const Variable& variable = module.variables[name];
    if (pointer) *pointer = reinterpret_cast<Pointer>(variable.memory);
    if (bytes) *bytes = variable.size;
    return kSuccess;
}
API int cuLibraryGetModule(void** module, void* library) { return *module = library, kSuccess; }
API int cuFuncGetModule(void** module, void* function) {
    return *module = static_cast<Function*>(function)->module, kSuccess;
}
API int cuFuncGetName(const char** name, void* function) {
    return *name = static_cast<Function*>(function)->name.c_str(), kSuccess;
}
API int cuFuncGetAttribute(int* value, int name, void* handle) {
    Function& function = *static_cast<Function*>(handle);
    if (const int error = describe(function)) return error;
    const int values[] = {function.most_threads,
                          function.static_shared,
                          function.constant,
                          function.local,
                          function.registers,
                          function.version,
                          function.version,
                          0,
                          std::max(function.dynamic_shared, attribute(8) - function.static_shared)};
    return *value = name < 9 ? values[name] : 0, kSuccess;
}
API int cuFuncSetAttribute(void* function, int name, int value) {
    if (name == 8) static_cast<Function*>(function)->dynamic_shared = value;
    return kSuccess;
}
API int cuKernelSetAttribute(int name, int value, void* kernel, int) { return cuFuncSetAttribute(kernel, name, value); }
API int cuLinkCreate_v2(unsigned, int*, void**, void** state) { return *state = new Link, kSuccess; }
API int cuLinkAddData_v2(void* state, int type, void* data, size_t bytes, const char*, unsigned, int*, void**) {
    if (type != 1) return kNotSupported;  // CU_JIT_INPUT_PTX
    static_cast<Link*>(state)->ptx +=
        std::string(static_cast<char*>(data), strnlen(static_cast<char*>(data), bytes)) + "\n";
    return kSuccess;
}
API int cuLinkComplete(void* state, void** image, size_t* bytes) {
    std::string& ptx = static_cast<Link*>(state)->ptx;
    if (bytes) *bytes = ptx.size() + 1;
    return *image = &ptx[0], kSuccess;
}
API int cuLinkDestroy(void* state) { return delete static_cast<Link*>(state), kSuccess; }
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
    return *blocks = blocks_per_multiprocessor(*static_cast<Function*>(function), threads, shared), kSuccess;
}
API int cuOccupancyMaxPotentialBlockSize(int* grid, int* block, void* function, size_t (*shared_of)(int), size_t shared,
                                         int limit) {
    int most = 0;
    for (int threads = limit ? limit : attribute(1); threads >= 32; threads -= 32) {
        const int blocks = blocks_per_multiprocessor(*static_cast<Function*>(function), threads,
                                                     shared_of ? shared_of(threads) : shared);
        if (blocks * threads > most) most = blocks * threads, *block = threads, *grid = blocks * attribute(16);
    }
    return kSuccess;
}

// Launches.

API int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void* stream, void** arguments, void** extra) {
    return packed_launch(function, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, arguments, extra);
}
API int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                  unsigned bz, unsigned shared, void* stream, void** arguments) {
    return packed_launch(function, {{gx, gy, gz}, {bx, by, bz}, shared, true}, stream, arguments, nullptr);
}
API int cuLaunchKernelEx(const void* config, void* function, void** arguments, void** extra) {
    const auto& given = *static_cast<const LaunchConfig<unsigned>*>(config);
    return packed_launch(function, given.shape(), given.stream, arguments, extra);
}
API int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
    return submit(stream, 3, [=] { return function(data), int(kSuccess); });
}

// Memory.

API int cuMemAlloc_v2(Pointer* pointer, size_t bytes) { return allocate_to(pointer, bytes, Kind::kDevice); }
API int cuMemAllocManaged(Pointer* pointer, size_t bytes, unsigned) {
    return allocate_to(pointer, bytes, Kind::kManaged);
}
API int cuMemAllocPitch_v2(Pointer* pointer, size_t* pitch, size_t width, size_t height, unsigned) {
    return *pitch = (width + 511) / 512 * 512, cuMemAlloc_v2(pointer, *pitch * height);
}
API int cuMemAllocHost_v2(Pointer* pointer, size_t bytes) { return allocate_to(pointer, bytes, Kind::kHost); }
API int cuMemFree_v2(Pointer pointer) { return release_from(host(pointer)); }
API int cuMemHostGetDevicePointer_v2(Pointer* pointer, void* memory, unsigned) {
    *pointer = reinterpret_cast<Pointer>(device_address(memory));
    return *pointer ? kSuccess : kInvalidValue;
}
API int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
    return register_host(memory, bytes) ? kSuccess : kInvalidValue;
}
API int cuMemHostUnregister(void* memory) { return unregister_host(memory) ? kSuccess : kInvalidValue; }
API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    return *total = device_memory(), *free = *total - used_memory(), kSuccess;
}
API int cuMemGetAddressRange_v2(Pointer* base, size_t* bytes, Pointer pointer) {
    const Allocation* inside = allocation_of(host(pointer));
    if (!inside) return kNotFound;
    if (base) *base = inside->base;
    if (bytes) *bytes = inside->size;
    return kSuccess;
}
API int cuPointerGetAttribute(void* value, int name, Pointer pointer) {
    const Allocation* inside = allocation_of(host(pointer));
    if (!inside) return kInvalidValue;
    const int types[] = {2, 1, 2, 3, 2};  // The index is a Kind.
    switch (name) {
        case 1: *static_cast<void**>(value) = &context; return kSuccess;
        case 2: *static_cast<int*>(value) = types[int(inside->kind)]; return kSuccess;
        case 3:
        case 4: *static_cast<Pointer*>(value) = pointer; return kSuccess;
        case 7: *static_cast<uint64_t*>(value) = inside->base; return kSuccess;
        case 8: *static_cast<int*>(value) = inside->kind == Kind::kManaged; return kSuccess;
        case 9: *static_cast<int*>(value) = 0; return kSuccess;
        case 11: *static_cast<Pointer*>(value) = inside->base; return kSuccess;
        case 12: *static_cast<size_t*>(value) = inside->size; return kSuccess;
        default: return kNotSupported;
    }
}
#define COPY(name, To, From)                                                                                \
    API int name##_v2(To to, From from, size_t bytes) { return copy((void*)to, (const void*)from, bytes); } \
    API int name##Async_v2(To to, From from, size_t bytes, void* stream) {                                  \
        return submit(stream, 1, [=] { return copy((void*)to, (const void*)from, bytes); });                \
    }
COPY(cuMemcpyHtoD, Pointer, const void*)
COPY(cuMemcpyDtoH, void*, Pointer)
COPY(cuMemcpyDtoD, Pointer, Pointer)
API int cuMemcpy2D_v2(const Copy2D* given) { return copy_2d(*given); }
API int cuMemcpy2DAsync_v2(const Copy2D* given, void* stream) {
    const Copy2D from = *given;
    return submit(stream, 1, [from] { return copy_2d(from); });
}
#define FILL(name, row, type, width)                                                                        \
    API int name##_v2(Pointer to, type value, size_t count) { return fill(host(to), value, width, count); } \
    API int name##Async(Pointer to, type value, size_t count, void* stream) {                               \
        return submit(stream, 2, [=] { return fill(host(to), value, width, count); });                      \
    }                                                                                                       \
    API int row##_v2(Pointer to, size_t pitch, type value, size_t columns, size_t rows) {                   \
        return fill_rows(host(to), pitch, value, width, columns, rows);                                     \
    }
FILL(cuMemsetD8, cuMemsetD2D8, uint8_t, 1)
FILL(cuMemsetD16, cuMemsetD2D16, uint16_t, 2)
FILL(cuMemsetD32, cuMemsetD2D32, uint32_t, 4)

// Write a tensor map as kernrec.ptx.state.descriptors lays it out.
API int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* extents,
                               const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                               int swizzle, int, int fill) {
    // Numbers that tensormap.replace uses for the types.
    const uint8_t types[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12};
    if (!map || rank < 1 || rank > 5 || type < 0 || type > 12) return kInvalidValue;
    char* bytes = static_cast<char*>(map);
    memset(bytes, 0, 128);
    memcpy(bytes, &address, 8), memcpy(bytes + 8, "tile", 4);
    const uint8_t modes[] = {uint8_t(rank - 1), types[type], uint8_t(interleave), uint8_t(swizzle), uint8_t(fill)};
    memcpy(bytes + 12, modes, sizeof modes);
    if (rank > 1) memcpy(bytes + 44, strides, 8 * (rank - 1));
    for (uint32_t i = 0; i < rank; i++) {
        memcpy(bytes + 20 + 4 * i, &extents[i], 4);
        memcpy(bytes + 76 + 2 * i, &box[i], 2), memcpy(bytes + 86 + 2 * i, &steps[i], 2);
    }
    return kSuccess;
}

// Streams and events.

API int cuStreamCreate(void** stream, unsigned flags) {
    Stream* made = new Stream;
    return made->flags = flags, *stream = made, kSuccess;
}
API int cuStreamDestroy_v2(void* stream) {
    if (stream_of(stream) == stream) delete static_cast<Stream*>(stream);
    return kSuccess;
}
API int cuStreamGetFlags(void* stream, unsigned* flags) { return *flags = stream_of(stream)->flags, kSuccess; }
API int cuStreamGetPriority(void*, int* priority) { return *priority = 0, kSuccess; }
API int cuStreamGetCtx(void*, void** found) { return *found = &context, kSuccess; }
API int cuStreamIsCapturing(void* stream, int* status) { return *status = stream_of(stream)->capturing(), kSuccess; }
API int cuStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) {
    return submit(stream, 3, [=] { return function(stream, kSuccess, data), int(kSuccess); });
}
API int cuEventCreate(void** event, unsigned) { return *event = new Event, kSuccess; }
API int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), kSuccess; }
API int cuEventRecord(void* event, void*) { return record(*static_cast<Event*>(event)); }
API int cuEventElapsedTime(float* milliseconds, void* first, void* second) {
    return elapsed(milliseconds, first, second);
}
