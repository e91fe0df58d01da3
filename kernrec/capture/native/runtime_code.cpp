// The CUDA runtime API: code that nvcc's host code registers, launches, functions and variables.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "runtime.h"

using namespace capture;

namespace {

struct Symbol {
    Module* module;
    Variable* variable;
};

std::map<const void*, Function*>& functions() {  // Kernels by the address of their host function.
    static auto* made = new std::map<const void*, Function*>;
    return *made;
}
std::map<const void*, Symbol>& symbols() {
    static auto* made = new std::map<const void*, Symbol>;
    return *made;
}

struct Call {
    Extent grid, block;
    size_t shared;
    void* stream;
};
thread_local std::vector<Call> calls;

int launch_on(const void* key, const Launch& shape, void** arguments, void* stream) {
    Function* function = find(key);
    if (!function) return done(kInvalidDeviceFunction);
    const int error = launch(*function, shape, arguments, stream);
    if (!error && stream_of(stream)->capturing())
        stream_of(stream)->captured->nodes.back()->parameters =
            parameters_of(*function, {key, shape.grid, shape.block, unsigned(shape.shared), arguments, nullptr});
    return done(error);
}

}  // namespace

namespace capture {

Function* find(const void* host) {
    const auto at = functions().find(host);
    return at == functions().end() ? nullptr : at->second;
}

char* memory_of(const void* symbol, size_t offset, size_t bytes) {
    const auto at = symbols().find(symbol);
    if (at == symbols().end() || prepare(*at->second.module)) return nullptr;
    const Variable& variable = *at->second.variable;
    return offset + bytes > variable.size ? nullptr : static_cast<char*>(variable.memory) + offset;
}

std::shared_ptr<const KernelParameters> parameters_of(const Function& function, const KernelNode& given) {
    auto kept = std::make_shared<KernelParameters>();
    kept->node = given, kept->packed = pack(function, given.arguments);
    for (uint32_t offset : function.offsets) kept->arguments.push_back(&kept->packed[offset]);
    kept->node.arguments = kept->arguments.data();
    return kept;
}

}  // namespace capture

// Functions that nvcc's host code calls.

API void** __cudaRegisterFatBinary(void* wrapper) {
    struct Wrapper {
        int magic, version;
        const void* data;
        const void* const* linked;
    };
    const Wrapper* given = static_cast<const Wrapper*>(wrapper);
    std::vector<const void*> linked;  // Fat binaries of a program that has relocatable device code.
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

// Launches.

API int cudaLaunchKernel(const void* function, Extent grid, Extent block, void** arguments, size_t shared,
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
API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int blocks, int) {
    return *bytes = std::min(attribute(97), attribute(81) / std::max(blocks, 1)), kSuccess;
}
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
