// Common part of the programs that kernrec writes: fill tensors with numbers derived from their indices, check one
// launch against values computed on the CPU, and time further launches. Requires C++17 and the CUDA runtime.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace kernrec {

using Dims = std::map<std::string, long>;

struct Tensor {
    std::string name;
    std::string dtype;  // f64, f32, tf32, f16, bf16, f8e4m3 or i8
    long elements;
    double mean, deviation;  // Mean and standard deviation of the initial values
    bool output;
};

inline size_t element_bytes(const std::string& dtype) {
    return dtype == "f64" ? 8 : dtype == "f16" || dtype == "bf16" ? 2 : dtype == "f8e4m3" || dtype == "i8" ? 1 : 4;
}

inline void store(char* memory, const std::string& dtype, long place, double value) {
    char* target = memory + place * static_cast<long>(element_bytes(dtype));
    if (dtype == "f64") {
        std::memcpy(target, &value, 8);
    } else if (dtype == "f16") {
        const __half rounded = __float2half(static_cast<float>(value));
        std::memcpy(target, &rounded, 2);
    } else if (dtype == "bf16") {
        const __nv_bfloat16 rounded = __float2bfloat16(static_cast<float>(value));
        std::memcpy(target, &rounded, 2);
    } else if (dtype == "f8e4m3") {
        const __nv_fp8_e4m3 rounded(static_cast<float>(value));
        std::memcpy(target, &rounded, 1);
    } else if (dtype == "i8") {
        const auto rounded = static_cast<int8_t>(std::lrint(std::min(std::max(value, -128.0), 127.0)));
        std::memcpy(target, &rounded, 1);
    } else {
        const float rounded = static_cast<float>(value);
        std::memcpy(target, &rounded, 4);
    }
}

inline double load(const char* memory, const std::string& dtype, long place) {
    const char* source = memory + place * static_cast<long>(element_bytes(dtype));
    if (dtype == "f64") {
        double value;
        std::memcpy(&value, source, 8);
        return value;
    }
    if (dtype == "f16") {
        __half value;
        std::memcpy(&value, source, 2);
        return static_cast<double>(__half2float(value));
    }
    if (dtype == "bf16") {
        __nv_bfloat16 value;
        std::memcpy(&value, source, 2);
        return static_cast<double>(__bfloat162float(value));
    }
    if (dtype == "f8e4m3") {
        __nv_fp8_e4m3 value;
        std::memcpy(&value, source, 1);
        return static_cast<double>(static_cast<float>(value));
    }
    if (dtype == "i8") return static_cast<double>(static_cast<int8_t>(*source));
    float value;
    std::memcpy(&value, source, 4);
    return static_cast<double>(value);
}

// Return 64 pseudorandom bits derived from a number (SplitMix64).
inline uint64_t mixed(uint64_t number) {
    uint64_t z = (number + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Return a uniform number with the tensor's mean and standard deviation.
inline double drawn(const Tensor& tensor, uint64_t number, uint64_t place) {
    const double unit = static_cast<double>(mixed((number << 40) + place) >> 11) * 0x1p-53;
    return tensor.mean + tensor.deviation * std::sqrt(12.0) * (unit - 0.5);
}

// The values of all tensors on the CPU: `values(1, 7)` is element 7 of the second tensor.
struct Values {
    const std::vector<Tensor>& tensors;
    std::vector<std::vector<char>> memory;

    explicit Values(const std::vector<Tensor>& all) : tensors(all) {
        for (size_t number = 0; number < all.size(); ++number) {
            const Tensor& tensor = all[number];
            memory.emplace_back(static_cast<size_t>(tensor.elements) * element_bytes(tensor.dtype));
            for (long place = 0; !tensor.output && place < tensor.elements; ++place)
                store(memory[number].data(), tensor.dtype, place, drawn(tensor, number, static_cast<uint64_t>(place)));
        }
    }

    double operator()(size_t number, long place) const {
        return load(memory[number].data(), tensors[number].dtype, place);
    }
};

struct Case {
    std::string title;
    Dims dims;
    std::string layout;
    std::vector<Tensor> tensors;  // Inputs, followed by the output
    size_t workspace_bytes;
    cudaError_t (*launch)(void* const* tensors, void* workspace, cudaStream_t stream);
    double (*expected)(const Dims& dims, const std::string& layout, const Values& values, long place);
    long samples;  // Number of output elements to check
    double tolerance;  // Maximum error, divided by the expected value or the output's RMS, whichever is larger
    double predicted_s;
};

#define KERNREC_TRY(call)                                                                     \
    do {                                                                                      \
        const cudaError_t status = (call);                                                    \
        if (status != cudaSuccess) {                                                          \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));              \
            std::exit(2);                                                                     \
        }                                                                                     \
    } while (0)

