// Shared code of the replacements for the CUDA runtime and driver libraries: the connection to kernrec, device memory,
// code, launches, streams, events and graphs.
//
// A program that `kernrec capture` runs loads these libraries in place of NVIDIA's. Device memory is memory of the
// program that kernrec also maps. Each launch runs in kernrec. All calls are synchronous, in program order. Numbers of
// errors, attributes and flags come from the CUDA Runtime API and CUDA Driver API reference manuals.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace capture {

enum Error : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kInvalidConfiguration = 9,
    kInvalidSymbol = 13,
    kInvalidDeviceFunction = 98,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidHandle = 400,
    kNotFound = 500,
    kLaunchFailure = 719,
    kNotSupported = 801,
    kGraphUpdateFailure = 910,
};

struct Extent {
    unsigned x, y, z;
};

// The connection. A request and its reply are lists of byte strings.

// Print a line on standard error, and end the program.
[[noreturn]] void stop(const std::string& line);
// Report a CUDA function that the replacement libraries lack, and end the program.
[[noreturn]] void missing(const char* call);
struct Reply {
    int error = kSuccess;
    std::vector<std::string> fields;
    double number(size_t i) const { return i < fields.size() ? atof(fields[i].c_str()) : 0; }
};
// Send a request and return the reply. If `descriptor` is not negative, send this file descriptor, too.
Reply ask(const std::vector<std::string>& request, int descriptor = -1);
std::recursive_mutex& lock();
template <class... Parts>
std::string join(Parts... parts) {  // Join numbers with blanks between them.
    std::string text;
    ((text += (text.empty() ? "" : " ") + std::to_string(parts)), ...);
    return text;
}

// The GPU that `--gpu` names: attributes by number, name, and the structure `cudaDeviceProp` of a CUDA major version.
int attribute(int number);
const std::string& device_name();
size_t device_memory();
const std::string& device_properties(int version);

// Device memory. Each allocation has its own range of 2^40 addresses, so that kernrec detects accesses outside of the
// allocation. One range is shared by variables, and by allocations that are made when all other ranges are in use.

enum class Kind { kDevice, kHost, kManaged, kArray, kGraph };  // kGraph: memory that a graph uses again at each launch
struct Allocation {
    uint64_t base = 0;
    size_t size = 0;
    int slot = 0;
    Kind kind = Kind::kDevice;
    void* registered = nullptr;  // The program's memory, if it was registered. It is also mapped at `base`.
};
// Return new memory, or null if the GPU does not have enough.
void* allocate(size_t bytes, Kind kind, bool shared = false);
bool release(void* pointer);
// Return the allocation that contains an address, or null.
const Allocation* allocation_of(const void* address);
// Return whether an address can only belong to the GPU.
bool is_device(const void* address);
// Return whether a program may access a range of bytes. A range of device memory must be inside an allocation.
bool accessible(const void* address, size_t bytes);
// Return the address at which kernels see host memory, or null if CUDA neither allocated nor registered the memory.
void* device_address(void* pointer);
void* register_host(void* pointer, size_t bytes);
bool unregister_host(void* pointer);
size_t used_memory();

// Code.

struct Module;
struct Function {
    Module* module = nullptr;
    std::string name;
    bool known = false;
    std::vector<uint32_t> sizes, offsets;  // Bytes and offset of each parameter.
    int static_shared = 0, constant = 0, local = 0, most_threads = 0, registers = 0, version = 0, dynamic_shared = 0;
    int error = kSuccess;
};
struct Variable {
    std::string name;
    size_t size = 0;
    bool constant = false;
    void* memory = nullptr;
};
struct Module {
    int id = 0;
    bool prepared = false, failed = false;
    std::map<std::string, Function> functions;
    std::map<std::string, Variable> variables;
};
// Return the code in a fat binary, a cubin or PTX. The fat binaries in `linked` are linked to it.
Module* load(const void* image, const std::vector<const void*>& linked = {});
// Let kernrec read the code and initialize the variables of a module.
int prepare(Module& module);
Function& function_of(Module& module, const std::string& name);
// Ask kernrec for the parameters and attributes of a function.
int describe(Function& function);
int blocks_per_multiprocessor(Function& function, int threads, size_t shared);

