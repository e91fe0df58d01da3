// Machine code that another compiler made, loaded at its first launch. C++17; needs CUDA 12.8 or later.
#pragma once

#include <cuda_runtime.h>

#if CUDART_VERSION < 12080
#error "machine code is loaded by cudaLibraryLoadData, which needs CUDA 12.8 or later"
#endif

namespace kernrec {

struct LoadedKernel {
    cudaError_t error;
    const void* address = nullptr;  // as cudaLaunchKernel takes it, on every device

    LoadedKernel(const void* code, const char* name) {
        cudaLibrary_t library{};
        cudaKernel_t kernel{};
        error = cudaLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
        if (error == cudaSuccess) error = cudaLibraryGetKernel(&kernel, library, name);
        if (error == cudaSuccess) address = static_cast<const void*>(kernel);
    }
};

}  // namespace kernrec
