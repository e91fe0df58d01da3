// The CUDA runtime API: graphs, captured from a stream or built node by node.
#include <algorithm>
#include <cstring>

#include "runtime.h"

using namespace capture;

namespace {

// Graphs that the program has not destroyed. A handle is a pointer to the graph.
std::map<Graph*, std::shared_ptr<Graph>>& graphs() {
    static auto* made = new std::map<Graph*, std::shared_ptr<Graph>>;
    return *made;
}
Graph* graph_of(void* handle) {
    const auto at = graphs().find(static_cast<Graph*>(handle));
    return at == graphs().end() ? nullptr : at->first;
}

// An instantiated graph: the work of its nodes in order. Later changes of the graph do not affect it.
struct Step {
    const Node* node;
    int kind;
    bool enabled;
    std::function<int()> work;
};
struct ExecutableGraph {
    std::shared_ptr<Graph> graph;  // Keep the nodes alive, because each step points to a node.
    std::vector<Step> steps;
};
std::vector<Step> steps_of(const Graph& graph) {
    std::vector<Step> steps;
    for (Node* node : ordered(graph)) steps.push_back({node, node->kind, true, node->work});
    return steps;
}
Step* step_of(void* made, const void* node) {
    for (Step& step : static_cast<ExecutableGraph*>(made)->steps)
        if (step.node == node || (step.node->original && step.node->original == node)) return &step;
    return nullptr;
}
int run_steps(const std::vector<Step>& steps) {
    for (const Step& step : steps)
        if (step.enabled && step.work)
            if (const int error = step.work()) return error;
    return kSuccess;
}

std::shared_ptr<Graph> clone(const Graph& graph) {
    auto made = std::make_shared<Graph>();
    std::map<const Node*, Node*> copies;
    for (const auto& node : graph.nodes) {
        made->nodes.push_back(std::make_unique<Node>(*node));
        copies[node.get()] = made->nodes.back().get();
        made->nodes.back()->original = node.get();
    }
    for (const auto& node : made->nodes)
        for (Node*& before : node->before) before = copies[before];
    return made;
}

int add(void* handle, void** node, void* const* before, size_t count, int kind, std::function<int()> work,
        std::shared_ptr<const void> parameters = nullptr) {
    Graph* graph = graph_of(handle);
    if (!graph) return done(kInvalidValue);
    auto made = std::make_unique<Node>();
    made->work = std::move(work), made->kind = kind, made->parameters = std::move(parameters);
    for (size_t i = 0; i < count; i++) made->before.push_back(static_cast<Node*>(before[i]));
    *node = made.get();
    graph->nodes.push_back(std::move(made));
    return kSuccess;
}
int set(void* node, std::function<int()> work) { return static_cast<Node*>(node)->work = std::move(work), kSuccess; }
int set_step(void* made, void* node, std::function<int()> work) {
    Step* step = step_of(made, node);
    if (!step) return done(kInvalidValue);
    return step->work = std::move(work), kSuccess;
}

// Functions that return the work of a node. They copy parameter structures, like CUDA.

struct Fill {
    void* to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};
std::function<int()> fill_work(const Fill* given) {
    return [with = *given] {
        return fill_rows(with.to, with.pitch, with.value, int(with.element), with.width, with.height);
    };
}
struct Host {
    void (*function)(void*);
    void* data;
};
std::function<int()> host_work(const Host* given) {
    return [host = *given] { return host.function(host.data), int(kSuccess); };
}
std::function<int()> copy_work(const Copy3D* given) {
    return [from = *given] { return copy_3d(from); };
}
std::function<int()> copy_work(void* to, const void* from, size_t bytes) {
    return [=] { return copy(to, from, bytes); };
}
int kernel_work(const KernelNode& given, std::function<int()>& work, std::shared_ptr<const void>& parameters) {
    Function* function = find(given.function);
    if (!function) return kInvalidDeviceFunction;
    if (const int error = describe(*function)) return error;
    const auto kept = parameters_of(*function, given);
    const Launch launch = {given.grid, given.block, given.shared};
    work = [=] { return launch_packed(*function, launch, kept->packed.data(), kept->packed.size(), nullptr); };
    parameters = kept;
    return kSuccess;
}

template <class Each>
int list(const std::vector<Each>& all, void** to, size_t* count) {
    if (to)
        for (size_t i = 0; i < *count; i++) to[i] = i < all.size() ? const_cast<Node*>(all[i]) : nullptr;
    return *count = to ? std::min(*count, all.size()) : all.size(), kSuccess;
}

}  // namespace

