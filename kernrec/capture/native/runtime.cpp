// The CUDA runtime API (libcudart.so.12 and .13).
#include <algorithm>
#include <cstring>
#include <utility>

#include "core.h"

using namespace capture;

namespace {

thread_local int last_error = kSuccess;
int done(int error) {
    if (error) last_error = error;
    return error;
}

struct Symbol {
    Module* module;
    Variable* variable;
};

std::map<const void*, Function*>& functions() {  // by the address of the host's function
    static auto* made = new std::map<const void*, Function*>;
    return *made;
}
std::map<const void*, Symbol>& symbols() {
    static auto* made = new std::map<const void*, Symbol>;
    return *made;
}

Function* find(const void* key) {
    const auto at = functions().find(key);
    return at == functions().end() ? nullptr : at->second;
}

// Memory of a variable, or null.
char* memory_of(const void* key, size_t offset = 0, size_t bytes = 0) {
    const auto at = symbols().find(key);
    if (at == symbols().end() || prepare(*at->second.module)) return nullptr;
    const Variable& variable = *at->second.variable;
    return offset + bytes > variable.size ? nullptr : static_cast<char*>(variable.memory) + offset;
}

struct Call {
    Extent grid, block;
    size_t shared;
    void* stream;
};
thread_local std::vector<Call> calls;

struct Pitched {
    void* pointer;
    size_t pitch, width, height;
};
struct Position {
    size_t x, y, z;
};
struct Volume {
    size_t width, height, depth;
};
struct Channels {
    int x, y, z, w, kind;
};
struct Copy3D {
    Array* source_array;
    Position source_at;
    Pitched source;
    Array* target_array;
    Position target_at;
    Pitched target;
    Volume extent;
    int kind;
};

// One side of a copy of rows: its first byte, and bytes from row to row and from slice to slice.
struct Side {
    char* first;
    size_t row, slice;
};
Side side_of(const Array* array, const Pitched& linear, const Position& at) {
    Side side = {static_cast<char*>(linear.pointer), linear.pitch, linear.pitch * linear.height};
    size_t unit = 1;
    if (array) {
        unit = array->texel();
        side = {static_cast<char*>(array->memory), array->width * unit,
                array->width * unit * (array->height ? array->height : 1)};
    }
    side.first += at.x * unit + at.y * side.row + at.z * side.slice;
    return side;
}
int copy_rows(Side to, Side from, size_t bytes, size_t rows, size_t slices) {
    for (size_t z = 0; z < slices; z++)
        for (size_t y = 0; y < rows; y++)
            if (const int error = copy(to.first + z * to.slice + y * to.row, from.first + z * from.slice + y * from.row,
                                       bytes))
                return error;
    return kSuccess;
}
int copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows) {
    if (rows && (to_pitch < bytes || from_pitch < bytes)) return kInvalidValue;
    return copy_rows({static_cast<char*>(to), to_pitch, 0},
                     {static_cast<char*>(const_cast<void*>(from)), from_pitch, 0}, bytes, rows, 1);
}
int copy_3d(const Copy3D& from) {
    const Array* array = from.source_array ? from.source_array : from.target_array;
    const size_t bytes = from.extent.width * (array ? array->texel() : 1);
    return copy_rows(side_of(from.target_array, from.target, from.target_at),
                     side_of(from.source_array, from.source, from.source_at), bytes,
                     std::max<size_t>(from.extent.height, 1), std::max<size_t>(from.extent.depth, 1));
}
char* place(const Array* array, size_t x_bytes, size_t y) {
    return static_cast<char*>(array->memory) + y * array->width * array->texel() + x_bytes;
}

int allocate_to(void** pointer, size_t bytes, Kind kind) {
    if (!pointer) return done(kInvalidValue);
    *pointer = bytes ? allocate(bytes, kind) : nullptr;
    return done(bytes && !*pointer ? kOutOfMemory : kSuccess);
}
int release_from(void* pointer) {
    return done(!pointer || release(pointer) ? kSuccess : kInvalidValue);
}

