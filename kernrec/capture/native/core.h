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

// Print one line on standard error and end the program.
[[noreturn]] void stop(const std::string& line);
// End the program at a call that the replacement libraries lack.
[[noreturn]] void missing(const char* call);
struct Reply {
    int error = kSuccess;
    std::vector<std::string> fields;
    double number(size_t i) const { return i < fields.size() ? atof(fields[i].c_str()) : 0; }
};
// Send a request, with a file descriptor if `descriptor` is not negative, and return the reply. kernrec prints errors.
Reply ask(const std::vector<std::string>& request, int descriptor = -1);
std::recursive_mutex& lock();
template <class... Parts>
std::string join(Parts... parts) {  // numbers, separated by blanks
    std::string text;
    ((text += (text.empty() ? "" : " ") + std::to_string(parts)), ...);
    return text;
}

// The GPU of --gpu: attributes by number, name, and the `cudaDeviceProp` structure of a CUDA major version.
int attribute(int number);
const std::string& device_name();
size_t device_memory();
const std::string& device_properties(int version);

// Device memory. Each allocation has its own range of 2^40 addresses, so that kernrec detects accesses outside of it.
// Variables, and allocations after all ranges are taken, share one range.

enum class Kind { kDevice, kHost, kManaged, kArray, kGraph };  // kGraph: a graph uses the memory again at each launch
struct Allocation {
    uint64_t base = 0;
    size_t size = 0;
    int slot = 0;
    Kind kind = Kind::kDevice;
    void* registered = nullptr;  // registered memory of the program, also mapped at `base`
};
// Return new memory, or null if the GPU has no more.
void* allocate(size_t bytes, Kind kind, bool shared = false);
bool release(void* pointer);
// Return the allocation that contains an address, or null.
const Allocation* allocation_of(const void* address);
// Return whether an address can only belong to the GPU.
bool is_device(const void* address);
// Return whether bytes may be accessed: all are in one allocation, or none belongs to the GPU.
bool accessible(const void* address, size_t bytes);
// Return the address at which kernels see host memory that CUDA allocated or the program registered, or null.
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
    std::vector<uint32_t> sizes, offsets;  // of each parameter
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
// Return the code in a fat binary, a cubin or PTX; `linked` are fat binaries that are linked to this one.
Module* load(const void* image, const std::vector<const void*>& linked = {});
// Let kernrec read the code and initialize its variables.
int prepare(Module& module);
Function& function_of(Module& module, const std::string& name);
// Read the parameters and attributes of a function.
int describe(Function& function);
int blocks_per_multiprocessor(Function& function, int threads, size_t shared);

// Work. On a captured stream, work becomes a node of the graph instead of running.

struct Node {
    std::function<int()> work;
    int kind = 0;
    std::vector<Node*> before;
    std::shared_ptr<const void> parameters;  // parameters that a program can query
    const void* original = nullptr;  // the node that this one was cloned from
};
struct Graph {
    std::vector<std::unique_ptr<Node>> nodes, removed;
    bool ended = false;  // the capture ended; streams and events may still refer to it
};
struct Stream {
    std::shared_ptr<Graph> captured;
    unsigned flags = 0;
    bool capturing() const { return captured && !captured->ended; }
};
struct Event {
    bool recorded = false;
    double milliseconds = 0;  // since the program started
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

// Configuration of an extended launch; the runtime and driver libraries differ in the type of the shared bytes.
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
// Store the milliseconds between two events, in emulation time because no GPU runs.
int elapsed(float* milliseconds, void* first, void* second);
// Return the arguments, each at its offset.
std::string pack(const Function& function, void** arguments);
int launch(Function& function, const Launch& launch, void** arguments, void* stream);
// Return base and size of each allocation in the shared range that an argument points into.
std::string shared_allocations(const Function& function, const std::string& packed);
int launch_packed(Function& function, const Launch& launch, const void* packed, size_t bytes, void* stream);
int copy(void* to, const void* from, size_t bytes);
int fill(void* to, uint32_t value, int width, size_t count);

// Arrays, textures and surfaces.

struct Array {
    void* memory = nullptr;
    size_t width = 0, height = 0, depth = 0;  // texels; 0 for an extent that is absent
    int bits[4] = {0, 0, 0, 0}, kind = 0;  // kind of a channel: 0 signed, 1 unsigned, 2 floating point
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
// Return a handle, or 0 after an error. `pitch` is the bytes between rows of pitched linear memory.
uint64_t new_image(const Array& array, size_t pitch, const Sampler& sampler);
void free_image(uint64_t handle);

}  // namespace capture