Graph* capture::handle_of(std::shared_ptr<Graph> graph) {
    Graph* handle = graph.get();
    graphs()[handle] = std::move(graph);
    return handle;
}

// Graphs.

API int cudaGraphCreate(void** graph, unsigned) { return *graph = handle_of(std::make_shared<Graph>()), kSuccess; }
API int cudaGraphDestroy(void* graph) {
    return done(graphs().erase(static_cast<Graph*>(graph)) ? kSuccess : kInvalidValue);
}
API int cudaGraphClone(void** made, void* graph) {
    if (!graph_of(graph)) return done(kInvalidValue);
    return *made = handle_of(clone(*graph_of(graph))), kSuccess;
}
API int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) {
    if (!graph_of(graph)) return done(kInvalidValue);
    std::vector<const Node*> all;
    for (const auto& node : graph_of(graph)->nodes) all.push_back(node.get());
    return list(all, nodes, count);
}
API int cudaGraphGetRootNodes(void* graph, void** nodes, size_t* count) {
    if (!graph_of(graph)) return done(kInvalidValue);
    std::vector<const Node*> roots;
    for (const auto& node : graph_of(graph)->nodes)
        if (node->before.empty()) roots.push_back(node.get());
    return list(roots, nodes, count);
}
API int cudaGraphNodeGetType(void* node, int* type) { return *type = static_cast<Node*>(node)->kind, kSuccess; }
API int cudaGraphNodeFindInClone(void** made, void* node, void* graph) {
    if (!graph_of(graph)) return done(kInvalidValue);
    for (const auto& each : graph_of(graph)->nodes)
        if (each->original == node) return *made = each.get(), kSuccess;
    return done(kInvalidValue);
}
API int cudaGraphDestroyNode(void* node) {
    for (auto& [graph, kept] : graphs()) {
        const auto at =
            std::find_if(graph->nodes.begin(), graph->nodes.end(), [&](auto& n) { return n.get() == node; });
        if (at == graph->nodes.end()) continue;
        for (auto& each : graph->nodes)
            each->before.erase(std::remove(each->before.begin(), each->before.end(), node), each->before.end());
        (*at)->work = nullptr;
        graph->removed.push_back(std::move(*at));  // Executable graphs may still refer to the node.
        return graph->nodes.erase(at), kSuccess;
    }
    return done(kInvalidValue);
}
static int add_dependencies(void* const* from, void* const* to, size_t count) {
    for (size_t i = 0; i < count; i++) static_cast<Node*>(to[i])->before.push_back(static_cast<Node*>(from[i]));
    return kSuccess;
}
API int cudaGraphAddDependencies_v2(void*, void* const* from, void* const* to, const void*, size_t count) {
    return add_dependencies(from, to, count);
}
#if RUNTIME_MAJOR == 12
API int cudaGraphAddDependencies(void*, void* const* from, void* const* to, size_t count) {
    return add_dependencies(from, to, count);
}
API int cudaGraphNodeGetDependencies(void* node, void** before, size_t* count) {
    return list(static_cast<Node*>(node)->before, before, count);
}
#else
API int cudaGraphAddDependencies(void*, void* const* from, void* const* to, const void*, size_t count) {
    return add_dependencies(from, to, count);
}
API int cudaGraphNodeGetDependencies(void* node, void** before, void*, size_t* count) {
    return list(static_cast<Node*>(node)->before, before, count);
}
#endif

// Nodes.