// Kinds of graph nodes: kernel, copy, fill, host function.
enum { kKernelNode = 0, kCopyNode = 1, kFillNode = 2, kHostNode = 3, kChildNode = 4, kEmptyNode = 5 };

int launch_on(const void* key, const Launch& shape, void** arguments, void* stream) {
    Function* function = find(key);
    if (!function) return done(kInvalidDeviceFunction);
    return done(launch(*function, shape, arguments, stream));
}

}  // namespace

// What nvcc's host code calls.

API void** __cudaRegisterFatBinary(void* wrapper) {
    struct Wrapper {
        int magic, version;
        const void* data;
        const void* const* linked;
    };
    const Wrapper* given = static_cast<const Wrapper*>(wrapper);
    std::vector<const void*> linked;  // the fat binaries of a program of relocatable device code
    if (given->version == 2 && given->linked)
        for (const void* const* each = given->linked; *each; each++) linked.push_back(*each);
    return reinterpret_cast<void**>(load(given->data, linked));
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, void*, void*, void*,
                                void*, int*) {
    functions()[host] = &function_of(*reinterpret_cast<Module*>(handle), name);
}
API void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t size, int constant, int) {
    Module* module = reinterpret_cast<Module*>(handle);
    Variable& variable = module->variables[name];
    variable.name = name, variable.size = size, variable.constant = constant;
    symbols()[host] = {module, &variable};
}
API void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
API void __cudaRegisterUnifiedTable(void**, void*, int, int) {}
API void __cudaRegisterManagedVar(void** handle, void** host, char* address, const char* name, int external,
                                  size_t size, int constant, int global) {
    __cudaRegisterVar(handle, reinterpret_cast<char*>(host), address, name, external, size, constant, global);
    Module* module = reinterpret_cast<Module*>(handle);
    Variable& variable = module->variables[name];
    variable.memory = *host = allocate(size, Kind::kManaged);
    ask({"managed", join(module->id), name, join(reinterpret_cast<uint64_t>(variable.memory), size)});
}
API unsigned __cudaPushCallConfiguration(Extent grid, Extent block, size_t shared, void* stream) {
    calls.push_back({grid, block, shared, stream});
    return 0;
}
API int __cudaPopCallConfiguration(Extent* grid, Extent* block, size_t* shared, void* stream) {
    if (calls.empty()) return done(kInvalidConfiguration);
    const Call& call = calls.back();
    *grid = call.grid, *block = call.block, *shared = call.shared, *static_cast<void**>(stream) = call.stream;
    calls.pop_back();
    return kSuccess;
}
API int __cudaGetKernel(void** kernel, const void* host) { return *kernel = const_cast<void*>(host), kSuccess; }
API int cudaGetKernel(void** kernel, const void* host) { return __cudaGetKernel(kernel, host); }

// Launches.

API int cudaLaunchKernel(const void* function, Extent grid, Extent block, void** arguments, size_t shared, void* stream) {
    return launch_on(function, {grid, block, shared}, arguments, stream);
}
API int __cudaLaunchKernel(const void* function, Extent grid, Extent block, void** arguments, size_t shared,
                           void* stream) {
    return launch_on(function, {grid, block, shared}, arguments, stream);
}
API int cudaLaunchCooperativeKernel(const void* function, Extent grid, Extent block, void** arguments, size_t shared,
                                    void* stream) {
    return launch_on(function, {grid, block, shared, true}, arguments, stream);
}
API int cudaLaunchKernelExC(const void* config, const void* function, void** arguments) {
    const auto& given = *static_cast<const LaunchConfig<size_t>*>(config);
    return launch_on(function, given.shape(), arguments, given.stream);
}
API int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
    return done(submit(stream, kHostNode, [=] { return function(data), int(kSuccess); }));
}
API int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) {
    return done(submit(stream, kHostNode, [=] { return function(stream, kSuccess, data), int(kSuccess); }));
}

// Functions.

