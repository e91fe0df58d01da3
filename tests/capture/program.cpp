// A CUDA program as nvcc's host code makes it, without nvcc: it registers a fat binary and calls the runtime library.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

struct Extent {
    unsigned x, y, z;
};
struct Scale {  // a structure that is passed by value
    float factor;
    int add;
    double unused;
};

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
int cudaMalloc(void**, size_t), cudaFree(void*), cudaMemcpy(void*, const void*, size_t, int), cudaGetLastError();
int cudaMemcpy2D(void*, size_t, const void*, size_t, size_t, size_t, int), cudaMemset(void*, int, size_t);
int cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int), cudaGraphLaunch(void*, void*);
int cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, int), cudaStreamEndCapture(void*, void**);
int cudaLaunchKernel(const void*, Extent, Extent, void**, size_t, void*), cudaStreamBeginCapture(void*, int);
int cudaStreamCreate(void**), cudaGraphInstantiate(void**, void*, unsigned long long), cudaHostRegister(void*, size_t, unsigned);
int cudaHostGetDevicePointer(void**, void*, unsigned), cudaDeviceGetAttribute(int*, int, int), cudaIpcCloseMemHandle(void*);
int cudaGraphExecUpdate(void*, void*, void*), cudaStreamWaitEvent(void*, void*, unsigned), cudaEventCreate(void**);
int cudaMallocAsync(void**, size_t, void*), cudaFreeAsync(void*, void*);
int cudaEventRecord(void*, void*), cudaEventDestroy(void*), cudaStreamIsCapturing(void*, int*);
int cudaDeviceSynchronize(), cudaEventElapsedTime(float*, void*, void*), cudaGraphGetNodes(void*, void**, size_t*), cudaGraphDestroy(void*);
int cudaGraphKernelNodeGetParams(void*, void*), cudaGraphExecKernelNodeSetParams(void*, void*, const void*);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, const void*, int, size_t);
const char* cudaGetErrorName(int);
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void**, int), cuCtxPushCurrent_v2(void*);
int cuModuleLoadData(void**, const void*), cuModuleGetFunction(void**, void*, const char*);
int cuModuleGetGlobal_v2(uint64_t*, size_t*, void*, const char*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
}

static std::string read(const char* path) {
    std::string text;
    if (FILE* file = fopen(path, "r")) {
        for (int c; (c = getc(file)) != EOF;) text += char(c);
        fclose(file);
    }
    return text;
}

static char scale_host, count_host, store_host, gain_host, total_host;  // addresses that stand for functions and variables

