// The CUDA driver API (libcuda.so.1).
#include "core.h"