API int cudaFuncGetAttributes(void* attributes, const void* key) {
    struct Attributes {
        size_t shared, constant, local;
        int most_threads, registers, ptx, binary, cache, dynamic, carveout, more[24];
    };
    Function* function = find(key);
    if (!function) return done(kInvalidDeviceFunction);
    if (const int error = describe(*function)) return done(error);
    Attributes& to = *static_cast<Attributes*>(attributes);
    memset(&to, 0, offsetof(Attributes, more));
    to.shared = function->static_shared, to.constant = function->constant, to.local = function->local;
    to.most_threads = function->most_threads, to.registers = function->registers;
    to.ptx = to.binary = function->version, to.carveout = -1;
    to.dynamic = std::max(function->dynamic_shared, attribute(8) - function->static_shared);
    return kSuccess;
}
API int cudaFuncSetAttribute(const void* key, int name, int value) {
    Function* function = find(key);
    if (!function) return done(kInvalidDeviceFunction);
    if (name == 8 && value > attribute(97)) return done(kInvalidValue);
    if (name == 8) function->dynamic_shared = value;
    return kSuccess;
}
API int cudaFuncSetCacheConfig(const void*, int) { return kSuccess; }
API int cudaFuncSetSharedMemConfig(const void*, int) { return kSuccess; }
API int cudaFuncGetName(const char** name, const void* key) {
    Function* function = find(key);
    if (!function) return done(kInvalidDeviceFunction);
    return *name = function->name.c_str(), kSuccess;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* key, int threads, size_t shared) {
    Function* function = find(key);
    if (!function || threads <= 0) return done(function ? kInvalidValue : kInvalidDeviceFunction);
    return *blocks = blocks_per_multiprocessor(*function, threads, shared), kSuccess;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* key, int threads, size_t shared,
                                                               unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, key, threads, shared);
}
API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int blocks, int) {
    return *bytes = std::min(attribute(97), attribute(81) / std::max(blocks, 1)), kSuccess;
}

// Devices.

API int cudaGetDeviceCount(int* count) { return *count = 1, kSuccess; }
API int cudaGetDevice(int* device) { return *device = 0, kSuccess; }
API int cudaSetDevice(int device) { return done(device ? kInvalidDevice : kSuccess); }
API int cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
API int cudaSetDeviceFlags(unsigned) { return kSuccess; }
API int cudaGetDeviceFlags(unsigned* flags) { return *flags = 0, kSuccess; }
API int cudaSetValidDevices(int*, int) { return kSuccess; }
API int cudaChooseDevice(int* device, const void*) { return *device = 0, kSuccess; }
API int cudaDeviceSynchronize() { return kSuccess; }
API int cudaThreadSynchronize() { return kSuccess; }
API int cudaDeviceReset() { return kSuccess; }
API int cudaThreadExit() { return kSuccess; }
API int cudaDeviceSetCacheConfig(int) { return kSuccess; }
API int cudaDeviceGetCacheConfig(int* config) { return *config = 0, kSuccess; }
API int cudaDeviceSetSharedMemConfig(int) { return kSuccess; }
API int cudaDeviceGetSharedMemConfig(int* config) { return *config = 1, kSuccess; }
API int cudaDeviceSetLimit(int, size_t) { return kSuccess; }
API int cudaDeviceGetLimit(size_t* value, int limit) {
    const size_t defaults[] = {1024, size_t(1) << 20, size_t(8) << 20};  // stack, printf, heap
    return *value = limit < 3 ? defaults[limit] : 0, kSuccess;
}
API int cudaDeviceGetAttribute(int* value, int name, int device) {
    return *value = attribute(name), done(device ? kInvalidDevice : kSuccess);
}
API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, kSuccess; }
API int cudaDeviceGetPCIBusId(char* text, int size, int) { return snprintf(text, size, "0000:00:00.0"), kSuccess; }
API int cudaDeviceGetByPCIBusId(int* device, const char*) { return *device = 0, kSuccess; }
API int cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, kSuccess; }
API int cudaDeviceEnablePeerAccess(int, unsigned) { return done(kInvalidDevice); }
API int cudaDeviceDisablePeerAccess(int) { return done(kInvalidDevice); }
API int cudaDeviceGetP2PAttribute(int* value, int, int, int) { return *value = 0, kSuccess; }
API int cudaDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
API int cudaRuntimeGetVersion(int* version) { return *version = 1000 * KERNREC_RUNTIME, kSuccess; }
static int properties(void* to, int device) {
    if (device) return done(kInvalidDevice);
    const std::string& bytes = device_properties(KERNREC_RUNTIME);
    memcpy(to, bytes.data(), bytes.size());
    return kSuccess;
}
API int cudaGetDeviceProperties(void* to, int device) { return properties(to, device); }
API int cudaGetDeviceProperties_v2(void* to, int device) { return properties(to, device); }
API int cudaProfilerStart() { return kSuccess; }
API int cudaProfilerStop() { return kSuccess; }

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