// Run, check and time a case. Return whether the result is right.
inline bool run(const Case& item) {
    Values values(item.tensors);
    std::vector<void*> device(item.tensors.size());
    void* workspace = nullptr;
    for (size_t number = 0; number < device.size(); ++number) {
        const size_t bytes = values.memory[number].size();
        KERNREC_TRY(cudaMalloc(&device[number], bytes));
        if (item.tensors[number].output)
            KERNREC_TRY(cudaMemset(device[number], 0xFF, bytes));  // NaN reveals elements that the kernel does not write.
        else
            KERNREC_TRY(cudaMemcpy(device[number], values.memory[number].data(), bytes, cudaMemcpyHostToDevice));
    }
    if (item.workspace_bytes) KERNREC_TRY(cudaMalloc(&workspace, item.workspace_bytes));
    KERNREC_TRY(item.launch(device.data(), workspace, nullptr));
    KERNREC_TRY(cudaDeviceSynchronize());
    const size_t last = device.size() - 1;
    const Tensor& output = item.tensors[last];
    KERNREC_TRY(cudaMemcpy(values.memory[last].data(), device[last], values.memory[last].size(), cudaMemcpyDeviceToHost));

    std::vector<double> expected, actual;
    double squares = 0;
    for (long sample = 0; sample < item.samples; ++sample) {
        const uint64_t drawn_place = mixed(static_cast<uint64_t>(sample)) % static_cast<uint64_t>(output.elements);
        const long place = item.samples == output.elements ? sample : static_cast<long>(drawn_place);
        expected.push_back(item.expected(item.dims, item.layout, values, place));
        actual.push_back(values(last, place));
        squares += expected.back() * expected.back();
    }
    const double rms = std::sqrt(squares / static_cast<double>(item.samples));
    double largest = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double error = std::abs(actual[i] - expected[i]) / std::max(std::abs(expected[i]), rms > 0 ? rms : 1.0);
        largest = error <= largest ? largest : error;  // A NaN error becomes the largest error.
    }
    const bool right = largest <= item.tolerance;

    cudaEvent_t start, end;
    KERNREC_TRY(cudaEventCreate(&start));
    KERNREC_TRY(cudaEventCreate(&end));
    std::vector<float> times;
    for (int round = 0; round < 25; ++round) {
        KERNREC_TRY(cudaEventRecord(start));
        KERNREC_TRY(item.launch(device.data(), workspace, nullptr));
        KERNREC_TRY(cudaEventRecord(end));
        KERNREC_TRY(cudaEventSynchronize(end));
        float milliseconds = 0;
        KERNREC_TRY(cudaEventElapsedTime(&milliseconds, start, end));
        if (round >= 5) times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    std::printf("%s: %s, largest error %.2g of %.2g allowed (%ld of %ld values), median %.4g us of 20 calls\n",
                item.title.c_str(), right ? "correct" : "WRONG", largest, item.tolerance, item.samples,
                output.elements, static_cast<double>(times[times.size() / 2]) * 1e3);
    std::printf("  predicted: %.4g us. Data may stay in L2 from call to call.\n", item.predicted_s * 1e6);
    for (void* memory : device) KERNREC_TRY(cudaFree(memory));
    KERNREC_TRY(cudaFree(workspace));
    KERNREC_TRY(cudaEventDestroy(start));
    KERNREC_TRY(cudaEventDestroy(end));
    return right;
}

// Run all cases. With `--expected N`, print the first N expected values of each case instead, without a GPU.
inline int main_of(const std::vector<Case>& cases, int count, char** arguments) {
    if (count == 3 && std::string(arguments[1]) == "--expected") {
        for (const Case& item : cases) {
            const Values values(item.tensors);
            std::printf("%s\n", item.title.c_str());
            for (long place = 0; place < std::min(std::atol(arguments[2]), item.tensors.back().elements); ++place)
                std::printf("%.17g\n", item.expected(item.dims, item.layout, values, place));
        }
        return 0;
    }
    if (count != 1) {
        std::fprintf(stderr, "usage: %s [--expected N]\n", arguments[0]);
        return 2;
    }
    bool right = true;
    for (const Case& item : cases) right = run(item) && right;
    return right ? 0 : 1;
}

}  // namespace kernrec
