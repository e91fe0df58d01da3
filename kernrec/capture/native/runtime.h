// Shared code of the CUDA runtime API's files: structures, the last error, symbols and copies of rows.
#pragma once

#include "core.h"

namespace capture {

// Return the error of a call, and store it for cudaGetLastError.
int done(int error);
// Return the error of a failed kernel, or success.
int synchronize();

// Return the kernel whose host function has this address, or null.
Function* find(const void* host);
// Return the memory of a variable, or null.
char* memory_of(const void* symbol, size_t offset = 0, size_t bytes = 0);

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

int copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows);
int copy_3d(const Copy3D& from);

struct KernelNode {
    const void* function;
    Extent grid, block;
    unsigned shared;
    void** arguments;
    void** extra;
};
// Parameters and values of a kernel node, as cudaGraphKernelNodeGetParams returns them.
struct KernelParameters {
    KernelNode node;
    std::string packed;
    std::vector<void*> arguments;
};
std::shared_ptr<const KernelParameters> parameters_of(const Function& function, const KernelNode& given);

// Return the graph's handle, which is valid until the program destroys the graph.
Graph* handle_of(std::shared_ptr<Graph> graph);

enum NodeKind {
    kKernelNode,
    kCopyNode,
    kFillNode,
    kHostNode,
    kChildNode,
    kEmptyNode,
    kWaitNode,
    kRecordNode,
    kAllocateNode = 10,
    kFreeNode
};

}  // namespace capture