// Memory.

API int cudaMalloc(void** pointer, size_t bytes) { return allocate_to(pointer, bytes, Kind::kDevice); }
API int cudaMallocAsync(void** pointer, size_t bytes, void*) { return cudaMalloc(pointer, bytes); }
API int cudaMallocFromPoolAsync(void** pointer, size_t bytes, void*, void*) { return cudaMalloc(pointer, bytes); }
API int cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
    return allocate_to(pointer, bytes, Kind::kManaged);
}
API int cudaMallocHost(void** pointer, size_t bytes) { return allocate_to(pointer, bytes, Kind::kHost); }
API int cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return cudaMallocHost(pointer, bytes); }
API int cudaFree(void* pointer) { return release_from(pointer); }
API int cudaFreeAsync(void* pointer, void*) { return release_from(pointer); }
API int cudaFreeHost(void* pointer) { return release_from(pointer); }
API int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    return *device = device_address(host), done(*device ? kSuccess : kInvalidValue);
}
API int cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    return done(register_host(pointer, bytes) ? kSuccess : kInvalidValue);
}
API int cudaHostGetFlags(unsigned* flags, void*) { return *flags = 0, kSuccess; }
API int cudaHostUnregister(void* pointer) { return done(unregister_host(pointer) ? kSuccess : kInvalidValue); }
API int cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}
API int cudaMalloc3D(Pitched* to, Volume extent) {
    *to = {nullptr, 0, extent.width, extent.height};
    return cudaMallocPitch(&to->pointer, &to->pitch, extent.width, extent.height * extent.depth);
}
API int cudaMemGetInfo(size_t* free, size_t* total) {
    return *total = device_memory(), *free = *total - used_memory(), kSuccess;
}
API int cudaPointerGetAttributes(void* attributes, const void* pointer) {
    struct Attributes {
        int type, device;
        const void *on_device, *on_host;
        long more[8];
    };
    const Allocation* inside = allocation_of(pointer);
    const int types[] = {2, 1, 3, 2};  // device, host, managed, array
    Attributes& to = *static_cast<Attributes*>(attributes);
    const bool seen_by_host = !inside || inside->kind == Kind::kHost || inside->kind == Kind::kManaged;
    to.type = inside ? types[int(inside->kind)] : 0, to.device = inside ? 0 : -2;
    to.on_device = inside ? pointer : nullptr, to.on_host = inside && seen_by_host ? pointer : nullptr;
    return kSuccess;
}
API int cudaMemcpy(void* to, const void* from, size_t bytes, int) { return done(copy(to, from, bytes)); }
API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
    return done(submit(stream, kCopyNode, [=] { return copy(to, from, bytes); }));
}
API int cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) { return done(copy(to, from, bytes)); }
API int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
    return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
