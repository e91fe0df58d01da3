// Code that a program loads, launches, streams, graphs and images.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "core.h"

namespace capture {

namespace {

constexpr uint32_t kFatBinary = 0xBA55ED50;

std::string image_bytes(const void* image) {
    const char* data = static_cast<const char*>(image);
    uint32_t magic;
    memcpy(&magic, data, 4);
    if (magic == kFatBinary) {  // The header contains its version, its size, and the size of the content.
        uint16_t header;
        uint64_t size;
        memcpy(&header, data + 6, 2), memcpy(&size, data + 8, 8);
        return std::string(data, header + size);
    }
    if (!memcmp(data,
                "\x7f"
                "ELF",
                4)) {  // In a cubin, the section headers come last.
        uint64_t sections;
        uint16_t entry, count;
        memcpy(&sections, data + 0x28, 8), memcpy(&entry, data + 0x3A, 2), memcpy(&count, data + 0x3C, 2);
        return std::string(data, sections + size_t(entry) * count);
    }
    return std::string(data);  // PTX
}

}  // namespace

Module* load(const void* image, const std::vector<const void*>& linked) {
    std::vector<std::string> request = {"module", image_bytes(image)};
    for (const void* each : linked) request.push_back(image_bytes(each));
    const Reply reply = ask(request);
    Module* module = new Module;
    module->id = int(reply.number(0));
    module->failed = reply.error != kSuccess;
    return module;
}

int prepare(Module& module) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    if (module.prepared) return kSuccess;
    module.prepared = true;
    std::vector<std::string> request = {"prepare", join(module.id)};
    for (auto& [name, variable] : module.variables) {
        if (!variable.memory) variable.memory = allocate(variable.size, Kind::kDevice, variable.constant);
        if (!variable.memory) return kOutOfMemory;
        request.push_back(name);
        request.push_back(join(reinterpret_cast<uint64_t>(variable.memory), variable.size));
    }
    return ask(request).error;
}

Function& function_of(Module& module, const std::string& name) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    Function& function = module.functions[name];
    function.module = &module, function.name = name;
    return function;
}

int describe(Function& function) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    if (function.known) return function.error;
    function.known = true;
    if ((function.error = prepare(*function.module))) return function.error;
    const Reply reply = ask({"function", join(function.module->id), function.name});
    if ((function.error = reply.error)) return function.error;
    uint32_t size, offset;
    for (const char* at = reply.fields[0].c_str(); sscanf(at, "%u %u", &size, &offset) == 2;) {
        function.sizes.push_back(size), function.offsets.push_back(offset);
        at = strchr(at, ',') + 1;
    }
    sscanf(reply.fields[1].c_str(), "%d %d %d %d %d %d", &function.static_shared, &function.constant, &function.local,
           &function.most_threads, &function.registers, &function.version);
    return kSuccess;
}

int blocks_per_multiprocessor(Function& function, int threads, size_t shared) {
    if (describe(function)) return 0;
    return int(ask({"occupancy", join(function.module->id), function.name, join(threads, shared)}).number(0));
}

Stream* stream_of(void* handle) {
    static Stream legacy;  // The handles 0 to 2 denote the default stream.
    return reinterpret_cast<uint64_t>(handle) <= 2 ? &legacy : static_cast<Stream*>(handle);
}

int submit(void* handle, int kind, std::function<int()> work) {
    std::lock_guard<std::recursive_mutex> guard(lock());
    Stream* stream = stream_of(handle);
    if (!stream->capturing()) return work();
    auto node = std::make_unique<Node>();
    node->work = std::move(work), node->kind = kind;
    stream->captured->nodes.push_back(std::move(node));
    return kSuccess;
}

std::vector<Node*> ordered(const Graph& graph) {
    // A node usually follows the nodes it depends on, but edges may have been added later.
    std::map<const Node*, bool> visited;
    std::vector<Node*> nodes;
    std::function<void(Node*)> visit = [&](Node* node) {
        if (visited[node]) return;
        visited[node] = true;
        for (Node* before : node->before) visit(before);
        nodes.push_back(node);
    };
    for (const auto& node : graph.nodes) visit(node.get());
    return nodes;
}