// Work on streams. If a stream is being captured, its work becomes a node of a graph instead of running.

struct Node {
    std::function<int()> work;
    int kind = 0;
    std::vector<Node*> before;
    std::shared_ptr<const void> parameters;  // A program can query the parameters of a node.
    const void* original = nullptr;  // Node from which this node was cloned, or null.
};
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes, removed;
    bool ended = false;  // The capture has ended. Streams and events may still refer to the graph.
};
struct Stream {
    std::shared_ptr<Graph> captured;
    unsigned flags = 0;
    bool capturing() const { return captured && !captured->ended; }
};
struct Event {
    bool recorded = false;
    double milliseconds = 0;  // Time since the program started.
    std::shared_ptr<Graph> captured;
};
struct Launch {
    Extent grid, block;
    size_t shared = 0;
    bool cooperative = false;
    Extent cluster = {0, 0, 0};
};

struct LaunchAttribute {
    int id, unused;
    union {
        int value;
        Extent cluster;
        char bytes[64];
    };
};

// Configuration of an extended launch. The runtime and driver libraries use different types for `shared`.
template <class Bytes>
struct LaunchConfig {
    Extent grid, block;
    Bytes shared;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned count;

    Launch shape() const {
        Launch result = {grid, block, shared};
        for (unsigned i = 0; i < count; i++) {
            if (attributes[i].id == 2) result.cooperative = attributes[i].value;
            if (attributes[i].id == 4) result.cluster = attributes[i].cluster;
        }
        return result;
    }
};
Stream* stream_of(void* handle);
int submit(void* stream, int kind, std::function<int()> work);
// Return the nodes of a graph, each after the nodes that it depends on.
std::vector<Node*> ordered(const Graph& graph);
int record(Event& event);
// Store the time between two events. It is the time that the emulation took, because no GPU runs.
int elapsed(float* milliseconds, void* first, void* second);
// Return the arguments in one string, each at its offset.
std::string pack(const Function& function, void** arguments);
int launch(Function& function, const Launch& launch, void** arguments, void* stream);
// Return the base and size of each allocation in the shared range of addresses to which an argument points.
std::string shared_allocations(const Function& function, const std::string& packed);
// Return the end of the last allocation in the shared range. Return the start of the range if there is no allocation.
uint64_t pool_end();
int launch_packed(Function& function, const Launch& launch, const void* packed, size_t bytes, void* stream);
int copy(void* to, const void* from, size_t bytes);
int fill(void* to, uint32_t value, int width, size_t count);
// Fill rows of `columns` values of `width` bytes each, `pitch` bytes apart.
int fill_rows(void* to, size_t pitch, uint32_t value, int width, size_t columns, size_t rows);

// Arrays, textures and surfaces.

struct Array {
    void* memory = nullptr;
    size_t width = 0, height = 0, depth = 0;  // Texels along each axis, or 0 if the array does not have the axis.
    int bits[4] = {0, 0, 0, 0}, kind = 0;  // Kind of a channel: 0 signed, 1 unsigned, 2 floating point.
    unsigned flags = 0;
    int channels() const { return (bits[0] > 0) + (bits[1] > 0) + (bits[2] > 0) + (bits[3] > 0); }
    size_t texel() const { return (bits[0] + bits[1] + bits[2] + bits[3]) / 8; }
    size_t rows() const { return (height ? height : 1) * (depth ? depth : 1); }
    size_t bytes() const { return width * rows() * texel(); }
};
struct Sampler {
    int address = 1, linear = 0, unit_range = 0, normalized = 0;
};
Array* new_array(size_t width, size_t height, size_t depth, const int* bits, int kind, unsigned flags);
void free_array(Array* array);
// Return the handle of a new texture or surface, or 0 after an error. Rows in pitched linear memory are `pitch` bytes
// apart.
uint64_t new_image(const Array& array, size_t pitch, const Sampler& sampler);
void free_image(uint64_t handle);

}  // namespace capture