API int cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows, int) {
    return done(copy_rows(to, to_pitch, from, from_pitch, bytes, rows));
}
API int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows, int,
                          void* stream) {
    return done(submit(stream, kCopyNode, [=] { return copy_rows(to, to_pitch, from, from_pitch, bytes, rows); }));
}
API int cudaMemcpy3D(const Copy3D* given) { return done(copy_3d(*given)); }
API int cudaMemcpy3DAsync(const Copy3D* given, void* stream) {
    const Copy3D from = *given;
    return done(submit(stream, kCopyNode, [from] { return copy_3d(from); }));
}
API int cudaMemset(void* to, int value, size_t bytes) { return done(fill(to, uint32_t(value), 1, bytes)); }
API int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
    return done(submit(stream, kFillNode, [=] { return fill(to, uint32_t(value), 1, bytes); }));
}
static int fill_rows(char* to, size_t pitch, int value, size_t width, size_t rows) {
    for (size_t y = 0; y < rows; y++)
        if (const int error = fill(to + y * pitch, uint32_t(value), 1, width)) return error;
    return kSuccess;
}
API int cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t rows) {
    return done(fill_rows(static_cast<char*>(to), pitch, value, width, rows));
}
API int cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t rows, void* stream) {
    return done(submit(stream, kFillNode, [=] { return fill_rows(static_cast<char*>(to), pitch, value, width, rows); }));
}
API int cudaMemset3D(Pitched to, int value, Volume extent) {
    for (size_t z = 0; z < extent.depth; z++) {
        char* slice = static_cast<char*>(to.pointer) + z * to.pitch * to.height;
        if (const int error = fill_rows(slice, to.pitch, value, extent.width, extent.height)) return done(error);
    }
    return kSuccess;
}
API int cudaMemset3DAsync(Pitched to, int value, Volume extent, void* stream) {
    return done(submit(stream, kFillNode, [=] { return cudaMemset3D(to, value, extent); }));
}
API int cudaMemPrefetchAsync(...) { return kSuccess; }
API int cudaMemPrefetchAsync_v2(...) { return kSuccess; }
API int cudaMemAdvise(...) { return kSuccess; }
API int cudaMemAdvise_v2(...) { return kSuccess; }
API int cudaMemDiscardAndPrefetchBatchAsync(...) { return kSuccess; }
API int cudaStreamAttachMemAsync(void*, void*, size_t, unsigned) { return kSuccess; }
API int cudaCtxResetPersistingL2Cache() { return kSuccess; }
API int cudaDeviceGetDefaultMemPool(void** pool, int) { return *pool = &last_error, kSuccess; }
API int cudaDeviceGetMemPool(void** pool, int) { return *pool = &last_error, kSuccess; }
API int cudaDeviceSetMemPool(int, void*) { return kSuccess; }
API int cudaMemPoolCreate(void** pool, const void*) { return *pool = &last_error, kSuccess; }
API int cudaMemPoolDestroy(void*) { return kSuccess; }
API int cudaMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
API int cudaMemPoolGetAttribute(void*, int, void* value) { return *static_cast<uint64_t*>(value) = 0, kSuccess; }
API int cudaMemPoolTrimTo(void*, size_t) { return kSuccess; }

// Variables.

API int cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, int, void* stream) {
    char* to = memory_of(symbol, offset, bytes);
    if (!to) return done(kInvalidSymbol);
    return done(submit(stream, kCopyNode, [=] { return copy(to, from, bytes); }));
}
API int cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int kind) {
    return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
}
API int cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int, void* stream) {
    const char* from = memory_of(symbol, offset, bytes);
    if (!from) return done(kInvalidSymbol);
    return done(submit(stream, kCopyNode, [=] { return copy(to, from, bytes); }));
}
API int cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, int kind) {
    return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
}
API int cudaGetSymbolAddress(void** pointer, const void* symbol) {
    return *pointer = memory_of(symbol), done(*pointer ? kSuccess : kInvalidSymbol);
}
API int cudaGetSymbolSize(size_t* bytes, const void* symbol) {
    const auto at = symbols().find(symbol);
    if (at == symbols().end()) return done(kInvalidSymbol);
    return *bytes = at->second.variable->size, kSuccess;
}

// Streams and events.