API int cudaGraphAddEmptyNode(void** node, void* graph, void* const* before, size_t count) {
    return add(graph, node, before, count, kEmptyNode, nullptr);
}
API int cudaGraphAddChildGraphNode(void** node, void* graph, void* const* before, size_t count, void* child) {
    if (!graph_of(child)) return done(kInvalidValue);
    std::shared_ptr<Graph> kept = clone(*graph_of(child));
    return add(graph, node, before, count, kChildNode, [kept] { return run_steps(steps_of(*kept)); }, kept);
}
API int cudaGraphChildGraphNodeGetGraph(void* node, void** graph) {
    const auto& kept = static_cast<Node*>(node)->parameters;
    return *graph = handle_of(std::const_pointer_cast<Graph>(std::static_pointer_cast<const Graph>(kept))), kSuccess;
}
// Three functions for each kind of node: add a node to a graph, change the node in the graph, and change the node in an
// executable graph. `work` makes the node's work from the parameters.
#define NODE(name, kind, Given, work)                                                                                  \
    API int cudaGraphAdd##name##Node(void** node, void* graph, void* const* before, size_t count, const Given* from) { \
        return add(graph, node, before, count, kind, work(from));                                                      \
    }                                                                                                                  \
    API int cudaGraph##name##NodeSetParams(void* node, const Given* from) { return set(node, work(from)); }            \
    API int cudaGraphExec##name##NodeSetParams(void* made, void* node, const Given* from) {                            \
        return set_step(made, node, work(from));                                                                       \
    }
NODE(Memcpy, kCopyNode, Copy3D, copy_work)
NODE(Memset, kFillNode, Fill, fill_work)
NODE(Host, kHostNode, Host, host_work)
API int cudaGraphAddMemcpyNode1D(void** node, void* graph, void* const* before, size_t count, void* to,
                                 const void* from, size_t bytes, int) {
    return add(graph, node, before, count, kCopyNode, copy_work(to, from, bytes));
}
API int cudaGraphMemcpyNodeSetParams1D(void* node, void* to, const void* from, size_t bytes, int) {
    return set(node, copy_work(to, from, bytes));
}
API int cudaGraphExecMemcpyNodeSetParams1D(void* made, void* node, void* to, const void* from, size_t bytes, int) {
    return set_step(made, node, copy_work(to, from, bytes));
}
API int cudaGraphAddMemcpyNodeToSymbol(void** node, void* graph, void* const* before, size_t count, const void* symbol,
                                       const void* from, size_t bytes, size_t offset, int) {
    char* to = memory_of(symbol, offset, bytes);
    return to ? add(graph, node, before, count, kCopyNode, copy_work(to, from, bytes)) : done(kInvalidSymbol);
}
API int cudaGraphAddMemcpyNodeFromSymbol(void** node, void* graph, void* const* before, size_t count, void* to,
                                         const void* symbol, size_t bytes, size_t offset, int) {
    const char* from = memory_of(symbol, offset, bytes);
    return from ? add(graph, node, before, count, kCopyNode, copy_work(to, from, bytes)) : done(kInvalidSymbol);
}
API int cudaGraphExecMemcpyNodeSetParamsToSymbol(void* made, void* node, const void* symbol, const void* from,
                                                 size_t bytes, size_t offset, int) {
    char* to = memory_of(symbol, offset, bytes);
    return to ? set_step(made, node, copy_work(to, from, bytes)) : done(kInvalidSymbol);
}
API int cudaGraphExecMemcpyNodeSetParamsFromSymbol(void* made, void* node, void* to, const void* symbol, size_t bytes,
                                                   size_t offset, int) {
    const char* from = memory_of(symbol, offset, bytes);
    return from ? set_step(made, node, copy_work(to, from, bytes)) : done(kInvalidSymbol);
}
API int cudaGraphAddEventRecordNode(void** node, void* graph, void* const* before, size_t count, void* event) {
    return add(graph, node, before, count, kRecordNode, [=] { return record(*static_cast<Event*>(event)); });
}
API int cudaGraphAddEventWaitNode(void** node, void* graph, void* const* before, size_t count, void*) {
    return add(graph, node, before, count, kWaitNode, nullptr);
}
API int cudaGraphAddMemAllocNode(void** node, void* graph, void* const* before, size_t count, void* parameters) {
    struct Allocate {
        char properties[88];
        const void* access;
        size_t accesses, bytes;
        void* pointer;
    };
    // Allocate the memory before the graph runs, because this function returns the memory's address to the program.
    Allocate& given = *static_cast<Allocate*>(parameters);
    given.pointer = allocate(given.bytes, Kind::kGraph);
    if (!given.pointer) return done(kOutOfMemory);
    return add(graph, node, before, count, kAllocateNode, nullptr);
}
API int cudaGraphAddMemFreeNode(void** node, void* graph, void* const* before, size_t count, void*) {
    return add(graph, node, before, count, kFreeNode, nullptr);
}
API int cudaGraphAddKernelNode(void** node, void* graph, void* const* before, size_t count, const KernelNode* given) {
    std::function<int()> work;
    std::shared_ptr<const void> parameters;
    if (const int error = kernel_work(*given, work, parameters)) return done(error);
    return add(graph, node, before, count, kKernelNode, work, parameters);
}
API int cudaGraphKernelNodeGetParams(void* node, KernelNode* to) {
    const auto* kept = static_cast<const KernelParameters*>(static_cast<Node*>(node)->parameters.get());
    if (static_cast<Node*>(node)->kind != kKernelNode || !kept) return done(kInvalidValue);
    return *to = kept->node, kSuccess;
}
API int cudaGraphKernelNodeSetParams(void* node, const KernelNode* given) {
    Node& to = *static_cast<Node*>(node);
    return done(kernel_work(*given, to.work, to.parameters));
}
API int cudaGraphExecKernelNodeSetParams(void* made, void* node, const KernelNode* given) {
    Step* step = step_of(made, node);
    std::shared_ptr<const void> parameters;
    return done(step ? kernel_work(*given, step->work, parameters) : int(kInvalidValue));
}
API int cudaGraphNodeSetEnabled(void* made, void* node, unsigned enabled) {
    Step* step = step_of(made, node);
    if (!step) return done(kInvalidValue);
    return step->enabled = enabled, kSuccess;
}
API int cudaGraphNodeGetEnabled(void* made, void* node, unsigned* enabled) {
    Step* step = step_of(made, node);
    if (!step) return done(kInvalidValue);
    return *enabled = step->enabled, kSuccess;
}

