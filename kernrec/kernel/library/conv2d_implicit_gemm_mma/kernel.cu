// f16 and bf16 convolution on tensor cores: see conv2d_mma.cuh.

#include "conv2d_mma.cuh"