API int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
    Stream* made = new Stream;
    made->flags = flags;
    return *stream = made, kSuccess;
}
API int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
API int cudaStreamCreateWithPriority(void** stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
API int cudaStreamDestroy(void* stream) {
    if (stream_of(stream) == stream) delete static_cast<Stream*>(stream);
    return kSuccess;
}
API int cudaStreamSynchronize(void*) { return kSuccess; }
API int cudaStreamQuery(void*) { return kSuccess; }
API int cudaStreamGetFlags(void* stream, unsigned* flags) { return *flags = stream_of(stream)->flags, kSuccess; }
API int cudaStreamGetPriority(void*, int* priority) { return *priority = 0, kSuccess; }
API int cudaStreamGetDevice(void*, int* device) { return *device = 0, kSuccess; }
API int cudaStreamGetId(void* stream, unsigned long long* id) {
    return *id = reinterpret_cast<uint64_t>(stream), kSuccess;
}
API int cudaStreamSetAttribute(void*, int, const void*) { return kSuccess; }
API int cudaStreamCopyAttributes(void*, void*) { return kSuccess; }
API int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
    const auto& graph = static_cast<Event*>(event)->captured;
    if (graph && !graph->ended) stream_of(stream)->captured = graph;  // the stream joins the capture
    return kSuccess;
}
API int cudaEventCreateWithFlags(void** event, unsigned) { return *event = new Event, kSuccess; }
API int cudaEventCreate(void** event) { return *event = new Event, kSuccess; }
API int cudaEventDestroy(void* event) { return delete static_cast<Event*>(event), kSuccess; }
API int cudaEventRecord(void* handle, void* stream) {
    Event* event = static_cast<Event*>(handle);
    if (!event) return done(kInvalidHandle);
    event->captured = stream_of(stream)->captured;
    return event->recorded = true, kSuccess;
}
API int cudaEventRecordWithFlags(void* event, void* stream, unsigned) { return cudaEventRecord(event, stream); }
API int cudaEventSynchronize(void*) { return kSuccess; }
API int cudaEventQuery(void*) { return kSuccess; }
API int cudaEventElapsedTime(float* milliseconds, void* first, void* second) {
    if (!first || !second) return done(kInvalidHandle);
    if (!static_cast<Event*>(first)->recorded || !static_cast<Event*>(second)->recorded) return done(kInvalidHandle);
    return *milliseconds = 0, kSuccess;
}
API int cudaEventElapsedTime_v2(float* milliseconds, void* first, void* second) {
    return cudaEventElapsedTime(milliseconds, first, second);
}

// Graphs: the calls of a stream, or nodes that were added one by one, in order.