static void** register_code(const std::string& ptx, bool machine_code) {
    static std::vector<char> data;
    struct Wrapper {
        int magic, version;
        const void *data, *more;
    };
    static Wrapper wrapper = {0x466243b1, 1, nullptr, nullptr};
    const uint64_t padded = (ptx.size() + 8) / 8 * 8, size = 64 + padded;
    data.assign(16 + size, 0);
    auto put = [&](size_t at, auto value) { memcpy(&data[at], &value, sizeof value); };
    put(0, uint32_t(0xBA55ED50)), put(4, uint16_t(1)), put(6, uint16_t(16)), put(8, size);
    put(16, uint16_t(machine_code ? 2 : 1)), put(20, uint32_t(64)), put(24, padded), put(44, uint32_t(80));
    memcpy(&data[80], ptx.data(), ptx.size());
    wrapper.data = data.data();
    void** handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, &scale_host, nullptr, "scale", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    __cudaRegisterFunction(handle, &count_host, nullptr, "count", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    __cudaRegisterFunction(handle, &store_host, nullptr, "store_last", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    __cudaRegisterVar(handle, &gain_host, nullptr, "gain", 0, 4, 1, 0);
    __cudaRegisterVar(handle, &total_host, nullptr, "total", 0, 4, 0, 0);
    return handle;
}

static int scale(float* out, const float* in, int n, int blocks, void* stream = nullptr) {
    Scale by = {2.0f, 1, 0};
    void* arguments[] = {&out, &in, &n, &by};
    return cudaLaunchKernel(&scale_host, {unsigned(blocks), 1, 1}, {64, 1, 1}, arguments, 0, stream);
}

int main(int argc, char** argv) {
    const std::string ptx = read(argv[1]), mode = argv[2];
    register_code(ptx, mode == "machine code");
    const int n = 200;
    float values[n], *in, *out;
    for (int i = 0; i < n; i++) values[i] = float(i);
    cudaMalloc(reinterpret_cast<void**>(&in), sizeof values), cudaMalloc(reinterpret_cast<void**>(&out), sizeof values);
    cudaMemcpy(in, values, sizeof values, 1);
    if (mode == "scale" || mode == "machine code") {
        const float gain = 10;
        cudaMemcpyToSymbol(&gain_host, &gain, 4, 0, 1);
        for (int repeat = 0; repeat < 3; repeat++) scale(out, in, n, 4);
        cudaMemcpy(values, out, sizeof values, 2);
        printf("%g %g %s\n", values[0], values[n - 1], cudaGetErrorName(cudaGetLastError()));
    } else if (mode == "relaunch") {  // other arguments, another constant, then other memory at the same address
        const float gain = 3;
        float first[4] = {};
        scale(out, in, n, 4), scale(in, out, 2, 4);
        cudaMemcpyToSymbol(&gain_host, &gain, 4, 0, 1), scale(out, in, n, 4), cudaMemcpy(first, out, 16, 2);
        cudaFree(in), cudaMalloc(reinterpret_cast<void**>(&in), 400), cudaMemcpy(in, values, 400, 1);
        scale(out, in, 100, 4), cudaMemcpy(values, out, 16, 2);
        printf("%g %g %g\n", first[1], first[3], values[3]);
    } else if (mode == "variables") {
        void* none[] = {nullptr};
        for (int repeat = 0; repeat < 2; repeat++) cudaLaunchKernel(&count_host, {2, 1, 1}, {32, 1, 1}, none, 0, nullptr);
        int total = 0;
        cudaMemcpyFromSymbol(&total, &total_host, 4, 0, 2);
        printf("%d\n", total);
    } else if (mode == "graph") {
        void *stream, *graph, *made;
        cudaStreamCreate(&stream), cudaMemset(out, 0, sizeof values), cudaStreamBeginCapture(stream, 0);
        scale(out, in, n, 4, stream), scale(in, out, n, 4, stream);
        cudaStreamEndCapture(stream, &graph), cudaGraphInstantiate(&made, graph, 0);
        cudaMemcpy(values, out, sizeof values, 2);
        printf("%g ", values[3]);
        for (int repeat = 0; repeat < 2; repeat++) cudaGraphLaunch(made, stream);
        cudaMemcpy(values, in, sizeof values, 2);
        printf("%g\n", values[3]);
    } else if (mode == "graph memory") {  // a graph reuses its memory and events, which the program released
        void *stream, *graph, *made, *event;
        cudaStreamCreate(&stream), cudaEventCreate(&event), cudaStreamBeginCapture(stream, 0);
        cudaMallocAsync(reinterpret_cast<void**>(&out), sizeof values, stream), scale(out, in, n, 4, stream);
        cudaEventRecord(event, stream), cudaEventDestroy(event);
        cudaStreamEndCapture(stream, &graph), cudaGraphInstantiate(&made, graph, 0);
        for (int repeat = 0; repeat < 2; repeat++) {
            const int error = cudaGraphLaunch(made, stream);
            cudaMemcpy(values, out, sizeof values, 2), printf("%d %g ", error, values[3]), cudaFreeAsync(out, stream);
        }
        printf("\n");
    } else if (mode == "updated graph") {
        void *stream, *graph, *made;
        int result[8];
        cudaStreamCreate(&stream), cudaStreamBeginCapture(stream, 0), scale(out, in, n, 4, stream);
        cudaStreamEndCapture(stream, &graph), cudaGraphInstantiate(&made, graph, 0);
        cudaGraphExecUpdate(made, graph, result), cudaGraphLaunch(made, stream);
        cudaMemcpy(values, out, sizeof values, 2);
        printf("%g\n", values[3]);
    } else if (mode == "changed graph") {  // the executable graph keeps its own work after the graph is gone
        struct {
            const void* function;
            Extent grid, block;
            unsigned shared;
            void **arguments, **extra;
        } kernel;
        void *stream, *graph, *made, *changed, *node;
        size_t count = 1;
        Scale by = {3.0f, 0, 0};
        cudaStreamCreate(&stream), cudaStreamBeginCapture(stream, 0), scale(out, in, n, 4, stream);
        cudaStreamEndCapture(stream, &graph), cudaGraphGetNodes(graph, &node, &count);
        cudaGraphInstantiate(&made, graph, 0), cudaGraphInstantiate(&changed, graph, 0);
        cudaGraphKernelNodeGetParams(node, &kernel);
        void* arguments[] = {kernel.arguments[0], kernel.arguments[1], kernel.arguments[2], &by};
        kernel.arguments = arguments;
        cudaGraphExecKernelNodeSetParams(changed, node, &kernel), cudaGraphDestroy(graph);
        for (void* each : {made, changed}) {
            cudaGraphLaunch(each, stream), cudaMemcpy(values, out, sizeof values, 2);
            printf("%g ", values[3]);
        }
        printf("%s\n", cudaGetErrorName(cudaGraphDestroy(graph)));
    } else if (mode == "events") {
        void *first, *second;
        float none = 0, milliseconds = 0;
        cudaEventCreate(&first), cudaEventCreate(&second);
        const int error = cudaEventElapsedTime(&none, first, second);
        cudaEventRecord(first, nullptr), scale(out, in, n, 4), cudaEventRecord(second, nullptr);
        cudaEventElapsedTime(&milliseconds, first, second);
        printf("%s %d\n", cudaGetErrorName(error), milliseconds > 0);
    } else if (mode == "joined stream") {  // its work runs at once again after the capture
        void *stream, *joined, *event, *graph, *made;
        int capturing[2];
        cudaStreamCreate(&stream), cudaStreamCreate(&joined), cudaEventCreate(&event);
        cudaStreamBeginCapture(stream, 0), cudaEventRecord(event, stream), cudaStreamWaitEvent(joined, event, 0);
        scale(out, in, n, 4, joined), cudaStreamIsCapturing(joined, &capturing[0]);
        cudaStreamEndCapture(stream, &graph), cudaStreamIsCapturing(joined, &capturing[1]), cudaEventDestroy(event);
        scale(in, in, n, 4, joined), cudaGraphInstantiate(&made, graph, 0), cudaGraphLaunch(made, stream);
        cudaMemcpy(values, out, sizeof values, 2);
        printf("%d %d %g\n", capturing[0], capturing[1], values[3]);
    } else if (mode == "shared range") {
        for (int i = 0; i < 100; i++) cudaMalloc(reinterpret_cast<void**>(&out), sizeof values);
        cudaMalloc(reinterpret_cast<void**>(&in), sizeof values), cudaMemcpy(in, values, sizeof values, 1);
        scale(out, in, n, 4), cudaMemcpy(values, out, sizeof values, 2);
        printf("%g\n", values[3]);
        scale(out, in + n, 0, 4);  // a pointer to the end of an allocation
    } else if (mode == "many") {  // more allocations than ranges of addresses
        std::vector<char*> all(300);
        for (size_t i = 0; i < all.size(); i++) cudaMalloc(reinterpret_cast<void**>(&all[i]), 1000), cudaMemset(all[i], int(i), 1000);
        bool right = true;
        for (size_t i = 0; i < all.size(); i++) right &= all[i][999] == char(i), cudaFree(all[i]);
        printf("%d\n", right);
    } else if (mode == "table") {  // only memory has the address of the last allocation
        int count = 100, **table = nullptr;
        std::vector<int*> all(count);
        cudaMalloc(reinterpret_cast<void**>(&table), count * sizeof(int*));
        for (int*& each : all) cudaMalloc(reinterpret_cast<void**>(&each), sizeof(int));
        cudaMemcpy(table, all.data(), count * sizeof(int*), 1);
        void* arguments[] = {&table, &count};
        cudaLaunchKernel(&store_host, {1, 1, 1}, {1, 1, 1}, arguments, 0, nullptr);
        printf("%d\n", *all.back());
    } else if (mode == "registered") {
        float* seen = nullptr;
        std::vector<float> host(n, 1.0f);
        cudaHostRegister(host.data(), n * sizeof(float), 0);
        cudaHostGetDevicePointer(reinterpret_cast<void**>(&seen), host.data(), 0);
        scale(seen, seen, n, 4);
        printf("%g %g\n", host[0], host[n - 1]);
    } else if (mode == "rows") {
        char from[4][8] = {"abcdefg", "hijklmn", "opqrstu", "vwxyz12"}, to[4][4] = {};
        cudaMemcpy2D(in, 16, from, 8, 3, 4, 1), cudaMemcpy2D(to, 4, in, 16, 3, 4, 2);
        printf("%s%s%s%s\n", to[0], to[1], to[2], to[3]);
    } else if (mode == "device") {
        int multiprocessors = 0, blocks = 0;
        cudaDeviceGetAttribute(&multiprocessors, 16, 0);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &scale_host, 256, 0);
        printf("%d %d\n", multiprocessors, blocks);
    } else if (mode == "driver") {
        void *context, *module, *function;
        uint64_t total = 0;
        size_t bytes = 0;
        cuInit(0), cuDevicePrimaryCtxRetain(&context, 0), cuCtxPushCurrent_v2(context);
        cuModuleLoadData(&module, ptx.c_str()), cuModuleGetFunction(&function, module, "count");
        cuModuleGetGlobal_v2(&total, &bytes, module, "total");
        cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
        printf("%d %zu\n", *reinterpret_cast<int*>(total), bytes);
    } else if (mode == "out of bounds") {
        scale(out, in, 1000, 16);
        printf("%s ", cudaGetErrorName(cudaGetLastError()));
        printf("%s ", cudaGetErrorName(scale(out, in, n, 4)));
        printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    } else if (mode == "refused") {
        printf("%s\n", cudaGetErrorName(scale(out, in, n, 0)));
    } else if (mode == "missing call") {
        cudaIpcCloseMemHandle(nullptr);
    } else if (mode == "fork") {
        if (fork() == 0) cudaMalloc(reinterpret_cast<void**>(&out), 4), _exit(0);
        wait(nullptr);
    }
    return 0;
}