int record(Event& event) {
    using namespace std::chrono;
    event.milliseconds = duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
    return event.recorded = true, kSuccess;
}

int elapsed(float* milliseconds, void* first, void* second) {
    const Event *from = static_cast<Event*>(first), *to = static_cast<Event*>(second);
    if (!from || !to || !from->recorded || !to->recorded) return kInvalidHandle;
    return *milliseconds = float(to->milliseconds - from->milliseconds), kSuccess;
}

std::string pack(const Function& function, void** arguments) {
    std::string packed;
    for (size_t i = 0; i < function.sizes.size(); i++) {
        packed.resize(function.offsets[i]);
        packed.append(static_cast<const char*>(arguments[i]), function.sizes[i]);
    }
    return packed;
}

int launch(Function& function, const Launch& launch, void** arguments, void* stream) {
    if (const int error = describe(function)) return error;
    const std::string packed = pack(function, arguments);
    return launch_packed(function, launch, packed.data(), packed.size(), stream);
}

int launch_packed(Function& function, const Launch& launch, const void* packed, size_t bytes, void* stream) {
    if (const int error = describe(function)) return error;
    const std::string arguments(static_cast<const char*>(packed), bytes);
    return submit(stream, 0, [&function, launch, arguments] {
        const Extent &grid = launch.grid, &block = launch.block, &cluster = launch.cluster;
        fflush(stdout);
        const Reply reply =
            ask({"launch", join(function.module->id), function.name, join(grid.x, grid.y, grid.z),
                 join(block.x, block.y, block.z), join(launch.shared), join(cluster.x, cluster.y, cluster.z),
                 join(int(launch.cooperative)), arguments, shared_allocations(function, arguments), join(pool_end())});
        return reply.error;
    });
}

int copy(void* to, const void* from, size_t bytes) {
    if (!accessible(to, bytes) || !accessible(from, bytes)) return kInvalidValue;
    memmove(to, from, bytes);
    return kSuccess;
}

int fill(void* to, uint32_t value, int width, size_t count) {
    if (!accessible(to, count * width)) return kInvalidValue;
    if (width == 1) memset(to, int(value), count);
    if (width == 2) std::fill_n(static_cast<uint16_t*>(to), count, uint16_t(value));
    if (width == 4) std::fill_n(static_cast<uint32_t*>(to), count, value);
    return kSuccess;
}

int fill_rows(void* to, size_t pitch, uint32_t value, int width, size_t columns, size_t rows) {
    for (size_t row = 0; row < rows; row++)
        if (const int error = fill(static_cast<char*>(to) + row * pitch, value, width, columns)) return error;
    return kSuccess;
}

Array* new_array(size_t width, size_t height, size_t depth, const int* bits, int kind, unsigned flags) {
    Array* array = new Array;
    array->width = width, array->height = height, array->depth = depth, array->kind = kind, array->flags = flags;
    memcpy(array->bits, bits, sizeof array->bits);
    array->memory = allocate(array->bytes(), Kind::kArray);
    if (array->memory) return array;
    delete array;
    return nullptr;
}

void free_array(Array* array) {
    if (!array) return;
    release(array->memory);
    delete array;
}

uint64_t new_image(const Array& array, size_t pitch, const Sampler& sampler) {
    const Reply reply =
        ask({"image", join(reinterpret_cast<uint64_t>(array.memory)), join(array.width, array.height, array.depth),
             join(array.bits[0], array.channels(), array.kind), join(pitch, array.flags),
             join(sampler.address, sampler.linear, sampler.unit_range, sampler.normalized)});
    return reply.error ? 0 : strtoull(reply.fields[0].c_str(), nullptr, 10);
}

void free_image(uint64_t handle) { ask({"free image", join(handle)}); }

}  // namespace capture