namespace {
std::vector<std::unique_ptr<std::shared_ptr<Graph>>> graphs;  // handles stay valid
std::shared_ptr<Graph>* handle_of(std::shared_ptr<Graph> graph) {
    return graphs.emplace_back(new std::shared_ptr<Graph>(std::move(graph))).get();
}
Graph& graph_of(void* handle) { return **static_cast<std::shared_ptr<Graph>*>(handle); }
int add(void* graph, void** node, void* const* before, size_t count, int kind, std::function<int()> work) {
    auto made = std::make_unique<Node>();
    made->work = std::move(work), made->kind = kind;
    for (size_t i = 0; i < count; i++) made->before.push_back(static_cast<Node*>(before[i]));
    *node = made.get();
    graph_of(graph).nodes.push_back(std::move(made));
    return kSuccess;
}
}  // namespace
API int cudaStreamBeginCapture(void* stream, int) {
    return stream_of(stream)->captured = std::make_shared<Graph>(), kSuccess;
}
API int cudaStreamEndCapture(void* stream, void** graph) {
    if (!stream_of(stream)->capturing()) return done(kInvalidValue);
    stream_of(stream)->captured->ended = true;
    *graph = handle_of(std::move(stream_of(stream)->captured));
    return stream_of(stream)->captured = nullptr, kSuccess;
}
API int cudaStreamIsCapturing(void* stream, int* status) {
    return *status = stream_of(stream)->capturing(), kSuccess;
}
API int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
API int cudaGraphCreate(void** graph, unsigned) { return *graph = handle_of(std::make_shared<Graph>()), kSuccess; }
API int cudaGraphDestroy(void*) { return kSuccess; }
API int cudaGraphClone(void** clone, void* graph) { return *clone = graph, kSuccess; }
API int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) {
    const auto& all = graph_of(graph).nodes;
    if (nodes)
        for (size_t i = 0; i < std::min(*count, all.size()); i++) nodes[i] = all[i].get();
    return *count = all.size(), kSuccess;
}
API int cudaGraphNodeGetType(void* node, int* type) { return *type = static_cast<Node*>(node)->kind, kSuccess; }
API int cudaGraphAddEmptyNode(void** node, void* graph, void* const* before, size_t count) {
    return add(graph, node, before, count, kEmptyNode, nullptr);
}
API int cudaGraphAddChildGraphNode(void** node, void* graph, void* const* before, size_t count, void* child) {
    return add(graph, node, before, count, kChildNode, [child] { return run(graph_of(child)); });
}
API int cudaGraphAddMemcpyNode(void** node, void* graph, void* const* before, size_t count, const Copy3D* given) {
    const Copy3D from = *given;
    return add(graph, node, before, count, kCopyNode, [from] { return copy_3d(from); });
}
API int cudaGraphAddMemcpyNode1D(void** node, void* graph, void* const* before, size_t count, void* to,
                                 const void* from, size_t bytes, int) {
    return add(graph, node, before, count, kCopyNode, [=] { return copy(to, from, bytes); });
}
API int cudaGraphAddMemsetNode(void** node, void* graph, void* const* before, size_t count, const void* given) {
    struct Fill {
        void* to;
        size_t pitch;
        unsigned value, element;
        size_t width, height;
    };
    const Fill with = *static_cast<const Fill*>(given);
    return add(graph, node, before, count, kFillNode, [with] {
        for (size_t y = 0; y < with.height; y++)
            if (const int error = fill(static_cast<char*>(with.to) + y * with.pitch, with.value, int(with.element),
                                       with.width))
                return error;
        return int(kSuccess);
    });
}
API int cudaGraphAddHostNode(void** node, void* graph, void* const* before, size_t count, const void* given) {
    struct Host {
        void (*function)(void*);
        void* data;
    };
    const Host host = *static_cast<const Host*>(given);
    return add(graph, node, before, count, kHostNode, [host] { return host.function(host.data), int(kSuccess); });
}
namespace {
struct KernelNode {
    const void* function;
    Extent grid, block;
    unsigned shared;
    void** arguments;
    void** extra;
};
int kernel_work(const KernelNode& given, std::function<int()>& work) {
    Function* function = find(given.function);
    if (!function) return kInvalidDeviceFunction;
    if (const int error = describe(*function)) return error;
    std::string packed;
    for (size_t i = 0; i < function->sizes.size(); i++) {
        packed.resize(function->offsets[i]);
        packed.append(static_cast<const char*>(given.arguments[i]), function->sizes[i]);
    }
    const Launch launch = {given.grid, given.block, given.shared};
    work = [=] { return launch_packed(*function, launch, packed.data(), packed.size(), nullptr); };
    return kSuccess;
}
}  // namespace
API int cudaGraphAddKernelNode(void** node, void* graph, void* const* before, size_t count, const KernelNode* given) {
    std::function<int()> work;
    if (const int error = kernel_work(*given, work)) return done(error);
    return add(graph, node, before, count, kKernelNode, work);
}
API int cudaGraphKernelNodeSetParams(void* node, const KernelNode* given) {
    return done(kernel_work(*given, static_cast<Node*>(node)->work));
}
API int cudaGraphExecKernelNodeSetParams(void*, void* node, const KernelNode* given) {
    return cudaGraphKernelNodeSetParams(node, given);
}
API int cudaGraphAddDependencies(void*, void* const* from, void* const* to, size_t count) {
    for (size_t i = 0; i < count; i++) static_cast<Node*>(to[i])->before.push_back(static_cast<Node*>(from[i]));
    return kSuccess;
}
API int cudaGraphAddDependencies_v2(void* graph, void* const* from, void* const* to, const void*, size_t count) {
    return cudaGraphAddDependencies(graph, from, to, count);
}
API int cudaGraphInstantiate(void** made, void* graph, unsigned long long) { return *made = graph, kSuccess; }
API int cudaGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) { return *made = graph, kSuccess; }
API int cudaGraphExecUpdate(void* made, void* graph, void* result) {
    *static_cast<std::shared_ptr<Graph>*>(made) = *static_cast<std::shared_ptr<Graph>*>(graph);
    return memset(result, 0, sizeof(int)), kSuccess;
}
API int cudaGraphExecDestroy(void*) { return kSuccess; }
API int cudaGraphUpload(void*, void*) { return kSuccess; }
API int cudaGraphLaunch(void* graph, void* stream) {
    return done(submit(stream, kChildNode, [graph] { return run(graph_of(graph)); }));
}

