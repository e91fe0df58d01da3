// The CUDA runtime API: memory, pools and copies.
#include <algorithm>
#include <cstring>

#include "runtime.h"

using namespace capture;

namespace {

// One side of a copy of rows: address of the first byte, and bytes between the starts of rows and of slices.
struct Side {
    char* first;
    size_t row, slice;
};
Side side_of(const Array* array, const Pitched& linear, const Position& at) {
    Side side = {static_cast<char*>(linear.pointer), linear.pitch, linear.pitch * linear.height};
    size_t unit = 1;
    if (array) {
        unit = array->texel();
        side = {static_cast<char*>(array->memory), array->width * unit,
                array->width * unit * (array->height ? array->height : 1)};
    }
    side.first += at.x * unit + at.y * side.row + at.z * side.slice;
    return side;
}
int copy_sides(Side to, Side from, size_t bytes, size_t rows, size_t slices) {
    for (size_t z = 0; z < slices; z++)
        for (size_t y = 0; y < rows; y++)
            if (const int error =
                    copy(to.first + z * to.slice + y * to.row, from.first + z * from.slice + y * from.row, bytes))
                return error;
    return kSuccess;
}

}  // namespace

namespace capture {

int copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows) {
    if (rows && (to_pitch < bytes || from_pitch < bytes)) return kInvalidValue;
    return copy_sides({static_cast<char*>(to), to_pitch, 0},
                      {static_cast<char*>(const_cast<void*>(from)), from_pitch, 0}, bytes, rows, 1);
}
int copy_3d(const Copy3D& from) {
    const Array* array = from.source_array ? from.source_array : from.target_array;
    const size_t bytes = from.extent.width * (array ? array->texel() : 1);
    return copy_sides(side_of(from.target_array, from.target, from.target_at),
                      side_of(from.source_array, from.source, from.source_at), bytes,
                      std::max<size_t>(from.extent.height, 1), std::max<size_t>(from.extent.depth, 1));
}

}  // namespace capture

namespace {

int allocate_to(void** pointer, size_t bytes, Kind kind) {
    if (!pointer) return done(kInvalidValue);
    *pointer = bytes ? allocate(bytes, kind) : nullptr;
    return done(bytes && !*pointer ? kOutOfMemory : kSuccess);
}
char pool_handle;  // All pools share one handle.

int release_from(void* pointer) { return done(!pointer || release(pointer) ? kSuccess : kInvalidValue); }

}  // namespace

// Memory.

API int cudaMalloc(void** pointer, size_t bytes) { return allocate_to(pointer, bytes, Kind::kDevice); }
API int cudaMallocAsync(void** pointer, size_t bytes, void* stream) {
    return allocate_to(pointer, bytes, stream_of(stream)->capturing() ? Kind::kGraph : Kind::kDevice);
}
API int cudaMallocFromPoolAsync(void** pointer, size_t bytes, void*, void* stream) {
    return cudaMallocAsync(pointer, bytes, stream);
}
API int cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
    return allocate_to(pointer, bytes, Kind::kManaged);
}
API int cudaMallocHost(void** pointer, size_t bytes) { return allocate_to(pointer, bytes, Kind::kHost); }
API int cudaFree(void* pointer) { return release_from(pointer); }
API int cudaFreeAsync(void* pointer, void* stream) {
    if (stream_of(stream)->capturing()) return submit(stream, kFreeNode, nullptr);
    return release_from(pointer);
}
API int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    return *device = device_address(host), done(*device ? kSuccess : kInvalidValue);
}
API int cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    return done(register_host(pointer, bytes) ? kSuccess : kInvalidValue);
}
API int cudaHostUnregister(void* pointer) { return done(unregister_host(pointer) ? kSuccess : kInvalidValue); }
API int cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}
API int cudaMalloc3D(Pitched* to, Volume extent) {
    *to = {nullptr, 0, extent.width, extent.height};
    return cudaMallocPitch(&to->pointer, &to->pitch, extent.width, extent.height * extent.depth);
}
API int cudaMemGetInfo(size_t* free, size_t* total) {
    return *total = device_memory(), *free = *total - used_memory(), kSuccess;
}
API int cudaPointerGetAttributes(void* attributes, const void* pointer) {
    struct Attributes {
        int type, device;
        const void *on_device, *on_host;
        long more[8];
    };
    const Allocation* inside = allocation_of(pointer);
    const int types[] = {2, 1, 3, 2};  // device, host, managed, array
    Attributes& to = *static_cast<Attributes*>(attributes);
    const bool seen_by_host = !inside || inside->kind == Kind::kHost || inside->kind == Kind::kManaged;
    to.type = inside ? types[int(inside->kind)] : 0, to.device = inside ? 0 : -2;
    to.on_device = inside ? pointer : nullptr, to.on_host = inside && seen_by_host ? pointer : nullptr;
    return kSuccess;
}
API int cudaMemcpy(void* to, const void* from, size_t bytes, int) { return done(copy(to, from, bytes)); }
API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
    return done(submit(stream, kCopyNode, [=] { return copy(to, from, bytes); }));
}
API int cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) { return done(copy(to, from, bytes)); }
API int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
    return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
API int cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows, int) {
    return done(copy_rows(to, to_pitch, from, from_pitch, bytes, rows));
}
API int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows,
                          int, void* stream) {
    return done(submit(stream, kCopyNode, [=] { return copy_rows(to, to_pitch, from, from_pitch, bytes, rows); }));
}
API int cudaMemcpy3D(const Copy3D* given) { return done(copy_3d(*given)); }
API int cudaMemcpy3DAsync(const Copy3D* given, void* stream) {
    const Copy3D from = *given;
    return done(submit(stream, kCopyNode, [from] { return copy_3d(from); }));
}
API int cudaMemset(void* to, int value, size_t bytes) { return done(fill(to, uint32_t(value), 1, bytes)); }
API int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream) {
    return done(submit(stream, kFillNode, [=] { return fill(to, uint32_t(value), 1, bytes); }));
}
API int cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t rows) {
    return done(fill_rows(to, pitch, uint32_t(value), 1, width, rows));
}
API int cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t rows, void* stream) {
    return done(submit(stream, kFillNode, [=] { return fill_rows(to, pitch, uint32_t(value), 1, width, rows); }));
}
API int cudaMemset3D(Pitched to, int value, Volume extent) {
    for (size_t z = 0; z < extent.depth; z++) {
        char* slice = static_cast<char*>(to.pointer) + z * to.pitch * to.height;
        const int error = fill_rows(slice, to.pitch, uint32_t(value), 1, extent.width, extent.height);
        if (error) return done(error);
    }
    return kSuccess;
}
API int cudaMemset3DAsync(Pitched to, int value, Volume extent, void* stream) {
    return done(submit(stream, kFillNode, [=] { return cudaMemset3D(to, value, extent); }));
}
API int cudaDeviceGetDefaultMemPool(void** pool, int) { return *pool = &pool_handle, kSuccess; }
API int cudaMemPoolGetAttribute(void*, int, void* value) { return *static_cast<uint64_t*>(value) = 0, kSuccess; }
API int cudaMemRangeGetAttribute(void* data, size_t bytes, int, const void*, size_t) {
    return memset(data, 0, bytes), kSuccess;
}
API int cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count, ...) {
    for (size_t i = 0; i < count; i++)
        if (const int error = copy(to[i], from[i], bytes[i])) return done(error);
    return kSuccess;
}