// Executable graphs.

API int cudaGraphInstantiate(void** made, void* graph, unsigned long long) {
    if (!graph_of(graph)) return done(kInvalidValue);
    const std::shared_ptr<Graph> kept = graphs()[graph_of(graph)];
    return *made = new ExecutableGraph{kept, steps_of(*kept)}, kSuccess;
}
API int cudaGraphInstantiateWithParams(void** made, void* graph, void* parameters) {
    struct Parameters {
        unsigned long long flags;
        void *stream, *node;
        int result;
    };
    Parameters& given = *static_cast<Parameters*>(parameters);
    given.node = nullptr, given.result = 0;
    return cudaGraphInstantiate(made, graph, given.flags);
}
API int cudaGraphExecUpdate(void* made, void* graph, void* result) {
    memset(result, 0, 3 * sizeof(void*));
    if (!graph_of(graph)) return done(kInvalidValue);
    std::vector<Step>& steps = static_cast<ExecutableGraph*>(made)->steps;
    const std::vector<Step> newer = steps_of(*graph_of(graph));
    bool alike = newer.size() == steps.size();
    for (size_t i = 0; alike && i < newer.size(); i++) alike = newer[i].kind == steps[i].kind;
    if (!alike) {
        *static_cast<int*>(result) = 2;  // cudaGraphExecUpdateErrorTopologyChanged
        return done(kGraphUpdateFailure);
    }
    for (size_t i = 0; i < newer.size(); i++) steps[i].work = newer[i].work;
    return kSuccess;
}
API int cudaGraphExecDestroy(void* made) { return delete static_cast<ExecutableGraph*>(made), kSuccess; }
API int cudaGraphLaunch(void* made, void* stream) {
    if (!made) return done(kInvalidValue);
    // A captured launch keeps the current work, even if the graph changes later.
    if (stream_of(stream)->capturing())
        return done(submit(stream, kChildNode,
                           [steps = static_cast<ExecutableGraph*>(made)->steps] { return run_steps(steps); }));
    return done(run_steps(static_cast<ExecutableGraph*>(made)->steps));
}
API int cudaDeviceGetGraphMemAttribute(int, int, void* value) { return *static_cast<uint64_t*>(value) = 0, kSuccess; }