// Arrays, textures and surfaces.

API Channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }
API int cudaMalloc3DArray(Array** array, const Channels* channels, Volume extent, unsigned flags) {
    *array = new_array(extent.width, extent.height, extent.depth, &channels->x, channels->kind, flags);
    return done(*array ? kSuccess : kOutOfMemory);
}
API int cudaMallocArray(Array** array, const Channels* channels, size_t width, size_t height, unsigned flags) {
    return cudaMalloc3DArray(array, channels, {width, height, 0}, flags);
}
API int cudaFreeArray(Array* array) { return free_array(array), kSuccess; }
API int cudaArrayGetInfo(Channels* channels, Volume* extent, unsigned* flags, const Array* array) {
    if (channels) memcpy(channels, array->bits, sizeof array->bits), channels->kind = array->kind;
    if (extent) *extent = {array->width, array->height, array->depth};
    if (flags) *flags = array->flags;
    return kSuccess;
}
API int cudaGetChannelDesc(Channels* channels, const Array* array) {
    return cudaArrayGetInfo(channels, nullptr, nullptr, array);
}
API int cudaMemcpyToArray(Array* array, size_t x, size_t y, const void* from, size_t bytes, int) {
    return done(copy(place(array, x, y), from, bytes));
}
API int cudaMemcpyFromArray(void* to, const Array* array, size_t x, size_t y, size_t bytes, int) {
    return done(copy(to, place(array, x, y), bytes));
}
API int cudaMemcpy2DToArray(Array* array, size_t x, size_t y, const void* from, size_t pitch, size_t bytes, size_t rows,
                            int) {
    return done(copy_rows(place(array, x, y), array->width * array->texel(), from, pitch, bytes, rows));
}
API int cudaMemcpy2DToArrayAsync(Array* array, size_t x, size_t y, const void* from, size_t pitch, size_t bytes,
                                 size_t rows, int kind, void*) {
    return cudaMemcpy2DToArray(array, x, y, from, pitch, bytes, rows, kind);
}
API int cudaMemcpy2DFromArray(void* to, size_t pitch, const Array* array, size_t x, size_t y, size_t bytes, size_t rows,
                              int) {
    return done(copy_rows(to, pitch, place(array, x, y), array->width * array->texel(), bytes, rows));
}
namespace {
struct Resource {
    int type, unused;
    union {
        Array* array;
        struct {
            void* pointer;
            Channels channels;
            size_t width, height, pitch;  // of linear memory without rows: its bytes, and nothing
        } linear;
        char bytes[64];
    };
};
struct Texture {
    int address[3], filter, read, srgb;
    float border[4];
    int normalized;
};
int new_object(uint64_t* object, const Resource& from, const Sampler& sampler) {
    if (from.type == 0) return *object = new_image(*from.array, 0, sampler), done(*object ? kSuccess : kNotSupported);
    if (from.type != 2 && from.type != 3) return done(kNotSupported);
    Array view;
    view.memory = from.linear.pointer, view.kind = from.linear.channels.kind;
    memcpy(view.bits, &from.linear.channels.x, sizeof view.bits);
    view.width = from.type == 3 ? from.linear.width : from.linear.width / std::max<size_t>(view.texel(), 1);
    view.height = from.type == 3 ? from.linear.height : 0;
    *object = new_image(view, from.type == 3 ? from.linear.pitch : 0, sampler);
    return done(*object ? kSuccess : kNotSupported);
}
}  // namespace
API int cudaCreateTextureObject(uint64_t* object, const Resource* from, const Texture* texture, const void*) {
    return new_object(object, *from,
                      {texture->address[0], texture->filter, texture->read == 1, texture->normalized});
}
API int cudaDestroyTextureObject(uint64_t object) { return free_image(object), kSuccess; }
API int cudaCreateSurfaceObject(uint64_t* object, const Resource* from) { return new_object(object, *from, {}); }
API int cudaDestroySurfaceObject(uint64_t object) { return free_image(object), kSuccess; }
